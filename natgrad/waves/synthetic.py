"""Synthetic sections to try an inversion on, and starting models made from any section.

Each section is a function of position, in units of its depth. It is sampled at four times the
resolution asked for and averaged, so the geology is the same at every resolution, and a wider
section shows more of it. `seed` draws the numbers of layers, folds and faults.
"""

from collections.abc import Callable

import numpy as np
import scipy

from ..errors import InputError

WATER = 1500.0
SALT = 4500.0
FASTEST = 5500.0
FINER = 4

Spacing = float | tuple[float, float]


def folded_layers(
    shape: tuple[int, int], spacing: Spacing, *, water: float | None = None, seed: int = 0
) -> np.ndarray:
    """Folded layers, cut off by an unconformity under gently dipping ones: (x, z), in m/s.

    A layer is a slice a ≤ s < b of s(x, z) = z − z f(x), f a sum of waves, so that folds grow with
    depth. `water` is the depth of the sea in metres, by default a twentieth of the section's.

    ```python
    velocity = ng.waves.folded_layers((306, 120), 25.0)
    ```

    Cost: 16 evaluations a cell.

    Args:
        shape: Cells along x and z.
        spacing: Size of a cell in metres.
        water: Depth of the sea in metres.
        seed: Seed of the layers.
    """
    return _section(shape, spacing, water, _folds, seed)


def faulted_layers(
    shape: tuple[int, int], spacing: Spacing, *, water: float | None = None, seed: int = 0
) -> np.ndarray:
    """Dipping layers thrown along inclined normal faults: tilted blocks and grabens, (x, z) in m/s.

    A point on the hanging wall of a fault has the rock that lay up the fault by its slip, which
    grows with depth and dies out away from the fault. Arguments as for `folded_layers`.

    ```python
    velocity = ng.waves.faulted_layers((306, 120), 25.0)
    ```

    Cost: 16 evaluations a cell.

    Args:
        shape: Cells along x and z.
        spacing: Size of a cell in metres.
        water: Depth of the sea in metres.
        seed: Seed of the layers.
    """
    return _section(shape, spacing, water, _faults, seed)


def salt_body(
    shape: tuple[int, int], spacing: Spacing, *, water: float | None = None, seed: int = 0
) -> np.ndarray:
    """Folded sediments around salt of 4500 m/s: a canopy with a rough top on a stem, (x, z) in m/s.

    This is the hardest of the three to invert: little of the energy that enters the salt returns
    from below it. Arguments as for `folded_layers`.

    ```python
    velocity = ng.waves.salt_body((306, 120), 25.0)
    ```

    Cost: 16 evaluations a cell.

    Args:
        shape: Cells along x and z.
        spacing: Size of a cell in metres.
        water: Depth of the sea in metres.
        seed: Seed of the layers.
    """
    return _section(shape, spacing, water, _salt, seed)


def smoothed(
    velocity: np.ndarray, cells: float, *, keep: int = 0, edges: str = "nearest"
) -> np.ndarray:
    """A starting model: the Gaussian mean over a standard deviation of `cells` cells.

    The first `keep` cells in depth are unchanged, because the sea is known. Beyond its `edges` the
    model continues with its last cell ("nearest") or its mirror image ("reflect"). The two differ
    if `cells` is a sizeable part of a side: "reflect" then loses more of the trend with depth.

    ```python
    initial = ng.waves.smoothed(velocity, 8.0, keep=6)
    ```

    Args:
        velocity: The model.
        cells: Standard deviation in cells.
        keep: Cells in depth that stay as they are.
        edges: "nearest" or "reflect".
    """
    velocity = _model(velocity)
    if not (np.isfinite(cells) and cells >= 0):
        raise InputError("cells", f"{cells!r} is no width", "cells=8.0")
    if not 0 <= keep <= velocity.shape[-1]:
        what = f"{keep} rows of a model that has {velocity.shape[-1]}"
        raise InputError("keep", what, "the rows of water, keep=6")
    if edges not in ("nearest", "reflect"):
        raise InputError("edges", f"{edges!r} is unknown", "'nearest' or 'reflect'")
    initial = scipy.ndimage.gaussian_filter(velocity, cells, mode=edges)
    initial[..., :keep] = velocity[..., :keep]
    return initial


