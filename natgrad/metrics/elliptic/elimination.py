"""Elimination without subtractions for two-point stencils, where K = BBᵀ is a graph Laplacian.

The cells are ordered by slabs across one axis, so that K is block tridiagonal with dense blocks,
and `lax.scan` runs over the blocks. No contrast of the weights loses digits. Everything can be
compiled, mapped over weights and run on any device.

Cost: with k cells in blocks of b, about (10/3)kb² flops and kb numbers stored, and 8kb flops for
each right-hand side. On an n × n grid b = n, so kb = n³: past n of a few hundred an iterative solve
is the better choice.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...core.dense import accurate_product
from .stencils import Factor, Stencil, cell_shape, conservative_classes, graph_links

# Blocks up to this size are inverted pivot by pivot, larger ones by halves: smaller leaves run
# no faster and take longer to compile, larger ones spend their time in rank-one updates.
LEAF_SIZE = 32


class _Layout(NamedTuple):
    """Where cells and links go, as index arrays into flattened grids (k, or n, points to a 0)."""

    cells: np.ndarray  # (classes, blocks, b) -> cell
    place: np.ndarray  # cell -> position in cells.ravel()
    slab_axis: int
    slabs: int
    pairs: np.ndarray  # (2, edges): the two ends of each link inside a block
    inside: np.ndarray  # (classes, blocks, edges) -> axis · (k + 1) + lower cell
    onward: np.ndarray  # (classes, blocks, slabs, slabs', m) -> lower cell of the slab axis
    grounded: np.ndarray  # (classes,): no flux of the class leaves the grid


@functools.lru_cache(maxsize=64)
def _layout(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> _Layout:
    """Slabs across the longest axis, preferably one that is not periodic."""
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

    order = slab_order(n, slabs, wrap)
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
        cells=as_index(cells),
        place=as_index(place),
        slab_axis=slab_axis,
        slabs=slabs,
        pairs=as_index(np.concatenate([np.zeros((2, 0), int), *pairs], axis=1)),
        inside=as_index(np.concatenate([cells[..., :0], *inside], axis=2)),
        onward=as_index(slab_cells[:, onward]),
        grounded=np.array([start in starts for start in np.ndindex(*gaps)]),
    )


class BlockElimination(Factor):
    """K⁻¹ for two-point stencils as a chain of dense blocks, from an elimination without
    subtractions (see `dominant_factor`).

    Block i holds the links and the excess e left by the blocks before it; with C the links to
    block i + 1 (diagonal between two slabs) and S_i⁻¹ = JPJᵀ, P = diag(p), the next block receives
    the links CᵀS_i⁻¹C and the excess CᵀS_i⁻¹e. A solve runs forwards and backwards,

        y_i = PJᵀz_i,   z_{i+1} = ζ_{i+1} + CᵀJy_i,      φ_i = J(y_i + PJᵀCφ_{i+1}).

    Sublattices that do not interact (the 2ᵈ parities of the central scheme) are factorised
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
        loads = jnp.moveaxis(gather(flat, layout.cells), 0, -2)
        loads = loads.astype(jnp.result_type(loads, self.walks))
        phi = jax.vmap(_solve_chain)(self.walks, self.pivots, self.onward, loads)
        phi = jnp.moveaxis(phi, -2, 0).reshape(len(flat), -1)
        return phi[:, layout.place].reshape(zeta.shape)


def _pass_on(onward: Array, rows: Array) -> Array:
    """rows · C, with C = onward of shape (slabs, slabs', m) diagonal in the cells of a slab."""
    slabs, _, m = onward.shape
    rows = rows.reshape(len(rows), slabs, 1, m)
    return jnp.sum(rows * onward, axis=1).reshape(len(rows), slabs * m)


def _solve_chain(walks: Array, pivots: Array, onward: Array, loads: Array) -> Array:
    """The two sweeps of `BlockElimination`, right-hand sides as rows."""

    def forward(received, block):
        walk, pivot, links, load = block
        scaled = accurate_product(load + received, walk) * pivot
        return _pass_on(links, accurate_product(scaled, walk.T)), scaled

    def backward(later, block):
        walk, pivot, links, scaled = block
        received = _pass_on(jnp.swapaxes(links, 0, 1), later)
        phi = accurate_product(scaled + accurate_product(received, walk) * pivot, walk.T)
        return phi, phi

    start = jnp.zeros_like(loads[0])
    _, scaled = lax.scan(forward, start, (walks, pivots, onward, loads))
    return lax.scan(backward, start, (walks, pivots, onward, scaled), reverse=True)[1]


def block_elimination(
    stencils: tuple[Stencil, ...], weights: tuple[Array, ...]
) -> BlockElimination:
    """Eliminate block after block, with one cell of every conservative class grounded."""
    layout = _layout(stencils, cell_shape(stencils, weights))
    links, leak = graph_links(stencils, weights)
    classes, blocks, b = layout.cells.shape
    inside = jnp.stack([jnp.pad(link.ravel(), (0, 1)) for link in links]).ravel()[layout.inside]
    onward = gather(links[layout.slab_axis].ravel(), layout.onward)
    heaviest = gather(sum(links[1:], links[0]).ravel(), layout.cells).reshape(classes, -1)
    is_ground = jnp.arange(blocks * b) == jnp.argmax(heaviest, axis=1)[:, None]
    ground = jnp.where(is_ground & layout.grounded[:, None], heaviest, 0.0)
    excess = gather(leak.ravel(), layout.cells) + ground.reshape(classes, blocks, b)

    def eliminate(received, block):
        links, excess = received
        inside, onward, own_excess = block
        half = jnp.zeros((b, b), links.dtype).at[layout.pairs[0], layout.pairs[1]].add(inside)
        excess = excess + own_excess
        outflow = jnp.sum(onward, axis=1).reshape(b)
        walk, pivot = dominant_factor(links + half + half.T, excess + outflow)
        reached = _pass_on(onward, accurate_product(walk * pivot, walk.T))
        return (_pass_on(onward, reached.T), accurate_product(excess, reached)), (walk, pivot)

    start = (jnp.zeros((b, b), excess.dtype), jnp.zeros(b, excess.dtype))
    chain = jax.vmap(lambda *block: lax.scan(eliminate, start, block)[1])
    walks, pivots = chain(inside, onward, excess)
    rank = jnp.sum(pivots > 0.0) - jnp.sum(ground > 0.0)
    return BlockElimination(stencils, weights, walks, pivots, onward, rank)


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
        return _dominant_factor_by_pivots(links, excess)
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


def as_index(array: np.ndarray) -> np.ndarray:
    """32 bits, which JAX takes with and without x64."""
    return array.astype(np.int32)


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
