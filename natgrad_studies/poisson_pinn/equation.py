"""Poisson's equation −Δu = φ on [−1, 1]² with u = 3 on the boundary, and where it is seen."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import Grid, laplacian

Network = Callable[[Any, Array], Array]
BOUNDARY_VALUE = 3.0


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
        return self.grid.points.reshape(-1, 2)

    @cached_property
    def inside(self) -> Array:
        """The (n − 2)² interior points."""
        return self.all[~self.on_boundary]

    @cached_property
    def boundary(self) -> Array:
        """The 4(n − 1) points of the boundary."""
        return self.all[self.on_boundary]


def fine_points(n: int = 101) -> np.ndarray:
    """The n × n × 2 points on which the error is measured."""
    x = np.linspace(-1, 1, n)
    return np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)
