"""The natural gradient from a Euclidean one that somebody else has computed."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.settings import check_instance
from ..direction.damping import Damping
from ..direction.linearise import check_structure, linearise
from ..direction.local import Setup
from ..direction.traced import Along
from ..errors import InputError
from ..metrics.base import Metric
from ..models.base import Model
from ..parameters import flatten
from ..problem import Problem
from ..solvers import SolveInfo, Solver


class NaturalDirection(NamedTuple):
    """(G + λD)⁻¹g in the structure of θ, with what the solver saw, λ, and ‖g‖."""

    direction: PyTree
    info: SolveInfo
    damping: Array
    gradient_norm: Array


def check_method(metric: Metric, solver: Solver) -> None:
    """What can be said before there is a θ."""
    check_instance("metric", metric, Metric)
    check_instance("solver", solver, Solver)


def convert_gradient(
    model: Model,
    theta: PyTree,
    gradient: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    damping_state: Array,
) -> NaturalDirection:
    """(G + λD)⁻¹g for the gradient g of any function of θ; may be traced.

    It is the direction of the linear objective ⟨g, θ⟩, up to its sign. Nothing is known of ∂_ρ f,
    so least-squares solvers work on G†g: accurate up to the condition number of Y squared.
    """
    parameters = eqx.filter(theta, eqx.is_inexact_array)
    slope = eqx.filter(gradient, eqx.is_inexact_array)
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (parameters, slope)]
    if jax.tree.structure(parameters) != jax.tree.structure(slope) or shapes[0] != shapes[1]:
        what = f"have shapes {shapes[1]} and the parameters {shapes[0]}"
        raise InputError("updates", what, "the gradient with respect to the same params")
    flat, _ = flatten(theta)
    problem = Problem(model, objective=Along(flatten(slope)[0].astype(flat.dtype)))
    setup = Setup(problem, theta, metric, solver, damping)
    _, known = check_structure(setup)
    local = linearise(dataclasses.replace(setup, known=known if model.solves else None))
    strength = damping.strength(damping_state, local.trace, local.gradient.size)
    if damping.adapts:
        strength = jnp.maximum(strength, local.resolution * local.trace)
    eta, info, *_ = local.solve(strength)
    return NaturalDirection(flatten(parameters)[1](-eta), info, strength, local.gradient_norm)
