"""Points in space on a grid: multilinear weights of the cells around them."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InputError


class Positions(NamedTuple):
    """For n points the flat indices of c cells and their weights, (n, c) each.

    c = 1 where every point is a grid point, else 2^d.
    """

    cells: Array
    weights: Array

    def read(self, field: Array) -> Array:
        """The field at the points."""
        return jnp.sum(self.weights.astype(field.dtype) * field.reshape(-1)[self.cells], axis=-1)

    def scaled(self, field: Array) -> "Positions":
        """The same cells with their weights times the field there."""
        weights = self.weights.astype(field.dtype) * field.reshape(-1)[self.cells]
        return Positions(self.cells, weights)

    def add(self, field: Array, values: Array) -> Array:
        """The field with these values added at the points: the transpose of `read`."""
        spread = self.weights.astype(field.dtype) * values[..., None]
        return field.reshape(-1).at[self.cells].add(spread).reshape(field.shape)


def locate(
    name: str,
    points: np.ndarray,
    shape: tuple[int, ...],
    spacing: tuple[float, ...],
    offset: int,
) -> Positions:
    """The positions of points, in metres from the first cell, in an array with `offset` more cells.

    `shape` is that of the model. Points outside it are an input error.
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
    padded = tuple(n + 2 * offset for n in shape)
    corners = np.stack(np.meshgrid(*[[0, 1]] * len(shape), indexing="ij"), -1)
    corners = corners.reshape(-1, len(shape))
    weights = np.prod(np.where(corners == 1, share[:, None], 1 - share[:, None]), axis=-1)
    index = np.minimum(base[:, None] + corners, last) + offset
    flat = np.ravel_multi_index(tuple(np.moveaxis(index, -1, 0)), padded)
    if np.all(np.isin(weights, (0.0, 1.0))):  # every point is a grid point
        best = np.argmax(weights, axis=1)[:, None]
        flat, weights = np.take_along_axis(flat, best, 1), np.ones_like(best, float)
    return Positions(jnp.asarray(flat), jnp.asarray(weights))
