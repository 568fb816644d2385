"""Conjugate gradients: the recurrence as pure functions, and the solver. Nothing k × p is formed.

A compiled loop and a loop on the host, for models outside JAX, share the recurrence: a step is
given the products and is otherwise arithmetic on its state. Right-hand sides are scaled to unit
length, so that single precision neither overflows nor underflows in their squares.
"""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..core.compiled import loop
from ..core.dense import accurate_product
from ..core.operators import axpy, pick, scale
from ..core.outcomes import Counts, Status, find_reason, was_taken
from ..core.settings import Number, count, setting
from .base import LinearSystem, MatrixFreeSolver, Parts, Solution, SolveInfo, System, Trail
from .preconditioners import Pairs, Preconditioner, Product, Recycled, as_preconditioner

TOLERANCE = 1e-6  # by default
UNSEEN = 16  # a curvature of so many eps, relative to the largest met, is none


SIDES = 16  # of a trail; the last one takes what comes after


class Stop(NamedTuple):
    """When to stop: the residual relative to the right-hand side, and the steps at most."""

    tolerance: Array
    max_iterations: Array


class PreparedSystem(eqx.Module):
    """The system, what the preconditioner has set up there, and when to stop."""

    system: LinearSystem
    setup: Any
    stop: Stop


class KrylovSolver(MatrixFreeSolver):
    """What `CG` and `LSMR` share: the settings, and a system with a preconditioner M."""

    tolerance: Number | None = setting("tolerance", below=1.0, optional=True)
    max_iterations: Number = count("max_iterations", 200)
    preconditioner: Preconditioner | None = eqx.field(converter=as_preconditioner, default=None)

    def prepare(self, system: LinearSystem) -> tuple[PreparedSystem, Counts]:
        asked = TOLERANCE if self.tolerance is None else self.tolerance
        tolerance = jnp.asarray(asked, system.gradient.dtype)
        M = self.preconditioner
        setup, counts = (None, Counts()) if M is None else M.prepare(system)
        stop = Stop(tolerance, jnp.asarray(self.max_iterations))
        return PreparedSystem(system, setup, stop), counts

    def aim(self, prepared: PreparedSystem, b: PyTree, g: Array) -> PreparedSystem:
        system = prepared.system
        assert isinstance(system, System)
        memory = None if system.memory is None else system.memory.forget_step()
        return replace(prepared, system=replace(system, gradient=g, whitened=None, memory=memory))

    def precondition(self, prepared: PreparedSystem, damping: Array) -> Product:
        """r ↦ M r for this λ, on the parameters that may move."""
        if self.preconditioner is None:
            return lambda r: r
        system = prepared.system
        product = self.preconditioner.product(prepared.setup, system, damping)
        return lambda r: system.mask(product(r))


