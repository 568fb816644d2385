"""Derivatives of a function at one point, for residuals: written once, batched by the library."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

Field = Callable[[Array], Array]


def derivative(u: Field, x: Array, *axes: int) -> Array:
    """∂u/∂x_i, ∂²u/∂x_i∂x_j, … at x, in forward mode: one axis for each order.

    `u` maps a point of shape `(d,)` to a scalar or an array.

    ```python
    u_t, u_xx = ng.derivative(u, x, 0), ng.derivative(u, x, 1, 1)
    ```

    Cost: 2 evaluations of u for each order, multiplied; equal parts of several are shared.
    """
    if not axes:
        return u(x)
    *rest, last = axes
    inner = lambda y: derivative(u, y, *rest)
    return jax.jvp(inner, (x,), (jnp.zeros_like(x).at[last].set(1.0),))[1]


def laplacian(u: Field, x: Array) -> Array:
    """Δu = Σᵢ ∂²u/∂xᵢ² at x, the directions batched over one evaluation of u.

    ```python
    residual = lambda net, x: ng.laplacian(lambda y: net(y)[0], x) + source(x)
    ```

    Cost: about 2d + 1 evaluations of u.
    """

    def second(direction: Array) -> Array:
        slope = lambda y: jax.jvp(u, (y,), (direction,))[1]
        return jax.jvp(slope, (x,), (direction,))[1]

    return jnp.sum(jax.vmap(second)(jnp.eye(x.size, dtype=x.dtype)), axis=0)
