"""Limited-memory BFGS, the rival: directions from pairs, a line search on value and gradient."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import compile_unless, jit_forwarding, loop
from ..core.dense import accurate_product
from ..core.operators import pick
from ..core.outcomes import Counts, Status
from ..core.settings import check_integer
from ..direction.linearise import check
from ..direction.local import Local, Setup
from ..direction.metric_free import PlainGradient
from ..errors import InputError
from ..models.base import Evaluation
from ..parameters import Bounds, as_bounds, flatten, strengthen
from ..problem import Problem, ValueAndGradient, value_and_gradient
from ..solvers.base import SolveInfo
from ..solvers.preconditioners import Pairs, two_loops
from .line_search import Interval, begin_search, narrow
from .methods import BoundsLike, Method, Record, State

LONGEST = 1e10
ROUNDING = 8  # units in the last place of the loss: a smaller decrease cannot be seen


class LBFGS(Method):
    """L-BFGS-B: η = −H ∂_θ f, with H the BFGS inverse of the last `pairs` steps.

    Each pair is a step s with the change y of the gradient along it. H starts from
    (sᵀy/yᵀy) I of the newest pair, and the line search meets the strong Wolfe conditions

        f(θ + τη) ≤ f + 10⁻³ τ⟨∂_θ f, η⟩,    |⟨∂_θ f(θ + τη), η⟩| ≤ 0.9 |⟨∂_θ f, η⟩|.

    A search that fails starts again from the steepest descent, with all pairs forgotten. Within
    bounds the direction leads to the minimum of the quadratic model over the parameters that are
    free at the generalised Cauchy point, projected onto the bounds.

    ```python
    ng.minimize(problem, theta0, ng.LBFGS(pairs=20), stop=ng.Stop(propagations=400))
    ```

    The baseline to compare natural gradients with: per propagation of a PDE it is hard to beat.
    The steps are those of SciPy's L-BFGS-B, up to rounding. The state holds value and gradient at
    the θ that it came with. Batches are refused: two gradients are then of two functions.

    Cost: one evaluation and one adjoint product for each point of the line search, most often one;
    2 · pairs vectors like θ. Reference: Byrd, Lu, Nocedal and Zhu, SIAM J. Sci. Comput. 16 (1995);
    Morales and Nocedal, ACM Trans. Math. Softw. 38 (2011); Moré and Thuente, ACM Trans. Math.
    Softw. 20 (1994), for the line search.
    """

    pairs: int = eqx.field(
        static=True, default=10, converter=lambda x: check_integer(x, "pairs", 1)
    )

    def check(
        self, problem: Problem, theta: PyTree, *, bounds: BoundsLike = None
    ) -> Evaluation | None:
        as_bounds(bounds, theta)
        return check(Setup(problem, theta))

    def init(
        self,
        problem: Problem,
        theta: PyTree,
        *,
        known: Evaluation | None = None,
        batches: bool = False,
    ) -> State:
        if batches:
            what = "L-BFGS compares gradients of one function, and every batch is another one"
            raise InputError("batch", what, "no batch, or NaturalGradient(metric)")
        found = value_and_gradient(problem, theta, known if problem.model.solves else None)
        value, gradient = strengthen((found.value, found.gradient))
        ring = jnp.zeros((self.pairs, gradient.size), gradient.dtype)
        pairs = Pairs(ring, ring, jnp.zeros((), jnp.int32), None)
        return State(
            damping=jnp.zeros((), float),
            memory=Memory(pairs, value, gradient, _as_arrays(found.counts)),
            previous=None,
            rule=None,
            first_norm=jnp.asarray(jnp.nan, float),
        )

    def linearise(
        self, problem: Problem, theta: PyTree, state: State, *, bounds: BoundsLike = None
    ) -> Local:
        _, value, gradient, counts = state.memory
        setup = Setup(problem, theta, bounds=as_bounds(bounds, theta))
        return _linearise(setup, ValueAndGradient(value, gradient, counts, None))

    def try_step(self, local: Local, state: State) -> tuple[PyTree, State, Record]:
        return _try_step(local, state)


class Memory(NamedTuple):
    """The pairs, and value and gradient at the θ that comes with them, bounds or not.

    `counts` is what these have cost, if that was not counted yet.
    """

    pairs: Pairs
    value: Array
    gradient: Array
    counts: Counts


_linearise = jit_forwarding(PlainGradient.from_gradient)


def _as_arrays(counts: Counts) -> Counts:
    return Counts(*(jnp.asarray(count, int) for count in counts))


class Model(NamedTuple):
    """The quadratic model's B = θ(I − VᵀK⁻¹V), the compact form of the BFGS matrix of the pairs."""

    theta: Array
    V: Array
    K: Array
    inverse: Array  # K⁻¹

    @classmethod
    def of(cls, pairs: Pairs) -> "Model":
        """With each pair scaled to sᵀy = 1, which B does not depend on, so that K is too."""
        S, Y, length = pairs.directions, pairs.images, len(pairs.directions)
        age = (pairs.count - 1 - jnp.arange(length)) % length
        used = age < pairs.count
        curvature = jnp.where(used, jnp.sum(S * Y, axis=1), 1.0)
        newest = age == 0
        ratio = jnp.sum(Y**2, axis=1) / curvature
        theta = jnp.where(pairs.count > 0, jnp.sum(jnp.where(newest, ratio, 0.0)), 1.0)
        S = jnp.where(used[:, None], S * jnp.sqrt(theta / curvature)[:, None], 0.0)
        Y = jnp.where(used[:, None], Y / jnp.sqrt(theta * curvature)[:, None], 0.0)
        L = jnp.where(age[:, None] < age, accurate_product(S, Y.T), 0.0)
        squares = accurate_product(S, S.T) + jnp.diag(jnp.where(used, 0.0, 1.0).astype(S.dtype))
        K = jnp.block([[-jnp.eye(length, dtype=S.dtype), L.T], [L, squares]])
        return cls(theta, jnp.concatenate([Y, S]), K, jnp.linalg.inv(K))


