"""Gaussian mixtures with every parameter free, and the paper's problem with one free mean."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from natgrad import Grid, InputError, LeastSquares, Problem

LOWER, UPPER = -2.75, 7.25
VARIANCE = 0.6
START = (5.0, 3.0)
BOWL_START = (4.5, 2.0)


class Mixture(eqx.Module):
    """ρ = Σ wᵢ N(mᵢ, Σᵢ) as a pytree of unconstrained arrays, the θ of a problem.

    | field | shape | meaning |
    |---|---|---|
    | `means` | (k, d) | mᵢ |
    | `logits` | (k,) | w = softmax(logits): the simplex; a common shift changes nothing |
    | `log_diagonal` | (k, d) | logarithms of the diagonal of C, where Σᵢ = C Cᵀ |
    | `lower` | (k, d(d−1)/2) | the entries of C below the diagonal, row by row |

    The common shift of the logits makes G singular in one direction: damp, or use a solver
    that returns the direction of minimum norm.

    ```python
    start = Mixture.of([0.5, 0.5], [[-1.0, 0.0], [1.0, 0.0]], [jnp.eye(2), jnp.eye(2)])
    problem = ng.Problem(lambda m: density(m, grid.points), loss)
    ```
    """

    means: Array
    logits: Array
    log_diagonal: Array
    lower: Array

    @classmethod
    def of(cls, weights: Any, means: Any, covariances: Any) -> "Mixture":
        """The parameters of given weights (positive), means and covariances."""
        w, m, s = (np.asarray(value, float) for value in (weights, means, covariances))
        if m.ndim != 2 or w.shape != m.shape[:1] or s.shape != (*m.shape, m.shape[1]):
            raise InputError(
                "weights, means, covariances",
                f"have shapes {w.shape}, {m.shape} and {s.shape}",
                "(k,), (k, d) and (k, d, d)",
            )
        if not np.all(w > 0):
            raise InputError("weights", f"{w} are not all positive", "weights > 0")
        try:
            factors = np.linalg.cholesky(s)
        except np.linalg.LinAlgError as error:
            raise InputError("covariances", "are not positive definite", "jnp.eye(d)") from error
        rows, columns = np.tril_indices(m.shape[1], -1)
        return cls(
            means=jnp.asarray(m),
            logits=jnp.log(jnp.asarray(w / w.sum())),
            log_diagonal=jnp.log(jnp.asarray(np.diagonal(factors, axis1=1, axis2=2))),
            lower=jnp.asarray(factors[:, rows, columns]),
        )

    @property
    def weights(self) -> Array:
        """w, positive with sum one."""
        return jax.nn.softmax(self.logits)

    @property
    def factors(self) -> Array:
        """The Cholesky factors C, of shape (k, d, d)."""
        k, d = self.means.shape
        diagonal = jnp.exp(self.log_diagonal)[:, :, None] * jnp.eye(d, dtype=self.means.dtype)
        rows, columns = np.tril_indices(d, -1)
        return diagonal.at[:, rows, columns].set(self.lower.reshape(k, -1))

    @property
    def covariances(self) -> Array:
        """Σᵢ = C Cᵀ, of shape (k, d, d)."""
        return self.factors @ jnp.swapaxes(self.factors, -1, -2)


def density(mixture: Mixture, points: Array) -> Array:
    """ρ at `points` of shape (..., d).

    Each component is exp(−½‖C⁻¹(x − m)‖²) / ((2π)^{d/2} ∏ Cⱼⱼ); C⁻¹ is formed once (d × d).
    """
    d = points.shape[-1]
    identity = jnp.eye(d, dtype=points.dtype)

    def component(mean: Array, factor: Array, log_diagonal: Array) -> Array:
        inverse = solve_triangular(factor, identity, lower=True)
        scaled = (points - mean) @ inverse.T
        log_mass = jnp.sum(log_diagonal) + 0.5 * d * math.log(2 * math.pi)
        return jnp.exp(-0.5 * jnp.sum(scaled**2, axis=-1) - log_mass)

    parts = jax.vmap(component)(mixture.means, mixture.factors, mixture.log_diagonal)
    return jnp.tensordot(mixture.weights, parts, axes=1)


def isotropic(points: Array, mean: Array, variance: float) -> Array:
    """N(x; mean, variance · I) at `points` of shape (..., d)."""
    d = points.shape[-1]
    squared = jnp.sum((points - mean) ** 2, axis=-1)
    return jnp.exp(-0.5 * squared / variance) / (2 * math.pi * variance) ** (d / 2)


# --- the paper's problem of section 4.1: one free mean, Ω = [−2.75, 7.25]² ------------------------


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
