"""Mini-batches: the loss and the metric at a random part of the points."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from natgrad import MiniBatch, Pointwise, Problem, Resampled

from .equation import Condition, Equation
from .pinn import Pinn


class PointLoss(eqx.Module):
    """Σᵢ wᵢ rᵢ² over points of both kinds: the equation inside, the condition on the boundary."""

    equation: Equation
    condition: Condition
    points: Array
    weights: Array
    on_boundary: Array

    def __call__(self, theta: Any) -> Array:
        def residual(x: Array, edge: Array) -> Array:
            return jnp.where(edge, self.condition(theta, x), self.equation(theta, x))

        return jnp.sum(self.weights * jax.vmap(residual)(self.points, self.on_boundary) ** 2)


def value_batch(pinn: Pinn) -> MiniBatch:
    """A mini-batch of values, drawn from all points alike.

    The loss of a batch is an unbiased estimate of the loss: a point stands for as many as there are
    over those drawn.
    """
    points, settings = pinn.points, pinn.settings
    edge = jnp.asarray(points.on_boundary)
    each = jnp.where(
        edge,
        (2 - settings.gamma) / len(points.boundary),
        settings.gamma / len(points.inside),
    )
    share = len(points.all) / settings.batch
    equation, condition = Equation(pinn.network), Condition(pinn.network)

    def select(rows: Array) -> Problem:
        chosen = points.all[rows]
        loss = PointLoss(equation, condition, chosen, share * each[rows], edge[rows])
        return Problem(Pointwise(function=pinn.network, points=chosen), objective=loss)

    return MiniBatch(settings.batch, seed=settings.seed, select=select)


def resampled(pinn: Pinn) -> Resampled:
    """Points drawn anew in every iteration from the whole square and its boundary.

    As many in all as in a mini-batch; a fifth of them on the boundary.
    """
    on_edge = max(1, pinn.settings.batch // 5)
    inside = max(1, pinn.settings.batch - on_edge)

    def draw(key: Array) -> dict[str, Array]:
        a, b, c = jax.random.split(key, 3)
        along = jax.random.uniform(b, (on_edge,), minval=-1.0, maxval=1.0)
        side = jax.random.randint(c, (on_edge,), 0, 4)
        fixed = jnp.where(side < 2, -1.0, 1.0)
        first = side % 2 == 0  # the coordinate that is fixed
        boundary = jnp.stack(
            [jnp.where(first, fixed, along), jnp.where(first, along, fixed)], axis=1
        )
        interior = jax.random.uniform(a, (inside, 2), minval=-1.0, maxval=1.0)
        return {"interior": interior, "boundary": boundary}

    return Resampled(draw, seed=pinn.settings.seed)