class CG(KrylovSolver):
    """Conjugate gradients on (G + λD) η = −∂_θ f, Gv = Zᵀ(A(Zv)): the paper's Algorithm 3.

    Stops when the residual falls below `tolerance` · ‖∂_θ f‖ or after `max_iterations`;
    `tolerance=0` makes that a fixed count. Stopped at any step, η descends and
    ⟨η, (G + λD) η⟩ = −⟨∂_θ f, η⟩.

    Without a tolerance a single direction is solved to 10⁻⁶. In a run with `ModelStep` it is solved
    as far as that pays and the model is trusted: until ‖η‖_D leaves the radius that the step rule
    has learnt ("radius"), or until step k gains less than the mean of the units of cost before it,
    or until the loss that the run stops at is predicted ("truncated"). A unit is two propagations,
    a step of conjugate gradients or the gradient and the trial of an iteration; the gain of a step
    is the decrease that it adds to the prediction. Where a model factorises at each new θ, that is
    three units more, and gains count by the logarithm of what is left to gain, where it is known.

    Zη is carried along, so that `ModelStep` needs no further product. `info.status` is
    "converged", "max_iterations", "radius", "truncated", "breakdown" (without damping, a gradient
    with a part that G does not see: η is then the shortest of least residual, found without the
    preconditioner) or "not_finite" (η is the last good iterate). "recycled" is a direction without
    products, see `Recycled`.

    ```python
    ng.NaturalGradient(ng.L2(grid), solver=ng.CG(max_iterations=10), damping=1e-3)
    ```

    Cost: one linearised and one adjoint product and one with A per iteration; memory for five
    vectors like θ and two like ρ besides what the model stores, in a run with `ModelStep` for 16
    more like θ. The condition number is that of Y squared, as in `Cholesky`; the iterations grow
    with that of Y.

    Reference: Algorithm 3 of the paper; Hestenes and Stiefel 1952; Steihaug, SIAM J. Numer. Anal.
    20 (1983), for the radius; Nash and Sofer, Oper. Res. Lett. 9 (1990), for stopping by the gain.

    Args:
        tolerance: Relative residual at which to stop; None for the rule above, 0 for a fixed count.
        max_iterations: The most iterations of one direction.
        preconditioner: `Recycled`, `Diagonal`, `Nystrom`, a matrix or operator near (G + λD)⁻¹, or
            None.
    """

    keeps_trail: ClassVar[bool] = True

    preconditioner: Preconditioner | None = eqx.field(
        converter=as_preconditioner, default=Recycled()
    )

    @property
    def uses(self) -> Parts:
        M = self.preconditioner
        return ("gram",) if M is None else ("gram", *M.uses)

    def initial_memory(self, size: int, dtype: DTypeLike, batches: bool = False) -> Pairs | None:
        M, solves = self.preconditioner, self.tolerance is not None
        return M.memory(size, dtype, batches or solves) if isinstance(M, Recycled) else None

    def solve(
        self,
        prepared: PreparedSystem,
        damping: Array,
        radius: Array | None = None,
        enough: Array | None = None,
    ) -> Solution:
        system, memory = prepared.system, prepared.system.memory
        damping = damping.astype(system.gradient.dtype)
        precondition = self.precondition(prepared, damping)

        def step(carry: tuple[ConjugateGradients, Any, Any]) -> Any:
            state, pairs, sides = carry
            d = state.direction
            motion, image, curvature = system.information(d)
            damped = system.damp(d)
            damped_image, curvature = image + damping * damped, curvature + damping * (d @ damped)
            moved = advance(state, motion, damped_image, curvature, prepared.stop)
            if radius is not None and self.tolerance is None:
                length = moved.scale * jnp.sqrt(moved.eta @ system.damp(moved.eta))
                before, after, square = state.gained, moved.gained, moved.scale**2
                if system.overhead > 1:  # of the rate at which what can be gained is used up
                    left = 1 - jnp.stack([before, after]) * square / system.energy
                    logs = -jnp.log(jnp.maximum(left, jnp.finfo(left.dtype).eps))
                    before, after = jnp.where(system.energy > 0, logs, jnp.stack([before, after]))
                cost = moved.iterations - 1 + system.overhead  # of what was gained before
                ends = (before > 0) & (cost * (after - before) < before)
                if enough is not None:
                    ends = ends | (moved.gained * square >= 2 * enough)
                why = find_reason((length >= radius, Status.RADIUS), (ends, Status.TRUNCATED))
                over = moved.reason != Status.OK.code
                moved = moved._replace(reason=jnp.where(over, moved.reason, why))
            plain, preconditioned = moved.residual, precondition(moved.residual)
            new = turn(state, moved, jnp.where(state.plain, plain, preconditioned))
            if pairs is not None:
                pairs = pairs.record(d, image, was_taken(new.reason))
            if sides is not None:
                row = jnp.minimum(sides.count, SIDES - 1)
                parts = sides.parts.at[row].add(new.eta - state.eta)
                gains = sides.gains.at[row].add(new.gained - state.gained)
                sides = Sides(parts, gains, sides.count + 1)
            if not system.indefinite:
                new = settle(new, motion, fresh, prepared.stop)
            if sides is not None:  # where all begins again, the trail does too
                sides = pick(new.gained > 0, sides, none)
            return new, pairs, sides

        M = self.preconditioner
        plain = M is None or (isinstance(M, Recycled) and memory is None)
        fresh = start(system, jnp.asarray)  # M = I
        state = start(system, precondition)._replace(plain=jnp.asarray(plain))
        if memory is not None and memory.last is not None:
            state = skip_products(state, memory.last.served)
        rows = jnp.zeros((SIDES, state.eta.size), state.eta.dtype)
        none = Sides(rows, jnp.zeros_like(rows[:, 0]), jnp.zeros((), jnp.int32))
        going = lambda carry: carry[0].reason == Status.OK.code
        memory = jax.tree.map(jnp.copy, memory)  # what is there is M's; the loop writes in place
        state, memory, sides = loop(going, step, (state, memory, None if radius is None else none))
        if system.indefinite:
            state = ensure_descent(state)
        solution = make_solution(state, jnp.nan, memory)
        if sides is None:
            return solution
        # a straight trail where η is no iterate: after a breakdown, or recycled
        broken, recycled = Status.BREAKDOWN.code, Status.RECYCLED.code
        straight = (state.reason == broken) | (state.reason == recycled)
        first = (jnp.arange(SIDES) == 0).astype(rows.dtype)
        line = jnp.outer(first, state.eta), first * (fresh.residual @ state.eta)
        parts, gains = pick(straight, line, (sides.parts, sides.gains))
        parts, gains = state.scale * parts, state.scale**2 * gains
        products = accurate_product(parts, jax.vmap(system.damp)(parts).T)
        return solution._replace(trail=Trail(parts, gains, products))


