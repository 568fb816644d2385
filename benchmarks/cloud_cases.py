"""Pushed densities x = T_θ(z), z standard normal, whose information matrices are known."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.integrate import quad
from scipy.linalg import expm, solve_sylvester

import natgrad as ng

PyTree = Any
WAVE = np.array([0.1, 1.0, 0.5, 0.8, 0.3, 0.0])  # where the wave's θ is
FREQUENCY = 1.5
HESSIAN = np.array([[2.0, 0.5], [0.5, 1.0]])  # of V, for the divergence from exp(−V)
TIME = 0.5  # how far its flow is followed
LINE = np.array([0.1, 0.6, 1.0])  # where that of the line is: two humps


class Pushed(eqx.Module):
    """θ ↦ T_θ(z), with z a leaf: other draws do not compile again."""

    map: Callable[[PyTree, Array], Array] = eqx.field(static=True)
    z: Array

    def __call__(self, theta: PyTree) -> Array:
        return self.map(theta, self.z)


def normal(count: int, dimension: int, seed: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(count, dimension)))


def information(map: Callable, theta: PyTree, z: Array, metric: ng.metrics.Metric) -> np.ndarray:
    """G of the samples."""
    theta, problem = jax.tree.map(jnp.asarray, theta), ng.Problem(Pushed(map, z), jnp.sum)
    return np.asarray(ng.information_matrix(problem, theta, metric=metric))


def error(G: np.ndarray, exact: np.ndarray) -> float:
    """Relative, in the Frobenius norm."""
    return float(np.linalg.norm(G - exact) / np.linalg.norm(exact))


def affine(theta: tuple[Array, Array], z: Array) -> Array:
    """m + Az for θ = (m, A)."""
    return theta[0] + z @ theta[1].T


def affine_parameters(dimension: int) -> tuple[Array, Array]:
    """A mean, and a matrix that is neither symmetric nor orthogonal."""
    random = np.random.default_rng(100 + dimension)
    noise = random.normal(size=(dimension, dimension)) / np.sqrt(dimension)
    return jnp.asarray(random.normal(size=dimension)), jnp.asarray(np.eye(dimension) + 0.4 * noise)


def bures_motion(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The symmetric M for which Mx is the least motion with the effect of dA = B on N(0, AAᵀ).

    MΣ + ΣM = BAᵀ + ABᵀ, the equation of Lyapunov.
    """
    sigma, change = A @ A.T, B @ A.T
    return solve_sylvester(sigma, sigma, change + change.T)


def affine_information(theta: tuple[Array, Array]) -> np.ndarray:
    """W₂ of Gaussians: |dm|² for the mean, tr(MΣM) for the covariance (Bures)."""
    A = np.asarray(theta[1])
    d = len(A)
    motions = [bures_motion(A, unit.reshape(d, d)) for unit in np.eye(d * d)]
    G = np.eye(d + d * d)
    G[d:, d:] = [[np.trace(M @ A @ A.T @ N) for N in motions] for M in motions]
    return G


class Divergence(eqx.Module):
    """E[V] − log|det A|: the Kullback–Leibler divergence of N(m, AAᵀ) from exp(−V), V = ½ xᵀHx."""

    z: Array
    H: Array

    def __call__(self, theta: tuple[Array, Array]) -> Array:
        x = affine(theta, self.z)
        potential = 0.5 * jnp.mean(jnp.sum((x @ self.H) * x, axis=1))
        return potential - jnp.linalg.slogdet(theta[1])[1]


def standardised(count: int, dimension: int, seed: int) -> Array:
    """Normal, with exactly the mean zero and the covariance I."""
    z = np.asarray(normal(count, dimension, seed))
    z = z - z.mean(0)
    return jnp.asarray(z @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T, bias=True))).T)


def divergence(z: Array) -> ng.Problem:
    return ng.Problem(Pushed(affine, z), objective=Divergence(z, jnp.asarray(HESSIAN)))


def flow(time: float) -> tuple[np.ndarray, np.ndarray]:
    """m and Σ after that time: dm/dt = −Hm and dΣ/dt = 2I − HΣ − ΣH, from `affine_parameters`."""
    m, A = map(np.asarray, affine_parameters(2))
    decay, rest = expm(-time * HESSIAN), np.linalg.inv(HESSIAN)
    return decay @ m, decay @ (A @ A.T - rest) @ decay + rest


