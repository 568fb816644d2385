"""Direct solves with K = B B^T and minimum-norm solutions B^+ zeta, block by block, in pure JAX.

B v = - sum_i A_i (s_i v_i) is the weighted divergence of `stencils.py`. The cells are ordered by
slabs across one axis, so that K is block tridiagonal with dense blocks, and `lax.scan` runs over
the blocks. Everything is jittable, vmappable over weights and runs on any device.

>>> import jax.numpy as jnp
>>> from natgrad.elliptic.stencils import staggered_neumann
>>> factor = factorise((staggered_neumann(1.0),), (jnp.ones(2),))
>>> [flux.tolist() for flux in factor.pseudo_inverse(jnp.array([1.0, 0.0, -1.0]))]
[[-1.0, -1.0]]

Three factorisations share this interface:

* `BlockElimination` (default for two-point stencils): K is a graph Laplacian there, and is
  eliminated without a single subtraction, so that no contrast of the weights loses digits.
* `BlockQR` (default otherwise): the factor R of B^T = QR, so that cond(B) is not squared.
* `TruncatedInverse`: the truncated pivoted QR for (nearly) rank-deficient B, dense.

With blocks of b cells, elimination costs about 10/3 k b^2 and BlockQR 18 k b^2 operations, both
store k b numbers or twice that, and a solve costs 8 k b per right-hand side. On an n x n grid
b = n, so k b = n^3: past n of a few hundred an iterative solve is the better choice.
"""

import abc
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.csgraph
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from natgrad.elliptic.stencils import (
    Stencil,
    cell_shape,
    conservative_classes,
    divergence,
    graph_links,
    weighted_gradient,
)

# Blocks up to this size are inverted pivot by pivot, larger ones by halves: smaller leaves run
# no faster and take longer to compile, larger ones spend their time in rank-one updates.
LEAF_SIZE = 32

# A float32 matrix product on a GPU would otherwise be rounded to ten bits.
_matmul = functools.partial(jnp.matmul, precision="highest")


class Factor(eqx.Module):
    """A factorised K = B B^T; zeta and the fluxes may have batch axes before those of the grid."""

    stencils: eqx.AbstractVar[tuple[Stencil, ...]]
    weights: eqx.AbstractVar[tuple[Array, ...]]

    @abc.abstractmethod
    def solve(self, zeta: Array) -> Array:
        """phi with K phi = zeta.

        Where K is singular (`conservative_classes`), one cell is grounded, the one with the
        largest weights: what zeta has in excess of zero mass leaves there, phi is fixed up to
        a constant by that cell, and solve is symmetric. `remove_null_component` comes first
        for the pseudo-inverse in the strict sense.
        """

    def pseudo_inverse(self, zeta: Array) -> tuple[Array, ...]:
        """B^+ zeta = B^T K^-1 zeta, the fluxes of least norm with B v = zeta."""
        return weighted_gradient(self.stencils, self.weights, self.solve(zeta))

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        """The exact transpose of `pseudo_inverse`, K^-1 B v."""
        return self.solve(divergence(self.stencils, self.weights, fluxes))


def factorise(
    stencils: Sequence[Stencil],
    weights: Sequence[Array],
    *,
    method: str | None = None,
    tolerance: float | None = None,
) -> Factor:
    """Factorise K = B B^T for weights s_i at the flux positions of axis i.

    `method` is "elimination" (two-point stencils only), "qr" or "truncated"; None takes the
    first of these that applies. `tolerance` is the relative truncation of "truncated", by
    default the rounding error times the number of cells.
    """
    stencils, weights = tuple(stencils), tuple(weights)
    cell_shape(stencils, weights)
    is_graph = all(s.is_two_point and (s.gap == 1 or not s.wrap) for s in stencils)
    if method is None:
        method = "elimination" if is_graph else "qr"
    if method == "elimination" and not is_graph:
        raise ValueError("elimination needs two-point stencils; use method='qr'")
    if method == "elimination":
        return _block_elimination(stencils, weights)
    if method == "qr":
        return _block_qr(stencils, weights)
    if method == "truncated":
        return _truncated_inverse(stencils, weights, tolerance)
    raise ValueError(f"unknown method {method!r}: use 'elimination', 'qr' or 'truncated'")


