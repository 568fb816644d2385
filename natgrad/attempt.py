"""One attempt at an iteration: solve for the present λ, then take a step along η."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from .damping import Damping
from .linearisation import Bounds, Linearisation, flatten, solve
from .metrics.base import Metric
from .problems import Problem
from .solvers import SolveInfo
from .steps import Outcome, Path, Step, Trial

PyTree = Any


class Attempt(NamedTuple):
    """One solve and one step."""

    outcome: Outcome
    info: SolveInfo
    damping: Array
    damping_state: Array
    slope: Array
    step_norm: Array
    theta_norm: Array


@eqx.filter_jit
def attempt(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    lin: Linearisation,
    damping: Damping,
    damping_state: Array,
    step: Step,
    bounds: Bounds | None,
) -> Attempt:
    """Solve for the present λ, take a step along η, and let the damping learn from it."""
    flat, unravel = flatten(theta)
    strength = damping.strength(damping_state, lin.trace, flat.size)
    eta, info, motion = solve(lin, strength)
    slope = lin.gradient @ eta

    def trial(tau: Array) -> Trial:
        point = flat + tau.astype(flat.dtype) * eta
        if bounds is not None:
            point = jnp.clip(point, bounds.lower, bounds.upper)
        moved = unravel(point)
        rho = problem.model(moved)
        admissible = jnp.asarray(True) if lin.solver is None else metric.admissible(rho)
        return Trial(point, problem.value(moved, rho), admissible, -lin.gradient @ (point - flat))

    carried = None if motion is None else (lin.rho, motion)
    path = Path(
        trial=trial,
        value=lin.loss,
        slope=slope,
        curvature=lambda: _curvature(problem, unravel, flat, eta, carried),
        curvature_products=0 if carried is not None and problem.objective is None else 1,
    )
    outcome = step.take(path)
    return Attempt(
        outcome=outcome,
        info=info,
        damping=strength,
        damping_state=damping.update(strength.astype(damping_state.dtype), outcome),
        slope=slope,
        step_norm=jnp.linalg.norm(outcome.theta - flat),
        theta_norm=jnp.linalg.norm(outcome.theta),
    )


def _curvature(
    problem: Problem,
    unravel: Callable[[Array], PyTree],
    flat: Array,
    eta: Array,
    carried: tuple[PyTree, PyTree] | None,
) -> Array:
    """⟨Zη, ∇²f Zη⟩ (+ ηᵀ∇²R η); for an objective of θ its second derivative along η.

    `carried` is ρ and Zη where the solver has found them on its way.
    """
    if problem.objective is not None:
        return _second_derivative(lambda v: problem.objective(unravel(v)), flat, eta)
    if carried is None:
        rho, motion = jax.jvp(lambda v: problem.model(unravel(v)), (flat,), (eta,))
    else:
        rho, motion = carried
    curvature = _second_derivative(problem.loss, rho, motion)
    if problem.regulariser is not None:
        curvature += _second_derivative(lambda v: problem.regulariser(unravel(v)), flat, eta)
    return curvature


def _second_derivative(function: Callable[[PyTree], Array], x: PyTree, v: PyTree) -> Array:
    _, product = jax.jvp(jax.grad(function), (x,), (v,))
    return ravel_pytree(v)[0] @ ravel_pytree(product)[0]
