"""Descent with a fixed step: one compiled program per metric serves every part of the study.

The program follows one start until it is decided; starts are handed to it one by one, because
they end after very different numbers of iterations and a batched loop would wait for the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import Problem
from natgrad.descent import Method as Descending

from ..mixtures import LOWER, UPPER
from .landscape import ESCAPES, REACHES, UNDECIDED, Verdict
from .methods import Method
from .settings import MAX_ITERATIONS

ROUNDING = 1e-13  # a relative rise of the loss below this is not one


class Rule(eqx.Module):
    """When a run ends before its iterations are used up.

    It always ends off the map (Ω and a margin), where ρ no longer depends on μ and directions are
    rounding error.
    """

    on_rise: Array
    on_reach: Array
    on_escape: Array
    step_tolerance: Array

    @classmethod
    def of(
        cls, rise: bool = False, reach: bool = False, escape: bool = False, tolerance: float = 0.0
    ) -> "Rule":
        """The rule with these flags."""
        return cls(
            jnp.asarray(rise), jnp.asarray(reach), jnp.asarray(escape), jnp.asarray(tolerance)
        )


class _Run(NamedTuple):
    path: Array
    losses: Array
    iterations: Array
    outcome: Array
    rises: Array
    ended: Array


@dataclass(frozen=True)
class Descent:
    """A run: its iterates and losses (integrals), its fate, and how often the loss rose."""

    path: np.ndarray
    losses: np.ndarray
    outcome: int
    rises: int

    @property
    def iterations(self) -> int:
        """Steps taken."""
        return len(self.path) - 1

    @property
    def first_outside(self) -> int | None:
        """The first iterate outside Ω."""
        outside = np.any((self.path < LOWER) | (self.path > UPPER), axis=1)
        return int(np.argmax(outside)) if outside.any() else None


@eqx.filter_jit
def _run(
    problem: Problem,
    method: Descending,
    start: Array,
    tau: Array,
    limit: Array,
    rule: Rule,
    verdict: Verdict,
) -> _Run:
    loss = lambda mu: problem.value(mu, problem.model(mu))
    first = loss(start)
    path = jnp.full((MAX_ITERATIONS + 1, 2), jnp.nan).at[0].set(start)
    losses = jnp.full(MAX_ITERATIONS + 1, jnp.nan).at[0].set(first)

    def step(run: _Run) -> _Run:
        k = run.iterations
        here = run.path[k]
        local = method.linearise(problem, here, method.init(problem, here))
        eta = local.solve(jnp.zeros_like(local.trace)).eta
        mu = here + tau * eta
        value = loss(mu)
        rose = ~(value <= run.losses[k] * (1 + ROUNDING))
        outcome = jnp.where(run.outcome == UNDECIDED, verdict(mu, value), run.outcome)
        ended = (
            ~jnp.isfinite(value)
            | ~verdict.on_map(mu)
            | (rule.on_rise & rose)
            | (rule.on_reach & (outcome == REACHES))
            | (rule.on_escape & (outcome == ESCAPES))
            | (jnp.linalg.norm(tau * eta) <= rule.step_tolerance)
        )
        return _Run(
            run.path.at[k + 1].set(mu),
            run.losses.at[k + 1].set(value),
            k + 1,
            outcome,
            run.rises + rose,
            ended,
        )

    zero = jnp.zeros((), int)
    begin = _Run(path, losses, zero, verdict(start, first), zero, jnp.asarray(False))
    return jax.lax.while_loop(lambda run: ~run.ended & (run.iterations < limit), step, begin)


def descend(
    method: Method,
    start: np.ndarray,
    verdict: Verdict,
    rule: Rule,
    iterations: int,
    step: float | None = None,
) -> Descent:
    """θ ← θ + τη from `start`, at most `iterations` ≤ 400 times."""
    tau = jnp.asarray(method.step if step is None else step, float)
    limit = jnp.asarray(min(iterations, MAX_ITERATIONS))
    run = _run(method.problem, method.descent, jnp.asarray(start, float), tau, limit, rule, verdict)
    last = int(run.iterations) + 1
    return Descent(
        np.asarray(run.path[:last]),
        np.asarray(run.losses[:last]),
        int(run.outcome),
        int(run.rises),
    )


def starts_in_domain(per_side: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres of per_side² equal squares that fill Ω: their coordinate, and all pairs of them."""
    side = LOWER + (np.arange(per_side) + 0.5) * (UPPER - LOWER) / per_side
    return side, np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)


def direction_field(method: Method, points: np.ndarray, verdict: Verdict) -> np.ndarray:
    """η at each point: one step of length one."""
    rule = Rule.of()
    runs = [descend(method, point, verdict, rule, 1, step=1.0) for point in points]
    return np.array([run.path[1] - run.path[0] for run in runs])


@dataclass(frozen=True)
class Basins:
    """The fate of every start: arrays over the starts, first index along x."""

    side: np.ndarray
    outcome: np.ndarray
    iterations: np.ndarray
    rose: np.ndarray

    def count(self, outcome: int) -> int:
        """Starts with this outcome."""
        return int(np.sum(self.outcome == outcome))


def basins(method: Method, verdict: Verdict, per_side: int, iterations: int) -> Basins:
    """Run `method` with its step from a grid of starts in Ω until each is decided."""
    side, starts = starts_in_domain(per_side)
    rule = Rule.of(reach=True, escape=True)
    runs = [descend(method, start, verdict, rule, iterations) for start in starts]
    square = lambda values: np.array(values).reshape(per_side, per_side)
    return Basins(
        side,
        square([run.outcome for run in runs]),
        square([run.iterations for run in runs]),
        square([run.rises > 0 for run in runs]),
    )


@dataclass(frozen=True)
class LargestStep:
    """The largest step found (in our units) with which the loss falls at every iteration.

    `bounded` is False where no step up to the ceiling failed. The search goes upward, so `step` is
    the end of the first interval of monotone steps; longer ones may work by chance.
    """

    step: float
    bounded: bool
    run: Descent


def largest_step(
    method: Method, start: np.ndarray, verdict: Verdict, iterations: int, bisections: int
) -> LargestStep:
    """Search upward from the paper's step, then bisect."""
    rule = Rule.of(rise=True, escape=True, tolerance=1e-7)
    attempt = partial(descend, method, start, verdict, rule, iterations)
    monotone = lambda tau: attempt(step=tau).rises == 0
    step, bounded = search_upward(monotone, method.step, bisections)
    return LargestStep(step, bounded, attempt(step=step))


def search_upward(
    holds: Callable[[float], bool],
    first: float,
    bisections: int,
    growth: float = 1.6,
    ceiling: float = 200.0,
) -> tuple[float, bool]:
    """The largest x ≥ tiny with holds(x), up to ceiling · first, and whether it is bounded.

    Grows (or, where `first` fails, shrinks) by `growth` until the answer changes, then bisects on
    a logarithmic scale.
    """
    low, high = first, first
    if holds(first):
        while holds(high := low * growth):
            low = high
            if low > ceiling * first:
                return low, False
    else:
        while not holds(low := high / growth):
            high = low
            if high < first / ceiling:
                return 0.0, True
    for _ in range(bisections):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, True
