"""Conjugate gradients for Kφ = ζ with a preconditioner, over many right-hand sides at once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .factor import Solution


class _State(NamedTuple):
    phi: Array
    residual: Array
    search: Array
    energy: Array  # ⟨r, Mr⟩ before the last update
    first: Array
    iterations: Array
    count: Array


def preconditioned_cg(
    product: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    zeta: Array,
    dim: int,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    """φ with Kφ = ζ, ζ in the range of K; axes before the last `dim` are independent.

    Ends when ⟨r, Mr⟩ ≤ tolerance² ⟨ζ, Mζ⟩ for every right-hand side. With M ≈ K⁺ these are the
    squared energy norms of the error and of the solution, the ones in which a transport metric
    measures. The test uses the residual before the last update, which comes free of charge, so
    that the error reported is an upper estimate.

    Cost: one product and one preconditioner per iteration, and five vectors.
    Reference: Saad, Iterative Methods for Sparse Linear Systems (2003), ch. 9.
    """
    axes = tuple(range(-dim, 0))
    inner = lambda x, y: jnp.sum(x * y, axes, keepdims=True)

    def unfinished(state: _State) -> Array:
        wanted = jnp.asarray(tolerance, state.energy.dtype) ** 2 * state.first
        finished = (jnp.abs(state.energy) <= wanted) | ~jnp.isfinite(state.energy)
        return (state.count == 0) | ~finished

    def going(state: _State) -> Array:
        return (state.count < max_iterations) & jnp.any(unfinished(state))

    def iterate(state: _State) -> _State:
        active = unfinished(state)
        z = precondition(state.residual)
        energy = inner(state.residual, z)
        again = jnp.where(state.energy > 0, state.energy, 1.0)
        beta = jnp.where(jnp.isfinite(state.energy), energy / again, 0.0)
        search = z + beta * state.search
        image = product(search)
        curvature = inner(search, image)
        usable = active & (curvature > 0)
        alpha = jnp.where(usable, energy / jnp.where(usable, curvature, 1.0), 0.0)
        return _State(
            state.phi + alpha * search,
            state.residual - alpha * image,
            search,
            jnp.where(active, energy, state.energy),
            jnp.where(state.count == 0, energy, state.first),
            state.iterations + active,
            state.count + 1,
        )

    one = jnp.full(inner(zeta, zeta).shape, jnp.inf, zeta.dtype)
    zeros, none = jnp.zeros_like(zeta), jnp.zeros(one.shape, jnp.int32)
    start = _State(zeros, zeta, zeros, one, one, none, jnp.zeros((), jnp.int32))
    end = lax.while_loop(going, iterate, start)
    share = jnp.abs(end.energy) / jnp.where(end.first == 0, 1.0, end.first)
    error = jnp.sqrt(share)  # NaN for a preconditioner that is not positive
    scalars = jax.tree.map(
        lambda x: jnp.squeeze(x, axes), (end.iterations, error, error <= tolerance)
    )
    return Solution(end.phi, *scalars)
