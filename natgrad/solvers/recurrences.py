"""Krylov recurrences as pure functions: a start, and a step that asks for products.

A compiled loop (`krylov.py`) and a loop on the host, for models outside JAX, can share them: a
step calls the products it is given and is otherwise arithmetic on its state. Right-hand sides are
scaled to unit length, so that single precision neither overflows nor underflows in their squares.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..linalg.trees import axpy, dot, norm, pick, scaled
from .base import BREAKDOWN, CONVERGED, MAX_ITERATIONS, NOT_FINITE, RUNNING

PyTree = Any


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
    energy: Array  # ‖residual‖²
    stiffness: Array  # the largest Rayleigh quotient met
    scale: Array
    iterations: Array
    reason: Array

    @property
    def relative_residual(self) -> Array:
        return jnp.sqrt(self.energy)


Apply = Callable[[Array], tuple[PyTree, Array, Array]]


def cg_start(gradient: Array, motion: PyTree) -> ConjugateGradients:
    """η = 0 for the right-hand side −∂_θ f; `motion` is the zero of the state's tangents."""
    scale, unit, reason = _right_hand_side(gradient)
    zero, one = jnp.zeros_like(scale), jnp.where(scale > 0, jnp.ones_like(scale), 0)
    count = jnp.zeros((), jnp.int32)
    return ConjugateGradients(
        jnp.zeros_like(gradient), motion, unit, unit, one, zero, scale, count, reason
    )


def cg_step(state: ConjugateGradients, apply: Apply, stop: Stop) -> ConjugateGradients:
    """One step of the method of Hestenes and Stiefel.

    `apply(d)` returns Zd, (G + λD)d and the curvature ⟨d, (G + λD)d⟩. A curvature that is
    not positive, up to rounding, is a breakdown: the step is not taken.
    """
    d, eps = state.direction, jnp.finfo(state.eta.dtype).eps
    image, product, curvature = apply(d)
    size = d @ d
    quotient = curvature / jnp.where(size > 0, size, 1.0)
    stiffness = jnp.maximum(state.stiffness, quotient)
    positive = (quotient > eps * stiffness) & (stiffness > 0)
    alpha = state.energy / jnp.where(positive, curvature, 1.0)
    residual = state.residual - alpha * product
    energy = residual @ residual
    count = state.iterations + 1
    reason = _reason(
        (~jnp.isfinite(curvature), NOT_FINITE),
        (~positive, BREAKDOWN),
        (~jnp.isfinite(energy), NOT_FINITE),
        (jnp.sqrt(energy) <= jnp.maximum(stop.tolerance, eps), CONVERGED),
        (count >= stop.max_iterations, MAX_ITERATIONS),
    )
    new = ConjugateGradients(
        eta=state.eta + alpha * d,
        motion=axpy(alpha, image, state.motion),
        residual=residual,
        direction=residual + (energy / state.energy) * d,
        energy=energy,
        stiffness=stiffness,
        scale=state.scale,
        iterations=count,
        reason=reason,
    )
    taken = (reason != NOT_FINITE) & (reason != BREAKDOWN)
    return pick(taken, new, state._replace(iterations=count, reason=reason))


class LSMRState(NamedTuple):
    """LSMR after some steps, in the notation of Fong and Saunders; a name with Z is Z times it."""

    eta: Array
    motion: PyTree
    u: PyTree
    v: Array
    h: Array
    h_bar: Array
    Zh: PyTree
    Zh_bar: PyTree
    alpha: Array
    alpha_bar: Array
    theta: Array
    rho: Array
    rho_bar: Array
    c_bar: Array
    s_bar: Array
    zeta_bar: Array  # ‖(G + λD) η + ∂_θ f‖, with a sign
    largest: Array
    smallest: Array
    floor: Array  # of the singular values met, relative to the largest
    scale: Array
    iterations: Array
    reason: Array

    @property
    def relative_residual(self) -> Array:
        return jnp.abs(self.zeta_bar)


def lsmr_start(gradient: Array, whitened: PyTree | None, zero: PyTree, motion: PyTree) -> LSMRState:
    """η = 0; `zero` is that of Y's range, `motion` that of the state's tangents.

    The bidiagonalisation starts from u₁ = −b/‖b‖ where there is a b with Yᵀb = ∂_θ f. Where the
    gradient has a part that no b accounts for it starts from v₁ = −∂_θ f/‖∂_θ f‖ instead, with
    α₁ = 0 and u₁ = 0: the same recurrence, then with the bidiagonalisation's second form, and the
    same Krylov space, for any right-hand side of the normal equations. What G amplifies beyond
    1/eps is then noise, or a part of the gradient that G does not see: a breakdown.
    """
    scale, unit, reason = _right_hand_side(gradient)
    none, one = jnp.zeros_like(scale), jnp.ones_like(scale)
    eps = jnp.finfo(gradient.dtype).eps
    u, alpha, floor = zero, none, eps**0.5 * one
    if whitened is not None:
        floor = 10 * eps * one
        length = norm(whitened).astype(scale.dtype)
        u = axpy(-1.0 / jnp.where(length > 0, length, 1.0), whitened, zero)
        alpha = scale / jnp.where(length > 0, length, 1.0)
    flat = jnp.zeros_like(gradient)
    return LSMRState(
        *(flat, motion, u, unit, flat, flat, motion, motion),
        *(alpha, alpha, none, one, one, one, none, jnp.where(scale > 0, one, 0)),
        *(none, jnp.full_like(scale, jnp.inf), floor.astype(scale.dtype), scale),
        *(jnp.zeros((), jnp.int32), reason),
    )


