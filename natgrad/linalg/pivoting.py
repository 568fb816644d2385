"""Column-pivoted QR for the numerical rank."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .products import accurate_product


class PivotedQR(NamedTuple):
    """YP = QR up to the numerical rank: Y[:, permutation] ≈ Q R, rows of R past `rank` zero."""

    R: Array
    permutation: Array
    rank: Array


def pivoted_qr(Y: Array, rtol: float | Array | None = None) -> PivotedQR:
    """Column-pivoted QR without Q, truncated where |R_jj| ≤ rtol·|R_11|.

    A tall Y is first reduced to its p × p triangle, which has the same R and the same pivots. The
    pivoting is LAPACK's on the CPU; elsewhere a loop that stops at the numerical rank.

    >>> R, permutation, rank = pivoted_qr(jnp.array([[1.0, 3.0, 3.0], [0.0, 4.0, 4.0]]))
    >>> permutation, rank
    (Array([1, 0, 2], dtype=int32), Array(2, dtype=int32))

    Cost: 2kp² + (4/3)p³ flops on the CPU, 2kp² + 6p²·rank elsewhere. `rtol` defaults to
    max(k, p)·eps. Reference: appendix B.2 of the paper.
    """
    if Y.shape[0] > Y.shape[1]:
        return pivoted_qr_of_core(jnp.linalg.qr(Y, mode="r"), relative_tolerance(Y, rtol))
    return pivoted_qr_of_core(Y, relative_tolerance(Y, rtol))


def relative_tolerance(Y: Array, rtol: float | Array | None) -> Array:
    """`rtol` in the precision of Y, by default max(k, p)·eps."""
    default = max(Y.shape) * jnp.finfo(Y.dtype).eps
    return jnp.asarray(default if rtol is None else rtol, Y.dtype)


def pivoted_qr_of_core(A: Array, rtol: Array) -> PivotedQR:
    """`pivoted_qr` of a matrix with no more rows than columns."""
    return jax.lax.platform_dependent(A, rtol, cpu=_pivoted_qr_lapack, default=_pivoted_qr_loop)


def _pivoted_qr_lapack(A: Array, rtol: Array) -> PivotedQR:
    R, permutation = jax.scipy.linalg.qr(A, mode="r", pivoting=True)
    R = R[: min(A.shape)]
    pivots = jnp.abs(jnp.diag(R))
    # The negation keeps NaN, which then reaches the solution instead of turning into zeros.
    kept = ~(pivots <= rtol * pivots[0])
    return PivotedQR(
        jnp.where(kept[:, None], R, 0),
        permutation.astype(jnp.int32),
        jnp.sum(kept, dtype=jnp.int32),
    )


def _pivoted_qr_loop(A: Array, rtol: Array) -> PivotedQR:
    """Modified Gram–Schmidt with column pivoting; its R is as accurate as Householder's.

    The columns stay in place, as rows in memory; their norms are recomputed in the pass that
    updates them, so that no cancellation of downdated norms can mislead the choice.
    Reference: Björck, Numerical Methods for Least Squares Problems, §2.4.
    """
    m, p = min(A.shape), A.shape[1]
    scale = jnp.max(jnp.abs(A))
    scale = jnp.where(scale == 0, 1, scale)  # squares of scaled norms do not underflow above rtol
    columns = A.T / scale
    squares = jnp.sum(columns**2, axis=1)
    threshold = rtol**2 * jnp.max(squares)

    def above_threshold(state):
        rank, _, _, squares, _ = state
        return (rank < m) & ~(jnp.max(squares) <= threshold)

    def eliminate_largest(state):
        rank, columns, order, squares, R = state
        pivot = jnp.argmax(squares)
        q = columns[pivot] / jnp.linalg.norm(columns[pivot])
        row = jnp.where(order < rank, 0, accurate_product(columns, q))
        order = order.at[pivot].set(rank)
        columns = jnp.where(order[:, None] <= rank, 0, columns - row[:, None] * q)
        squares = jnp.where(order <= rank, -1, jnp.sum(columns**2, axis=1))
        return rank + 1, columns, order, squares, R.at[rank].set(row)

    not_chosen = jnp.full(p, p, jnp.int32)
    state = (jnp.int32(0), columns, not_chosen, squares, jnp.zeros((m, p), A.dtype))
    rank, _, order, _, R = jax.lax.while_loop(above_threshold, eliminate_largest, state)
    permutation = jnp.argsort(order).astype(jnp.int32)
    return PivotedQR(scale * R[:, permutation], permutation, rank)
