"""Elimination without subtractions: a direct solve with graph Laplacians on tensor grids.

The cells are ordered by slabs across one axis, so that K is block tridiagonal with dense blocks,
and `lax.scan` runs over the blocks. No contrast of the conductances loses digits. Everything can be
compiled, mapped over conductances and run on any device.

Cost: with k cells in blocks of b, about (10/3)kb² flops and kb numbers stored, and 8kb flops for
each right-hand side. On an n × n grid b = n, so kb = n³: past n of a few hundred an iterative solve
is the better choice.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...core.dense import accurate_product
from .divergence import Divergence, Factor

# Blocks up to this size are inverted pivot by pivot, larger ones by halves: smaller leaves run
# no faster and take longer to compile, larger ones spend their time in rank-one updates.
LEAF_SIZE = 32


class EliminationFactor(Factor):
    """K = BBᵀ by elimination, one cell grounded."""

    B: Divergence
    inverse: "BlockInverse"

    def solve(self, zeta: Array) -> Array:
        return self.inverse.solve(zeta)


class BlockInverse(eqx.Module):
    """The inverse of a graph Laplacian as a chain of dense blocks.

    Block i holds the links and the excess e left by the blocks before it; with C the links to
    block i + 1 (diagonal between two slabs) and S_i⁻¹ = JPJᵀ, P = diag(p), the next block receives
    the links CᵀS_i⁻¹C and the excess CᵀS_i⁻¹e. A solve runs forwards and backwards,

        y_i = PJᵀz_i,   z_{i+1} = ζ_{i+1} + CᵀJy_i,      φ_i = J(y_i + PJᵀCφ_{i+1}).

    Zero links are allowed: every disconnected part of the grid is grounded in one of its cells, and
    `rank` counts the pivots that are not zero.
    """

    walks: Array
    pivots: Array
    onward: Array
    rank: Array
    shape: tuple[int, ...] = eqx.field(static=True)
    periodic: tuple[bool, ...] = eqx.field(static=True)

    def solve(self, zeta: Array) -> Array:
        """φ with Kφ = ζ; the grid is on the trailing axes, any batch axes lead."""
        layout = _layout(self.shape, self.periodic)
        flat = zeta.reshape(-1, len(layout.place))
        loads = jnp.moveaxis(gather(flat, layout.cells), 0, -2)
        loads = loads.astype(jnp.result_type(loads, self.walks))

        def forward(received, block):
            walk, pivot, links, load = block
            scaled = accurate_product(load + received, walk) * pivot
            return _pass_on(links, accurate_product(scaled, walk.T)), scaled

        def backward(later, block):
            walk, pivot, links, scaled = block
            received = _pass_on(jnp.swapaxes(links, 0, 1), later)
            phi = accurate_product(scaled + accurate_product(received, walk) * pivot, walk.T)
            return phi, phi

        chain, start = (self.walks, self.pivots, self.onward), jnp.zeros_like(loads[0])
        _, scaled = lax.scan(forward, start, (*chain, loads))
        _, phi = lax.scan(backward, start, (*chain, scaled), reverse=True)
        phi = jnp.moveaxis(phi, -2, 0).reshape(len(flat), -1)
        return phi[:, layout.place].reshape(zeta.shape)


def eliminate(
    links: Sequence[Array], periodic: Sequence[bool], leak: Array | None = None
) -> BlockInverse:
    """The inverse of K, for links to the nearest neighbours and a leak from each cell:

        (Kφ)_r = Σ_i [ link_i(r)(φ_r − φ_{r+eᵢ}) + link_i(r−eᵢ)(φ_r − φ_{r−eᵢ}) ] + leak(r) φ_r.

    `links[i][r]` joins r and r + eᵢ; at the upper end of axis i it is zero, or leads round to the
    first cell where `periodic[i]`. Without any leak K is singular, and the cell with the largest
    links is grounded.

    >>> inverse = eliminate((jnp.array([1.0, 2.0, 0.0]),), (False,))
    >>> inverse.solve(jnp.array([1.0, 0.0, -1.0])).tolist()
    [1.0, 0.0, -0.5]
    """
    shape = links[0].shape
    layout = _layout(shape, tuple(periodic))
    blocks, b = layout.cells.shape
    inside = jnp.stack([jnp.pad(link.ravel(), (0, 1)) for link in links]).ravel()[layout.inside]
    onward = gather(links[layout.slab_axis].ravel(), layout.onward)
    total = gather(sum(links[1:], links[0]).ravel(), layout.cells).ravel()
    ground = jnp.where(jnp.arange(blocks * b) == jnp.argmax(total), total, 0.0).reshape(blocks, b)
    if leak is not None:
        ground = jnp.where(jnp.any(leak > 0), 0.0, ground)
        excess = gather(leak.ravel(), layout.cells) + ground
    else:
        excess = ground

    def eliminate_block(received, block):
        links, excess = received
        inside, onward, own_excess = block
        half = jnp.zeros((b, b), links.dtype).at[layout.pairs[0], layout.pairs[1]].add(inside)
        excess = excess + own_excess
        outflow = jnp.sum(onward, axis=1).reshape(b)
        walk, pivot = dominant_factor(links + half + half.T, excess + outflow)
        reached = _pass_on(onward, accurate_product(walk * pivot, walk.T))
        return (_pass_on(onward, reached.T), accurate_product(excess, reached)), (walk, pivot)

    start = (jnp.zeros((b, b), excess.dtype), jnp.zeros(b, excess.dtype))
    _, (walks, pivots) = lax.scan(eliminate_block, start, (inside, onward, excess))
    rank = jnp.sum(pivots > 0.0) - jnp.sum(ground > 0.0)
    return BlockInverse(walks, pivots, onward, rank, shape, tuple(periodic))


def _pass_on(onward: Array, rows: Array) -> Array:
    """rows · C, with C = onward of shape (slabs, slabs', m) diagonal in the cells of a slab."""
    slabs, _, m = onward.shape
    rows = rows.reshape(len(rows), slabs, 1, m)
    return jnp.sum(rows * onward, axis=1).reshape(len(rows), slabs * m)


def dominant_factor(links: Array, excess: Array) -> tuple[Array, Array]:
    """(J, p) with S⁻¹ = J diag(p) Jᵀ for S = diag(C1 + e) − C, C the links and e the excess.

    C is symmetric and nonnegative (its diagonal is ignored), e ≥ 0 joins a cell to what lies
    outside. Eliminating the first half of the cells turns the rest into a matrix of the same
    kind, with H = S₁₁⁻¹C₁₂,

        C₂₂ + C₂₁H,     e₂ + Hᵀe₁,     J₁₂ = H J₂₂,

    so with diagonals always recomputed from C and e there are only sums, products and quotients
    of nonnegative numbers: every entry is accurate, whatever the condition number. J is unit
    upper triangular with entries in [0, 1] (probabilities of a walk), which is what keeps a solve
    accurate where S⁻¹ is a huge constant plus something small: never multiply by S⁻¹ itself.
    A cell with no links or excess left has pivot 0 and gets p = 0, as in a pseudo-inverse.

    >>> J, p = dominant_factor(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.array([1.0, 0.0]))
    >>> J.tolist(), p.tolist()
    ([[1.0, 0.5], [0.0, 1.0]], [0.5, 2.0])

    Cost: (4/3)b³ flops for b cells, nearly all in matrix products. Reference: Grassmann, Taksar
    and Heyman (1985); Alfa, Xue and Ye, Math. Comp. 71 (2002).
    """
    size = excess.shape[0]
    if size <= LEAF_SIZE:
        return _factor_by_pivots(links, excess)
    half = size // 2
    across = links[:half, half:]
    first, p_first = dominant_factor(links[:half, :half], excess[:half] + jnp.sum(across, axis=1))
    harmonic = accurate_product(first * p_first, accurate_product(first.T, across))
    second, p_second = dominant_factor(
        links[half:, half:] + accurate_product(across.T, harmonic),
        excess[half:] + accurate_product(excess[:half], harmonic),
    )
    zeros = jnp.zeros((size - half, half), second.dtype)
    J = jnp.block([[first, accurate_product(harmonic, second)], [zeros, second]])
    return J, jnp.concatenate([p_first, p_second])


def _factor_by_pivots(links: Array, excess: Array) -> tuple[Array, Array]:
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


as_index = functools.partial(np.asarray, dtype=np.int32)  # JAX takes it with and without x64


class _Layout(NamedTuple):
    """Where cells and links go, as index arrays into flattened grids (k, or n, points to a 0)."""

    cells: np.ndarray  # (blocks, b) -> cell
    place: np.ndarray  # cell -> position in cells.ravel()
    slab_axis: int
    pairs: np.ndarray  # (2, edges): the two ends of each link inside a block
    inside: np.ndarray  # (blocks, edges) -> axis · (k + 1) + lower cell
    onward: np.ndarray  # (blocks, slabs, slabs', m) -> lower cell of the slab axis


@functools.lru_cache(maxsize=64)
def _layout(shape: tuple[int, ...], periodic: tuple[bool, ...]) -> _Layout:
    """Slabs across the longest axis, preferably one that is not periodic."""
    dim, k = len(shape), math.prod(shape)
    slab_axis = max(range(dim), key=lambda axis: (shape[axis], not periodic[axis]))
    wrap, n = periodic[slab_axis], shape[slab_axis]
    slabs = 2 if wrap else 1
    cross = [shape[axis] for axis in range(dim) if axis != slab_axis]
    m = math.prod(cross)

    slab_cells = np.moveaxis(np.arange(k).reshape(shape), slab_axis, 0).reshape(n, m)
    slab_cells = np.concatenate([slab_cells, np.full((1, m), k)])
    order = slab_order(n, slabs, wrap)
    cells = slab_cells[order].reshape(len(order), slabs * m)
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
        inside.append(slab_axis * (k + 1) + slab_cells[inner[:, side, next_side]])
    return _Layout(
        cells=as_index(cells),
        place=as_index(place),
        slab_axis=slab_axis,
        pairs=as_index(np.concatenate([np.zeros((2, 0), int), *pairs], axis=1)),
        inside=as_index(np.concatenate([cells[:, :0], *inside], axis=1)),
        onward=as_index(slab_cells[onward]),
    )


def slab_order(n: int, slabs: int, wrap: bool) -> np.ndarray:
    """(blocks, slabs): which slab goes where, n for padding. A periodic axis is folded,
    0, n−1, 1, n−2, …, which brings the two ends of the ring together."""
    order = np.arange(n)
    if wrap:
        order[0::2], order[1::2] = np.arange(-(-n // 2)), n - 1 - np.arange(n // 2)
    blocks = -(-n // slabs)
    return np.append(order, np.full(blocks * slabs - n, n)).reshape(blocks, slabs)


def gather(flat: Array, index: np.ndarray) -> Array:
    """flat[..., index], where the index one past the end gives zero."""
    padding = [(0, 0)] * (flat.ndim - 1) + [(0, 1)]
    return jnp.pad(flat, padding)[..., index]
