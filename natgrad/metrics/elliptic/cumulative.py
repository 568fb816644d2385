"""Cumulative sums that begin anew at given places, in few vector operations."""

import jax.numpy as jnp
from jax import Array, lax

# Long enough that blocks of blocks are few, short enough for the steps of a GPU to be few.
BLOCK_LENGTH = 64


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