def find_cauchy_point(model: Model, gradient: Array, lower: Array, upper: Array) -> tuple:
    """The first minimum of the model along −∂_θ f bent at the bounds; which parameters are free.

    `lower` and `upper` are how far each parameter may move. The path is straight between the
    lengths t at which parameters reach their bounds. On the piece between two of them, with the
    direction d of the parameters still free and the displacement z at its beginning, the model has
    the slope ⟨∂_θ f, d⟩ + dᵀBz and the curvature dᵀBd: sums over the sorted parameters.
    """
    held = ((lower >= 0) & (gradient >= 0)) | ((upper <= 0) & (gradient <= 0))
    end = jnp.where(held, 0.0, jnp.where(gradient < 0, upper, lower))
    t = jnp.where(gradient == 0, jnp.inf, -end / jnp.where(gradient == 0, 1.0, gradient))
    t = jnp.where(held, 0.0, t)
    order = jnp.argsort(t)
    ends, g = t[order], gradient[order]
    begins = jnp.concatenate([jnp.zeros(1, t.dtype), ends[:-1]])
    from_here = lambda x: jnp.cumsum(x[..., ::-1], axis=-1)[..., ::-1]
    squares, P = from_here(g**2), -from_here(model.V[:, order] * g)  # dᵀd and Vd
    lengths = jnp.where(jnp.isfinite(ends), ends - begins, 0.0)
    moved = jnp.cumsum(lengths * P, axis=1) - lengths * P  # Vz
    KP = accurate_product(model.inverse, P)
    slope = model.theta * (begins * squares - jnp.sum(KP * moved, axis=0)) - squares
    curvature = model.theta * (squares - jnp.sum(KP * P, axis=0))
    curvature = jnp.maximum(curvature, jnp.finfo(t.dtype).eps * curvature[0])
    ahead = jnp.maximum(jnp.where(squares > 0, -slope / curvature, 0.0), 0.0)
    inside = ahead < ends - begins
    piece = jnp.argmax(inside)
    length = jnp.where(jnp.any(inside), begins[piece] + ahead[piece], ends[-1])
    free = t > length
    return jnp.where(free, -length * gradient, end), free


