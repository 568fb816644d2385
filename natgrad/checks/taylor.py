"""Taylor tests: how the remainders of a derivative fall with the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

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
    changes: Sequence[ArrayLike], slope: ArrayLike, eps: float, size: float = 0.0
) -> Taylor:
    """The test for the changes F(θ + hη) − F(θ), h in `steps_for(eps)`, and the derivative along η.

    `size` is the scale of the derivative. It is right if an error falls below 1e-4 (in single
    precision 1e-2), or if the remainders fall at second order somewhere and nowhere at first order
    twice in a row: where the evaluations are noisy, errors rise again before they are small.
    """
    steps, slope = steps_for(eps), np.asarray(slope)
    pairs = list(zip(map(np.asarray, changes), steps, strict=True))
    remainders = [norm(change - h * slope) for change, h in pairs]
    sizes = [max(norm(slope), norm(change) / h, size) for change, h in pairs]
    errors = [ratio(r / h, s) for r, h, s in zip(remainders, steps, sizes, strict=True)]
    finite = np.isfinite(errors)
    if not np.all(np.isfinite(slope)) or np.sum(finite) < 3:
        return Taylor(steps, tuple(remainders), tuple(errors), np.inf, np.nan, False)
    error = float(np.min(np.array(errors)[finite]))
    kept = np.maximum(np.array(remainders)[finite], np.finfo(float).tiny)
    orders = np.diff(np.log(kept)) / np.diff(np.log(np.array(steps)[finite]))
    first = (orders > FIRST_ORDER[0]) & (orders < FIRST_ORDER[1])
    second = bool(np.any(orders >= SECOND_ORDER)) and not np.any(first[1:] & first[:-1])
    passed = error <= (1e-4 if eps < 1e-10 else 1e-2) or second
    return Taylor(steps, tuple(remainders), tuple(errors), error, float(np.max(orders)), passed)


def norm(x: ArrayLike) -> float:
    """‖x‖ as a number."""
    return float(np.linalg.norm(np.asarray(x)))


def ratio(a: float, b: float) -> float:
    """a/b, or a where b is zero."""
    return a / b if b else a


def worst(tests: Sequence[Taylor]) -> Taylor:
    """A test that failed, if there is one; of these that with the largest error."""
    return max(tests, key=lambda test: (not test.passed, test.error))
