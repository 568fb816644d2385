"""Darcy flow: −∇·(e^m ∇u) = q on the unit square with u = 0 on its boundary, by finite volumes."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import sparse

from natgrad import SparseLU


class Balance(eqx.Module):
    """h(u, m) = K(m)u − q: the fluxes out of every cell less what its source puts in.

    `inflow` are the sources integrated over the cells, of shape (sources, n, n); u has that shape,
    and m has (n, n). Fluxes between neighbours are T (u − u'), with T the harmonic mean of the
    permeabilities e^m of both: exact in one dimension for a permeability that jumps at the face.
    At the boundary, half a cell away, T = 2e^m and u' = 0. The width of a face over the distance
    of its cells is 1 in two dimensions, so K has no factor of h. Second order in the size of
    the cells where m is smooth.

    Cost: O(sources · n²). Reference: Eymard, Gallouët and Herbin, Finite Volume Methods (2000).
    """

    inflow: Array

    def __call__(self, u: Array, m: Array) -> Array:
        across, along, edges = transmissibilities(m, jnp)
        down = across * (u[:, 1:, :] - u[:, :-1, :])
        right = along * (u[:, :, 1:] - u[:, :, :-1])
        out = edges * u - self.inflow
        out = out.at[:, 1:, :].add(down).at[:, :-1, :].add(-down)
        return out.at[:, :, 1:].add(right).at[:, :, :-1].add(-right)


def transmissibilities(m: Any, xp: Any) -> tuple[Any, Any, Any]:
    """T on the faces between rows, on those between columns, and its sum over boundary faces.

    `xp` is `jnp` or `np`. The harmonic mean 2ab/(a + b) of a = e^m and b = e^m' is computed
    as 2/(1/a + 1/b), which does not overflow before its result does.
    """
    resistance = xp.exp(-m)
    across = 2.0 / (resistance[1:, :] + resistance[:-1, :])
    along = 2.0 / (resistance[:, 1:] + resistance[:, :-1])
    at_border = [np.isin(np.arange(n), (0, n - 1)).astype(float) for n in m.shape]
    faces = at_border[0][:, None] + at_border[1]
    return across, along, 2.0 * faces / resistance


def stiffness(m: np.ndarray) -> sparse.csc_matrix:
    """K(m) as a sparse matrix, symmetric and positive definite. Cost: O(n²)."""
    across, along, edges = transmissibilities(np.asarray(m), np)
    cells = np.arange(m.size).reshape(m.shape)
    one = np.concatenate([cells[1:, :].ravel(), cells[:, 1:].ravel()])
    other = np.concatenate([cells[:-1, :].ravel(), cells[:, :-1].ravel()])
    T = np.concatenate([across.ravel(), along.ravel()])
    rows = np.concatenate([one, other, one, other, cells.ravel()])
    columns = np.concatenate([one, other, other, one, cells.ravel()])
    values = np.concatenate([T, T, -T, -T, edges.ravel()])
    return sparse.csc_matrix((values, (rows, columns)), shape=(m.size, m.size))


def factorised(m: np.ndarray) -> SparseLU:
    """LU of K(m). A step too long can make e^m range over more than a double does: no factors."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        K = stiffness(m)
    return SparseLU(K, symmetric=True)


def pressure(m: np.ndarray, inflow: np.ndarray) -> np.ndarray:
    """u with K(m)u = q for all sources, outside JAX."""
    return factorised(m).solve(inflow)


def centres(n: int) -> np.ndarray:
    """The n × n × 2 cell centres of the unit square."""
    x = (np.arange(n) + 0.5) / n
    return np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)


def wells(per_side: int) -> np.ndarray:
    """Places of per_side² sources, evenly spread over the square."""
    x = (np.arange(per_side) + 0.5) / per_side
    return np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)


def inflows(n: int, per_side: int, width: float) -> np.ndarray:
    """Gaussian sources of the given standard deviation, integrated over cells to 1 in all each."""
    distances = ((centres(n) - wells(per_side)[:, None, None, :]) ** 2).sum(-1)
    q = np.exp(-distances / (2 * width**2))
    return q / q.sum(axis=(1, 2), keepdims=True)


def coarsened(field: np.ndarray) -> np.ndarray:
    """Means over blocks of 2 × 2 cells."""
    *front, n, k = field.shape
    return field.reshape(*front, n // 2, 2, k // 2, 2).mean(axis=(-3, -1))
