"""The permeability to be found, and noisy pressures computed from it on a finer grid."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .flow import centres, coarsened, inflows, pressure
from .settings import Settings


def log_permeability(n: int, seed: int) -> np.ndarray:
    """m on n × n cells: a smooth random field, a winding channel and two inclusions.

    The random field is a sum of cosines with normal amplitudes that do not depend on n, so
    that finer grids sample the same function.
    """
    rng = np.random.default_rng(seed)
    modes = 12
    i = np.arange(modes)
    spread = (1 + (np.pi * 0.22) ** 2 * (i[:, None] ** 2 + i**2)) ** -1.5
    amplitudes = rng.normal(size=(modes, modes)) * spread
    amplitudes[0, 0] = 0.0
    x, y = np.moveaxis(centres(n), -1, 0)
    cosines = np.cos(np.pi * i[:, None] * (np.arange(n) + 0.5) / n)
    smooth = cosines.T @ amplitudes @ cosines
    smooth *= 0.55 / np.sqrt(np.sum(amplitudes**2) / 4)
    channel = _step(0.055 - np.abs(y - 0.52 - 0.17 * np.sin(5.2 * x + 0.4)))
    sand = _step(0.12 - np.hypot(x - 0.27, 0.8 * (y - 0.2)))
    clay = _step(0.11 - np.hypot(0.8 * (x - 0.72), y - 0.83))
    return smooth + 1.7 * channel + 1.0 * sand - 1.7 * clay


def _step(inside: np.ndarray, width: float = 0.012) -> np.ndarray:
    """1 where positive, 0 where negative, with a smooth passage."""
    return 0.5 * (1 + np.tanh(inside / width))


@dataclass(frozen=True)
class Data:
    """Pressures with noise, and what they came from."""

    truth: np.ndarray  # m on n × n cells
    inflow: np.ndarray  # the sources
    clean: np.ndarray  # the pressures observed, from the finer grid
    noise: float  # σ, the standard deviation of the noise
    observed: np.ndarray
    model_error: float  # rms of what the coarse grid gets wrong of the clean data, over σ


def observed(pressures: Any, every: int) -> Any:
    """The pressures in the middle of every block of `every` × `every` cells, or next to it."""
    return pressures[..., every // 2 :: every, every // 2 :: every]


def measured(settings: Settings, every: int) -> Data:
    """Data of one variant: pressures at the centre of every `every`-th cell in each direction.

    They come from a grid of twice as many cells a side, whose values around a cell's centre are
    averaged: data from the grid of the inversion itself would be an inverse crime, since they carry
    its errors. The noise is white, with a standard deviation relative to the rms of the data.
    """
    n, shape = settings.cells, (settings.sources, settings.width)
    fine = log_permeability(2 * n, settings.seed)
    truth, inflow = coarsened(fine), inflows(n, *shape)
    clean = observed(coarsened(pressure(fine, inflows(2 * n, *shape))), every)
    sigma = settings.noise * float(np.sqrt(np.mean(clean**2)))
    rng = np.random.default_rng(settings.seed + 1)
    wrong = observed(pressure(truth, inflow), every) - clean
    return Data(
        truth=truth,
        inflow=inflow,
        clean=clean,
        noise=sigma,
        observed=clean + sigma * rng.normal(size=clean.shape),
        model_error=float(np.sqrt(np.mean(wrong**2)) / sigma),
    )
