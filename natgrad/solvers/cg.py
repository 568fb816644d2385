"""Conjugate gradients: the recurrence as pure functions, and the solver. Nothing k × p is formed.

A compiled loop and a loop on the host, for models outside JAX, share the recurrence: a step calls
the products it is given and is otherwise arithmetic on its state. Right-hand sides are scaled to
unit length, so that single precision neither overflows nor underflows in their squares.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import loop
from ..core.operators import axpy, pick, scale
from ..core.outcomes import Counts, Status
from ..core.settings import Number, count, setting
from .base import MatrixFreeSolver, Solution, SolveInfo
from .preconditioners import Preconditioner, Recycled, as_preconditioner
from .system import LinearSystem, System


class CG(MatrixFreeSolver):
    """Conjugate gradients on (G + λD) η = −∂_θ f, Gv = Zᵀ(A(Zv)): the paper's Algorithm 3.

    Stops when the residual falls below `tolerance` · ‖∂_θ f‖ or after `max_iterations`;
    `tolerance=0` makes that a fixed count. With `forcing=True` the tolerance follows the run,
    max(`tolerance`, min(½, √(‖∂_θ f‖/‖∂_θ f(θ₀)‖))): few products far from the minimum, more near
    it. Stopped at any step, η descends and ⟨η, (G + λD) η⟩ = −⟨∂_θ f, η⟩.

    Zη is carried along, so that `ModelStep` needs no further product. `info.status` is
    "converged", "max_iterations", "breakdown" (a curvature that is not positive: without damping,
    a gradient with a part that G does not see) or "not_finite"; η is then the last good iterate.
    "recycled" is a direction without products, see `Recycled`.

    ```python
    ng.NaturalGradient(ng.L2(grid), solver=ng.CG(max_iterations=10), damping=1e-3)
    ```

    Cost: one linearised and one adjoint product and one with A per iteration; memory for four
    vectors like θ and one like ρ besides what the model stores. The condition number is that
    of Y squared, as in `Cholesky`; the iterations grow with that of Y.

    Reference: Algorithm 3 of the paper; Hestenes and Stiefel 1952; for the forcing term Eisenstat
    and Walker 1996, and Nocedal and Wright, Numerical Optimization, section 7.1.
    """

    tolerance: Number = setting("tolerance", 1e-6, below=1.0)
    max_iterations: Number = count("max_iterations", 200)
    forcing: bool = eqx.field(static=True, default=False)
    preconditioner: Preconditioner | None = eqx.field(
        converter=as_preconditioner, default=Recycled()
    )

    @property
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        return ("gram", *uses_of(self.preconditioner))

    def initial_memory(self, size: int, dtype: Any, batches: bool = False) -> Any:
        M = self.preconditioner
        return M.memory(size, dtype, batches) if isinstance(M, Recycled) else None

    def arrive(self, memory: Any, theta: Array, gradient: Array) -> Any:
        return memory if memory is None else memory.arrive(theta, gradient)

    def prepare(self, system: LinearSystem) -> "PreparedSystem":
        return PreparedSystem.of(system, self.preconditioner)

    def spent(self, system: LinearSystem) -> Counts:
        return Counts() if self.preconditioner is None else self.preconditioner.spent(system)

    def aim(self, prepared: "PreparedSystem", b: PyTree, g: Array) -> "PreparedSystem":
        return prepared.aim(g)

    def solve(self, prepared: "PreparedSystem", damping: Array) -> Solution:
        system = prepared.system
        damping = damping.astype(system.gradient.dtype)
        precondition = prepared.product(damping)
        stop = find_stop(self, system)

        def step(carry: tuple[ConjugateGradients, Any]) -> tuple[ConjugateGradients, Any]:
            state, pairs = carry
            d = state.direction
            image, undamped, curvature = system.information(d)
            damped = system.damp(d)
            product = Product(
                image, undamped + damping * damped, curvature + damping * (d @ damped)
            )
            new = cg_step(state, lambda _: product, precondition, stop)
            if pairs is not None:
                broken = new.reason == Status.BREAKDOWN.code
                taken = ~broken & (new.reason != Status.NOT_FINITE.code)
                pairs = pick(taken, pairs.record(d, undamped), pairs)
            return new, pairs

        start = cg_start(system.gradient, system.zero_motion(), precondition)
        recycles = isinstance(self.preconditioner, Recycled)
        memory = system.memory if recycles else None
        if memory is not None and memory.last is not None:
            start = without_products(start, memory.last.served)
        state, memory = loop(lambda carry: carry[0].reason == Status.OK.code, step, (start, memory))
        if system.indefinite:
            state = descending(state)
        return make_solution(state, jnp.nan, memory)


class PreparedSystem(eqx.Module):
    """The system, and the preconditioner as it was set up there."""

    system: LinearSystem
    preconditioner: Preconditioner | None
    setup: Any

    @classmethod
    def of(cls, system: LinearSystem, preconditioner: Preconditioner | None) -> "PreparedSystem":
        setup = None if preconditioner is None else preconditioner.prepare(system)
        return cls(system, preconditioner, setup)

    def aim(self, g: Array) -> "PreparedSystem":
        """The same with another right-hand side, of which no whitened form is known."""
        system = eqx.tree_at(lambda s: s.gradient, self.system, g)
        if isinstance(system, System):
            system = replace(system, whitened=None)
        if system.memory is not None:
            system = replace(system, memory=system.memory.elsewhere())
        return replace(self, system=system)

    def product(self, damping: Array) -> Callable[[Array], Array]:
        """r ↦ M r, on the parameters that may move."""
        if self.preconditioner is None:
            return lambda r: r
        product = self.preconditioner.product(self.setup, self.system, damping)
        free = self.system.free
        return product if free is None else lambda r: free * product(r)


def uses_of(preconditioner: Preconditioner | None) -> tuple[Literal["gram", "factor"], ...]:
    return () if preconditioner is None else preconditioner.uses


def find_stop(solver: Any, system: LinearSystem) -> "Stop":
    tolerance = jnp.asarray(solver.tolerance, system.gradient.dtype)
    if solver.forcing:
        tolerance = jnp.maximum(tolerance, jnp.minimum(0.5, jnp.sqrt(system.progress)))
    return Stop(tolerance, jnp.asarray(solver.max_iterations))


def make_solution(
    state: Any,
    condition: Array | float,
    memory: Any = None,
) -> Solution:
    steps = state.iterations
    info = SolveInfo(
        rank=jnp.nan,
        condition=condition,
        rank_deficient=False,
        iterations=steps,
        residual=state.relative_residual,
        reason=state.reason,
        counts=Counts(linearised=steps, adjoint=steps),
    )
    return Solution(state.scale * state.eta, info, scale(state.scale, state.motion), memory)


class Stop(NamedTuple):
    """When to stop: the residual relative to the right-hand side, and the steps at most."""

    tolerance: Array
    max_iterations: Array


class ConjugateGradients(NamedTuple):
    """Conjugate gradients after some steps; `motion` is Zη, `scale` the length that was taken out.

    The solution is `scale` · `eta`. At every step ⟨η, (G + λD) η⟩ = −⟨∂_θ f, η⟩.
    """

    eta: Array
    motion: PyTree
    residual: Array
    direction: Array
    energy: Array  # ⟨residual, M residual⟩
    relative_residual: Array
    stiffness: Array  # the largest Rayleigh quotient met, in size
    scale: Array
    iterations: Array
    reason: Array


class Product(NamedTuple):
    """Zd, (G + λD)d and ⟨d, (G + λD)d⟩ for a direction d."""

    motion: PyTree
    image: Array
    curvature: Array


Precondition = Callable[[Array], Array]


def cg_start(gradient: Array, motion: PyTree, precondition: Precondition) -> ConjugateGradients:
    """η = 0 for the right-hand side −∂_θ f; `motion` is the zero of the state's tangents."""
    scale, unit, reason = right_hand_side(gradient)
    direction = precondition(unit)
    zero, one = jnp.zeros_like(scale), jnp.where(scale > 0, jnp.ones_like(scale), 0)
    count = jnp.zeros((), jnp.int32)
    eta, energy = jnp.zeros_like(gradient), unit @ direction
    return ConjugateGradients(eta, motion, unit, direction, energy, one, zero, scale, count, reason)


