"""One direction: the natural gradient at θ with its diagnosis, and the information matrix."""

import dataclasses
from collections.abc import Callable
from typing import Any, Never, cast

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.compiled import is_traced
from ..core.outcomes import Counts
from ..core.settings import check_instance
from ..core.sharding import take_local
from ..devices import Devices
from ..errors import explain_derivatives, refuse_unknown
from ..metrics.base import Metric
from ..parameters import flatten
from ..problem import Problem
from ..result import Direction, Info
from ..solvers import Auto, Solver
from .damping import Damping, as_damping
from .linearise import choose, linearise, set_up
from .local import Setup
from .traced import solve_traced


@explain_derivatives()
def natural_gradient(
    problem: Problem,
    theta: PyTree,
    *,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping | float = 0.0,
    mesh: Mesh | None = None,
    **unknown: Never,
) -> Direction:
    """The natural gradient direction η = −(G + λD)⁻¹ ∂_θ f at θ.

    ```python
    d = ng.natural_gradient(problem, theta, metric=ng.Sobolev(grid, -1))
    d.eta, d.info.rank, d.info.condition
    ```

    With a `mesh` the state is spread over its devices, as in `minimize`.

    For models in JAX it can be part of functions under `jit`, `vmap` and `grad`. The numbers of
    `info` are arrays there, and its status is the code of one. Derivatives go through the equation
    (G + λD) η = −∂_θ f, so that its matrix must not be singular.

    Cost: that of Z (see `Explicit` and `Pointwise`), of p products with L, and of the solver; with
    a matrix-free solver one evaluation, one adjoint product, and those of its iterations.

    Args:
        problem: What is minimised.
        theta: Where the direction is taken.
        metric: The metric on states.
        solver: How the equation is solved; chosen by size and damping by default.
        damping: A number c for λ = c · trace(G)/p, or a `Damping`.
        mesh: Devices to spread the state over.
    """
    if unknown:
        refuse_unknown(unknown, natural_gradient)
    devices = Devices.over(mesh)
    devices.check(problem, theta, metric=metric, solver=solver, damping=damping)
    check_instance("metric", metric, Metric)
    if mesh is not None:
        problem, spread_metric = devices.spread(problem, theta)
        metric, theta = spread_metric(metric), devices.replicate(theta)
    rule = as_damping(damping)
    setup = set_up(problem, theta, metric, solver, rule)
    unravel = ravel_pytree(eqx.filter(theta, eqx.is_inexact_array))[1]
    if is_traced(setup):
        return _trace(setup, unravel)
    local = linearise(setup)
    strength = rule.strength(jnp.asarray(rule.initial), local.trace, local.gradient.size)
    eta, info, *_ = local.solve(strength)
    reach = -(local.gradient @ eta) / local.energy
    described = local.describe(info, strength, jnp.all(jnp.isfinite(eta)), reach)
    counts = described.counts.plus(forward=int(setup.known is not None))
    return Direction(
        eta=take_local(unravel(eta)),
        info=dataclasses.replace(described, counts=Counts(*map(int, counts))),
        loss=float(local.loss),
        gradient=take_local(unravel(local.gradient)),
    )


def _trace(setup: Setup, unravel: Callable[[Array], PyTree]) -> Direction:
    """The same where values are not known yet: numbers are arrays, and a status is its code."""
    loss, gradient, eta, strength, seen, report, energy = solve_traced(setup)
    names = "rank", "condition", "iterations", "counts", "residual", "truncation"
    numbers: dict[str, Any] = {name: getattr(seen, name) for name in names}
    numbers |= {"damping": strength, "status": seen.reason, "metric": report}
    numbers["reachable"] = -(gradient @ eta) / energy
    info = Info(solver=type(choose(setup)[1]).__name__, **numbers)
    return Direction(unravel(eta), info, cast(float, loss), unravel(gradient))


@explain_derivatives()
def information_matrix(problem: Problem, theta: PyTree, *, metric: Metric) -> Array:
    """G = ZᵀLᵀLZ, the p × p matrix of the metric on parameters.

    ```python
    G = ng.information_matrix(problem, theta, metric=ng.FisherRao(grid))
    ```

    Cost: that of Z, p products with L, and kp².

    Args:
        problem: What is minimised; its model alone counts.
        theta: Where G is taken.
        metric: The metric on states.
    """
    setup = set_up(problem, theta, metric, Auto())
    return (_information_matrix if problem.model.on_host else _information_matrix_compiled)(setup)


def _information_matrix(setup: Setup) -> Array:
    flat, unravel = flatten(setup.theta)
    rho, columns, _ = setup.problem.model.jacobian(unravel, flat, setup.known)
    assert setup.metric is not None
    return _information(setup.metric, rho, columns)


_information_matrix_compiled = eqx.filter_jit(_information_matrix)


@eqx.filter_jit
def _information(metric: Metric, rho: PyTree, columns: PyTree) -> Array:
    return metric.at(rho).information(columns)[0]
