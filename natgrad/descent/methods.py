"""Methods: everything that makes an iteration, as objects with one interface.

A method works in two halves, so that a loop can test the gradient before anything is spent on a
step: `linearise` makes f, ∂_θ f and the prepared system at θ, `try_step` solves it for one λ and
takes a step. `step` is both, for your own loops.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import is_traced, jit_forwarding, loop
from ..core.outcomes import Counts, Status
from ..core.settings import Number, Public, check_instance, check_number, replace_fields
from ..direction.damping import Damping, as_damping
from ..direction.linearise import check, choose, linearise
from ..direction.local import Local, Setup
from ..errors import InputError
from ..metrics.base import Metric
from ..models.base import Evaluation
from ..parameters import Bounds, as_bounds, flatten
from ..problem import Problem
from ..result import Result
from ..solvers import Auto
from ..solvers.base import MatrixFreeSolver, SolveInfo, Solver
from ..solvers.cg import CG
from .curves import bend
from .steps import ModelStep, Path, Step, refuse

LARGEST_ORDER = 5
MOST_REJECTIONS = 30
BoundsLike = tuple[PyTree, PyTree] | Bounds | None
AnyMethod = TypeVar("AnyMethod", bound="Method")
AnyLinearMethod = TypeVar("AnyLinearMethod", bound="LinearMethod")


class State(eqx.Module):
    """All that a method carries from one iteration to the next, besides θ.

    λ, what the solver remembers, the last direction where there is momentum, the memory of the
    step rule, and the gradient norm that tolerances refer to: the first of a run, or with
    `batches` the largest. `known` is an evaluation of the model at θ, handed on to the next
    linearisation; it is not part of a checkpoint. `one_program` says that an iteration can be
    compiled as a whole, because nothing in it is outside JAX, or so dear that it waits for a test.
    """

    damping: Array
    memory: PyTree
    previous: Array | None
    rule: PyTree
    first_norm: Array
    known: Evaluation | None = None
    batches: bool = eqx.field(static=True, default=False)
    one_program: bool = eqx.field(static=True, default=False)

    def without_evaluation(self) -> "State":
        """The part that is kept in a checkpoint."""
        return dataclasses.replace(self, known=None)


class Record(NamedTuple):
    """What became of one try: numbers, and the code of a `Status`.

    `predicted` is the decrease promised by the first length tried, `expected` what the quadratic
    model expects of the last, `radius` how far it is trusted, `slope` is ⟨∂_θ f, η⟩, `reach` the
    share of the whitened gradient that the tangent space can answer to; `failed` says that the
    direction was not finite, which another λ does not mend.
    """

    accepted: Array
    status: Array
    step: Array
    value: Array
    halvings: Array
    ratio: Array
    predicted: Array
    slope: Array
    reach: Array
    damping: Array
    step_norm: Array
    theta_norm: Array
    info: SolveInfo
    counts: Counts
    failed: Array
    expected: Array | float = float("nan")
    radius: Array | float = float("nan")


class Method(Public, eqx.Module):
    """What makes an iteration. A new method has `check`, `init`, `linearise` and `try_step`.

    ```python
    state = method.init(problem, theta)
    for _ in range(10):
        theta, state, record = method.step(problem, theta, state)
    ```
    """

    @property
    def tries(self) -> int:
        """How many λ are tried at one θ before it is given up."""
        return 1

    @abc.abstractmethod
    def check(
        self, problem: Problem, theta: PyTree, *, bounds: BoundsLike = None
    ) -> Evaluation | None:
        """Refuse bad input, on the host; returns the evaluation of the model that it took."""

    @abc.abstractmethod
    def init(
        self,
        problem: Problem,
        theta: PyTree,
        *,
        known: Evaluation | None = None,
        batches: bool = False,
    ) -> State:
        """The state before the first iteration; with `batches` each is about another problem."""

    @abc.abstractmethod
    def linearise(
        self, problem: Problem, theta: PyTree, state: State, *, bounds: BoundsLike = None
    ) -> Local:
        """f, ∂_θ f and the prepared system at θ."""

    @abc.abstractmethod
    def try_step(self, local: Local, state: State) -> tuple[PyTree, State, Record]:
        """Solve for one λ, take a step, and learn from it; θ stays where the step is rejected."""

    def map_metric(self: AnyMethod, function: Callable[[Metric], Metric]) -> AnyMethod:
        """This method with another metric; itself if it has none."""
        return self

    def after(self: AnyMethod, result: Result) -> AnyMethod:
        """This method for a run that continues another, with what that has learnt."""
        return self

    def step(
        self, problem: Problem, theta: PyTree, state: State, *, bounds: BoundsLike = None
    ) -> tuple[PyTree, State, Record]:
        """One iteration, rejected tries included: for your own loops.

        Under `eqx.filter_jit` and `eqx.filter_vmap` for models in JAX.

        ```python
        step = eqx.filter_jit(lambda theta, state: method.step(problem, theta, state)[:2])
        ```
        """
        local = self.linearise(problem, theta, state, bounds=as_bounds(bounds, theta))
        return self.try_steps(local, state)

    def try_steps(
        self, local: Local, state: State, limits: Array | np.ndarray | None = None
    ) -> tuple[PyTree, State, Record]:
        """Try steps until one is accepted or none can be.

        With `limits`, a tolerance and a number of propagations, none is tried where the gradient is
        within the tolerance, and no more than these are spent on all of the iteration. The record
        is that of the last try, with the propagations of all and the decrease that the first one
        predicted. In a compiled program the tries are one loop, traced once.
        """
        compiled, tries = is_traced((local, state)), jnp.zeros((), int)
        norm, first = local.gradient_norm, jnp.asarray(state.first_norm)
        largest = jnp.fmax(first, norm)
        first = largest if state.batches else jnp.where(jnp.isnan(first), largest, first)
        state = dataclasses.replace(state, first_norm=first)
        left = None
        if limits is not None:
            tolerance, most = limits
            left = jnp.where(norm <= tolerance * first, 0, most - sum(local.counts))
        fresh = lambda state: dataclasses.replace(state, known=None) if compiled else state
        (theta, unravel), record = flatten(local.setup.theta), None  # a loop carries one vector

        def again(tried: tuple[PyTree, State, Record, Array]) -> Array:
            _, _, record, tries = tried
            going = ~(record.accepted | record.failed) & (tries < self.tries)
            return going if left is None else going & (sum(record.counts) < left)

        def retry(tried: tuple[PyTree, State, Record | None, Array]) -> Any:
            _, state, last, tries = tried
            theta, state, record = self.try_step(local, state)
            record = jax.tree.map(jnp.asarray, record)
            if last is not None:
                promised = jnp.where(tries == 0, record.predicted, last.predicted)
                counts = record.counts.plus(*last.counts)
                record = record._replace(counts=counts, predicted=promised)
            return flatten(theta)[0] if compiled else theta, fresh(state), record, tries + 1

        state, once = fresh(state), self.tries == 1 and limits is None
        if compiled and not once:
            _, _, shapes, _ = eqx.filter_eval_shape(retry, (theta, state, None, tries))
            record = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        start = theta, state, record, tries
        start = retry(start) if record is None else start  # a loop traces its body once
        theta, state, record, _ = start if once else loop(again, retry, start)
        assert record is not None
        if not (compiled or bool(record.accepted)):
            state = state.without_evaluation()
        return unravel(theta) if compiled else theta, state, record


class LinearMethod(Method):
    """A method that solves (G + λD) η = −∂_θ f and takes a step along η.

    A new one has `damping`, `step_rule`, and `put_together`, which says what G is.
    """

    damping: eqx.AbstractVar[Damping]
    step_rule: eqx.AbstractVar[Step]
    order: ClassVar[int] = 1
    momentum: ClassVar[Array | None] = None

    @abc.abstractmethod
    def put_together(self, problem: Problem, theta: PyTree) -> Setup:
        """The parts that are put together at θ."""

    @property
    def tries(self) -> int:
        return MOST_REJECTIONS if self.damping.adapts else 1

    def after(self: AnyLinearMethod, result: Result) -> AnyLinearMethod:
        """A λ that adapts begins as that of the last accepted step."""
        taken = result.history["damping"][result.history["step"] > 0]
        if not (self.damping.adapts and taken.size):
            return self
        return replace_fields(
            self, damping=replace_fields(self.damping, initial=np.asarray(taken[-1]))
        )

    def check(
        self, problem: Problem, theta: PyTree, *, bounds: BoundsLike = None
    ) -> Evaluation | None:
        known = check(self.put_together(problem, theta))
        model = problem.model
        if self.order > 1 and (model.on_host or model.solves):
            kind = type(model).__name__
            what = f"{self.order} needs derivatives of that order, which a {kind} does not have"
            raise InputError("order", what, "order=1")
        as_bounds(bounds, theta)
        return known

    def init(
        self,
        problem: Problem,
        theta: PyTree,
        *,
        known: Evaluation | None = None,
        batches: bool = False,
    ) -> State:
        flat = jax.eval_shape(lambda: flatten(theta)[0])
        _, solver = choose(dataclasses.replace(self.put_together(problem, theta), known=known))
        model, memory = problem.model, None
        dear = model.solves or model.on_host or self.step_rule.on_host
        own = type(self).try_step is LinearMethod.try_step  # else it may be plain Python
        if isinstance(solver, MatrixFreeSolver):
            alone = batches or model.overhead > 1  # then no step goes without products
            dear, memory = True, solver.initial_memory(flat.size, flat.dtype, alone)
        return State(
            damping=jnp.asarray(self.damping.initial, dtype=float),  # strong, as θ is
            memory=memory,
            previous=None if self.momentum is None else jnp.zeros(flat.size, flat.dtype),
            rule=self.step_rule.init(flat),
            first_norm=jnp.asarray(np.array(np.nan), float),
            known=known if model.solves and not batches else None,
            batches=batches,
            one_program=own and not dear,
        )

    def linearise(
        self, problem: Problem, theta: PyTree, state: State, *, bounds: BoundsLike = None
    ) -> Local:
        return linearise(
            dataclasses.replace(
                self.put_together(problem, theta),
                bounds=as_bounds(bounds, theta),
                known=state.known,
                memory=state.memory,
            )
        )

    def try_step(self, local: Local, state: State) -> tuple[PyTree, State, Record]:
        on_host = local.setup.problem.model.on_host or self.step_rule.on_host
        if on_host and is_traced((local, state)):
            name = type(self.step_rule).__name__
            what = f"{name} is driven from Python and cannot be part of a compiled program"
            raise InputError("step", what, "Backtracking(), or the call outside of jax.jit")
        run = _try_step if on_host else _try_step_compiled
        return run(self, local, dataclasses.replace(state, known=None))


def _try_step(method: LinearMethod, local: Local, state: State) -> tuple[PyTree, State, Record]:
    damping = method.damping.strength(state.damping, local.trace, local.gradient.size)
    order, momentum = method.order, method.momentum
    straight = order == 1 and momentum is None
    local = local if straight else local.factorise(damping)
    if straight and method.step_rule.has_radius:
        setup, trust = local.setup, state.rule  # what the rule says of τη, for η
        enough = None if setup.enough is None else setup.enough / (trust.tau * trust.ratio)
        setup = dataclasses.replace(setup, radius=trust.radius / trust.tau, enough=enough)
        local = dataclasses.replace(local, setup=setup)
    solution = local.solve(damping)
    reach = -(local.gradient @ solution.eta) / local.energy
    if straight:
        path = Path(local, solution, damping)
    else:
        path = bend(local, solution, damping, order, momentum, state.previous)
    on_host = local.setup.problem.model.on_host
    if on_host and not bool(jnp.isfinite(path.slope) & (path.slope != 0)):
        outcome, rule = refuse(path), state.rule  # not worth a call of the outside code
    else:
        outcome, rule = method.step_rule.take(path, state.rule)
    # what led nowhere is forgotten
    previous = None if momentum is None else jnp.where(outcome.accepted, path.eta, 0.0)
    strength = damping.astype(state.damping.dtype)
    if method.damping.adapts:  # not to where rounding of ∂_θ f would be a tenth of η
        size = jnp.sqrt(local.trace / local.energy) * jnp.linalg.norm(solution.eta)
        share = jnp.minimum(10 * jnp.finfo(size.dtype).eps / size, 1.0)
        least = local.trace * jnp.fmax(local.resolution, share)
        strength = jnp.maximum(method.damping.update(strength, outcome), least)
    new = State(
        damping=strength,
        memory=solution.memory,
        previous=previous,
        rule=rule,
        first_norm=state.first_norm,
        known=outcome.known,
        batches=state.batches,
        one_program=state.one_program,
    )
    info = solution.info._replace(counts=path.counts.plus(*solution.info.counts))
    record = Record(
        accepted=outcome.accepted,
        status=outcome.status,
        step=outcome.tau,
        value=outcome.value,
        halvings=outcome.halvings,
        ratio=outcome.ratio,
        predicted=outcome.predicted,
        slope=path.slope,
        reach=reach,
        damping=path.damping,
        step_norm=jnp.linalg.norm(outcome.theta - path.flat),
        theta_norm=jnp.linalg.norm(outcome.theta),
        info=info,
        counts=info.counts.plus(*outcome.counts),
        failed=~(jnp.abs(path.slope) < jnp.inf) | (info.reason == Status.NOT_FINITE.code),
        expected=outcome.expected,
        radius=jnp.nan if solution.trail is None else rule.radius,
    )
    theta = path.unravel(jnp.where(outcome.accepted, outcome.theta, path.flat))
    return theta, new, record


_try_step_compiled = jit_forwarding(_try_step)


class NaturalGradient(LinearMethod):
    """Natural gradient descent: (G + λD) η = −∂_θ f with G = ZᵀLᵀLZ in the given metric.

    ```python
    ng.NaturalGradient(ng.Wasserstein(grid), step=ng.FixedStep(3.0))
    ng.NaturalGradient(ng.L2(grid), solver=ng.CG(max_iterations=10), damping=1e-3)
    ```

    Compiled once per problem, metric, solver and step: new values of θ, damping, step length or
    target data reuse the program. Methods that differ in step, order or momentum alone share the
    linearisation.

    Cost: that of `ng.natural_gradient`, and of the step.

    Args:
        metric: The metric on states.
        solver: How the equation is solved; chosen by size and damping by default.
        damping: A number c for λ = c · trace(G)/p, or a `Damping`.
        step: How far to go along η.
        order: Above 1 a step follows a curve θ(τ) on which the state moves straight ahead to that
            order (`natgrad.descent.curves.bend`), at a few evaluations; 3 for networks.
        momentum: With μ > 0 damping pulls towards μ times the last direction η′, which averages
            over mini-batches: (G + λD)(η − μη′) = −∂_θ f − μGη′.
    """

    metric: Metric
    solver: Solver
    damping: Damping
    step_rule: Step
    order: int = eqx.field(static=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    momentum: Array | None  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        metric: Metric,
        *,
        solver: Solver = Auto(),
        damping: Damping | float = 0.0,
        step: Step = ModelStep(),
        order: int = 1,
        momentum: Number = 0.0,
    ):
        check_instance("metric", metric, Metric)
        check_instance("solver", solver, Solver)
        check_instance("step", step, Step, "FixedStep(0.1) or ModelStep()")
        if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= LARGEST_ORDER:
            what = f"{order!r} is not an integer from 1 to {LARGEST_ORDER}"
            raise InputError("order", what, "order=3")
        share = check_number(momentum, "momentum", below=1.0)
        self.metric, self.solver, self.damping = metric, solver, as_damping(damping)
        self.step_rule, self.order = step, order
        self.momentum = None if isinstance(share, np.ndarray) and share == 0 else share
        if not step.follows_curves and (order > 1 or self.momentum is not None):
            kind = type(step).__name__
            what = f"{kind} minimises around θ and takes neither a curve nor momentum"
            name = "order" if order > 1 else "momentum"
            raise InputError(name, what, "Backtracking(), or order=1 and momentum=0")

    def put_together(self, problem: Problem, theta: PyTree) -> Setup:
        return Setup(problem, theta, self.metric, self.solver, self.damping)

    def map_metric(self, function: Callable[[Metric], Metric]) -> "NaturalGradient":
        return replace_fields(self, metric=function(self.metric))


class GradientDescent(LinearMethod):
    """Plain gradient descent, η = −∂_θ f/(1 + λ): no metric on states, no system to solve.

    ```python
    ng.GradientDescent(step=ng.Backtracking())
    ```

    Cost: one evaluation and one adjoint product, and the step's evaluations.

    Args:
        step: How far to go along η.
        damping: λ, a number or a `Damping`.
    """

    damping: Damping
    step_rule: Step

    def __init__(self, *, step: Step = ModelStep(), damping: Damping | float = 0.0):
        check_instance("step", step, Step, "FixedStep(0.1) or ModelStep()")
        self.step_rule, self.damping = step, as_damping(damping)
        if self.damping.operator is not None:
            what = "gradient descent has G = I and no system to add an operator to"
            raise InputError("damping", what, "AbsoluteDamping(λ), or NaturalGradient(metric)")

    def put_together(self, problem: Problem, theta: PyTree) -> Setup:
        return Setup(problem, theta, damping=self.damping)


class Newton(LinearMethod):
    """G = ∇²_θ f, the Hessian of the loss by second-order adjoints: the Newton–CG baseline.

    The Hessian may be indefinite. `CG` then stops at the first direction of negative curvature and
    returns what it has (at the first step the preconditioned gradient), so that η still descends.
    A step of length 1 is tried first.

    ```python
    ng.Newton(solver=ng.CG(max_iterations=20))
    ```

    Cost: one linearised and one adjoint propagation a product, as for a natural gradient, and the
    second derivatives of the model, which an `ExternalModel` does not have.
    Reference: Nocedal and Wright, Numerical Optimization, section 7.1.

    Args:
        solver: How the equation is solved; `CG` copes with an indefinite Hessian.
        damping: A number or a `Damping`, as in `NaturalGradient`.
        step: How far to go along η.
    """

    solver: CG
    damping: Damping
    step_rule: Step

    def __init__(
        self,
        *,
        solver: Solver = Auto(),
        damping: Damping | float = 0.0,
        step: Step = ModelStep(),
    ):
        check_instance("solver", solver, Solver)
        check_instance("step", step, Step, "FixedStep(0.1) or ModelStep()")
        chosen = solver.matrix_free(2**62, 2**31)  # the Hessian is never formed
        if not isinstance(chosen, CG):
            what = f"Newton does not work with {type(solver).__name__}"
            raise InputError("solver", what, "CG(...)")
        self.solver, self.damping, self.step_rule = chosen, as_damping(damping), step

    def put_together(self, problem: Problem, theta: PyTree) -> Setup:
        return Setup(problem, theta, solver=self.solver, damping=self.damping)
