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
    first: Array  # ⟨ζ, Mζ⟩
    iterations: Array
    nearly: Array  # the next residual should be small enough: see whether it truly is
    finished: Array
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
    measures. Rounding can drive the updated residual to zero where ζ − Kφ is not small at all, so
    once the rate of convergence predicts the end, the residual is computed anew and has the last
    word. One more update follows, whose direction is there already: the error that is reported is
    an upper estimate.

    Cost: one product and one preconditioner per iteration, one product more at the end, and five
    vectors. Reference: Saad, Iterative Methods for Sparse Linear Systems (2003), ch. 9.
    """
    axes = tuple(range(-dim, 0))
    inner = lambda x, y: jnp.sum(x * y, axes, keepdims=True)
    squared = jnp.asarray(tolerance, zeta.dtype) ** 2

    def going(state: _State) -> Array:
        return (state.count < max_iterations) & ~jnp.all(state.finished)

    def iterate(state: _State) -> _State:
        anew = lambda: jnp.where(state.nearly, zeta - product(state.phi), state.residual)
        residual = lax.cond(jnp.any(state.nearly), anew, lambda: state.residual)
        z = precondition(residual)
        energy = inner(residual, z)
        first = jnp.where(state.count == 0, energy, state.first)
        rate = jnp.where(state.count == 0, 0.0, energy / _or_one(state.energy))
        search = z + rate * state.search
        image = product(search)
        curvature = inner(search, image)
        usable = ~state.finished & (curvature > 0)
        alpha = jnp.where(usable, energy / _or_one(curvature), 0.0)
        wanted = squared * first
        small = jnp.abs(energy) <= wanted
        expected = jnp.abs(energy) * jnp.minimum(jnp.abs(rate), 1.0)
        return _State(
            state.phi + alpha * search,
            residual - alpha * image,
            search,
            jnp.where(state.finished, state.energy, energy),
            first,
            state.iterations + ~state.finished,
            jnp.where(state.count == 0, energy == 0, expected <= wanted),
            state.finished | (state.nearly & small) | ~jnp.isfinite(energy),
            state.count + 1,
        )

    one = jnp.ones_like(inner(zeta, zeta))
    zeros, no = jnp.zeros_like(zeta), jnp.zeros(one.shape, bool)
    none = jnp.zeros(one.shape, jnp.int32)
    start = _State(zeros, zeta, zeros, one, one, none, no, no, jnp.zeros((), jnp.int32))
    end = lax.while_loop(going, iterate, start)
    error = jnp.sqrt(jnp.abs(end.energy) / _or_one(end.first))  # NaN if M is not positive
    converged = end.finished & (error <= tolerance)
    scalars = jax.tree.map(lambda x: jnp.squeeze(x, axes), (end.iterations, error, converged))
    return Solution(end.phi, *scalars)


def _or_one(x: Array) -> Array:
    return jnp.where(x == 0, 1.0, x)
