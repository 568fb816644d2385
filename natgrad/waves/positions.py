"""Points in space on a grid: multilinear weights of the cells around them."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InputError


class Positions(NamedTuple):
    """For n points of each shot the indices of c cells, (shots, n, c, d), and their weights.

    c = 1 where every point is a grid point, else 2^d.
    """

    cells: Array
    weights: Array

    @property
    def _index(self) -> tuple[Array, ...]:
        shots = jnp.arange(len(self.cells))[:, None, None]
        return (shots, *(self.cells[..., axis] for axis in range(self.cells.shape[-1])))

    def read(self, field: Array) -> Array:
        """The fields (shots, …) at the points, (shots, n)."""
        values = field.at[self._index].get(mode="promise_in_bounds")
        return jnp.sum(self.weights.astype(field.dtype) * values, axis=-1)

    def add(self, field: Array, values: Array) -> Array:
        """The fields with these values added at the points: the transpose of `read`."""
        spread = self.weights.astype(field.dtype) * values[..., None]
        return field.at[self._index].add(spread, mode="promise_in_bounds")

    def scaled(self, field: Array) -> "Positions":
        """The same points with their weights times a field that all shots share."""
        return Positions(self.cells, self.weights.astype(field.dtype) * field[self._index[1:]])

    def shifted(self, by: int) -> "Positions":
        """The same points in an array with so many more cells before the first of every axis."""
        return Positions(self.cells + by, self.weights)


def locate(
    name: str,
    points: np.ndarray,
    shape: tuple[int, ...],
    spacing: tuple[float, ...],
    offset: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The cells around points, (n, c, d), and their weights, (n, c).

    Points are in metres from the first cell of a model of `shape` cells; the array has `offset`
    more cells before it. Points outside the model are an input error.
    """
    points = np.atleast_2d(np.asarray(points, float))
    if points.ndim != 2 or points.shape[1] != len(shape) or points.size == 0:
        raise InputError(name, f"have shape {points.shape}", f"(n, {len(shape)}), in metres")
    cells = points / np.asarray(spacing)
    last = np.asarray(shape) - 1
    outside = ~np.all((cells >= -1e-9) & (cells <= last + 1e-9), axis=1)
    if not np.all(np.isfinite(points)) or np.any(outside):
        which = int(np.argmax(outside))
        extent = " × ".join(f"{n * h:g}" for n, h in zip(last, spacing, strict=True))
        what = f"number {which} at {points[which].tolist()} m lies outside the model of {extent} m"
        raise InputError(name, what, "positions between 0 and (cells − 1) · spacing")
    base = np.clip(np.floor(cells + 1e-9).astype(int), 0, np.maximum(last - 1, 0))
    share = np.clip(cells - base, 0.0, 1.0)
    share = np.where(np.abs(share - np.round(share)) < 1e-9, np.round(share), share)
    corners = np.stack(np.meshgrid(*[[0, 1]] * len(shape), indexing="ij"), -1)
    corners = corners.reshape(-1, len(shape))
    weights = np.prod(np.where(corners == 1, share[:, None], 1 - share[:, None]), axis=-1)
    index = np.minimum(base[:, None] + corners, last) + offset
    if np.all(np.isin(weights, (0.0, 1.0))):  # every point is a grid point
        best = np.argmax(weights, axis=1)[:, None]
        index = np.take_along_axis(index, best[..., None], 1)
        weights = np.ones_like(best, float)
    return index.astype(np.int32), weights
