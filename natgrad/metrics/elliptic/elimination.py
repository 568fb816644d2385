"""Elimination without subtractions for two-point stencils, where K = BBᵀ is a graph Laplacian."""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...core.dense import accurate_product
from .dominant import dominant_factor
from .factor import Factor
from .indexing import as_index, gather, slab_order
from .stencils import Stencil, cell_shape, conservative_classes, graph_links


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
