"""One attempt at an iteration: solve for the present λ, then take a step along η."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.outcomes import Status
from ..direction.damping import Damping
from ..direction.linearisation import Linearisation, solve
from ..metrics.base import Metric
from ..metrics.newton import Newton
from ..models.base import Evaluation, Products
from ..parameters import Bounds, flatten
from ..problem import Problem
from ..solvers import SolveInfo
from .curves import Route, curve
from .proximal import Inner
from .steps import Outcome, Path, Step, Trial, refused


class Attempt(NamedTuple):
    """One solve and one step along `eta`; `known` is the evaluation at the new point, where kept.

    `reach` is the share of the whitened gradient that the tangent space can answer to.
    """

    outcome: Outcome
    info: SolveInfo
    damping: Array
    damping_state: Array
    slope: Array
    reach: Array
    step_norm: Array
    theta_norm: Array
    eta: Array | None
    memory: Any
    known: Evaluation | None


def attempt(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    lin: Linearisation,
    damping: Damping,
    damping_state: Array,
    step: Step,
    bounds: Bounds | None,
    route: Route,
) -> Attempt:
    """Solve for the present λ, take a step along η, and let the damping learn from it.

    Compiled, unless the model or the step is driven from Python: then only its parts are.
    """
    run = _attempt if problem.model.on_host or step.on_host else _attempt_compiled
    return run(problem, theta, metric, lin, damping, damping_state, step, bounds, route)


def _attempt(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    lin: Linearisation,
    damping: Damping,
    damping_state: Array,
    step: Step,
    bounds: Bounds | None,
    route: Route,
) -> Attempt:
    flat, unravel = flatten(theta)
    strength = damping.strength(damping_state, lin.trace, flat.size)
    eta, info, motion, memory = solve(lin, strength)
    reach = -(lin.gradient @ eta) / lin.energy
    bent = curve(problem, theta, metric, lin, strength, eta, route)
    info = info._replace(counts=bent.counts.plus(*info.counts))
    eta, motion = bent.eta, motion if route.momentum is None else None
    slope = lin.gradient @ eta
    measured, D = None if lin.solver is None else metric, damping.parameter_operator()

    def trial(tau: Array) -> Trial:
        straight = flat + tau.astype(flat.dtype) * eta
        ahead = straight if route.order == 1 else flat + bent.offset(tau).astype(flat.dtype)
        if bounds is not None:
            straight, ahead = (jnp.clip(x, bounds.lower, bounds.upper) for x in (straight, ahead))
        return at(ahead)._replace(linear_decrease=-lin.gradient @ (straight - flat))

    def at(point: Array) -> Trial:
        moved = unravel(point)
        known = problem.model.evaluate(moved)
        value, admissible = _judged(problem, measured, moved, known.rho)
        known = known if problem.model.solves else None
        return Trial(point, value, admissible, -lin.gradient @ (point - flat), known)

    carried = None if motion is None else (lin.rho, motion)
    newton = isinstance(metric, Newton)  # then ⟨η, Gη⟩ = −⟨∂_θ f, η⟩ is the curvature
    free = newton or (carried is not None and problem.objective is None)

    def curvature() -> Array:
        if newton:
            return -slope
        found = _curvature(problem, theta, eta, carried, lin.products)
        # Zη was to be carried along, and was not made
        unseen = free & (info.reason == Status.RECYCLED.code)
        return jnp.where(unseen, -slope, found)

    path = Path(
        trial=trial,
        value=lin.loss,
        slope=slope,
        curvature=curvature,
        curvature_products=0 if free else 1,
        at=at,
        length=jnp.linalg.norm(eta),
        around=lambda tau, nearness: Inner(
            problem, theta, metric, lin, eta, strength, D, bounds, tau, nearness
        ),
    )
    if problem.model.on_host and not bool(jnp.isfinite(slope) & (slope != 0)):
        outcome, known = refused(path, flat), None  # not worth a call of the outside code
    else:
        outcome, known = step.take(path)
    return Attempt(
        outcome=outcome,
        info=info,
        damping=strength,
        damping_state=damping.update(strength.astype(damping_state.dtype), outcome),
        slope=slope,
        reach=reach,
        step_norm=jnp.linalg.norm(outcome.theta - flat),
        theta_norm=jnp.linalg.norm(outcome.theta),
        eta=None if route.momentum is None else eta,
        memory=memory,
        known=known,
    )


_attempt_compiled = eqx.filter_jit(_attempt)


@eqx.filter_jit
def _judged(
    problem: Problem, metric: Metric | None, theta: PyTree, rho: PyTree
) -> tuple[Array, Array]:
    """The value at a trial point, and whether the metric is defined there."""
    admissible = jnp.asarray(True) if metric is None else metric.admissible(rho)
    return problem.value(theta, rho), admissible


def _curvature(
    problem: Problem,
    theta: PyTree,
    eta: Array,
    carried: tuple[PyTree, PyTree] | None,
    products: Products | None,
) -> Array:
    """⟨Zη, ∇²f Zη⟩ (+ ηᵀ∇²R η); for an objective of θ its second derivative along η.

    `carried` is ρ and Zη where the solver has found them on its way; else they are taken from the
    `products`, or from new ones.
    """
    if problem.objective is None and carried is None:
        flat, unravel = flatten(theta)
        used = problem.model.products(unravel, flat) if products is None else products
        carried = used.rho, used.push(eta)
    return _second_derivatives(problem, theta, eta, carried)


@eqx.filter_jit
def _second_derivatives(
    problem: Problem, theta: PyTree, eta: Array, carried: tuple[PyTree, PyTree] | None
) -> Array:
    flat, unravel = flatten(theta)
    if problem.objective is not None:
        return _second_derivative(lambda v: problem.objective(unravel(v)), flat, eta)
    assert carried is not None
    curvature = _second_derivative(problem.loss, *carried)
    if problem.regulariser is not None:
        curvature += _second_derivative(lambda v: problem.regulariser(unravel(v)), flat, eta)
    return curvature


def _second_derivative(function: Callable[[PyTree], Array], x: PyTree, v: PyTree) -> Array:
    _, product = jax.jvp(jax.grad(function), (x,), (v,))
    return ravel_pytree(v)[0] @ ravel_pytree(product)[0]
