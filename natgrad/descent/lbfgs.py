"""Limited-memory BFGS, the rival: directions from pairs, a line search on value and gradient."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import jit_forwarding, loop
from ..core.dense import accurate_product
from ..core.operators import pick
from ..core.outcomes import Counts, Status
from ..core.settings import check_integer
from ..direction.linearise import check
from ..direction.local import Local, Setup
from ..direction.metric_free import from_gradient
from ..errors import InputError
from ..models.base import Evaluation
from ..parameters import Bounds, as_bounds, flatten, strengthen, unflatten
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

    Args:
        pairs: Number of steps that are remembered.
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
            one_program=not (problem.model.solves or problem.model.on_host),
        )

    def linearise(
        self, problem: Problem, theta: PyTree, state: State, *, bounds: BoundsLike = None
    ) -> Local:
        _, value, gradient, counts = state.memory
        setup = Setup(problem, theta, bounds=as_bounds(bounds, theta))
        return from_gradient(setup, ValueAndGradient(value, gradient, counts, None))

    def try_step(self, local: Local, state: State) -> tuple[PyTree, State, Record]:
        # Three programs, so that methods with other numbers of pairs share the search.
        setup, (pairs, value, gradient, _) = local.setup, state.memory
        run = _search if setup.problem.model.on_host else _search_compiled
        start = Point(flatten(setup.theta)[0], value, gradient)
        found = run(setup, start, _choose_direction(pairs, start, setup.bounds))
        point, memory, record = _conclude(pairs, start, found)
        theta = unflatten(setup.theta, point)
        return theta, dataclasses.replace(state, memory=memory), record


class Memory(NamedTuple):
    """The pairs, and value and gradient at the θ that comes with them, bounds or not.

    `counts` is what these have cost, if that was not counted yet.
    """

    pairs: Pairs
    value: Array
    gradient: Array
    counts: Counts


def _as_arrays(counts: Counts) -> Counts:
    return Counts(*(jnp.asarray(count, int) for count in counts))


class Quadratic(NamedTuple):
    """The quadratic model's B = θ(I − VᵀK⁻¹V), the compact form of the BFGS matrix of the pairs."""

    theta: Array
    V: Array
    K: Array
    inverse: Array  # K⁻¹

    @classmethod
    def of(cls, pairs: Pairs) -> "Quadratic":
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


def find_cauchy_point(
    model: Quadratic, gradient: Array, lower: Array, upper: Array
) -> tuple[Array, Array]:
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
    from_here = lambda x: jax.lax.cumsum(x, axis=x.ndim - 1, reverse=True)
    sums = from_here(jnp.concatenate([g[None], -model.V[:, order]]) * g)  # in one scan
    squares, P = sums[0], sums[1:]  # dᵀd and Vd
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
    model = Quadratic.of(pairs)
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


class Point(NamedTuple):
    """θ with value and gradient there."""

    theta: Array
    value: Array
    gradient: Array


class Search(NamedTuple):
    """A line search: along which direction, and what came of it.

    `plain` is whether the direction is that of steepest descent, the last that is tried; `first`
    whether nothing is known of its length. `promised` is the linear decrease of the first length
    tried. A search that is not `over` is still to be made.
    """

    direction: Array
    plain: Array
    first: Array
    over: Array
    promised: Array
    interval: Interval
    best: Point
    spent: Array  # forward, linearised and adjoint propagations
    evaluations: Array


def _search(setup: Setup, start: Point, begin: Search) -> Search:
    """The line search along the direction, and if that fails along the steepest descent."""
    bounds, (flat, unravel) = setup.bounds, flatten(setup.theta)

    def search(before: Search) -> Search:
        begin = before._replace(interval=_aim(before, start, bounds), best=start)
        return _judge(loop(lambda now: ~now.interval.over, look, begin), start, bounds)

    def look(now: Search) -> Search:
        point = _move(now, flat, bounds)
        found = value_and_gradient(setup.problem, unravel(point))
        spent = jnp.asarray(found.counts, int)
        return _learn(now, Point(point, found.value, found.gradient), spent)

    return loop(lambda now: ~now.over, search, begin)


_search_compiled = jit_forwarding(_search)


@jit_forwarding
def _choose_direction(pairs: Pairs, start: Point, bounds: Bounds | None) -> Search:
    """The direction of the pairs; that of steepest descent where there are none."""
    flat, value, gradient = start
    if bounds is None:
        direction = -two_loops(pairs.directions, pairs.images, pairs.count, True, gradient)
    else:
        direction = minimise_model(pairs, gradient, bounds.lower - flat, bounds.upper - flat)
    first = pairs.count == 0
    plain = first | ~(gradient @ direction < 0)
    nothing = jnp.zeros_like(value)
    return Search(
        direction=jnp.where(plain, _descend_steeply(start, bounds), direction),
        plain=plain,
        first=first,
        over=jnp.zeros((), bool),
        promised=nothing,
        interval=begin_search(value, nothing, nothing, nothing),
        best=start,
        spent=jnp.zeros(3, int),
        evaluations=jnp.zeros((), int),
    )


