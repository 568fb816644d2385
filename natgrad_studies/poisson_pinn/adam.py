"""Adam, the usual way to train a network, as a baseline: all points in every step."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from natgrad import Progress, Status

from .pinn import PhysicsLoss

DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8  # the usual ones


def adam(
    objective: PhysicsLoss,
    theta: Any,
    *,
    rate: float,
    max_iterations: int,
    callback: Callable[[Progress], bool],
) -> Status:
    """Adam with a fixed learning rate, the columns of a natural gradient run; why it ended.

    Reference: Kingma and Ba, arXiv:1412.6980.
    """
    first = second = jax.tree.map(jnp.zeros_like, theta)
    loss, norm = None, 0.0
    for iteration in range(1, max_iterations + 1):
        theta, first, second, loss, norm = _step(
            objective, theta, first, second, jnp.asarray(float(iteration)), jnp.asarray(rate)
        )
        if not jnp.isfinite(loss):
            return Status.NOT_FINITE
        row = {"loss": float(loss), "gradient_norm": float(norm), "step": rate}
        if callback(Progress(iteration, theta, float(loss), row)):
            return Status.STOPPED
    return Status.MAX_ITERATIONS


@eqx.filter_jit
def _step(
    objective: PhysicsLoss, theta: Any, first: Any, second: Any, count: Array, rate: Array
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
