"""What natgrad does not have: a line search that remembers, the authors' algorithm, Adam.

The two algorithms take `max_iterations` and a callback that may end them, and return why they
ended.
"""

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

from natgrad import Backtracking, Problem, Status
from natgrad.descent import Outcome, Path, Progress, Step
from natgrad.metrics import Metric

Callback = Callable[[Progress], bool]
Objective = Callable[[Any], Array]
LINE_SEARCH_FAILED = 2  # SciPy's status
DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8  # the usual ones of Adam


class Doubling(Step):
    """Backtracking that remembers: it starts from twice the last length, and from 2 at first.

    The length of a natural gradient step differs between metrics by orders of magnitude, and
    `Backtracking` starts every search from the same one.
    """

    def init(self, theta: Array) -> Array:
        return jnp.ones((), theta.dtype)

    def take(self, path: Path, memory: Array) -> tuple[Outcome, Array]:
        search = Backtracking(initial=2 * memory.astype(path.value.dtype), max_halvings=60)
        outcome, _ = search.take(path, None)
        return outcome, jnp.where(outcome.accepted, outcome.tau.astype(memory.dtype), memory)


def newton_cg(
    problem: Problem,
    theta: Any,
    metric: Metric | None,
    *,
    max_iterations: int,
    callback: Callback,
) -> Status:
    """The authors' algorithm: SciPy's Newton-CG with G, or the identity, in place of the Hessian.

    Gη = −∂_θ f by conjugate gradients without damping, then a Wolfe line search. SciPy stops its
    conjugate gradients at a residual of min(½, √‖∂_θ f‖₁) ‖∂_θ f‖₁, which is all the regularisation
    there is. The test on the length of a step is off. A density below the floor of the metric is
    raised to it, and nothing keeps it positive.
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

    hessian: dict[str, Any] = {"hessp": lambda x, v: v} if metric is None else {"hess": information}
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
def _information(problem: Problem, metric: Any, theta: Any) -> Array:
    flat, unravel = ravel_pytree(theta)
    rho, columns, _ = problem.model.jacobian(unravel, flat)
    return metric.at(rho).information(columns)[0]


def adam(
    objective: Objective,
    theta: Any,
    *,
    rate: float,
    max_iterations: int,
    callback: Callback,
) -> Status:
    """Adam with a fixed learning rate, the columns of a natural gradient run; why it ended.

    Reference: Kingma and Ba, arXiv:1412.6980.
    """
    first = second = jax.tree.map(jnp.zeros_like, theta)
    loss, norm = None, 0.0
    for iteration in range(1, max_iterations + 1):
        theta, first, second, loss, norm = _adam_step(
            objective, theta, first, second, jnp.asarray(float(iteration)), jnp.asarray(rate)
        )
        if not jnp.isfinite(loss):
            return Status.NOT_FINITE
        row = {"loss": float(loss), "gradient_norm": float(norm), "step": rate}
        if callback(Progress(iteration, theta, float(loss), row)):
            return Status.STOPPED
    return Status.MAX_ITERATIONS


@eqx.filter_jit
def _adam_step(
    objective: Objective,
    theta: Any,
    first: Any,
    second: Any,
    count: Array,
    rate: Array,
) -> tuple[Any, Any, Any, Array, Array]:
    """One step; the loss and the norm of its gradient are those before it."""
    loss, gradient = jax.value_and_grad(objective)(theta)
    first = jax.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, first, gradient)
    second = jax.tree.map(
        lambda v, g: SQUARE_DECAY * v + (1 - SQUARE_DECAY) * g**2, second, gradient
    )
    shrink = lambda m, v: (
        (m / (1 - DECAY**count)) / (jnp.sqrt(v / (1 - SQUARE_DECAY**count)) + EPSILON)
    )
    theta = jax.tree.map(lambda t, m, v: t - rate * shrink(m, v), theta, first, second)
    squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)])
    return theta, first, second, loss, jnp.sqrt(jnp.sum(squares))