def minimise_model(pairs: Pairs, gradient: Array, lower: Array, upper: Array) -> Array:
    """The step to the minimum of the model over the free parameters, put back into the bounds.

    Where that does not descend, it is only as long as the bounds allow.
    """
    model = Model.of(pairs)
    cauchy, free = find_cauchy_point(model, gradient, lower, upper)
    image = accurate_product(model.inverse, accurate_product(model.V, cauchy))
    V = model.V * free
    residual = -(gradient + model.theta * (cauchy - accurate_product(image, model.V))) * free
    reduced = jnp.linalg.solve(model.K - accurate_product(V, V.T), accurate_product(V, residual))
    newton = (residual + accurate_product(reduced, V)) / model.theta
    projected = jnp.clip(cauchy + newton, lower, upper)
    share = jnp.minimum(_reach(newton, lower - cauchy, upper - cauchy), 1.0)
    shortened = jnp.clip(cauchy + share * newton, lower, upper)
    return jnp.where(gradient @ projected <= 0, projected, shortened)


def _reach(direction: Array, lower: Array, upper: Array) -> Array:
    """The largest multiple of the direction within the bounds."""
    moving = direction != 0
    room = jnp.where(direction < 0, lower, upper) / jnp.where(moving, direction, 1.0)
    return jnp.min(jnp.where(moving, room, jnp.inf), initial=jnp.inf)


class Trial(NamedTuple):
    """A line search under way: along which direction, the best point so far, what was spent.

    `plain` is whether the direction is that of steepest descent, the last that is tried; `finite`
    whether f was, at the last point. `promised` is the linear decrease of the first length of all.
    """

    direction: Array
    plain: Array
    interval: Interval
    theta: Array
    value: Array
    gradient: Array
    finite: Array
    promised: Array
    counts: Counts
    evaluations: Array


@eqx.filter_jit
def _choose_direction(memory: Memory, flat: Array, bounds: Bounds | None) -> Trial:
    """The search along the direction of the pairs, or that of steepest descent."""
    pairs, gradient = memory.pairs, memory.gradient
    if bounds is None:
        direction = -two_loops(pairs.directions, pairs.images, pairs.count, True, gradient)
    else:
        direction = minimise_model(pairs, gradient, bounds.lower - flat, bounds.upper - flat)
    first = pairs.count == 0
    plain = first | ~(gradient @ direction < 0)
    direction = jnp.where(plain, _descend_steeply(gradient, flat, bounds), direction)
    return _aim(memory, flat, bounds, direction, plain, first)


def _descend_steeply(gradient: Array, flat: Array, bounds: Bounds | None) -> Array:
    if bounds is None:
        return -gradient
    return jnp.clip(-gradient, bounds.lower - flat, bounds.upper - flat)


def _aim(
    memory: Memory,
    flat: Array,
    bounds: Bounds | None,
    direction: Array,
    plain: Array,
    first: Array | bool,
) -> Trial:
    """The search along a direction; in the `first` there is no scale yet, and ‖τη‖ = 1 is tried."""
    value, slope = memory.value, memory.gradient @ direction
    norm = jnp.linalg.norm(direction)
    length = jnp.where(first & (norm > 0), 1 / norm, 1.0)
    longest = jnp.full_like(length, LONGEST)
    if bounds is not None:
        finite = jnp.isfinite(jnp.stack(bounds))
        reach = jnp.clip(_reach(direction, bounds.lower - flat, bounds.upper - flat), 1.0, LONGEST)
        longest = jnp.where(first & jnp.any(finite), 1.0, reach)
        length = jnp.where(jnp.all(finite), 1.0, jnp.minimum(length, longest))
    return Trial(
        direction=direction,
        plain=jnp.asarray(plain),
        interval=begin_search(value, slope, length, longest),
        theta=flat,
        value=value,
        gradient=memory.gradient,
        finite=jnp.ones((), bool),
        promised=(-slope * length).astype(value.dtype),
        counts=_as_arrays(Counts()),
        evaluations=jnp.zeros((), int),
    )


