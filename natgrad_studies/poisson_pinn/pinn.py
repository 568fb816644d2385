"""The training problem: a loss of θ, the residuals that make it up, the states of the metrics."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import Collocation, Metric, Pointwise, Problem, Residual

from .equation import Condition, Equation, Network, Points, fine_points, solution
from .metrics import InsideAndBoundary, authors_metrics, our_metrics
from .network import Theta, initial, network, rescaled
from .settings import Settings


class PhysicsLoss(eqx.Module):
    """f(θ) = γ mean |Δρ + φ|² + (2 − γ) mean |ρ − 3|², of θ and not of a state of values.

    It sees Δρ exactly, so that it has no derivative with respect to values on a grid.
    """

    residuals: Collocation

    def __call__(self, theta: Any) -> Array:
        return self.residuals.loss(self.residuals(theta))


@dataclass(eq=False)
class Pinn:
    """Poisson's equation for a network, ours or as the authors have it.

    The authors' network sees the square as [0, 1]², and their equation holds on the boundary too.
    """

    settings: Settings

    @property
    def authors(self) -> bool:
        """Whether this is the authors' variant."""
        return self.settings.fidelity == "authors"

    @cached_property
    def points(self) -> Points:
        return Points(self.settings.points)

    @property
    def network(self) -> Network:
        """ρ(θ, x)."""
        return rescaled if self.authors else network

    @cached_property
    def start(self) -> Theta:
        """θ₀."""
        return initial(self.settings.layers, self.settings.seed)

    @cached_property
    def parameters(self) -> int:
        """p."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.start))

    @cached_property
    def residuals(self) -> Collocation:
        """The equation inside and the boundary condition, with their weights in the loss."""
        gamma, points = self.settings.gamma, self.points
        seen = points.all if self.authors else points.inside
        return Collocation(
            interior=Residual(Equation(self.network), seen, gamma),
            boundary=Residual(Condition(self.network), points.boundary, 2 - gamma),
        )

    @cached_property
    def objective(self) -> PhysicsLoss:
        """The loss as a function of θ."""
        return PhysicsLoss(self.residuals)

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metrics on values, by their keys."""
        return authors_metrics(self.points) if self.authors else our_metrics(self.points.grid)

    def values_problem(self, key: str) -> Problem:
        """The loss, with the values of the network that the metric of this key measures."""
        return Problem(self._state(key), objective=self.objective)

    def _state(self, key: str) -> Any:
        points = self.points
        inner = points.inside.reshape(*points.inner_grid.shape, 2)
        if not self.authors:
            return Pointwise(function=self.network, points=points.grid.points)
        if key == "W2":
            return Pointwise(function=self.network, points=inner)
        return InsideAndBoundary(network=self.network, inside=inner, boundary=points.boundary)

    def loss(self, theta: Theta) -> float:
        """f(θ)."""
        return float(_value(self.objective, theta))

    def error(self, theta: Theta) -> float:
        """‖ρ − u‖/‖u‖ on 101 × 101 points."""
        values, truth = self.fine(theta), solution(fine_points())
        return float(np.linalg.norm(values - truth) / np.linalg.norm(truth))

    def fine(self, theta: Theta) -> np.ndarray:
        """The network on the points where the error is measured."""
        return np.asarray(_values(self.network, theta, jnp.asarray(fine_points())))


@eqx.filter_jit
def _value(objective: PhysicsLoss, theta: Theta) -> Array:
    return objective(theta)


@eqx.filter_jit
def _values(function: Network, theta: Theta, points: Array) -> Array:
    flat = jax.vmap(lambda x: function(theta, x))(points.reshape(-1, 2))
    return flat.reshape(points.shape[:-1])