def _descend_steeply(start: Point, bounds: Bounds | None) -> Array:
    if bounds is None:
        return -start.gradient
    return jnp.clip(-start.gradient, bounds.lower - start.theta, bounds.upper - start.theta)


@eqx.filter_jit
def _aim(search: Search, start: Point, bounds: Bounds | None) -> Interval:
    """The lengths to search; a step with ‖τη‖ = 1 is the first to try where nothing is known."""
    direction, first = search.direction, search.first
    norm = jnp.linalg.norm(direction)
    length = jnp.where(first & (norm > 0), 1 / norm, 1.0)
    longest = jnp.full_like(length, LONGEST)
    if bounds is not None:
        finite = jnp.isfinite(jnp.stack(bounds))
        lower, upper = bounds.lower - start.theta, bounds.upper - start.theta
        reach = jnp.clip(_reach(direction, lower, upper), 1.0, LONGEST)
        longest = jnp.where(first & jnp.any(finite), 1.0, reach)
        length = jnp.where(jnp.all(finite), 1.0, jnp.minimum(length, longest))
    return begin_search(start.value, start.gradient @ direction, length, longest)


@eqx.filter_jit
def _move(search: Search, flat: Array, bounds: Bounds | None) -> Array:
    """The next point to look at, exactly on the bounds that it reaches."""
    step = search.interval.length.astype(flat.dtype) * search.direction
    if bounds is None:
        return flat + step
    ahead = jnp.where(step >= bounds.upper - flat, bounds.upper, flat + step)
    ahead = jnp.where(step <= bounds.lower - flat, bounds.lower, ahead)
    return jnp.clip(ahead, bounds.lower, bounds.upper)


@eqx.filter_jit
def _learn(search: Search, point: Point, spent: Array) -> Search:
    """The search once value and gradient at a point are known."""
    interval = narrow(search.interval, point.value, point.gradient @ search.direction)
    better = interval.best.length == search.interval.length
    return search._replace(
        interval=interval, best=pick(better, point, search.best), spent=search.spent + spent
    )


@eqx.filter_jit
def _judge(search: Search, start: Point, bounds: Bounds | None) -> Search:
    """The search is over; if it failed, the steepest descent is left, unless all is rounding."""
    interval = search.interval
    promised = jnp.maximum(search.promised, -interval.start.slope * interval.first)
    rounding = ROUNDING * jnp.finfo(promised.dtype).eps * jnp.abs(start.value)
    failed = ~(search.best.value < start.value)
    again = failed & ~search.plain & (promised > rounding)
    return search._replace(
        direction=jnp.where(again, _descend_steeply(start, bounds), search.direction),
        plain=search.plain | again,
        first=search.first & ~again,
        over=~again,
        promised=promised,
        evaluations=search.evaluations + interval.evaluations,
    )


@eqx.filter_jit
def _conclude(pairs: Pairs, start: Point, search: Search) -> tuple[Array, Memory, Record]:
    """Where the search has led, the pairs with that step, and what to record of it."""
    accepted = search.best.value < start.value
    theta, value, gradient = pick(accepted, search.best, start)
    step, change = theta - start.theta, gradient - start.gradient
    slope = start.gradient @ step
    convex = step @ change > -jnp.finfo(step.dtype).eps * slope
    pairs = pairs._replace(count=jnp.where(search.plain, 0, pairs.count))
    pairs = pairs.record(step, change, accepted & convex)
    interval, nan = search.interval, jnp.full((), jnp.nan)
    rejected = jnp.where(interval.finite, Status.NO_DECREASE.code, Status.NOT_FINITE.code)
    record = Record(
        accepted=accepted,
        status=jnp.where(accepted, Status.OK.code, rejected),
        step=interval.best.length,
        value=value,
        halvings=jnp.maximum(search.evaluations - 1, 0),
        ratio=(start.value - value) / jnp.where(slope == 0, 1.0, -slope),
        predicted=search.promised,
        slope=interval.start.slope,
        reach=nan,
        damping=jnp.zeros(()),
        step_norm=jnp.linalg.norm(step),
        theta_norm=jnp.linalg.norm(theta),
        info=SolveInfo(nan, nan, jnp.zeros((), bool)),
        counts=Counts(*search.spent),
        failed=~(jnp.abs(interval.start.slope) < jnp.inf),
    )
    return theta, Memory(pairs, value, gradient, _as_arrays(Counts())), record
