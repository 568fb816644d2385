"""Derivatives of a function at one point, for residuals: written once, batched by the library."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import InputError

Field = Callable[[Array], Array]


def derivative(u: Field, x: Array, *axes: int) -> Array:
    """∂u/∂x_i, ∂²u/∂x_i∂x_j, … at x, in forward mode: one axis for each order.

    `u` maps a point of shape `(d,)` to a scalar or an array.

    ```python
    u_t, u_xx = ng.derivative(u, x, 0), ng.derivative(u, x, 1, 1)
    ```

    Cost: 2 evaluations of u for each order, multiplied; equal parts of several are shared.
    """
    _check_point(x)
    if not axes:
        return u(x)
    *rest, last = axes
    if not isinstance(last, (int, np.integer)) or not -x.size <= last < x.size:
        what = f"{last!r} is no axis of a point of shape {x.shape}"
        raise InputError("axes", what, f"integers from 0 to {x.size - 1}")
    inner = lambda y: derivative(u, y, *rest)
    return jax.jvp(inner, (x,), (jnp.zeros_like(x).at[last].set(1.0),))[1]


def laplacian(u: Field, x: Array) -> Array:
    """Δu = Σᵢ ∂²u/∂xᵢ² at x, the directions batched over one evaluation of u.

    ```python
    residual = lambda net, x: ng.laplacian(lambda y: net(y)[0], x) + source(x)
    ```

    Cost: about 2d + 1 evaluations of u.
    """
    _check_point(x)

    def second(direction: Array) -> Array:
        slope = lambda y: jax.jvp(u, (y,), (direction,))[1]
        return jax.jvp(slope, (x,), (direction,))[1]

    return jnp.sum(jax.vmap(second)(jnp.eye(x.size, dtype=x.dtype)), axis=0)


def _check_point(x: Array) -> None:
    if jnp.ndim(x) != 1 or not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        what = f"has shape {jnp.shape(x)} and dtype {jnp.result_type(x)}"
        raise InputError("x", what, "one real point of shape (d,), and jax.vmap for several")