class Sides(NamedTuple):
    """The sides of the trail so far; what comes after the last row is added to it."""

    parts: Array
    gains: Array
    count: Array


class ConjugateGradients(NamedTuple):
    """Conjugate gradients after some steps; `motion` is Zη, `scale` the length that was taken out.

    The solution is `scale` · `eta`. At every step ⟨η, (G + λD) η⟩ = −⟨∂_θ f, η⟩.
    """

    eta: Array
    motion: PyTree
    residual: Array
    direction: Array
    energy: Array  # ⟨residual, M residual⟩
    smooth: Array  # the combination of the iterates so far whose residual is the least
    Zsmooth: PyTree
    weight: Array  # Σ 1/energy over them
    gained: Array  # −⟨∂_θ f, η⟩/‖∂_θ f‖², which is twice the decrease predicted
    relative_residual: Array
    stiffness: Array  # the largest Rayleigh quotient met, in size
    softness: Array  # the smallest along which a step was taken
    scale: Array
    plain: Array  # whether M is left out
    iterations: Array
    reason: Array


def start(system: LinearSystem, precondition: Product) -> ConjugateGradients:
    """η = 0 for the right-hand side −∂_θ f."""
    length, unit, reason = scale_gradient(system.gradient)
    direction = precondition(unit)
    return ConjugateGradients(
        eta=jnp.zeros_like(unit),
        motion=system.zero_motion(),
        residual=unit,
        direction=direction,
        energy=unit @ direction,
        smooth=jnp.zeros_like(unit),
        Zsmooth=system.zero_motion(),
        weight=jnp.zeros_like(length),
        gained=jnp.zeros_like(length),
        relative_residual=jnp.where(length > 0, jnp.ones_like(length), 0),
        stiffness=jnp.zeros_like(length),
        softness=jnp.full_like(length, jnp.inf),
        scale=length,
        plain=jnp.asarray(True),
        iterations=jnp.zeros((), jnp.int32),
        reason=reason,
    )


@jax.jit
def advance(
    state: ConjugateGradients, motion: PyTree, image: Array, curvature: Array, stop: Stop
) -> ConjugateGradients:
    """The step of Hestenes and Stiefel along d, with the reason to stop after it.

    It is given Zd, (G + λD)d and ⟨d, (G + λD)d⟩. A curvature that is not positive, up to rounding,
    is a breakdown, also one of an earlier step, which only the curvatures after it show for noise.
    """
    d, eps = state.direction, jnp.finfo(state.eta.dtype).eps
    size = d @ d
    quotient = curvature / jnp.where(size > 0, size, 1.0)
    stiffness = jnp.maximum(state.stiffness, jnp.abs(quotient))
    least = jnp.minimum(state.softness, quotient)  # what was taken may now turn out to be noise
    positive = (least > UNSEEN * eps * stiffness) & (stiffness > 0) & (state.energy > 0)
    alpha = state.energy / jnp.where(positive, curvature, 1.0)
    residual = state.residual - alpha * image
    length = jnp.linalg.norm(residual)
    count = state.iterations + 1
    weight = state.weight + 1.0 / jnp.where(state.energy > 0, state.energy, 1.0)
    share = 1.0 / (jnp.where(state.energy > 0, state.energy, 1.0) * weight)
    reason = find_reason(
        (~jnp.isfinite(curvature) | ~jnp.isfinite(state.energy), Status.NOT_FINITE),
        (~positive, Status.BREAKDOWN),
        (~jnp.isfinite(length), Status.NOT_FINITE),
        (length <= jnp.maximum(stop.tolerance, eps), Status.CONVERGED),
        (count >= stop.max_iterations, Status.MAX_ITERATIONS),
    )
    return state._replace(
        eta=state.eta + alpha * d,
        motion=axpy(alpha, motion, state.motion),
        residual=residual,
        smooth=state.smooth + share * (state.eta - state.smooth),
        Zsmooth=axpy(share, state.motion, scale(1.0 - share, state.Zsmooth)),
        weight=weight,
        gained=state.gained + alpha * state.energy,
        relative_residual=length,
        stiffness=stiffness,
        softness=least,
        iterations=count,
        reason=reason,
    )