def cg_step(
    state: ConjugateGradients,
    apply: Callable[[Array], Product],
    precondition: Precondition,
    stop: Stop,
) -> ConjugateGradients:
    """One step of the method of Hestenes and Stiefel, preconditioned.

    `apply(d)` makes the products with d. A curvature that is not positive, up to rounding, is a
    breakdown: the step is not taken.
    """
    taken = _cg_advance(state, apply(state.direction), stop)
    return _cg_turn(state, taken, precondition(taken.residual))


@jax.jit
def _cg_advance(state: ConjugateGradients, product: Product, stop: Stop) -> ConjugateGradients:
    """The step along the direction, with the reason to stop after it."""
    d, eps = state.direction, jnp.finfo(state.eta.dtype).eps
    size, curvature = d @ d, product.curvature
    quotient = curvature / jnp.where(size > 0, size, 1.0)
    stiffness = jnp.maximum(state.stiffness, jnp.abs(quotient))
    positive = (quotient > eps * stiffness) & (stiffness > 0) & (state.energy > 0)
    alpha = state.energy / jnp.where(positive, curvature, 1.0)
    residual = state.residual - alpha * product.image
    length = jnp.linalg.norm(residual)
    count = state.iterations + 1
    reason = first_reason(
        (~jnp.isfinite(curvature) | ~jnp.isfinite(state.energy), Status.NOT_FINITE),
        (~positive, Status.BREAKDOWN),
        (~jnp.isfinite(length), Status.NOT_FINITE),
        (length <= jnp.maximum(stop.tolerance, eps), Status.CONVERGED),
        (count >= stop.max_iterations, Status.MAX_ITERATIONS),
    )
    return state._replace(
        eta=state.eta + alpha * d,
        motion=axpy(alpha, product.motion, state.motion),
        residual=residual,
        relative_residual=length,
        stiffness=stiffness,
        iterations=count,
        reason=reason,
    )


