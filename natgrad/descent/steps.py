"""How far along a direction: fixed, backtracking and model steps. None knows how it was found."""

import abc
from operator import attrgetter
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import loop
from ..core.operators import pick
from ..core.outcomes import Counts, Status
from ..core.settings import Number, Public, setting
from ..direction.local import Local
from ..metrics.base import Metric
from ..models.base import Evaluation
from ..parameters import flatten
from ..problem import Problem
from ..solvers.base import Solution, Trail

SHRINKAGE = 0.375  # each term of a curve relative to the one before it, at most
HOLDS, POOR, GOOD = 0.1, 0.25, 0.75  # actual over predicted decrease
NEAREST = 0.1  # the next trial on a trail, relative to the length of the last, at least
OK, NO_DECREASE = Status.OK.code, Status.NO_DECREASE.code
NOT_FINITE, INADMISSIBLE = Status.NOT_FINITE.code, Status.INADMISSIBLE.code


class Trial(NamedTuple):
    """A point θ(τ) of the path and what was found there."""

    theta: Array
    value: Array
    admissible: Array
    linear_decrease: Array  # −⟨∂_θ f, θ(τ) − θ⟩, which the actual decrease is compared with
    known: Evaluation | None = None  # the model's evaluation, where it is worth keeping


class Path:
    """The points θ(τ) = θ + τη + τ²a₂ + … that a step may lead to, put back into the bounds.

    `coefficients` are the rows η, a₂, …, or None for a straight line; `damping` is the λ that η
    was found with; `counts` has the products spent on the path. `untried` is what a loop over
    trials starts from, so that a program has one copy of the model.
    """

    def __init__(
        self,
        local: Local,
        solution: Solution,
        damping: Array,
        coefficients: Array | None = None,
        counts: Counts = Counts(),
    ):
        self.local, self.solution, self.damping = local, solution, damping
        self.coefficients, self.counts = coefficients, counts
        self.flat, self.unravel = flatten(local.setup.theta)
        self.eta, self.value = solution.eta, local.loss
        self.slope = local.gradient @ solution.eta
        model, known, nothing = local.setup.problem.model, None, jnp.zeros((), self.flat.dtype)
        if model.solves and not model.on_host:
            shapes = jax.eval_shape(model.evaluate, local.setup.theta)
            known = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        self.untried = Trial(self.flat, self.value, jnp.asarray(False), nothing, known)

    def trial(self, tau: Array, first: Array | None = None) -> Trial:
        """θ(τ), with the decrease that the gradient promises for it.

        The terms of a curve must shrink at the `first` length tried, which is τ by default.
        """
        straight = self.flat + tau.astype(self.flat.dtype) * self.eta
        ahead = straight
        if self.coefficients is not None:
            longest = jnp.abs(tau if first is None else first)
            sizes = jnp.linalg.norm(self.coefficients, axis=1)
            shrinking = longest.astype(sizes.dtype) * sizes[1:] < SHRINKAGE * sizes[:-1]
            kept = jnp.append(True, jnp.cumprod(shrinking).astype(bool))[:, None]
            curve = offset(jnp.where(kept, self.coefficients, 0.0), tau)
            ahead = self.flat + curve.astype(self.flat.dtype)
        bounds = self.local.setup.bounds
        if bounds is not None:
            straight, ahead = (jnp.clip(x, bounds.lower, bounds.upper) for x in (straight, ahead))
        decrease = -self.local.gradient @ (straight - self.flat)
        return self.at(ahead)._replace(linear_decrease=decrease)

    def at(self, point: Array) -> Trial:
        """Any other point."""
        problem, moved = self.local.setup.problem, self.unravel(point)
        known = problem.model.evaluate(moved)
        value, admissible = assess(problem, self.local.setup.metric, moved, known.rho)
        decrease = -self.local.gradient @ (point - self.flat)
        return Trial(point, value, admissible, decrease, known if problem.model.solves else None)