def remove_null_component(stencils: Sequence[Stencil], zeta: Array) -> Array:
    """zeta minus its mean on every conservative class: the orthogonal projection on range(B)."""
    for cells in conservative_classes(stencils, zeta.shape[zeta.ndim - len(stencils) :]):
        grid_axes = tuple(range(-len(stencils), 0))
        mean = jnp.mean(zeta[..., *cells], axis=grid_axes, keepdims=True)
        zeta = zeta.at[..., *cells].add(-mean)
    return zeta


# --- elimination without subtractions ----------------------------------------------------------


def dominant_factor(links: Array, excess: Array) -> tuple[Array, Array]:
    """(J, p) with S^-1 = J diag(p) J^T for S = diag(links 1 + excess) - links.

    `links` is symmetric and nonnegative (its diagonal is ignored), `excess` >= 0 joins a cell to
    what lies outside. Eliminating the first half of the cells turns the rest into a matrix of
    the same kind, with H = S_11^-1 links_12,

        links_22 + links_21 H,     excess_2 + H^T excess_1,     J_12 = H J_22,

    so with diagonals always recomputed from links and excess there are only sums, products and
    quotients of nonnegative numbers: every entry is accurate, whatever the condition number.
    J is unit upper triangular with entries in [0, 1] (probabilities of a walk), which is what
    keeps a solve accurate where S^-1 is a huge constant plus something small: never multiply by
    S^-1 itself. A cell with no links or excess left has pivot 0 and gets p = 0, as in a
    pseudo-inverse. 4/3 b^3 operations, nearly all in matrix products. Grassmann, Taksar and
    Heyman (1985); Alfa, Xue and Ye, Math. Comp. 71 (2002).

    >>> j, p = dominant_factor(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.array([1.0, 0.0]))
    >>> j.tolist(), p.tolist()
    ([[1.0, 0.5], [0.0, 1.0]], [0.5, 2.0])
    """
    size = excess.shape[0]
    if size <= LEAF_SIZE:
        return _dominant_factor_by_pivots(links, excess)
    half = size // 2
    across = links[:half, half:]
    first, p_first = dominant_factor(links[:half, :half], excess[:half] + jnp.sum(across, axis=1))
    harmonic = _matmul(first * p_first, _matmul(first.T, across))
    second, p_second = dominant_factor(
        links[half:, half:] + _matmul(across.T, harmonic),
        excess[half:] + _matmul(excess[:half], harmonic),
    )
    zeros = jnp.zeros((size - half, half), second.dtype)
    j = jnp.block([[first, _matmul(harmonic, second)], [zeros, second]])
    return j, jnp.concatenate([p_first, p_second])


def _dominant_factor_by_pivots(links: Array, excess: Array) -> tuple[Array, Array]:
    """The same pivot by pivot. Above the diagonal, columns up to the pivot hold J, the later ones
    the hitting probabilities of eliminated cells and the links among the remaining ones."""
    size = excess.shape[0]
    index = jnp.arange(size)

    def eliminate(pivot, state):
        table, excess, inverses = state
        ahead = jnp.where(index > pivot, table[pivot], 0.0)
        total = excess[pivot] + jnp.sum(ahead)
        inverse = jnp.where(total > 0.0, 1.0 / jnp.where(total > 0.0, total, 1.0), 0.0)
        here = index == pivot
        reached = ahead * inverse
        table = jnp.where(here[:, None], reached, table + table[:, pivot][:, None] * reached)
        return table, excess + reached * excess[pivot], jnp.where(here, inverse, inverses)

    start = (links, excess, jnp.zeros_like(excess))
    table, _, inverses = lax.fori_loop(0, size, eliminate, start)
    return jnp.triu(table, 1) + jnp.eye(size, dtype=table.dtype), inverses


