"""One direction: the natural gradient at θ with its diagnosis, and the information matrix."""

import dataclasses
from typing import Never

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.settings import check_instance, refuse_unknown
from ..core.sharding import take_local
from ..devices import Devices
from ..metrics.base import Metric
from ..parameters import flatten
from ..problem import Problem
from ..result import Direction
from ..solvers import Auto, Solver
from .damping import Damping, as_damping
from .linearise import linearise, set_up
from .local import Setup


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

    Cost: that of Z (see `Explicit` and `Pointwise`), of p products with L, and of the solver; with
    a matrix-free solver one evaluation, one adjoint product, and those of its iterations.
    """
    if unknown:
        refuse_unknown(unknown, natural_gradient)
    check_instance("metric", metric, Metric)
    if mesh is not None:
        devices = Devices.over(mesh)
        devices.check(problem, theta, metric=metric)
        problem, spread_metric = devices.spread(problem, theta)
        metric, theta = spread_metric(metric), devices.replicate(theta)
    rule = as_damping(damping)
    setup = set_up(problem, theta, metric, solver, rule)
    local = linearise(setup)
    strength = rule.strength(jnp.asarray(rule.initial), local.trace, local.gradient.size)
    eta, info, *_ = local.solve(strength)
    unravel = ravel_pytree(eqx.filter(theta, eqx.is_inexact_array))[1]
    reach = -(local.gradient @ eta) / local.energy
    described = local.describe(info, strength, jnp.all(jnp.isfinite(eta)), reach)
    counts = described.counts.plus(forward=int(setup.known is not None))
    return Direction(
        eta=take_local(unravel(eta)),
        info=dataclasses.replace(described, counts=Counts(*map(int, counts))),
        loss=float(local.loss),
        gradient=take_local(unravel(local.gradient)),
    )


def information_matrix(problem: Problem, theta: PyTree, *, metric: Metric) -> Array:
    """G = ZᵀLᵀLZ, the p × p matrix of the metric on parameters.

    ```python
    G = ng.information_matrix(problem, theta, metric=ng.FisherRao(grid))
    ```

    Cost: that of Z, p products with L, and kp².
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
