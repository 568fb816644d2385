"""Orthogonal factorisations of Bᵀ for stencils of any width.

`BlockQR` takes the factor R of Bᵀ = QR, block by block, so that cond(B) is not squared.
`TruncatedInverse` is the truncated pivoted QR for (nearly) rank-deficient B, dense.

Cost: with k cells in blocks of b, `BlockQR` takes 18kb² flops and stores 2kb numbers; a solve takes
8kb flops per right-hand side.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts when they are used
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from natgrad.metrics.elliptic import gather, slab_order

from .stencils import Factor, Stencil, cell_shape, conservative_classes

as_index = functools.partial(np.asarray, dtype=np.int32)  # JAX takes it with and without x64
product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


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
            return product(above.T, partial), partial

        def backward(later, block):
            diagonal, above, partial = block
            phi = solve_triangular(diagonal, partial - product(above, later))
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


class TruncatedInverse(Factor):
    """B† of a (nearly) rank-deficient B as dense matrices, one for each set of cells and fluxes
    that do not interact with the others; `rank` is the number of directions kept.

    Column-pivoted QR of Bᵀ, cut at |R_jj| ≤ tolerance·|R_11|, and a second QR of what is left, R̃:

        BᵀP = QR,   R̃ᵀ = Q₁R₁,   B† = Q̃ R₁⁻¹ Q₁ᵀ Pᵀ.

    Here `solve` is K† and `pseudo_inverse` is B† in the strict sense.

    Cost: O(k³) time and O(k²) memory for a set of k cells. Reference: appendix B.2 of the paper.
    """

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    inverses: tuple[Array, ...]
    rank: Array

    def solve(self, zeta: Array) -> Array:
        return self.pseudo_inverse_transpose(self.pseudo_inverse(zeta))

    def pseudo_inverse(self, zeta: Array) -> tuple[Array, ...]:
        dim = len(self.stencils)
        shapes = [weight.shape for weight in self.weights]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        batch = zeta.shape[: zeta.ndim - dim]
        flat = zeta.reshape(*batch, -1)
        fluxes = jnp.zeros((*batch, ends[-1]), jnp.result_type(zeta, *self.inverses))
        parts = _independent_parts(self.stencils, zeta.shape[zeta.ndim - dim :])
        for (cells, positions), inverse in zip(parts, self.inverses, strict=True):
            fluxes = fluxes.at[..., positions].set(product(flat[..., cells], inverse.T))
        pieces = jnp.split(fluxes, ends[:-1], axis=-1)
        return tuple(f.reshape(*batch, *shape) for f, shape in zip(pieces, shapes, strict=True))

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        shape = cell_shape(self.stencils, self.weights)
        flat = concatenate_fluxes(fluxes, len(shape))
        zeta = jnp.zeros((*flat.shape[:-1], math.prod(shape)), flat.dtype)
        parts = _independent_parts(self.stencils, shape)
        for (cells, positions), inverse in zip(parts, self.inverses, strict=True):
            zeta = zeta.at[..., cells].set(product(flat[..., positions], inverse))
        return zeta.reshape(*flat.shape[:-1], *shape)


@functools.lru_cache(maxsize=64)
def _independent_parts(
    stencils: tuple[Stencil, ...], shape: tuple[int, ...]
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """(cells, fluxes) of the connected components of B with at least one cell."""
    entries, k = entries_of(stencils, shape), math.prod(shape)
    ends = (entries.cell, k + entries.flux)
    size = k + entries.flux.max() + 1
    graph = scipy.sparse.coo_array((np.ones(len(entries.flux)), ends), shape=(size, size))
    count, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    parts = [np.flatnonzero(label == part) for part in range(count)]
    return tuple(
        (as_index(part[part < k]), as_index(part[part >= k] - k)) for part in parts if part[0] < k
    )


def truncated_inverse(
    stencils: tuple[Stencil, ...], weights: tuple[Array, ...], tolerance: float | None
) -> TruncatedInverse:
    """Factorise every independent part of B on its own, see `TruncatedInverse`."""
    shape = cell_shape(stencils, weights)
    entries = entries_of(stencils, shape)
    values = entry_values(entries, weights)
    default = math.prod(shape) * float(jnp.finfo(values.dtype).eps)
    cut = default if tolerance is None else tolerance
    inverses, ranks = [], []
    for cells, positions in _independent_parts(stencils, shape):
        chosen = as_index(np.flatnonzero(np.isin(entries.cell, cells)))
        row = as_index(np.searchsorted(positions, entries.flux[chosen]))
        column = as_index(np.searchsorted(cells, entries.cell[chosen]))
        # Rows of zeros keep Bᵀ tall, so that R is square.
        height = max(len(positions), len(cells))
        dense = jnp.zeros((height, len(cells)), values.dtype).at[row, column].add(values[chosen])
        Q, R, pivots = jax.scipy.linalg.qr(dense, mode="economic", pivoting=True)
        size = jnp.abs(jnp.diagonal(R))
        kept = size > cut * size[0]
        Q1, R1 = jnp.linalg.qr(jnp.where(kept[:, None], R, 0.0).T)
        R1 = jnp.where(kept & kept[:, None], R1, jnp.eye(len(cells), dtype=R1.dtype))
        inner = jnp.where(kept[:, None], solve_triangular(R1, Q1.T), 0.0)
        inverse = product(Q, inner)[: len(positions)]
        inverses.append(jnp.zeros_like(inverse).at[:, pivots].set(inverse))
        ranks.append(jnp.sum(kept))
    return TruncatedInverse(stencils, weights, tuple(inverses), jnp.sum(jnp.stack(ranks)))


class Entries(NamedTuple):
    """The nonzeros of the divergence: B[cell, flux] = −coefficient · s[flux], with the fluxes of
    all axes numbered one after the other."""

    flux: np.ndarray
    cell: np.ndarray
    coefficient: np.ndarray


def entries_of(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> Entries:
    """The nonzeros of B for cells of the given shape."""
    cells, first_flux = np.indices(shape), 0
    fluxes, owners, coefficients = [], [], []
    for axis, stencil in enumerate(stencils):
        flux_shape = list(shape)
        flux_shape[axis] += stencil.extra
        for offset, coefficient in zip(stencil.offsets, stencil.coefficients, strict=True):
            position = cells.copy()
            position[axis] += offset
            if stencil.wrap:
                position[axis] %= shape[axis]
            exists = (position[axis] >= 0) & (position[axis] < flux_shape[axis])
            flux = np.ravel_multi_index(tuple(position[:, exists]), flux_shape)
            fluxes.append(first_flux + flux)
            owners.append(np.ravel_multi_index(tuple(cells[:, exists]), shape))
            coefficients.append(np.full(np.count_nonzero(exists), coefficient))
        first_flux += math.prod(flux_shape)
    return Entries(
        flux=as_index(np.concatenate(fluxes)),
        cell=as_index(np.concatenate(owners)),
        coefficient=np.concatenate(coefficients),
    )


def concatenate_fluxes(fluxes: Sequence[Array], dim: int) -> Array:
    """(..., all fluxes) from one array (..., grid) for each axis."""
    return jnp.concatenate([f.reshape(*f.shape[: f.ndim - dim], -1) for f in fluxes], axis=-1)


def entry_values(entries: Entries, weights: tuple[Array, ...]) -> Array:
    """The values of the nonzeros, in the precision of the weights."""
    weight = concatenate_fluxes(weights, len(weights))
    return -weight[entries.flux] * entries.coefficient.astype(weight.dtype)
