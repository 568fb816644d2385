"""The direct solve of Kφ = ζ on a line or a ring of cells, by cumulative sums.

K is the graph Laplacian with conductances c_i = links[i] ≥ 0 between the cells i and i + 1:

    (Kφ)_i = f_i − f_{i−1} = ζ_i,     f_i = c_i(φ_i − φ_{i+1}),

f being the flow along link i. On a line f is the sum of ζ to the left of the link; on a ring one
number, the flow around it, remains free and makes the energy Σ f_i²/c_i least. With B the
weighted divergence of `divergence.py`, c = (s/h)² and B†ζ = −f/√c.

Nothing is solved, and nothing may be lost: c spans 14 orders of magnitude and more, so that a
rounding error of the flow, harmless where ζ is large, is huge once divided by c in a tail. Hence

* the flow of a link is summed over the side of the line with less |ζ| on it;
* a ring is cut at its smallest link, where least can flow, before anything is summed;
* φ is summed outwards from the cell with the largest conductances, never across it.

The computed flow is then that of a ζ with a few units of rounding in each of its entries.

Conventions shared with `Factor`: the cell with the largest conductances is grounded, φ = 0
there, and what ζ has in excess of zero mass leaves there, so that ζ ↦ φ is linear and symmetric.
Links that are zero carry nothing. They cut the line into islands, each with a ground of its own:
the end that faces the ground above.

Cost: O(k) work, O(log k) depth, for each right-hand side; links are not batched (use `vmap`).
Reference: Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 4.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...errors import InputError
from .divergence import Divergence, Factor, Fluxes, Solution, grid_shape

# Long enough that blocks of blocks are few, short enough for the steps of a GPU to be few.
BLOCK_LENGTH = 64


class LineFactor(Factor):
    """K = BBᵀ in one dimension; nothing to set up, and O(k) for each right-hand side."""

    B: Divergence

    @property
    def _links(self) -> Array:
        return self.B.conductances[0]

    @property
    def _root(self) -> Array:
        """√c on the faces, with the sign of B."""
        return -self.B.weights[0] * (1.0 / self.B.spacing[0])

    def solve(self, zeta: Array) -> Array:
        return line_potentials(self._links, zeta, self.B.periodic)

    def flows(self, zeta: Array, tolerance: float | None = None) -> tuple[Fluxes, Solution]:
        """B†ζ = −f/√c from the flow f itself, which has more correct digits than φ."""
        root = self._root
        flow = line_fluxes(self._links, zeta, self.B.periodic)[..., : len(root)]
        return (_divide(flow, root),), self.solution(zeta)

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        values = _divide(fluxes[0], self._root)
        missing = len(self._links) - len(self._root)
        padded = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        return line_fluxes_transpose(self._links, padded, self.B.periodic)


def _divide(values: Array, root: Array) -> Array:
    """values / root, and 0 on faces where nothing can flow."""
    return jnp.where(root < 0, values / jnp.where(root < 0, root, 1.0), 0.0)


def line_fluxes(links: Array, zeta: Array, periodic: bool = False) -> Array:
    """f: the flow of least energy Σ f²/c with f_i − f_{i−1} = ζ_i, batched over leading axes.

    On a line the last entry of `links` is not used; the last flow is zero.

    >>> line_fluxes(jnp.array([1.0, 1e-9, 0.0]), jnp.array([2.0, 1.0, -3.0])).tolist()
    [2.0, 3.0, 0.0]
    >>> line_fluxes(jnp.ones(3), jnp.array([1.0, 0.0, -1.0]), periodic=True).round(6).tolist()
    [0.333333, 0.333333, -0.666667]
    """
    line = _cut(links, zeta, periodic)
    return jnp.roll(_flow(line, jnp.roll(zeta, -line.start, axis=-1)), line.start, axis=-1)


def line_fluxes_transpose(links: Array, values: Array, periodic: bool = False) -> Array:
    """The exact transpose of `line_fluxes` in ζ: from values v on the links to the cells.

    φ with φ_i − φ_{i+1} = v_i and φ = 0 at the ground; on a ring v is first freed of its
    circulation, v − r Σv/Σr with r = 1/c.

    >>> line_fluxes_transpose(jnp.array([3.0, 1.0, 0.0]), jnp.array([1.0, 5.0, 0.0])).tolist()
    [1.0, 0.0, -5.0]
    """
    line = _cut(links, values, periodic)
    rolled = jnp.roll(values, -line.start, axis=-1)
    return jnp.roll(_flow_transpose(line, rolled), line.start, axis=-1)


def line_potentials(links: Array, zeta: Array, periodic: bool = False) -> Array:
    """φ with Kφ = ζ and φ = 0 at the cell with the largest conductances.

    >>> line_potentials(jnp.array([1.0, 2.0, 0.0]), jnp.array([1.0, 0.0, -1.0])).tolist()
    [1.0, 0.0, -0.5]
    """
    line = _cut(links, zeta, periodic)
    flow = _flow(line, jnp.roll(zeta, -line.start, axis=-1))
    drop = flow / jnp.where(line.links > 0, line.links, 1.0)
    return jnp.roll(_flow_transpose(line, drop), line.start, axis=-1)


class _Line(NamedTuple):
    """A ring cut open: cell 0 of the line is cell `start` of the ring."""

    links: Array
    start: Array
    ground: Array
    share: Array  # 1/c over the sum of 1/c: how the free flow of a ring is averaged


def _cut(links: Array, values: Array, periodic: bool) -> _Line:
    """Checks the shapes, and opens a ring behind its smallest link."""
    (n,) = grid_shape((links,), values)
    if n == 0:
        raise InputError("links", "is empty", "a grid of one cell or more")
    if periodic:
        start = (jnp.argmin(links) + 1) % n
    else:
        start, links = jnp.zeros((), int), jnp.asarray(links).at[-1].set(0.0)
    rolled = jnp.roll(links, -start)
    smallest = rolled[-1]
    resistance = jnp.where(rolled > 0, smallest / jnp.where(rolled > 0, rolled, 1.0), 0.0)
    total = jnp.sum(resistance)
    share = jnp.where(total > 0, resistance / jnp.where(total > 0, total, 1.0), 0.0)
    ground = jnp.argmax(rolled + jnp.roll(rolled, 1))
    return _Line(rolled, start, ground, share)


def _flow(line: _Line, zeta: Array) -> Array:
    flow = _sum_from_outside(line, zeta)
    flow = flow - jnp.sum(flow * line.share, axis=-1, keepdims=True)
    return jnp.where(line.links > 0, flow, 0.0)


def _flow_transpose(line: _Line, values: Array) -> Array:
    values = jnp.where(line.links > 0, values, 0.0)
    values = values - line.share * jnp.sum(values, axis=-1, keepdims=True)
    return _sum_from_ground(line, values)


def _sum_from_outside(line: _Line, zeta: Array) -> Array:
    """A flow with f_i − f_{i−1} = ζ_i and none through the cut: at every link the sum of ζ on
    the left, or minus the sum on the right, whichever adds up less of |ζ|.

    If ζ has excess mass (more than rounding explains), the two differ, and the side is the one
    that does not contain the ground.
    """
    n = line.links.shape[0]
    sized = jnp.stack([zeta, jnp.abs(zeta)])
    (left, left_size), from_cell = _island_sums(line.links, sized, sized)
    beyond = jnp.where(jnp.arange(n) < n - 1, jnp.roll(from_cell, -1, axis=-1), 0.0)
    right, right_size = beyond
    rounding = n * jnp.finfo(zeta.dtype).eps
    balanced = jnp.abs(left + right) <= rounding * (left_size + right_size)
    from_left = jnp.where(balanced, left_size <= right_size, jnp.arange(n) < line.ground)
    return jnp.where(from_left, left, -right)


def _sum_from_ground(line: _Line, drop: Array) -> Array:
    """φ with φ_i − φ_{i+1} = drop_i: sums of what lies between a cell and its ground."""
    on_the_left = jnp.arange(line.links.shape[0]) < line.ground
    rightwards, left = _island_sums(
        line.links, jnp.where(on_the_left, 0.0, drop), jnp.where(on_the_left, drop, 0.0)
    )
    # A cell to the right of the ground sums the links before it, not its own.
    before = jnp.where(_starts(line.links), 0.0, jnp.roll(rightwards, 1, axis=-1))
    return left - before


def _starts(links: Array) -> Array:
    """Whether nothing joins a cell to the one on its left."""
    return (jnp.roll(links, 1) == 0) | (jnp.arange(links.shape[0]) == 0)


def _island_sums(links: Array, forwards: Array, backwards: Array) -> tuple[Array, Array]:
    """Cumulative sums along the last axis that begin anew in every island: of `forwards` from
    the left, of `backwards` from the right."""
    starts = _starts(links)
    ends = jnp.roll(starts, -1)
    first = jnp.stack([starts, jnp.flip(ends)], axis=-1)
    values = jnp.stack([forwards, jnp.flip(backwards, axis=-1)], axis=-1)
    values = jnp.moveaxis(values, -2, 0)
    first = first.reshape(first.shape[0], *[1] * (values.ndim - 2), 2)
    sums = jnp.moveaxis(segmented_sums(first, values), 0, -2)
    return sums[..., 0], jnp.flip(sums[..., 1], axis=-1)


def segmented_sums(first: Array, values: Array) -> Array:
    """s_i = Σ_{j ≤ i} v_j along axis 0, over the j since the last one with `first[j]`.

    `first` has the shape of `values`, or 1 on axes after the leading one. Only earlier entries of
    the same segment enter a sum, so that its rounding error is relative to them alone, never to
    a larger number elsewhere.

    >>> first = jnp.array([True, False, False, True, False])
    >>> segmented_sums(first, jnp.array([1.0, 2.0, 3.0, 10.0, 20.0])).tolist()
    [1.0, 3.0, 6.0, 10.0, 30.0]

    Blocks are summed side by side in BLOCK_LENGTH steps, and their totals in the same way: the
    program is a handful of small loops at any length, where a recursive doubling
    (`lax.associative_scan`) is unrolled and compiles for seconds.

    Cost: O(k) work, O(log k) steps. Reference: Blelloch, Prefix sums and their applications (1990).
    """
    n = values.shape[0]
    if n <= BLOCK_LENGTH:
        return _sums_and_flags(first, values)[0]
    blocks = -(-n // BLOCK_LENGTH)
    sums, flags = _sums_and_flags(_in_blocks(first, blocks), _in_blocks(values, blocks))
    totals = segmented_sums(flags[-1], sums[-1])
    before = jnp.concatenate([jnp.zeros_like(totals[:1]), totals[:-1]])
    sums = jnp.where(flags, sums, sums + before)
    return jnp.swapaxes(sums, 0, 1).reshape(-1, *values.shape[1:])[:n]


def _in_blocks(array: Array, blocks: int) -> Array:
    """(BLOCK_LENGTH, blocks, ...), padded at the end by zeros."""
    padding = blocks * BLOCK_LENGTH - array.shape[0]
    padded = jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))
    return jnp.swapaxes(padded.reshape(blocks, BLOCK_LENGTH, *array.shape[1:]), 0, 1)


def _sums_and_flags(first: Array, values: Array) -> tuple[Array, Array]:
    """The sums, and whether a segment has begun by then."""

    def add(carry, entry):
        total, begun = carry
        begins, value = entry
        carry = jnp.where(begins, value, total + value), begun | begins
        return carry, carry

    start = jnp.zeros_like(values[0]), jnp.zeros_like(first[0])
    return lax.scan(add, start, (first, values))[1]
