"""Taylor tests: how the remainders of a derivative fall with the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SECOND_ORDER = 1.7  # an observed order from here on is that of a right derivative
FIRST_ORDER = (0.7, 1.3)  # what a wrong derivative leaves


@dataclass(frozen=True)
class Taylor:
    """Remainders ‖F(θ + hη) − F(θ) − h·(derivative along η)‖ for falling steps h.

    `errors` are the remainders over h, relative to the derivative: they fall like h for a right
    derivative until rounding makes them rise again, and stay where they are for a wrong one.
    `error` is the smallest, `order` the largest order at which two remainders fell.
    """

    steps: tuple[float, ...]
    remainders: tuple[float, ...]
    errors: tuple[float, ...]
    error: float
    order: float
    passed: bool


def steps_for(eps: float) -> tuple[float, ...]:
    """Decades from a tenth in double precision, half-decades in single."""
    factor = 10.0 if eps < 1e-10 else 10**0.5
    return tuple(0.1 / factor**j for j in range(5))


def taylor_test(
    steps: Sequence[float],
    changes: Sequence[np.ndarray],
    slope: np.ndarray,
    eps: float,
    size: float = 0.0,
) -> Taylor:
    """The test for the changes F(θ + hη) − F(θ) and the derivative along η; `size` is its scale.

    A derivative is right if an error falls below 1e-4 (in single precision 1e-2), or if the
    remainders fall at second order somewhere and nowhere at first order twice in a row: where the
    evaluations are noisy, errors rise again before they are small.
    """
    h = np.asarray(steps)
    remainders = np.array([norm(c - t * slope) for c, t in zip(changes, h, strict=True)])
    sizes = np.array([max(norm(slope), norm(c) / t, size) for c, t in zip(changes, h, strict=True)])
    errors = np.array([ratio(r / t, s) for r, t, s in zip(remainders, h, sizes, strict=True)])
    finite = np.isfinite(errors)
    if not np.all(np.isfinite(slope)) or np.sum(finite) < 3:
        return Taylor(tuple(steps), _floats(remainders), _floats(errors), np.inf, np.nan, False)
    h, kept, error = h[finite], remainders[finite], float(np.min(errors[finite]))
    tiny = np.finfo(float).tiny
    orders = np.diff(np.log(np.maximum(kept, tiny))) / np.diff(np.log(h))
    first = (orders > FIRST_ORDER[0]) & (orders < FIRST_ORDER[1])
    second = bool(np.any(orders >= SECOND_ORDER)) and not np.any(first[1:] & first[:-1])
    passed = error <= (1e-4 if eps < 1e-10 else 1e-2) or second
    order = float(np.max(orders))
    return Taylor(tuple(steps), _floats(remainders), _floats(errors), error, order, bool(passed))


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, values))


def norm(x: np.ndarray) -> float:
    """‖x‖ as a number."""
    return float(np.linalg.norm(x))


def ratio(a: float, b: float) -> float:
    """a/b, or a where b is zero."""
    return a / b if b else a


def worst_number(values: Sequence[float]) -> float:
    """The largest, infinite if one is not a number."""
    return float("inf") if np.any(np.isnan(values)) else float(max(values))


def worst(tests: Sequence[Taylor]) -> Taylor:
    """A test that failed, if there is one; of these that with the largest error."""
    return max(tests, key=lambda test: (not test.passed, test.error))
