"""One direction: the natural gradient at θ with its diagnosis, and the information matrix."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.sharding import take_local
from ..devices import Distribution
from ..metrics.base import Metric
from ..metrics.diagonal import Euclidean
from ..models.base import Evaluation
from ..parameters import flatten
from ..problem import Problem
from ..result import Direction, Info
from ..solvers import REASONS, Auto, SolveInfo, Solver
from .damping import Damping, Undamped, as_damping
from .inputs import check_inputs
from .linearisation import Linearisation, linearise, solve


def natural_gradient(
    problem: Problem,
    theta: PyTree,
    *,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping | float = 0.0,
    mesh: Mesh | None = None,
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
    damping = as_damping(damping)
    problem, metric, theta = Distribution.over(mesh).inputs(problem, theta, metric)
    known = check_inputs(problem, theta, metric, solver, damping)
    lin = linearise(problem, theta, metric, solver, damping, None, known=known)
    strength = damping.strength(jnp.asarray(damping.initial_state()), lin.trace, lin.gradient.size)
    eta, info, *_ = solve(lin, strength)
    parameters = eqx.filter(theta, eqx.is_inexact_array)
    unravel = ravel_pytree(parameters)[1]
    return Direction(
        eta=take_local(unravel(eta)),
        info=describe(
            lin,
            info,
            strength,
            jnp.all(jnp.isfinite(eta)),
            -(lin.gradient @ eta) / lin.energy,
            int(known is not None),
        ),
        loss=float(lin.loss),
        gradient=take_local(unravel(lin.gradient)),
    )


def information_matrix(problem: Problem, theta: PyTree, *, metric: Metric) -> Array:
    """G = ZᵀLᵀLZ, the p × p matrix of the metric on parameters.

    ```python
    G = ng.information_matrix(problem, theta, metric=ng.FisherRao(grid))
    ```

    Cost: that of Z, p products with L, and kp².
    """
    known = check_inputs(problem, theta, metric, Auto(), Undamped())
    if isinstance(metric, Euclidean):
        return jnp.eye(flatten(theta)[0].size, dtype=flatten(theta)[0].dtype)
    run = _information_matrix if problem.model.on_host else _information_matrix_compiled
    return run(problem, theta, metric, known)


def _information_matrix(
    problem: Problem, theta: PyTree, metric: Metric, known: Evaluation | None
) -> Array:
    flat, unravel = flatten(theta)
    rho, columns, _ = problem.model.jacobian(unravel, flat, known)
    return _information(metric, rho, columns)


_information_matrix_compiled = eqx.filter_jit(_information_matrix)


@eqx.filter_jit
def _information(metric: Metric, rho: PyTree, columns: PyTree) -> Array:
    return metric.information(rho, columns)[0]


def traced_direction(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping = Undamped(),
) -> tuple[Array, Array]:
    """η as a flat vector, and the loss: `natural_gradient` without checks, for jit and vmap."""
    lin = linearise(problem, theta, metric, solver, damping, None)
    strength = damping.strength(jnp.asarray(damping.initial_state()), lin.trace, lin.gradient.size)
    return solve(lin, strength).eta, lin.loss


def describe(
    lin: Linearisation,
    info: SolveInfo,
    damping: Array,
    finite: Any,
    reach: Array,
    evaluations: int = 0,
) -> Info:
    """The numbers of a solve as a user reads them, in one transfer from the device.

    `reach` is −⟨∂_θ f, η⟩/‖b‖²; `evaluations` are forward solves made before the linearisation.
    """
    info, damping, finite, reach, counts, report = jax.device_get(
        (info, damping, finite, reach, lin.counts, lin.report)
    )
    status = REASONS.get(int(info.reason), "rank_deficient" if info.rank_deficient else "ok")
    status = status if finite else "not_finite"
    spent = [int(a) + int(b) for a, b in zip(counts, info.counts, strict=True)]
    gave_up = [n for n, value in report.items() if n.split(".")[-1] == "converged" and not value]
    return Info(
        solver="gradient" if lin.solver is None else lin.solver.name,
        rank=None if np.isnan(info.rank) else int(info.rank),
        condition=float(info.condition),
        damping=float(damping),
        status="metric_not_converged" if gave_up else status,
        iterations=int(info.iterations),
        counts=Counts(spent[0] + evaluations, *spent[1:]),
        residual=float(info.residual),
        truncation=float(info.truncation),
        reachable=float(reach),
        metric={
            n: value if isinstance(value, str) else float(value) for n, value in report.items()
        },
    )
