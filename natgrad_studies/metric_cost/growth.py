"""Exponents of growth: the slope of log t against log k."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Growth:
    """t ≈ c kᵉ fitted by least squares in logarithms, over grids of `lower` to `upper` a side."""

    exponent: float
    lower: int
    upper: int


def fitted(seconds: Mapping[int, float], fit_from: int) -> Growth | None:
    """The growth of t(n) with k = n² over n ≥ `fit_from`, and over the two largest n at least.

    >>> fitted({10: 1.0, 20: 4.0, 40: 16.0}, 20)
    Growth(exponent=1.0, lower=20, upper=40)

    None where fewer than two sizes were measured.
    """
    sizes = sorted(seconds)
    if len(sizes) < 2:
        return None
    chosen = [n for n in sizes if n >= fit_from]
    chosen = sizes[-2:] if len(chosen) < 2 else chosen
    x = np.array([2 * math.log(n) for n in chosen])
    y = np.array([math.log(seconds[n]) for n in chosen])
    x = x - x.mean()
    return Growth(float(np.round(x @ y / (x @ x), 12)), chosen[0], chosen[-1])


def local_exponent(cost: str, lower: int, upper: int) -> float:
    """The exponent that a cost "k", "k log k" or "k^1.25" shows between two sizes.

    >>> round(local_exponent("k log k", 280, 2240), 3)
    1.076
    """
    if cost == "k":
        return 1.0
    if cost == "k log k":
        ratio = math.log(upper) / math.log(lower)
        return 1.0 + math.log(ratio) / (2 * math.log(upper / lower))
    return float(cost.removeprefix("k^"))
