"""The loss at a known state, and its derivatives with respect to the state and to θ directly."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from .metrics.base import Metric
from .problems import Problem

PyTree = Any


class Slopes(NamedTuple):
    """F, ∂_ρ f, and what θ adds by itself: ∂_θ f = Zᵀ `covector` + `direct`; None for nothing."""

    value: Array
    covector: PyTree | None
    direct: Array | None


@eqx.filter_jit
def slopes(problem: Problem, theta: PyTree, rho: PyTree) -> Slopes:
    """The derivatives of the loss at ρ = ρ(θ), without those of the model."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)

    def in_theta(function: Any) -> tuple[Array, Array]:
        value, slope = jax.value_and_grad(lambda t: function(eqx.combine(t, rest)))(parameters)
        return value, ravel_pytree(slope)[0]

    if problem.objective is not None:
        value, direct = in_theta(problem.objective)
        return Slopes(value, None, direct)
    value, covector = jax.value_and_grad(problem.loss)(rho)
    if problem.regulariser is None:
        return Slopes(value, covector, None)
    extra, direct = in_theta(problem.regulariser)
    return Slopes(value + extra, covector, direct)


@eqx.filter_jit
def energy(
    metric: Metric,
    rho: PyTree,
    found: Slopes,
    whitened: Array | None = None,
    leftover: Array | None = None,
) -> Array:
    """⟨∂_ρ f, A⁻¹∂_ρ f⟩ on tangents, where that is all of the gradient and easily had; else NaN.

    It is ‖b‖² for the shortest b with Lᵀb = ∂_ρ f, which need not be the `whitened` one at hand;
    `leftover` is what that one leaves of the gradient.
    """
    unknown = jnp.full((), jnp.nan)
    if found.covector is None or found.direct is not None:
        return unknown
    diagonal = metric.diagonal(rho)
    if diagonal is not None:
        parts = jax.tree.map(lambda c, a: jnp.sum(c**2 / a), found.covector, diagonal)
        return jnp.sum(jnp.stack(jax.tree.leaves(parts)))
    if whitened is None or not metric.whitens_shortest:
        return unknown
    return jnp.where(jnp.any(leftover != 0), jnp.nan, whitened @ whitened)