def _as_index(array: np.ndarray) -> np.ndarray:
    """32 bits, which JAX takes with and without x64."""
    return array.astype(np.int32)


def _slab_order(n: int, slabs: int, wrap: bool) -> np.ndarray:
    """(blocks, slabs): which slab goes where, n for padding. A periodic axis is folded,
    0, n-1, 1, n-2, ..., which brings the two ends of the ring together."""
    order = np.arange(n)
    if wrap:
        order[0::2], order[1::2] = np.arange(-(-n // 2)), n - 1 - np.arange(n // 2)
    blocks = -(-n // slabs)
    return np.append(order, np.full(blocks * slabs - n, n)).reshape(blocks, slabs)


class _Layout(NamedTuple):
    """Where cells and links go, as index arrays into flattened grids (k, or n, points to a 0)."""

    cells: np.ndarray  # (classes, blocks, b) -> cell
    place: np.ndarray  # cell -> position in cells.ravel()
    slab_axis: int
    slabs: int
    pairs: np.ndarray  # (2, edges): the two ends of each link inside a block
    inside: np.ndarray  # (classes, blocks, edges) -> number of axis * (k + 1) + lower cell
    onward: np.ndarray  # (classes, blocks, slabs, slabs', m) -> lower cell of the slab axis
    grounded: np.ndarray  # (classes,): no flux of the class leaves the grid


@functools.lru_cache(maxsize=64)
def _layout(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> _Layout:
    dim, k = len(shape), math.prod(shape)
    gaps = [stencil.gap for stencil in stencils]
    coarse = [-(-n // gap) for n, gap in zip(shape, gaps, strict=True)]
    slab_axis = max(range(dim), key=lambda axis: (coarse[axis], not stencils[axis].wrap))
    wrap, n = stencils[slab_axis].wrap, coarse[slab_axis]
    slabs = 2 if wrap else 1
    cross = [coarse[axis] for axis in range(dim) if axis != slab_axis]
    m = math.prod(cross)

    # Sublattices that do not see each other become classes: (classes, slab axis + 1, cross).
    padded = np.full([c * gap for c, gap in zip(coarse, gaps, strict=True)], k)
    padded[tuple(map(slice, shape))] = np.arange(k).reshape(shape)
    padded = padded.reshape([size for pair in zip(coarse, gaps, strict=True) for size in pair])
    padded = padded.transpose(*range(1, 2 * dim, 2), *range(0, 2 * dim, 2))
    padded = np.moveaxis(padded.reshape(-1, *coarse), 1 + slab_axis, 1).reshape(-1, n, m)
    slab_cells = np.concatenate([padded, np.full_like(padded[:, :1], k)], axis=1)

    order = _slab_order(n, slabs, wrap)
    cells = slab_cells[:, order].reshape(len(slab_cells), len(order), slabs * m)
    place = np.empty(k, int)
    place[cells[cells < k]] = np.flatnonzero(cells.ravel() < k)

    inner = np.full((len(order), slabs, slabs), n)
    onward = np.full((len(order), slabs, slabs), n)
    position = np.argsort(order.ravel())
    for slab in range(n if wrap else n - 1):
        block, side = divmod(position[slab], slabs)
        next_block, next_side = divmod(position[(slab + 1) % n], slabs)
        if block == next_block:
            inner[block, side, next_side] = slab
        elif block < next_block:
            onward[block, side, next_side] = slab
        else:
            onward[next_block, next_side, side] = slab

    slot = np.arange(slabs * m).reshape(slabs, *cross)
    pairs, inside = [], []
    for axis in range(dim):
        if axis != slab_axis:
            neighbour = np.roll(slot, -1, axis=1 + axis - (axis > slab_axis))
            pairs.append([slot.ravel(), neighbour.ravel()])
            inside.append(axis * (k + 1) + cells)
    for side, next_side in [(0, 1), (1, 0)] if wrap else []:
        pairs.append([slot[side].ravel(), slot[next_side].ravel()])
        inside.append(slab_axis * (k + 1) + slab_cells[:, inner[:, side, next_side]])

    starts = {tuple(s.start for s in c) for c in conservative_classes(stencils, shape)}
    return _Layout(
        cells=_as_index(cells),
        place=_as_index(place),
        slab_axis=slab_axis,
        slabs=slabs,
        pairs=_as_index(np.concatenate([np.zeros((2, 0), int), *pairs], axis=1)),
        inside=_as_index(np.concatenate([cells[..., :0], *inside], axis=2)),
        onward=_as_index(slab_cells[:, onward]),
        grounded=np.array([start in starts for start in np.ndindex(*gaps)]),
    )


class BlockElimination(Factor):
    """K^-1 for two-point stencils as a chain of dense blocks, from an elimination without
    subtractions (see `dominant_factor`).

    Block i holds the links and the excess left by the blocks before it; with C the (diagonal)
    links to block i + 1 and S_i^-1 = J P J^T, the next block receives the links C S_i^-1 C and
    the excess C S_i^-1 e. A solve runs forwards, y_i = P J^T z_i, z_{i+1} = zeta_{i+1} + C J y_i,
    and backwards, phi_i = J (y_i + P J^T C phi_{i+1}).

    Sublattices that do not interact (the 2^d parities of the central scheme) are factorised
    side by side as a batch. Zero weights are allowed: every disconnected part of the grid is
    grounded in one of its cells, and `rank` counts the pivots that are not zero.
    """

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    walks: Array
    pivots: Array
    onward: Array
    rank: Array

    def solve(self, zeta: Array) -> Array:
        layout = _layout(self.stencils, cell_shape(self.stencils, self.weights))
        flat = zeta.reshape(-1, len(layout.place))
        loads = jnp.moveaxis(_gather(flat, layout.cells), 0, -2)
        loads = loads.astype(jnp.result_type(loads, self.walks))
        phi = jax.vmap(_solve_chain)(self.walks, self.pivots, self.onward, loads)
        phi = jnp.moveaxis(phi, -2, 0).reshape(len(flat), -1)
        return phi[:, layout.place].reshape(zeta.shape)


def _gather(flat: Array, index: np.ndarray) -> Array:
    """flat[..., index], where the index one past the end gives zero."""
    padding = [(0, 0)] * (flat.ndim - 1) + [(0, 1)]
    return jnp.pad(flat, padding)[..., index]


def _pass_on(onward: Array, rows: Array) -> Array:
    """rows @ C, with C = onward of shape (slabs, slabs', m) diagonal in the cells of a slab."""
    slabs, _, m = onward.shape
    rows = rows.reshape(len(rows), slabs, 1, m)
    return jnp.sum(rows * onward, axis=1).reshape(len(rows), slabs * m)


def _solve_chain(walks: Array, pivots: Array, onward: Array, loads: Array) -> Array:
    def forward(received, block):
        walk, pivot, links, load = block
        scaled = _matmul(load + received, walk) * pivot
        return _pass_on(links, _matmul(scaled, walk.T)), scaled

    def backward(later, block):
        walk, pivot, links, scaled = block
        received = _pass_on(jnp.swapaxes(links, 0, 1), later)
        phi = _matmul(scaled + _matmul(received, walk) * pivot, walk.T)
        return phi, phi

    start = jnp.zeros_like(loads[0])
    _, scaled = lax.scan(forward, start, (walks, pivots, onward, loads))
    return lax.scan(backward, start, (walks, pivots, onward, scaled), reverse=True)[1]


def _block_elimination(stencils: tuple[Stencil, ...], weights: tuple[Array, ...]) -> Factor:
    layout = _layout(stencils, cell_shape(stencils, weights))
    links, leak = graph_links(stencils, weights)
    classes, blocks, b = layout.cells.shape
    inside = jnp.stack([jnp.pad(link.ravel(), (0, 1)) for link in links]).ravel()[layout.inside]
    onward = _gather(links[layout.slab_axis].ravel(), layout.onward)
    heaviest = _gather(sum(links).ravel(), layout.cells).reshape(classes, -1)
    is_ground = jnp.arange(blocks * b) == jnp.argmax(heaviest, axis=1)[:, None]
    ground = jnp.where(is_ground & layout.grounded[:, None], heaviest, 0.0)
    excess = _gather(leak.ravel(), layout.cells) + ground.reshape(classes, blocks, b)

    def eliminate(received, block):
        links, excess = received
        inside, onward, own_excess = block
        half = jnp.zeros((b, b), links.dtype).at[layout.pairs[0], layout.pairs[1]].add(inside)
        excess = excess + own_excess
        outflow = jnp.sum(onward, axis=1).reshape(b)
        walk, pivot = dominant_factor(links + half + half.T, excess + outflow)
        reached = _pass_on(onward, _matmul(walk * pivot, walk.T))
        return (_pass_on(onward, reached.T), _matmul(excess, reached)), (walk, pivot)

    start = (jnp.zeros((b, b), excess.dtype), jnp.zeros(b, excess.dtype))
    chain = jax.vmap(lambda *block: lax.scan(eliminate, start, block)[1])
    walks, pivots = chain(inside, onward, excess)
    rank = jnp.sum(pivots > 0.0) - jnp.sum(ground > 0.0)
    return BlockElimination(stencils, weights, walks, pivots, onward, rank)


# --- orthogonal factorisation ------------------------------------------------------------------


class _Entries(NamedTuple):
    """The nonzeros of the divergence: B[cell, flux] = - coefficient * s[flux], with the fluxes of
    all axes numbered one after the other."""

    flux: np.ndarray
    cell: np.ndarray
    coefficient: np.ndarray


def _entries(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> _Entries:
    cells, parts, first_flux = np.indices(shape), [], 0
    for axis, stencil in enumerate(stencils):
        flux_shape = list(shape)
        flux_shape[axis] += stencil.extra
        for offset, coefficient in zip(stencil.offsets, stencil.coefficients, strict=True):
            position = cells.copy()
            position[axis] += offset
            if stencil.wrap:
                position[axis] %= shape[axis]
            exists = (position[axis] >= 0) & (position[axis] < flux_shape[axis])
            flux = first_flux + np.ravel_multi_index(tuple(position[:, exists]), flux_shape)
            cell = np.ravel_multi_index(tuple(cells[:, exists]), shape)
            parts.append((flux, cell, np.full(len(flux), coefficient)))
        first_flux += math.prod(flux_shape)
    flux, cell, coefficient = map(np.concatenate, zip(*parts, strict=True))
    return _Entries(_as_index(flux), _as_index(cell), coefficient)


def _concatenate(fluxes: Sequence[Array], dim: int) -> Array:
    """(..., all fluxes) from one array (..., grid) for each axis."""
    return jnp.concatenate([f.reshape(*f.shape[: f.ndim - dim], -1) for f in fluxes], axis=-1)


def _entry_values(entries: _Entries, weights: tuple[Array, ...]) -> Array:
    weight = _concatenate(weights, len(weights))
    return -entries.coefficient.astype(weight.dtype) * weight[entries.flux]


class _BlockRows(NamedTuple):
    """Cells block by block, and the rows of B^T that begin in each block, as padded lists."""

    cells: np.ndarray  # (blocks, b) -> cell, k for padding
    place: np.ndarray  # cell -> position in cells.ravel()
    entry: np.ndarray  # (blocks, entries) -> nonzero of B, one past the end for padding
    row: np.ndarray  # (blocks, entries)
    column: np.ndarray  # (blocks, entries): 0..2b-1, counted from the block's first cell
    height: int  # the largest number of rows of a block


@functools.lru_cache(maxsize=64)
def _block_rows(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> _BlockRows:
    k, n = math.prod(shape), shape[0]
    slabs = max(1, stencils[0].span) * (2 if stencils[0].wrap else 1)
    order = _slab_order(n, slabs, stencils[0].wrap)
    slab_cells = np.append(np.arange(k), np.full(k // n, k)).reshape(n + 1, -1)
    cells = slab_cells[order].reshape(len(order), -1)
    place = np.empty(k, int)
    place[cells[cells < k]] = np.flatnonzero(cells.ravel() < k)
    blocks, b = cells.shape

    entries = _entries(stencils, shape)
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
    return _BlockRows(*map(_as_index, (cells, place, entry, row, column)), height)


class BlockQR(Factor):
    """K^-1 = R^-1 R^-T from B^T = QR, with R block bidiagonal and Q never formed.

    For minimum-norm problems these seminormal equations are as accurate as Q R^-T (Paige,
    Math. Comp. 27, 1973): the error grows with cond(B), not with its square. The rank is not
    revealed: the fourth-order scheme with odd n on every axis is singular and needs
    `TruncatedInverse`.
    """

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    diagonal: Array
    above: Array

    def solve(self, zeta: Array) -> Array:
        layout = _block_rows(self.stencils, cell_shape(self.stencils, self.weights))
        flat = zeta.reshape(-1, len(layout.place))
        loads = jnp.moveaxis(_gather(flat, layout.cells), 0, -1)
        loads = loads.astype(jnp.result_type(loads, self.diagonal))

        def forward(received, block):
            diagonal, above, load = block
            partial = solve_triangular(diagonal, load - received, trans="T")
            return _matmul(above.T, partial), partial

        def backward(later, block):
            diagonal, above, partial = block
            phi = solve_triangular(diagonal, partial - _matmul(above, later))
            return phi, phi

        start = jnp.zeros_like(loads[0])
        _, partials = lax.scan(forward, start, (self.diagonal, self.above, loads))
        _, phi = lax.scan(backward, start, (self.diagonal, self.above, partials), reverse=True)
        return phi.reshape(-1, len(flat)).T[:, layout.place].reshape(zeta.shape)


def _block_qr(stencils: tuple[Stencil, ...], weights: tuple[Array, ...]) -> Factor:
    """Rows enter block by block: QR of [T 0; rows of B^T that begin here] gives one block row of
    R and the triangular remainder T of the next block."""
    shape = cell_shape(stencils, weights)
    layout, entries = _block_rows(stencils, shape), _entries(stencils, shape)
    blocks, b = layout.cells.shape
    values = _entry_values(entries, weights)
    diagonal = jnp.zeros(math.prod(shape), values.dtype).at[entries.cell].add(values**2)
    grounds = []
    for cells in conservative_classes(stencils, shape):
        index = _as_index(np.arange(math.prod(shape)).reshape(shape)[cells].ravel())
        heaviest = jnp.argmax(diagonal[index])
        ground = jnp.zeros_like(diagonal).at[jnp.asarray(index)[heaviest]]
        grounds.append(_gather(ground.set(jnp.sqrt(jnp.max(diagonal[index]))), layout.cells))
    grounds = jnp.stack([jnp.zeros((blocks, b), values.dtype), *grounds], axis=1)
    head = b + grounds.shape[1]
    height = max(2 * b, head + layout.height)

    def triangularise(remainder, block):
        values, row, column, grounds = block
        stacked = jnp.zeros((height, 2 * b), values.dtype).at[head + row, column].add(values)
        stacked = stacked.at[:b, :b].set(remainder).at[b:head, :b].set(grounds)
        triangle = jnp.linalg.qr(stacked, mode="r")[: 2 * b]
        return triangle[b:, b:], (triangle[:b, :b], triangle[:b, b:])

    lists = (_gather(values, layout.entry), layout.row, layout.column, grounds)
    _, (diagonal, above) = lax.scan(triangularise, jnp.zeros((b, b), values.dtype), lists)
    is_padding = layout.cells == math.prod(shape)
    diagonal = jnp.where(is_padding[:, :, None] & np.eye(b, dtype=bool), 1.0, diagonal)
    return BlockQR(stencils, weights, diagonal, above)


class TruncatedInverse(Factor):
    """B^+ of a (nearly) rank-deficient B as dense matrices, one for each set of cells and fluxes
    that do not interact with the others; `rank` is the number of directions kept.

    Column-pivoted QR of B^T, cut at |R_ii| <= tolerance |R_00|, and a second QR of what is left:

        B^T P = Q R,   R~^T = Q_2 R_2,   B^+ = Q~ R_2^-1 Q_2^T P^T

    (appendix B.2 of Nurbekyan, Lei and Yang, 2023). O(k^3) time and O(k^2) memory for each set.
    Here `solve` is K^+ and `pseudo_inverse` is B^+ in the strict sense.
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
            fluxes = fluxes.at[..., positions].set(_matmul(flat[..., cells], inverse.T))
        pieces = jnp.split(fluxes, ends[:-1], axis=-1)
        return tuple(f.reshape(*batch, *shape) for f, shape in zip(pieces, shapes, strict=True))

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        shape = cell_shape(self.stencils, self.weights)
        flat = _concatenate(fluxes, len(shape))
        zeta = jnp.zeros((*flat.shape[:-1], math.prod(shape)), flat.dtype)
        parts = _independent_parts(self.stencils, shape)
        for (cells, positions), inverse in zip(parts, self.inverses, strict=True):
            zeta = zeta.at[..., cells].set(_matmul(flat[..., positions], inverse))
        return zeta.reshape(*flat.shape[:-1], *shape)


@functools.lru_cache(maxsize=64)
def _independent_parts(
    stencils: tuple[Stencil, ...], shape: tuple[int, ...]
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """(cells, fluxes) of the connected components of B with at least one cell."""
    entries, k = _entries(stencils, shape), math.prod(shape)
    ends = (entries.cell, k + entries.flux)
    size = k + entries.flux.max() + 1
    graph = scipy.sparse.coo_array((np.ones(len(entries.flux)), ends), shape=(size, size))
    count, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    parts = [np.flatnonzero(label == part) for part in range(count)]
    return tuple(
        (_as_index(part[part < k]), _as_index(part[part >= k] - k)) for part in parts if part[0] < k
    )


def _truncated_inverse(
    stencils: tuple[Stencil, ...], weights: tuple[Array, ...], tolerance: float | None
) -> Factor:
    shape = cell_shape(stencils, weights)
    entries = _entries(stencils, shape)
    values = _entry_values(entries, weights)
    if tolerance is None:
        tolerance = math.prod(shape) * jnp.finfo(values.dtype).eps
    inverses, rank = [], 0
    for cells, positions in _independent_parts(stencils, shape):
        chosen = _as_index(np.flatnonzero(np.isin(entries.cell, cells)))
        row = _as_index(np.searchsorted(positions, entries.flux[chosen]))
        column = _as_index(np.searchsorted(cells, entries.cell[chosen]))
        # Rows of zeros keep B^T tall, so that R is square.
        height = max(len(positions), len(cells))
        dense = jnp.zeros((height, len(cells)), values.dtype).at[row, column].add(values[chosen])
        q, r, pivots = jax.scipy.linalg.qr(dense, mode="economic", pivoting=True)
        size = jnp.abs(jnp.diagonal(r))
        kept = size > tolerance * size[0]
        q2, r2 = jnp.linalg.qr(jnp.where(kept[:, None], r, 0.0).T)
        r2 = jnp.where(kept & kept[:, None], r2, jnp.eye(len(cells), dtype=r2.dtype))
        inner = jnp.where(kept[:, None], solve_triangular(r2, q2.T), 0.0)
        inverse = _matmul(q, inner)[: len(positions)]
        inverses.append(jnp.zeros_like(inverse).at[:, pivots].set(inverse))
        rank = rank + jnp.sum(kept)
    return TruncatedInverse(stencils, weights, tuple(inverses), rank)
