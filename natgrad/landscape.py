"""The loss over the plane of two parameters."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .inputs import evaluated
from .parameters import flatten
from .problems import Problem

PyTree = Any
MARGIN = 0.25  # of the longer side, around the points
TOGETHER = 16  # evaluations at once


@dataclass(frozen=True)
class Landscape:
    """f(θ₁, θ₂) on a lattice: `values[i, j]` at (x[i], y[j]); NaN where the loss is not finite."""

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray


def landscape(problem: Problem, like: PyTree, around: np.ndarray, points: int = 60) -> Landscape:
    """The loss on a lattice around points in the plane of θ, whose structure is that of `like`.

    Cost: points² evaluations of the model, some at once unless it runs outside of JAX.
    """
    low, high = around.min(axis=0), around.max(axis=0)
    room = MARGIN * max(float((high - low).max()), 1e-3 * float(np.abs(around).max()), 1e-6)
    x, y = (np.linspace(a - room, b + room, points) for a, b in zip(low, high, strict=True))
    plane = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2))
    if problem.model.on_host:
        values = np.array([_value(problem, like, place) for place in plane])
    else:
        values = np.asarray(_values(problem, like, plane))
    values = np.where(np.isfinite(values), values, np.nan)
    return Landscape(x, y, values.reshape(points, points))


def _value(problem: Problem, like: PyTree, place: jax.Array) -> float:
    theta = flatten(like)[1](place)
    return float(problem.value(theta, evaluated(problem.model, theta).rho))


@eqx.filter_jit
def _values(problem: Problem, like: PyTree, plane: jax.Array) -> jax.Array:
    unravel = flatten(like)[1]

    def value(place: jax.Array) -> jax.Array:
        theta = unravel(place)
        return problem.value(theta, problem.model(theta))

    return jax.lax.map(value, plane, batch_size=TOGETHER)
