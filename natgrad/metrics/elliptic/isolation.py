"""Kernels kept apart, so that the compiler does not fuse one stencil into the next."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import PyTree


def isolated(alive: Array, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """`function(*arguments)`, neither fused with what comes before nor with what follows.

    On the CPU, XLA drops optimisation barriers before it fuses, and then recomputes a stencil at
    every point where the next one reads it: two in a row run several times slower and take far
    longer to compile. A conditional is a border that it respects. `alive` must be true at run time
    without the compiler knowing (a scalar computed from data); where it is false the result is NaN.
    On other devices the barrier works.
    """

    def conditional(alive: Array, *arguments: PyTree) -> PyTree:
        shapes = jax.eval_shape(function, *arguments)
        invalid = lambda *_: jax.tree.map(lambda s: jnp.full(s.shape, jnp.nan, s.dtype), shapes)
        return lax.cond(alive, function, invalid, *arguments)

    def barrier(alive: Array, *arguments: PyTree) -> PyTree:
        return lax.optimization_barrier(function(*lax.optimization_barrier(arguments)))

    return lax.platform_dependent(alive, *arguments, cpu=conditional, default=barrier)