def offset(coefficients: Array, tau: Array) -> Array:
    """τη + τ²a₂ + …, by Horner's rule, which is smooth at τ = 0."""
    total = jnp.zeros_like(coefficients[0])
    for coefficient in coefficients[::-1]:
        total = tau.astype(total.dtype) * (coefficient + total)
    return total


@eqx.filter_jit
def assess(
    problem: Problem, metric: Metric | None, theta: PyTree, rho: PyTree
) -> tuple[Array, Array]:
    """The value at a trial point, and whether the metric is defined there."""
    admissible = jnp.asarray(True) if metric is None else metric.admissible(rho)
    return problem.value(theta, rho), admissible


class Outcome(NamedTuple):
    """What became of a step.

    `predicted` is the linear decrease promised by the first length tried. `expected` is the
    decrease that the quadratic model expects of the last one, NaN where the rule has no such model,
    and `ratio` the actual decrease over this, or over the linear one. `status` is the code of a
    `Status`; `known` the evaluation of the model at the new point, where it is worth keeping.
    """

    accepted: Array
    status: Array
    tau: Array
    theta: Array
    value: Array
    halvings: Array
    ratio: Array
    predicted: Array
    counts: Counts
    expected: Array
    known: Evaluation | None = None


class Step(Public, eqx.Module):
    """A rule for the length τ of θ ← θ + τ η. It may carry a memory from one step to the next.

    `on_host` says that the step is driven from Python, `follows_curves` that it is taken along a
    path, which may then be a curve, `has_radius` that its memory is a `Trust`. A solver that knows
    the radius leaves the trail to η, of which the step may take a part.
    """

    on_host: ClassVar[bool] = False
    follows_curves: ClassVar[bool] = True
    has_radius: ClassVar[bool] = False

    def init(self, theta: Array) -> PyTree:
        """The memory before the first step; of θ there are the shape and the dtype."""
        return None

    @abc.abstractmethod
    def take(self, path: Path, memory: PyTree) -> tuple[Outcome, PyTree]:
        """Look along the path and accept a point of it, or none."""


class FixedStep(Step):
    """τ always the same. A step that would not decrease the loss is rejected and ends the run.

    With `require_decrease=False` such a step is taken all the same and shows in
    `history["decreased"]`. With a `limit` it is no longer than that, τ‖η‖ ≤ `limit`.

    ```python
    ng.FixedStep(0.3)
    ```

    Cost: one evaluation.

    Args:
        size: τ.
        require_decrease: Whether a step that does not decrease the loss is rejected.
        limit: The most that θ may move in one step; None for no limit.
    """

    size: Number = setting("size", positive=True)
    require_decrease: bool = eqx.field(static=True, default=True)
    limit: Number | None = setting("limit", positive=True, optional=True)

    def take(self, path: Path, memory: PyTree) -> tuple[Outcome, PyTree]:
        tau = jnp.asarray(self.size, path.value.dtype)
        if self.limit is not None:
            length = jnp.linalg.norm(path.eta)
            longest = jnp.asarray(self.limit) / jnp.where(length > 0, length, 1.0)
            tau = jnp.minimum(tau, longest.astype(tau.dtype))
        trial = path.trial(tau)
        sufficient = trial.value < path.value if self.require_decrease else jnp.asarray(True)
        return conclude(path, tau, trial, sufficient, 0, trial.linear_decrease, 0), memory


