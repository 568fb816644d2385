"""Densities and tangents for the benchmarks of transport metrics, in NumPy."""

import math

import numpy as np
from scipy.ndimage import gaussian_filter

FLOOR = 1e-14  # natgrad's default in double precision


def mixture(n: int, dim: int = 2) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """ρ and the two columns ∂ρ/∂μ₁ of 0.2 N((5, 3), 0.6) + 0.8 N((4, 3), 0.6) on n × n cells."""
    h = 10.0 / n
    axis = -2.75 + (np.arange(n) + 0.5) * h
    points = np.meshgrid(*[axis] * dim, indexing="ij")
    centre = ([5.0, 3.0, 3.0][:dim], [4.0, 3.0, 3.0][:dim])
    bump = lambda mean: (
        np.exp(-sum((x - m) ** 2 for x, m in zip(points, mean, strict=True)) / 1.2)
        / (1.2 * math.pi) ** (dim / 2)
    )
    moving = 0.2 * bump(centre[0])
    tangents = np.stack([moving * (points[i] - centre[0][i]) / 0.6 for i in range(2)])
    return moving + 0.8 * bump(centre[1]), tangents, (h,) * dim


def log_normal(
    n: int, dim: int, cells: float, spread: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """exp of a Gaussian field, correlated over `cells` cells, with random tangents."""
    generator = np.random.default_rng(seed)
    field = generator.standard_normal((n,) * dim)
    if cells:
        field = gaussian_filter(field, cells, mode="reflect")
    density = np.exp(spread * field / field.std())
    tangents = generator.standard_normal((2, *density.shape))
    return density, tangents, (1.0 / n,) * dim


def prepared(
    density: np.ndarray, tangents: np.ndarray, floor: float = FLOOR
) -> tuple[np.ndarray, np.ndarray]:
    """The floored density, and the tangents with their mass removed along it."""
    a = np.maximum(density, floor * density.max())
    axes = tuple(range(1, tangents.ndim))
    return a, tangents - a * (tangents.sum(axes, keepdims=True) / a.sum())


def face_weights(a: np.ndarray) -> list[np.ndarray]:
    """√a on the interior faces, by the arithmetic mean."""
    inside = lambda axis, low: np.take(a, range(low, a.shape[axis] - 1 + low), axis)
    return [np.sqrt(0.5 * (inside(axis, 0) + inside(axis, 1))) for axis in range(a.ndim)]
