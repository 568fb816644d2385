"""The authors' algorithm: SciPy's Newton-CG with the information matrix in place of the Hessian."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize as scipy_minimize

from natgrad import Euclidean, Metric, Problem, Progress, Status

LINE_SEARCH_FAILED = 2  # SciPy's status


def newton_cg(
    problem: Problem,
    theta: Any,
    metric: Metric,
    *,
    max_iterations: int,
    callback: Callable[[Progress], bool],
) -> Status:
    """Gη = −∂_θ f by conjugate gradients without damping, then a Wolfe line search; why it ended.

    SciPy stops its conjugate gradients at a residual of min(½, √‖∂_θ f‖₁) ‖∂_θ f‖₁, which is all
    the regularisation there is. The test on the length of a step is off. G is that of
    the metric; a density below its floor is raised to it, and nothing keeps it positive.
    """
    flat, unravel = ravel_pytree(theta)
    known: dict[bytes, tuple[float, np.ndarray]] = {}
    count = 0

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = jax.device_get(_value_and_gradient(problem, unravel(jnp.asarray(x))))
        known.clear()
        known[x.tobytes()] = float(value), gradient
        return float(value), np.asarray(gradient)

    def information(x: np.ndarray) -> np.ndarray:
        return np.asarray(_information(problem, metric, unravel(jnp.asarray(x))))

    def accept(intermediate_result: Any) -> None:
        nonlocal count
        count += 1
        x = intermediate_result.x
        loss = known[x.tobytes()][0] if x.tobytes() in known else value_and_gradient(x)[0]
        if callback(Progress(count, unravel(jnp.asarray(x)), loss, {"loss": loss})):
            raise StopIteration

    flat_metric = isinstance(metric, Euclidean)
    hessian: dict[str, Any] = {"hessp": lambda x, v: v} if flat_metric else {"hess": information}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's line search says what the status does
        found = scipy_minimize(
            value_and_gradient,
            np.asarray(flat),
            jac=True,
            method="Newton-CG",
            callback=accept,
            options={"maxiter": max_iterations, "xtol": 0.0},
            **hessian,
        )
    if found.status == LINE_SEARCH_FAILED:
        return Status.NO_DECREASE
    return Status.MAX_ITERATIONS if found.status == 1 else Status.STOPPED


@eqx.filter_jit
def _value_and_gradient(problem: Problem, theta: Any) -> tuple[Array, Array]:
    value, gradient = jax.value_and_grad(problem.objective)(theta)
    return value, ravel_pytree(gradient)[0]


@eqx.filter_jit
def _information(problem: Problem, metric: Metric, theta: Any) -> Array:
    flat, unravel = ravel_pytree(theta)
    rho, columns, _ = problem.model.jacobian(unravel, flat)
    return metric.at(rho).information(columns)[0]
