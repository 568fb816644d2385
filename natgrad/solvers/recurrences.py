"""Conjugate gradients as pure functions: a start, and a step that asks for products.

A compiled loop (`krylov.py`) and a loop on the host, for models outside JAX, can share them: a
step calls the products it is given and is otherwise arithmetic on its state. Right-hand sides are
scaled to unit length, so that single precision neither overflows nor underflows in their squares.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.operators import axpy, pick
from ..core.outcomes import Status


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
