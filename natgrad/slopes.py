"""The loss at a known state, and its derivatives with respect to the state and to θ directly."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
from jax import Array
from jax.flatten_util import ravel_pytree

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