@jax.jit
def _cg_turn(
    old: ConjugateGradients, new: ConjugateGradients, preconditioned: Array
) -> ConjugateGradients:
    """The next conjugate direction; the old iterate stays where the step must not be taken."""
    energy = new.residual @ preconditioned
    ratio = energy / jnp.where(old.energy > 0, old.energy, 1.0)
    new = new._replace(direction=preconditioned + ratio * old.direction, energy=energy)
    taken = (new.reason != Status.NOT_FINITE.code) & (new.reason != Status.BREAKDOWN.code)
    told = {"iterations": new.iterations, "reason": new.reason, "stiffness": new.stiffness}
    return pick(taken, new, old._replace(**told))


def without_products(start: ConjugateGradients, served: Array) -> ConjugateGradients:
    """The start, or where the preconditioner M has `served` as an inverse the end: η = −M ∂_θ f.

    Its residual, and Zη, are not known.
    """
    usable = (start.energy > 0) & jnp.isfinite(start.energy)
    done = served & (start.reason == Status.OK.code) & usable
    return start._replace(
        eta=jnp.where(done, start.direction, start.eta),
        relative_residual=jnp.where(done, jnp.nan, start.relative_residual),
        reason=jnp.where(done, jnp.int32(Status.RECYCLED.code), start.reason),
    )


def descending(state: ConjugateGradients) -> ConjugateGradients:
    """With a direction of descent where negative curvature ended the iteration at once.

    The first direction, as long as if its curvature were positive.
    """
    d = state.direction
    at_once = (state.reason == Status.BREAKDOWN.code) & (state.iterations == 1)
    curvature = state.stiffness * (d @ d)
    length = state.energy / jnp.where(curvature > 0, curvature, 1.0)
    return state._replace(eta=jnp.where(at_once, length * d, state.eta))


def right_hand_side(gradient: Array) -> tuple[Array, Array, Array]:
    """‖∂_θ f‖, −∂_θ f/‖∂_θ f‖, and whether that is all there is to do."""
    largest = jnp.max(jnp.abs(gradient))
    finite = jnp.isfinite(largest)
    usable = finite & (largest > 0)
    reduced = jnp.where(usable, gradient / jnp.where(usable, largest, 1.0), 0.0)
    length = jnp.linalg.norm(reduced)
    unit = -reduced / jnp.where(usable, length, 1.0)
    scale = jnp.where(usable, largest * length, 0.0)
    return scale, unit, first_reason((~finite, Status.NOT_FINITE), (~usable, Status.CONVERGED))


def first_reason(*cases: tuple[Array, Status]) -> Array:
    """The code of the first case that holds, or that of a loop that goes on."""
    conditions, reasons = zip(*cases, strict=True)
    codes = [jnp.int32(reason.code) for reason in reasons]
    return jnp.select(conditions, codes, jnp.int32(Status.OK.code))