class Backtracking(Step):
    """τ = `initial`, then halved until the loss falls by the Armijo share of the linear decrease.

    f(θ(τ)) ≤ f(θ) + `sufficient` ⟨∂_θ f, θ(τ) − θ⟩, with θ(τ) on the bounds where it leaves them.

    ```python
    ng.Backtracking(initial=1.0)
    ```

    Cost: one evaluation per trial. Reference: Nocedal and Wright, Numerical Optimization, ch. 3.

    Args:
        initial: The first τ that is tried.
        shrink: Factor on τ after a trial that fails.
        sufficient: Share of the linear decrease that the loss must fall by.
        max_halvings: Number of times that τ is shrunk before the step is rejected.
    """

    initial: Number = setting("initial", 1.0, positive=True)
    shrink: Number = setting("shrink", 0.5, positive=True, below=1.0)
    sufficient: Number = setting("sufficient", 1e-4, below=1.0)
    max_halvings: int = eqx.field(static=True, default=30)

    def take(self, path: Path, memory: PyTree) -> tuple[Outcome, PyTree]:
        return backtrack(path, jnp.asarray(self.initial, path.value.dtype), self, 0), memory


class Trust(NamedTuple):
    """How far the model has held: ‖τη‖_D ≤ `radius`, and the last τ, which η is measured with.

    A radius of 0 says that nothing is known yet. `ratio` is the last decrease over the one expected
    of it, from a quarter to 1.
    """

    radius: Array
    tau: Array
    ratio: Array


class ModelStep(Step):
    """τ = −⟨∂_θ f, η⟩ / ⟨Zη, ∇²f Zη⟩, the minimiser of the Gauss–Newton model along η; then halved.

    Natural directions of different metrics differ in length by orders of magnitude: this step has
    no length to tune. Where the curvature is negative its absolute value is used, and the first
    trial is at most max(1, ‖θ‖) away; where the curvature is zero, just that far.

    With `CG` it keeps a radius within which the model is trusted. The step leads to the point where
    the trail of conjugate gradients leaves the radius, times τ. It is taken if the loss falls by a
    tenth of what the quadratic model predicts; else the next trial is nearer on the same trail,
    without a product. The radius is halved after a step with less than a quarter of the decrease
    predicted, and doubled where it was in the way of one with more than three quarters. `CG()` has
    its first iteration end with the first conjugate gradient, so that the radius grows from there.

    ```python
    ng.ModelStep()
    ```

    Cost: one evaluation per trial, and one linearised product, which `CG` and `LSMR` have made.
    Reference: Steihaug, SIAM J. Numer. Anal. 20 (1983); Conn, Gould and Toint, Trust-Region
    Methods, SIAM 2000. [What else was tried](../trust_measured.md).

    Args:
        shrink: Factor on τ after a trial that fails.
        sufficient: Share of the linear decrease that the loss must fall by, without a radius.
        max_halvings: Number of times that τ is shrunk before the step is rejected.
    """

    has_radius: ClassVar[bool] = True

    shrink: Number = setting("shrink", 0.5, positive=True, below=1.0)
    sufficient: Number = setting("sufficient", 1e-4, below=1.0)
    max_halvings: int = eqx.field(static=True, default=30)

    def init(self, theta: Array) -> Trust:
        return Trust(jnp.zeros((), float), jnp.ones((), float), jnp.ones((), float))

    def take(self, path: Path, memory: Trust) -> tuple[Outcome, Trust]:
        curvature, products = path.local.curvature(path.solution)
        length = -path.slope / jnp.abs(curvature)
        size = jnp.linalg.norm(path.eta)
        longest = jnp.maximum(1.0, jnp.linalg.norm(path.flat)) / jnp.where(size > 0, size, 1.0)
        longest = longest.astype(length.dtype)
        bounded = jnp.where(jnp.isnan(length), longest, jnp.clip(length, -longest, longest))
        tau = jnp.where((curvature > 0) & jnp.isfinite(length), length, bounded)
        if path.solution.trail is not None:
            return step_back(path, path.solution.trail, tau, self, memory, products)
        return backtrack(path, tau, self, products, curvature), memory


def refuse(path: Path) -> Outcome:
    """No step, without looking: there is no direction, or not a finite one."""
    zero, none = jnp.zeros_like(path.value), jnp.zeros((), int)
    return Outcome(
        accepted=jnp.asarray(False),
        status=jnp.where(jnp.isfinite(path.slope), NO_DECREASE, NOT_FINITE),
        tau=zero,
        theta=path.flat,
        value=path.value,
        halvings=none,
        ratio=zero,
        predicted=zero,
        counts=Counts().plus(),
        expected=jnp.full_like(zero, jnp.nan),
    )