def descent(z: Array, metric: ng.metrics.Metric, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """m and Σ after TIME, by fixed steps of natural gradient descent."""
    method = ng.NaturalGradient(metric, damping=1e-4, step=ng.FixedStep(TIME / steps))
    stop = ng.Stop(iterations=steps)
    result = ng.minimize(divergence(z), affine_parameters(2), method, stop=stop)
    m, A = map(np.asarray, result.theta)
    return m, A @ A.T


def isotropic(theta: Array, z: Array) -> Array:
    """θ₀ + θ₁z, the same for every coordinate."""
    return theta[0] + theta[1] * z


def isotropic_information(s: int, dimension: int, width: float = 1.0) -> np.ndarray:
    """Hˢ of N(θ₀(1, …, 1), θ₁² I) at θ₁ = width, by one integral over |ξ|."""
    sphere = 2 * math.pi ** (dimension / 2) / math.gamma(dimension / 2) / (2 * math.pi) ** dimension

    def integral(power: int) -> float:
        inside = lambda r: r**power * (1 + r * r) ** s * math.exp(-((width * r) ** 2))
        return sphere * quad(inside, 0, math.inf)[0]

    return np.diag([integral(dimension + 1), width**2 * integral(dimension + 3)])


def wave(theta: Array, z: Array) -> Array:
    """A ridge bent into a wave, and turned by an angle; θ₅ slides it along, without a gradient."""
    x = theta[0] + theta[1] * z[:, 0] + theta[5] * z[:, 1]
    y = theta[2] * z[:, 1] + theta[3] * jnp.cos(FREQUENCY * z[:, 0])
    c, s = jnp.cos(theta[4]), jnp.sin(theta[4])
    return jnp.stack([c * x - s * y, s * x + c * y], axis=1)


def wave_density(theta: Array, points: Array) -> Array:
    """ρ_θ = N(z) / |det ∂T/∂z|, with z by Newton's method: exact to first order at θ₅ = 0."""
    c, s = jnp.cos(theta[4]), jnp.sin(theta[4])
    x = c * points[..., 0] + s * points[..., 1]
    y = c * points[..., 1] - s * points[..., 0]
    u = (x - theta[0]) / theta[1]
    v = (y - theta[3] * jnp.cos(FREQUENCY * u)) / theta[2]
    for _ in range(2):
        slope = -FREQUENCY * theta[3] * jnp.sin(FREQUENCY * u)
        determinant = theta[1] * theta[2] - theta[5] * slope
        first = theta[0] + theta[1] * u + theta[5] * v - x
        second = theta[2] * v + theta[3] * jnp.cos(FREQUENCY * u) - y
        u = u - (theta[2] * first - theta[5] * second) / determinant
        v = v - (theta[1] * second - slope * first) / determinant
    determinant = theta[1] * theta[2] + theta[5] * FREQUENCY * theta[3] * jnp.sin(FREQUENCY * u)
    return jnp.exp(-0.5 * (u**2 + v**2)) / (2 * jnp.pi * jnp.abs(determinant))


def wave_information(metric: Callable[[ng.Grid], ng.metrics.Metric], size: int) -> np.ndarray:
    """G of the density, by a metric on a grid of size × size cells."""
    grid = ng.Grid((-7.0, -7.0), (7.0, 7.0), (size, size))
    problem = ng.Problem(lambda theta: wave_density(theta, grid.points), jnp.sum)
    return np.asarray(ng.information_matrix(problem, jnp.asarray(WAVE), metric=metric(grid)))


def line(theta: Array, z: Array) -> Array:
    """θ₀ + θ₁z + θ₂ tanh 2z: a monotone map, which draws the middle apart."""
    return theta[0] + theta[1] * z + theta[2] * jnp.tanh(2 * z)


def line_density(theta: Array, points: Array) -> Array:
    """N(z) / T′(z), with z by bisection and then one step of Newton, exact to first order in θ."""
    fixed = jax.lax.stop_gradient(theta)

    def halve(_, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        below = line(fixed, middle) < points
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    ends = jnp.full_like(points, -50.0), jnp.full_like(points, 50.0)
    z = jax.lax.fori_loop(0, 60, halve, ends)[0]
    slope = lambda z: theta[1] + 2 * theta[2] / jnp.cosh(2 * z) ** 2
    z = z - (line(theta, z) - points) / slope(z)
    return jnp.exp(-0.5 * z**2) / (jnp.sqrt(2 * jnp.pi) * slope(z))


def line_information() -> np.ndarray:
    """E[∂T∂Tᵀ], which is W₂ for any monotone map on a line: ∂_θ T is a gradient there."""
    z = np.linspace(-9, 9, 2001)
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    motions = np.stack([np.ones_like(z), z, np.tanh(2 * z)])
    return (motions * weights) @ motions.T


def line_information_on_grid(
    metric: Callable[[ng.Grid], ng.metrics.Metric], size: int
) -> np.ndarray:
    """G of the density, by a metric on a grid."""
    grid = ng.Grid(-7.0, 7.2, size)
    problem = ng.Problem(lambda theta: line_density(theta, grid.points[:, 0]), jnp.sum)
    return np.asarray(ng.information_matrix(problem, jnp.asarray(LINE), metric=metric(grid)))