def lsmr_step(
    state: LSMRState,
    forward: Callable[[Array], tuple[PyTree, PyTree]],
    backward: Callable[[PyTree], Array],
    stop: Stop,
) -> LSMRState:
    """One step of LSMR: `forward(v)` returns Zv and Yv, `backward(u)` returns Yᵀu."""
    eps, old = jnp.finfo(state.eta.dtype).eps, state
    image, y = forward(old.v)
    back = -old.theta / old.rho
    h, Zh = axpy(back, old.h, old.v), axpy(back, old.Zh, image)

    beta, u = _normalised(axpy(-old.alpha, old.u, y), old.alpha.dtype)
    alpha, v = _normalised(axpy(-beta, old.v, backward(u)), beta.dtype)

    rho = jnp.hypot(old.alpha_bar, beta)
    safe = jnp.where(rho > 0, rho, 1.0)
    c, s = old.alpha_bar / safe, beta / safe
    theta = s * alpha
    theta_bar, rho_temp = old.s_bar * rho, old.c_bar * rho
    rho_bar = jnp.hypot(rho_temp, theta)
    safe_bar = jnp.where(rho_bar > 0, rho_bar, 1.0)
    c_bar, s_bar = rho_temp / safe_bar, theta / safe_bar
    zeta, zeta_bar = c_bar * old.zeta_bar, -s_bar * old.zeta_bar

    combine = -theta_bar * rho / (old.rho * old.rho_bar)
    h_bar, Zh_bar = axpy(combine, old.h_bar, h), axpy(combine, old.Zh_bar, Zh)
    length = zeta / (safe * safe_bar)
    largest = jnp.maximum(old.largest, jnp.maximum(rho, rho_bar))
    count = old.iterations + 1
    reason = _reason(
        (~jnp.isfinite(rho + alpha), NOT_FINITE),
        (jnp.minimum(rho, rho_bar) <= old.floor * largest, BREAKDOWN),
        (jnp.abs(zeta_bar) <= jnp.maximum(stop.tolerance, eps), CONVERGED),
        (count >= stop.max_iterations, MAX_ITERATIONS),
    )
    new = LSMRState(
        eta=axpy(length, h_bar, old.eta),
        motion=axpy(length, Zh_bar, old.motion),
        u=u,
        v=v,
        h=h,
        h_bar=h_bar,
        Zh=Zh,
        Zh_bar=Zh_bar,
        alpha=alpha,
        alpha_bar=c * alpha,
        theta=theta,
        rho=rho,
        rho_bar=rho_bar,
        c_bar=c_bar,
        s_bar=s_bar,
        zeta_bar=zeta_bar,
        largest=largest,
        smallest=jnp.minimum(old.smallest, rho_bar),
        floor=old.floor,
        scale=old.scale,
        iterations=count,
        reason=reason,
    )
    taken = (reason != NOT_FINITE) & (reason != BREAKDOWN)
    return pick(taken, new, old._replace(iterations=count, reason=reason))


def _right_hand_side(gradient: Array) -> tuple[Array, Array, Array]:
    """‖∂_θ f‖, −∂_θ f/‖∂_θ f‖, and whether that is all there is to do."""
    largest = jnp.max(jnp.abs(gradient))
    finite = jnp.isfinite(largest)
    usable = finite & (largest > 0)
    reduced = jnp.where(usable, gradient / jnp.where(usable, largest, 1.0), 0.0)
    length = jnp.linalg.norm(reduced)
    unit = -reduced / jnp.where(usable, length, 1.0)
    scale = jnp.where(usable, largest * length, 0.0)
    return scale, unit, _reason((~finite, NOT_FINITE), (~usable, CONVERGED))


def _normalised(x: PyTree, dtype: Any) -> tuple[Array, PyTree]:
    length = jnp.sqrt(dot(x, x)).astype(dtype)
    return length, scaled(1.0 / jnp.where(length > 0, length, 1.0), x)


def _reason(*cases: tuple[Array, int]) -> Array:
    """The code of the first case that holds, or that of a loop that goes on."""
    conditions, codes = zip(*cases, strict=True)
    return jnp.select(conditions, [jnp.int32(code) for code in codes], jnp.int32(RUNNING))
