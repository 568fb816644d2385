"""The self-scaled Broyden method, a rival: a dense inverse Hessian, p² numbers.

With s a step along −H g of length α, y the change of the gradient g, and

    b = −α sᵀg / yᵀs,   h = yᵀHy / yᵀs,   a = bh − 1 ≥ 0,   v = s/yᵀs − Hy/yᵀHy,

the update is H⁺ = (H − Hy yᵀH/yᵀHy + φ yᵀHy v vᵀ)/τ + s sᵀ/yᵀs. It maps y to s whatever τ and φ.
BFGS has φ = τ = 1; here θ = (1 − φ)/(φa + 1) and τ come from bounds on the largest eigenvalues:

    ρ = min(1, h(1 − √(a/(1 + a)))),   θ = max((ρ − 1)/a, min(1/ρ, (1 − b)/b)),
    φ = (1 − θ)/(1 + aθ),   σ = 1 + aθ,   τ₀ = min(1, 1/b),
    τ = τ₀ min(σ^{−1/(p−1)}, 1/θ) where θ > 0,   min(τ₀ σ^{−1/(p−1)}, σ) where not.

Cost: three products with H in an iteration, and the evaluations of a line search. Reference:
Al-Baali, Comput. Optim. Appl. 9 (1998); for networks Urbán, Stefanou and Pons, arXiv:2405.04230.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Function = Callable[[Array], Array]
LONGEST = 40  # evaluations of a line search


class State(NamedTuple):
    """θ with the value and the gradient there, H, and what the line search carries."""

    theta: Array
    value: Array
    gradient: Array
    inverse: Array
    search: Any
    stalled: Array


def init(function: Function, theta: Array) -> State:
    """From H = I."""
    value, gradient = jax.jit(jax.value_and_grad(function))(theta)
    identity = jnp.eye(theta.size, dtype=theta.dtype)
    return State(theta, value, gradient, identity, _search().init(theta), jnp.asarray(False))


def _search() -> Any:
    import optax

    return optax.scale_by_zoom_linesearch(LONGEST, initial_guess_strategy="one")


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def step(function: Function, state: State) -> State:
    """One iteration; `stalled` where the line search has found nothing lower."""
    direction = -state.inverse @ state.gradient
    descends = jnp.vdot(direction, state.gradient) < 0
    inverse = jnp.where(descends, state.inverse, jnp.eye(direction.size))
    direction = jnp.where(descends, direction, -state.gradient)
    s, search = _search().update(
        *(direction, state.search, state.theta),
        value=state.value,
        grad=state.gradient,
        value_fn=function,
    )
    alpha = search.learning_rate
    updated = update(inverse, s, search.grad - state.gradient, state.gradient, alpha)
    return State(
        state.theta + s,
        search.value,
        search.grad,
        updated,
        search,
        ~(search.value < state.value),
    )


def update(inverse: Array, s: Array, y: Array, gradient: Array, alpha: Array) -> Array:
    """H⁺, or H where the curvature along the step is not positive."""
    image, along = inverse @ y, jnp.vdot(y, s)
    square = jnp.vdot(y, image)
    b, h = -alpha * jnp.vdot(s, gradient) / along, square / along
    a = jnp.maximum(b * h - 1, jnp.finfo(s.dtype).eps)
    rho = jnp.minimum(1.0, h * (1 - jnp.sqrt(a / (1 + a))))
    theta = jnp.maximum((rho - 1) / a, jnp.minimum(1 / rho, (1 - b) / b))
    phi, sigma, first = (1 - theta) / (1 + a * theta), 1 + a * theta, jnp.minimum(1.0, 1 / b)
    root = sigma ** (-1 / (s.size - 1))
    tau = jnp.where(
        theta > 0,
        first * jnp.minimum(root, 1 / jnp.where(theta > 0, theta, 1.0)),
        jnp.minimum(first * root, sigma),
    )
    v = s / along - image / square
    new = (inverse - jnp.outer(image, image) / square + phi * square * jnp.outer(v, v)) / tau
    new = new + jnp.outer(s, s) / along
    usable = (along > 0) & (square > 0) & jnp.all(jnp.isfinite(new))
    return jnp.where(usable, new, inverse)