def coarsened(velocity: np.ndarray, factor: int) -> np.ndarray:
    """c with 1/c² the mean of 1/c² over blocks of `factor` cells a side: the same model, smaller.

    Cells beyond the last whole block are dropped. Waves average the squared slowness, which is the
    coefficient of u_tt.

    >>> coarsened(np.array([[1500.0, 1500.0], [3000.0, 3000.0]]), 2).round(1).tolist()
    [[1897.4]]

    Args:
        velocity: The model, in m/s.
        factor: Cells a side that become one.
    """
    velocity = _model(velocity)
    if not (int(factor) == factor and 1 <= factor <= min(velocity.shape)):
        what = f"{factor!r} does not divide a model of {velocity.shape} into blocks"
        raise InputError("factor", what, f"a whole number from 1 to {min(velocity.shape)}")
    factor = int(factor)
    blocks = [n // factor for n in velocity.shape]
    whole = velocity[tuple(slice(n * factor) for n in blocks)]
    split = [side for n in blocks for side in (n, factor)]
    mean = (whole.reshape(split) ** -2).mean(axis=tuple(range(1, len(split), 2)))
    # Rounding must not take a block of water below the water's own velocity.
    return np.clip(mean**-0.5, whole.min(), whole.max())


def _model(velocity: np.ndarray) -> np.ndarray:
    velocity = np.asarray(velocity, float)
    if velocity.ndim not in (2, 3) or velocity.size == 0:
        raise InputError("velocity", f"has shape {velocity.shape}", "axes (x, z) or (x, y, z)")
    if not np.all(np.isfinite(velocity) & (velocity > 0)):
        raise InputError("velocity", "is not finite and positive", "velocities in m/s")
    return velocity


Painter = Callable[[np.ndarray, np.ndarray, float, np.random.Generator], np.ndarray]


def _section(
    shape: tuple[int, int], spacing: Spacing, water: float | None, paint: Painter, seed: int
) -> np.ndarray:
    """Cells of the mean squared slowness of `paint`, in units of depth from the sea floor down."""
    if len(shape) != 2 or min(shape) < 2:
        raise InputError("shape", f"{shape} is no section", "(306, 120): cells along x and z")
    spacings = np.asarray(spacing, float)
    if spacings.size not in (1, 2) or not np.all(np.isfinite(spacings) & (spacings > 0)):
        raise InputError("spacing", f"{spacing!r} is not positive", "spacing=25.0, in metres")
    hx, hz = (float(h) for h in np.broadcast_to(spacings, 2))
    depth = shape[1] * hz
    water = depth / 20 if water is None else water
    if not 0 <= water < depth:
        what = f"{water!r} m in a section that is {depth:g} m deep"
        raise InputError("water", what, f"water={depth / 20:g}")
    rock = depth - water
    nx, nz = (FINER * n for n in shape)
    x = ((np.arange(nx) + 0.5) * hx / FINER / rock)[:, None]
    z = (((np.arange(nz) + 0.5) * hz / FINER - water) / rock)[None, :]
    rocks = paint(x, np.maximum(z, 0), shape[0] * hx / rock, np.random.default_rng(seed))
    return coarsened(np.where(z < 0, WATER, np.clip(rocks, WATER + 50, FASTEST)), FINER)


def _waves(x: np.ndarray, rng: np.random.Generator, terms: dict[float, float]) -> np.ndarray:
    """Σ a sin(2πx/ℓ + φ) over wavelengths ℓ and amplitudes a, at random phases φ."""
    waves = [a * np.sin(2 * np.pi * (x / length + rng.random())) for length, a in terms.items()]
    return np.sum(waves, axis=0)


def _layers(
    s: np.ndarray, rng: np.random.Generator, count: int, top: float, bottom: float, contrast: float
) -> np.ndarray:
    """Layers of unequal thickness over −0.5 ≤ s < 1.5, from `top` at s = 0 to `bottom` at s = 1."""
    thickness = 0.25 + rng.random(count)
    floors = 2 * np.cumsum(thickness) / thickness.sum() - 0.5
    middles = floors - thickness / thickness.sum()
    velocity = top + (bottom - top) * middles + contrast * rng.uniform(-1, 1, count)
    return velocity[np.minimum(np.searchsorted(floors, s, side="right"), count - 1)]


def _folds(x: np.ndarray, z: np.ndarray, width: float, rng: np.random.Generator) -> np.ndarray:
    folds = _waves(x, rng, {1.7: 0.20, 0.93: 0.10, 0.41: 0.02})
    below = _layers(z - (0.3 + z) * folds, rng, 44, 2000.0, 4000.0, 550.0) + 300 * z
    cover = _layers(z - 0.05 * x / width - 0.1 * z * folds, rng, 60, 1700.0, 3600.0, 200.0)
    unconformity = 0.24 + 0.06 * x / width + _waves(x, rng, {2.3: 0.02, 0.6: 0.008})
    return np.where(z < unconformity, cover, below)


def _faults(x: np.ndarray, z: np.ndarray, width: float, rng: np.random.Generator) -> np.ndarray:
    x, z = np.broadcast_arrays(x, z)
    at, side = 0.35, 1.0
    while at < width:
        slope = np.tan(np.radians(rng.uniform(55, 68)))
        away = side * (x - at) - z / slope
        slip = rng.uniform(0.10, 0.22) * np.clip(2 * z, 0, 1) * np.exp(-np.abs(away) / 0.5)
        slip = np.where(away > 0, slip, 0.0)
        length = np.hypot(1, slope)
        x, z = x - side * slip / length, z - slip * slope / length
        at, side = at + rng.uniform(0.35, 0.6), side if rng.random() < 0.6 else -side
    s = z - 0.10 * (x / width - 0.5) - 0.4 * z * _waves(x, rng, {2.6: 0.12, 1.1: 0.06})
    return _layers(s, rng, 50, 1750.0, 4600.0, 380.0) + 200 * z


def _salt(x: np.ndarray, z: np.ndarray, width: float, rng: np.random.Generator) -> np.ndarray:
    across = (x - 0.5 * width) / min(0.75, 0.35 * width)
    dome = np.sqrt(np.clip(1 - across**2, 0, None))
    rough = _waves(x, rng, {0.31: 0.022, 0.17: 0.014, 0.09: 0.010, 0.053: 0.006})
    top = 0.42 + (rough - 0.2) * dome
    base = 0.45 + 0.04 * across + (0.08 + 0.3 * rough) * dome
    canopy = (z > top) & (z < base) & (dome > 0)
    # The stem leans, and widens into the canopy above and the mother salt below.
    half = 0.15 + 0.35 * np.exp(-(z - 0.5) / 0.05) + 0.6 * np.exp((z - 0.97) / 0.05)
    stem = (np.abs(across + 0.25 - 0.4 * z) < half) & (z > 0.5)
    mother = z > 0.96 + _waves(x, rng, {1.3: 0.01})
    dragged = 0.16 * np.exp(-((across / 0.5) ** 2)) * z
    s = z + dragged - (0.15 + z) * _waves(x, rng, {2.1: 0.10, 0.8: 0.045})
    sediments = _layers(s, rng, 56, 1750.0, 3800.0, 320.0) + 200 * z
    return np.where(canopy | stem | mother, SALT, sediments)
