"""The paper's problem of section 4.1: one free mean of a Gaussian mixture, Ω = [−2.75, 7.25]²."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from natgrad import Grid, LeastSquares, Problem

from .mixtures import isotropic

LOWER, UPPER = -2.75, 7.25
VARIANCE = 0.6
START = (5.0, 3.0)
BOWL_START = (4.5, 2.0)


class OneMean(eqx.Module):
    """ρ(μ) = 0.2 N(μ, 0.6 I) + 0.8 N((4, 3), 0.6 I): weights and second mean fixed, and wrong."""

    points: Array

    def __call__(self, mu: Array) -> Array:
        moving = 0.2 * isotropic(self.points, mu, VARIANCE)
        return moving + 0.8 * isotropic(self.points, jnp.array([4.0, 3.0]), VARIANCE)


def target(points: Array) -> Array:
    """ρ* = 0.3 N((1, 3), 0.6 I) + 0.7 N((3, 2), 0.6 I)."""
    left = 0.3 * isotropic(points, jnp.array([1.0, 3.0]), VARIANCE)
    return left + 0.7 * isotropic(points, jnp.array([3.0, 2.0]), VARIANCE)


def paper_grid(points: int) -> Grid:
    """The paper's unknowns: interior nodes of Ω = [−2.75, 7.25]²."""
    return Grid((LOWER, LOWER), (UPPER, UPPER), (points, points), boundary="dirichlet")


def cell_grid(points: int) -> Grid:
    """Cells that fill Ω, with no flux through its boundary."""
    return Grid((LOWER, LOWER), (UPPER, UPPER), (points, points), boundary="neumann")


def problem_on(grid: Grid) -> Problem:
    """min over μ of ½ ∫ (ρ(μ) − ρ*)² dx."""
    return Problem(OneMean(grid.points), LeastSquares(target(grid.points), grid))