@eqx.filter_jit
def _move(trial: Trial, flat: Array, bounds: Bounds | None) -> Array:
    """The next point to look at, exactly on the bounds that it reaches."""
    step = trial.interval.length.astype(flat.dtype) * trial.direction
    if bounds is None:
        return flat + step
    ahead = jnp.where(step >= bounds.upper - flat, bounds.upper, flat + step)
    ahead = jnp.where(step <= bounds.lower - flat, bounds.lower, ahead)
    return jnp.clip(ahead, bounds.lower, bounds.upper)


@eqx.filter_jit
def _learn(
    trial: Trial,
    memory: Memory,
    flat: Array,
    bounds: Bounds | None,
    point: Array,
    found: ValueAndGradient,
) -> Trial:
    """The search once value and gradient at the point are known; a new one if it has failed."""
    value, gradient, length = found.value, found.gradient, trial.interval.length
    slope = gradient @ trial.direction
    interval = narrow(trial.interval, value, slope)
    best = trial.theta, trial.value, trial.gradient
    best = pick(interval.best.length == length, (point, value, gradient), best)
    trial = trial._replace(
        interval=interval,
        theta=best[0],
        value=best[1],
        gradient=best[2],
        finite=jnp.isfinite(value) & jnp.isfinite(slope),
        counts=_as_arrays(trial.counts.plus(*found.counts)),
        evaluations=trial.evaluations + 1,
    )
    rounding = ROUNDING * jnp.finfo(value.dtype).eps * jnp.abs(memory.value)
    failed = interval.over & ~(trial.value < memory.value)
    again = failed & ~trial.plain & (trial.promised > rounding)
    steepest = _descend_steeply(memory.gradient, flat, bounds)
    anew = _aim(memory, flat, bounds, steepest, jnp.ones((), bool), first=False)._replace(
        promised=trial.promised, counts=trial.counts, evaluations=trial.evaluations
    )
    return pick(again, anew, trial)


@compile_unless(lambda local, state: local.setup.problem.model.on_host)
def _try_step(local: Local, state: State) -> tuple[PyTree, State, Record]:
    setup, memory, bounds = local.setup, state.memory, local.setup.bounds
    flat, unravel = flatten(setup.theta)

    def look(trial: Trial) -> Trial:
        point = _move(trial, flat, bounds)
        found = value_and_gradient(setup.problem, unravel(point))._replace(products=None)
        return _learn(trial, memory, flat, bounds, point, found)

    trial = _choose_direction(memory, flat, bounds)
    trial = loop(lambda trial: ~trial.interval.over, look, trial)
    point, memory, record = _conclude(memory, trial, flat)
    noted = state.note(local.gradient_norm)
    return unravel(point), dataclasses.replace(noted, memory=memory), record


@eqx.filter_jit
def _conclude(memory: Memory, trial: Trial, flat: Array) -> tuple[Array, Memory, Record]:
    """Where the search has led, the pairs with that step, and what to record of it."""
    accepted = trial.value < memory.value
    reached = trial.theta, trial.value, trial.gradient
    reached = pick(accepted, reached, (flat, memory.value, memory.gradient))
    theta, value, gradient = reached
    step, change = theta - flat, gradient - memory.gradient
    slope = memory.gradient @ step
    convex = step @ change > -jnp.finfo(flat.dtype).eps * slope
    pairs = memory.pairs._replace(count=jnp.where(trial.plain, 0, memory.pairs.count))
    pairs = pick(accepted & convex, pairs.record(step, change), pairs)
    kept = Memory(pairs, value, gradient, _as_arrays(Counts()))
    interval, nan = trial.interval, jnp.full((), jnp.nan)
    rejected = jnp.where(trial.finite, Status.NO_DECREASE.code, Status.NOT_FINITE.code)
    record = Record(
        accepted=accepted,
        status=jnp.where(accepted, Status.OK.code, rejected),
        step=interval.best.length,
        value=value,
        halvings=jnp.maximum(trial.evaluations - 1, 0),
        ratio=(memory.value - value) / jnp.where(slope == 0, 1.0, -slope),
        predicted=trial.promised,
        slope=interval.start.slope,
        reach=nan,
        damping=jnp.zeros(()),
        step_norm=jnp.linalg.norm(step),
        theta_norm=jnp.linalg.norm(theta),
        info=SolveInfo(nan, nan, jnp.zeros((), bool)),
        counts=trial.counts,
    )
    return theta, kept, record