class Attempt(NamedTuple):
    """A point of the trail that was tried.

    `length` is that of the step and `share` its part of the whole; `ratio` is the decrease over the
    one `expected`, and `holds` says that the point can be taken. `promised` is the linear decrease
    of the first point tried.
    """

    trial: Trial
    length: Array
    share: Array
    expected: Array
    ratio: Array
    holds: Array
    going: Array  # whether a nearer point is to be tried
    tries: Array
    promised: Array


def step_back(
    path: Path, trail: Trail, tau: Array, rule: ModelStep, trust: Trust, linearised: int
) -> tuple[Outcome, Trust]:
    """Try the point where the trail leaves the radius, then nearer ones until the model holds.

    τ takes the lengths of the metric's model to those of the loss: its decrease at η is
    τ (−⟨∂_θ f, η⟩ − ½⟨η, (G + λD) η⟩), exact at the end of the trail.
    """
    size, dtype, bounds = jnp.abs(tau), path.value.dtype, path.local.setup.bounds
    end = jnp.sqrt(jnp.sum(trail.products))
    limit = jnp.where(trust.radius > 0, trust.radius, jnp.inf).astype(end.dtype)

    def attempt(last: Attempt) -> Attempt:
        decrease, linear = path.value - last.trial.value, last.trial.linear_decrease
        parabola = 0.5 * linear / (linear - decrease)  # its minimum, as a share of the length
        known = jnp.isfinite(decrease) & last.trial.admissible & (linear > decrease)
        shortened = jnp.clip(parabola, NEAREST, jnp.asarray(rule.shrink, dtype))
        factor = jnp.where(known, shortened, NEAREST).astype(last.length.dtype)
        begins, tries = last.tries < 0, last.tries + 1
        radius = jnp.where(begins, limit, factor * last.length)
        eta, length, linear, quadratic = trail.follow(radius / jnp.where(size > 0, size, 1.0))
        point = path.flat + tau.astype(eta.dtype) * eta
        point = point if bounds is None else jnp.clip(point, bounds.lower, bounds.upper)
        trial = path.at(point)
        kept = trial.linear_decrease / jnp.where(linear == 0, 1.0, tau * linear)  # by bounds
        expected = (trial.linear_decrease - 0.5 * kept**2 * size * quadratic).astype(dtype)
        ratio = (path.value - trial.value) / jnp.where(expected > 0, expected, 1.0)
        ratio = jnp.where((expected > 0) & jnp.isfinite(ratio), ratio, -jnp.inf)
        usable = jnp.all(jnp.isfinite(trial.theta)) & trial.admissible
        holds = usable & (ratio >= HOLDS) & (trial.value < path.value)
        share = length / jnp.where(end > 0, end, 1.0)
        going = ~holds & (tries < rule.max_halvings)
        promised = jnp.where(begins, trial.linear_decrease, last.promised)
        found = (size * length, share, expected, ratio, holds, going, tries, promised)
        return Attempt(trial, *found)

    none, yes, value = jnp.zeros_like(end), jnp.asarray(True), jnp.zeros_like(path.value)
    found = (size * none, none, value, value, ~yes, yes, jnp.full((), -1, int))
    blank = Attempt(path.untried, *found, path.untried.linear_decrease)
    last = loop(attrgetter("going"), attempt, blank)
    taken = tau * last.share.astype(tau.dtype)
    outcome = conclude(path, taken, last.trial, last.holds, last.tries, last.promised, linearised)
    outcome = outcome._replace(ratio=last.ratio, expected=last.expected)

    good, poor, held = last.ratio > GOOD, ~(last.ratio >= POOR), last.share < 1
    reached = last.length * jnp.where(good, 2.0, jnp.where(poor, 0.5, 1.0))
    grown = jnp.where(good & held, jnp.maximum(limit, 2 * last.length), limit)
    radius = jnp.where(poor | (last.tries > 0) | ~jnp.isfinite(limit), reached, grown)
    usable = jnp.isfinite(radius) & (radius > 0) & (size > 0) & jnp.isfinite(size)
    dtype, ratio = trust.radius.dtype, jnp.clip(last.ratio, POOR, 1.0)
    new = Trust(radius.astype(dtype), size.astype(dtype), ratio.astype(dtype))
    return outcome, pick(usable, new, trust)