@jax.jit
def turn(
    old: ConjugateGradients, new: ConjugateGradients, preconditioned: Array
) -> ConjugateGradients:
    """The next conjugate direction; the old iterate stays where the step must not be taken."""
    energy = new.residual @ preconditioned
    ratio = energy / jnp.where(old.energy > 0, old.energy, 1.0)
    new = new._replace(direction=preconditioned + ratio * old.direction, energy=energy)
    kept = ("smooth", "Zsmooth", "weight", "stiffness", "iterations", "reason")
    told = {name: getattr(new, name) for name in kept}
    return pick(was_taken(new.reason), new, old._replace(**told))


@jax.jit
def settle(
    state: ConjugateGradients, motion: PyTree, fresh: ConjugateGradients, stop: Stop
) -> ConjugateGradients:
    """The solution of least norm and residual, where G was found not to see the direction d.

    d is then the part of the gradient that G does not see: Σ M rⱼ/energyⱼ over the residuals rⱼ is
    proportional to d, and to M times the least residual that a combination of them has. That
    combination of the iterates is `smooth`; it has no need of a part along d. `motion` is Zd.

    M would decide what is the least residual, and the least norm: with M, all begins again without.
    So it does where a step along d was taken before its curvature was known to be noise.
    """
    d, floor = state.direction, UNSEEN * jnp.finfo(state.eta.dtype).eps * state.stiffness
    size, unseen = d @ d, state.reason == Status.BREAKDOWN.code
    along = -(state.smooth @ d) / jnp.where(size > 0, size, 1.0)
    settled = state._replace(
        eta=state.smooth + along * d,
        motion=axpy(along, motion, state.Zsmooth),
        relative_residual=jnp.linalg.norm(d) / (state.energy * state.weight),
    )
    late = state.softness <= floor
    again = unseen & (late | ~state.plain) & (state.iterations < stop.max_iterations)
    known = jnp.where(state.plain, state.stiffness, 0.0)  # M may have spoilt it
    fresh = fresh._replace(iterations=state.iterations, stiffness=known)
    return pick(again, fresh, pick(unseen, settled, state))


def skip_products(state: ConjugateGradients, served: Array) -> ConjugateGradients:
    """The start, or where the preconditioner M has `served` as an inverse the end: η = −M ∂_θ f.

    Its residual, and Zη, are not known.
    """
    usable = (state.energy > 0) & jnp.isfinite(state.energy)
    done = served & (state.reason == Status.OK.code) & usable
    return state._replace(
        eta=jnp.where(done, state.direction, state.eta),
        relative_residual=jnp.where(done, jnp.nan, state.relative_residual),
        reason=jnp.where(done, jnp.int32(Status.RECYCLED.code), state.reason),
    )


def ensure_descent(state: ConjugateGradients) -> ConjugateGradients:
    """With a direction of descent where negative curvature ended the iteration at once.

    The first direction, as long as if its curvature were positive.
    """
    d = state.direction
    at_once = (state.reason == Status.BREAKDOWN.code) & (state.iterations == 1)
    curvature = state.stiffness * (d @ d)
    length = state.energy / jnp.where(curvature > 0, curvature, 1.0)
    return state._replace(eta=jnp.where(at_once, length * d, state.eta))


# What LSMR needs as well.


def scale_gradient(gradient: Array) -> tuple[Array, Array, Array]:
    """‖∂_θ f‖, −∂_θ f/‖∂_θ f‖, and whether that is all there is to do."""
    largest = jnp.max(jnp.abs(gradient))
    finite = jnp.isfinite(largest)
    usable = finite & (largest > 0)
    reduced = jnp.where(usable, gradient / jnp.where(usable, largest, 1.0), 0.0)
    length = jnp.linalg.norm(reduced)
    unit = -reduced / jnp.where(usable, length, 1.0)
    scale = jnp.where(usable, largest * length, 0.0)
    return scale, unit, find_reason((~finite, Status.NOT_FINITE), (~usable, Status.CONVERGED))


def make_solution(state: Any, condition: Array | float, memory: Any = None) -> Solution:
    """η and Zη at their true length, and how the iteration went."""
    info = SolveInfo(
        rank=jnp.nan,
        condition=condition,
        rank_deficient=False,
        iterations=state.iterations,
        residual=state.relative_residual,
        reason=state.reason,
        counts=Counts(linearised=state.iterations, adjoint=state.iterations),
    )
    return Solution(state.scale * state.eta, info, scale(state.scale, state.motion), memory)
