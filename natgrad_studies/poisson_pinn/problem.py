"""Poisson's equation −Δu = φ on [−1, 1]² with u = 3 on the boundary, to be solved by a network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import Collocation, Grid, MiniBatch, Pointwise, Problem, Resampled, Residual, laplacian
from natgrad.metrics import Metric

from .metrics import InsideAndBoundary, authors_metrics, our_metrics
from .settings import Settings

Theta = tuple[tuple[Array, Array], ...]  # the weights and biases of each layer
Network = Callable[[Any, Array], Array]
BOUNDARY_VALUE = 3.0


# --- the network ----------------------------------------------------------------------------------


def initial(hidden: Sequence[int], seed: int) -> Theta:
    """Weights of a d₁ × d₂ layer from N(0, 2/(d₁ + d₂)), biases zero, the last one 3.

    The generator is NumPy's old one, whose numbers are the same in every version.
    """
    random = np.random.RandomState(seed)
    widths = (2, *hidden, 1)
    layers = []
    for before, after in pairwise(widths):
        weights = random.standard_normal((before, after)) * np.sqrt(2 / (before + after))
        layers.append((weights, np.zeros(after)))
    layers[-1][1][:] = BOUNDARY_VALUE
    return jax.tree.map(lambda x: jnp.asarray(x, float), tuple(layers))


def network(theta: Theta, x: Array) -> Array:
    """The value at one point x."""
    for weights, biases in theta[:-1]:
        x = jnp.tanh(x @ weights + biases)
    weights, biases = theta[-1]
    return (x @ weights + biases)[0]


def evaluate_rescaled(theta: Theta, x: Array) -> Array:
    """The value at one point of [−1, 1]², which the network sees as one of [0, 1]²."""
    return network(theta, (x + 1) / 2)


# --- the equation, and the points where it is seen ------------------------------------------------


def solution(x: Any) -> Any:
    """u = sin πx₁ sin πx₂ + sin 3πx₁ sin 3πx₂ + 3, for one point or an array of them."""
    slow, fast = np.pi * x, 3 * np.pi * x
    sine = jnp.sin if isinstance(x, Array) else np.sin
    product = lambda s: s[..., 0] * s[..., 1]
    return product(sine(slow)) + product(sine(fast)) + BOUNDARY_VALUE


def source(x: Array) -> Array:
    """φ = −Δu."""
    slow, fast = jnp.sin(jnp.pi * x), jnp.sin(3 * jnp.pi * x)
    return 2 * jnp.pi**2 * slow[0] * slow[1] + 18 * jnp.pi**2 * fast[0] * fast[1]


class Equation(eqx.Module):
    """Δρ + φ at one point."""

    network: Network = eqx.field(static=True)

    def __call__(self, theta: Any, x: Array) -> Array:
        return laplacian(lambda y: self.network(theta, y), x) + source(x)


class Condition(eqx.Module):
    """ρ − 3 at one point."""

    network: Network = eqx.field(static=True)

    def __call__(self, theta: Any, x: Array) -> Array:
        return self.network(theta, x) - BOUNDARY_VALUE


@dataclass(frozen=True)
class Points:
    """n × n points of [−1, 1]², its boundary included."""

    n: int

    @cached_property
    def grid(self) -> Grid:
        """All points, as the centres of cells that reach half a spacing beyond the square."""
        bound = 1 + 1 / (self.n - 1)
        return Grid((-bound,) * 2, (bound,) * 2, (self.n,) * 2)

    @cached_property
    def inner_grid(self) -> Grid:
        """The interior points as nodes of a grid with zero on the boundary."""
        return Grid((-1.0,) * 2, (1.0,) * 2, (self.n - 2,) * 2, "dirichlet")

    @cached_property
    def on_boundary(self) -> np.ndarray:
        """Whether each point, row by row, is on the boundary."""
        edge = np.ones((self.n, self.n), bool)
        edge[1:-1, 1:-1] = False
        return edge.ravel()

    @cached_property
    def all(self) -> Array:
        """All points, one a row."""
        return jnp.asarray(self._rows, float)

    @cached_property
    def inside(self) -> Array:
        """The (n − 2)² interior points."""
        return jnp.asarray(self._rows[~self.on_boundary], float)

    @cached_property
    def boundary(self) -> Array:
        """The 4(n − 1) points of the boundary."""
        return jnp.asarray(self._rows[self.on_boundary], float)

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.asarray(self.grid.points).reshape(-1, 2)  # NumPy compiles nothing


def fine_points(n: int = 101) -> np.ndarray:
    """The n × n × 2 points on which the error is measured."""
    x = np.linspace(-1, 1, n)
    return np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)


# --- the training problem -------------------------------------------------------------------------


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
        return evaluate_rescaled if self.authors else network

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
    def metrics(self) -> dict[str, Metric | None]:
        """The metrics on values, by their keys; None for gradient descent."""
        if not self.authors:
            return our_metrics(self.points.grid)
        return authors_metrics(self.points.inner_grid, len(self.points.boundary))

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


# --- mini-batches: the loss and the metric at a random part of the points -------------------------


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


def resample(pinn: Pinn) -> Resampled:
    """Points redrawn in every iteration from the whole square and its boundary.

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