def backtrack(
    path: Path,
    tau: Array,
    rule: "Backtracking | ModelStep",
    linearised: int,
    curvature: Array | None = None,
) -> Outcome:
    """Shorten τ until the decrease is sufficient; `linearised` products were spent before.

    With the `curvature` of the loss along η the outcome has the decrease that this predicts.
    """
    shrink = jnp.asarray(rule.shrink, tau.dtype)

    def enough(trial: Trial) -> Array:
        wanted = jnp.asarray(rule.sufficient, tau.dtype) * trial.linear_decrease
        return (trial.value <= path.value - wanted) & (trial.value < path.value)

    def searching(carry: tuple[Array, Trial, Array, Array]) -> Array:
        _, trial, halvings, _ = carry
        finite = jnp.isfinite(trial.value) & jnp.all(jnp.isfinite(trial.theta))
        usable = finite & trial.admissible
        return (halvings < 0) | (~(enough(trial) & usable) & (halvings < rule.max_halvings))

    def go_on(carry: tuple[Array, Trial, Array, Array]) -> tuple[Array, Trial, Array, Array]:
        tau, _, halvings, promised = carry
        begins = halvings < 0
        tau = jnp.where(begins, tau, tau * shrink)
        trial = path.trial(tau, first)
        return tau, trial, halvings + 1, jnp.where(begins, trial.linear_decrease, promised)

    first, none = tau, jnp.full((), -1, int)
    start = first, path.untried, none, path.untried.linear_decrease
    tau, trial, halvings, promised = loop(searching, go_on, start)
    outcome = conclude(path, tau, trial, enough(trial), halvings, promised, linearised)
    if curvature is None:
        return outcome
    linear, straight = trial.linear_decrease, -tau * path.slope
    kept = linear / jnp.where(straight == 0, 1.0, straight)
    expected = linear - 0.5 * (kept * tau) ** 2 * curvature
    ratio = (path.value - trial.value) / jnp.where(expected == 0, 1.0, expected)
    known = (curvature > 0) & jnp.asarray(path.coefficients is None)
    return outcome._replace(
        expected=jnp.where(known, expected, jnp.nan), ratio=jnp.where(known, ratio, outcome.ratio)
    )


def conclude(
    path: Path,
    tau: Array,
    trial: Trial,
    sufficient: Array,
    halvings: Array | int,
    promised: Array,
    linearised: int,
) -> Outcome:
    """The outcome of a step that ended at `trial`, `sufficient` or not."""
    finite = jnp.isfinite(trial.value) & jnp.all(jnp.isfinite(trial.theta))
    status = jnp.where(
        ~finite,
        NOT_FINITE,
        jnp.where(~trial.admissible, INADMISSIBLE, jnp.where(sufficient, OK, NO_DECREASE)),
    )
    predicted = jnp.where(trial.linear_decrease == 0, 1.0, trial.linear_decrease)
    return Outcome(
        accepted=status == OK,
        status=status,
        tau=tau,
        theta=trial.theta,
        value=trial.value,
        halvings=jnp.asarray(halvings),
        ratio=(path.value - trial.value) / predicted,
        predicted=promised,
        counts=Counts().plus(forward=jnp.asarray(halvings) + 1, linearised=linearised),
        expected=jnp.full_like(path.value, jnp.nan),
        known=trial.known,
    )
