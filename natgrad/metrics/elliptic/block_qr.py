"""Orthogonal factorisation of Bᵀ, block by block, for stencils of any width."""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from ...core.dense import accurate_product
from .factor import Factor
from .indexing import as_index, entries_of, entry_values, gather, slab_order
from .stencils import Stencil, cell_shape, conservative_classes


class _BlockRows(NamedTuple):
    """Cells block by block, and the rows of Bᵀ that begin in each block, as padded lists."""

    cells: np.ndarray  # (blocks, b) -> cell, k for padding
    place: np.ndarray  # cell -> position in cells.ravel()
    entry: np.ndarray  # (blocks, entries) -> nonzero of B, one past the end for padding
    row: np.ndarray  # (blocks, entries)
    column: np.ndarray  # (blocks, entries): 0..2b−1, counted from the block's first cell
    height: int  # the largest number of rows of a block


@functools.lru_cache(maxsize=64)
def _block_rows(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> _BlockRows:
    """Blocks of as many slabs across the first axis as a stencil reaches."""
    k, n = math.prod(shape), shape[0]
    slabs = max(1, stencils[0].span) * (2 if stencils[0].wrap else 1)
    order = slab_order(n, slabs, stencils[0].wrap)
    slab_cells = np.append(np.arange(k), np.full(k // n, k)).reshape(n + 1, -1)
    cells = slab_cells[order].reshape(len(order), -1)
    place = np.empty(k, int)
    place[cells[cells < k]] = np.flatnonzero(cells.ravel() < k)
    blocks, b = cells.shape

    entries = entries_of(stencils, shape)
    block_of_flux = np.full(entries.flux.max() + 1, blocks)
    np.minimum.at(block_of_flux, entries.flux, place[entries.cell] // b)
    members = [np.flatnonzero(block_of_flux[entries.flux] == block) for block in range(blocks)]
    table_shape = (blocks, max(map(len, members)))
    entry = np.full(table_shape, len(entries.flux))
    row, column, height = np.zeros(table_shape, int), np.zeros(table_shape, int), 0
    for block, chosen in enumerate(members):
        rows, rank = np.unique(entries.flux[chosen], return_inverse=True)
        entry[block, : len(chosen)] = chosen
        row[block, : len(chosen)] = rank
        column[block, : len(chosen)] = place[entries.cell[chosen]] - block * b
        height = max(height, len(rows))
    return _BlockRows(
        cells=as_index(cells),
        place=as_index(place),
        entry=as_index(entry),
        row=as_index(row),
        column=as_index(column),
        height=height,
    )


class BlockQR(Factor):
    """K⁻¹ = R⁻¹R⁻ᵀ from Bᵀ = QR, with R block bidiagonal and Q never formed.

    For minimum-norm problems these seminormal equations are as accurate as QR⁻ᵀ: the error grows
    with cond(B), not with its square. The rank is not revealed: the fourth-order scheme with odd n
    on every axis is singular and needs `TruncatedInverse`.

    Reference: Paige, Math. Comp. 27 (1973).
    """

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    diagonal: Array
    above: Array

    def solve(self, zeta: Array) -> Array:
        layout = _block_rows(self.stencils, cell_shape(self.stencils, self.weights))
        flat = zeta.reshape(-1, len(layout.place))
        loads = jnp.moveaxis(gather(flat, layout.cells), 0, -1)
        loads = loads.astype(jnp.result_type(loads, self.diagonal))

        def forward(received, block):
            diagonal, above, load = block
            partial = solve_triangular(diagonal, load - received, trans="T")
            return accurate_product(above.T, partial), partial

        def backward(later, block):
            diagonal, above, partial = block
            phi = solve_triangular(diagonal, partial - accurate_product(above, later))
            return phi, phi

        start = jnp.zeros_like(loads[0])
        _, partials = lax.scan(forward, start, (self.diagonal, self.above, loads))
        _, phi = lax.scan(backward, start, (self.diagonal, self.above, partials), reverse=True)
        return phi.reshape(-1, len(flat)).T[:, layout.place].reshape(zeta.shape)


def block_qr(stencils: tuple[Stencil, ...], weights: tuple[Array, ...]) -> BlockQR:
    """Rows enter block by block: QR of [T 0; rows of Bᵀ that begin here] gives one block row of
    R and the triangular remainder T of the next block."""
    shape = cell_shape(stencils, weights)
    layout, entries = _block_rows(stencils, shape), entries_of(stencils, shape)
    blocks, b = layout.cells.shape
    values = entry_values(entries, weights)
    diagonal = jnp.zeros(math.prod(shape), values.dtype).at[entries.cell].add(values**2)
    grounds = []
    for cells in conservative_classes(stencils, shape):
        index = as_index(np.arange(math.prod(shape)).reshape(shape)[cells].ravel())
        heaviest = jnp.argmax(diagonal[index])
        ground = jnp.zeros_like(diagonal).at[jnp.asarray(index)[heaviest]]
        grounds.append(gather(ground.set(jnp.sqrt(jnp.max(diagonal[index]))), layout.cells))
    grounds = jnp.stack([jnp.zeros((blocks, b), values.dtype), *grounds], axis=1)
    head = b + grounds.shape[1]
    height = max(2 * b, head + layout.height)

    def triangularise(remainder, block):
        values, row, column, grounds = block
        stacked = jnp.zeros((height, 2 * b), values.dtype).at[head + row, column].add(values)
        stacked = stacked.at[:b, :b].set(remainder).at[b:head, :b].set(grounds)
        triangle = jnp.linalg.qr(stacked, mode="r")[: 2 * b]
        return triangle[b:, b:], (triangle[:b, :b], triangle[:b, b:])

    lists = (gather(values, layout.entry), layout.row, layout.column, grounds)
    _, (diagonal, above) = lax.scan(triangularise, jnp.zeros((b, b), values.dtype), lists)
    is_padding = layout.cells == math.prod(shape)
    diagonal = jnp.where(is_padding[:, :, None] & np.eye(b, dtype=bool), 1.0, diagonal)
    return BlockQR(stencils, weights, diagonal, above)
