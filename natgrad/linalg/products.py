"""Symmetric products YᵀY and YYᵀ."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

# Accelerators round float32 products to fewer bits by default, which a Gram matrix cannot afford.
accurate_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

# Rows per block of `gram` on the CPU: large enough for the matrix product to reach its peak, small
# enough for a transposed block to stay in cache (measured, see benchmarks/bench_gram.py).
_BLOCK_ROWS = 2048
# Fewer columns than this are limited by memory, where fewer flops gain nothing.
_SPLIT_COLUMNS = 64


def gram(Y: Array) -> Array:
    """The symmetric product YᵀY of a k × p matrix.

    XLA has no symmetric product on the CPU, and contracts the leading axis slowly. In float64,
    blocks of rows are therefore transposed and their columns split in two halves A and B,
    [AᵀA, AᵀB; (AᵀB)ᵀ, BᵀB], which saves a quarter of the flops.

    >>> gram(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[1., 2.],
           [2., 5.]], dtype=float32)

    Cost: 1.5·kp² flops in float64 on the CPU, 2kp² elsewhere.
    """
    return jax.lax.platform_dependent(
        Y, cpu=_gram_by_blocks, default=lambda Y: accurate_product(Y.T, Y)
    )


def gram_outer(Y: Array) -> Array:
    """The kernel matrix YYᵀ of a k × p matrix, split in halves as in `gram`.

    >>> gram_outer(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[5., 2.],
           [2., 1.]], dtype=float32)

    Cost: 1.5·k²p flops in float64 on the CPU, 2k²p elsewhere.
    """
    return jax.lax.platform_dependent(
        Y, cpu=_gram_outer_by_halves, default=lambda Y: accurate_product(Y, Y.T)
    )


def _gram_by_blocks(Y: Array) -> Array:
    k = len(Y)
    if not _worth_splitting(Y.T):
        return Y.T @ Y
    blocks = k // _BLOCK_ROWS
    if blocks < 2:
        return _gram_of_block(Y)

    def add_block(G: Array, start: Array) -> tuple[Array, None]:
        return G + _gram_of_block(jax.lax.dynamic_slice_in_dim(Y, start, _BLOCK_ROWS)), None

    first = _gram_of_block(Y[: k - blocks * _BLOCK_ROWS])
    starts = k - _BLOCK_ROWS * jnp.arange(blocks, 0, -1)
    return jax.lax.scan(add_block, first, starts)[0]


def _gram_of_block(Y: Array) -> Array:
    half = Y.shape[1] // 2
    # Without the barrier XLA folds the transposes into the products and loses what they gain.
    return _product_of_halves(*jax.lax.optimization_barrier((Y[:, :half].T, Y[:, half:].T)))


def _gram_outer_by_halves(Y: Array) -> Array:
    if not _worth_splitting(Y):
        return Y @ Y.T
    half = len(Y) // 2
    return _product_of_halves(Y[:half], Y[half:])


def _worth_splitting(rows: Array) -> bool:
    # XLA's float32 product is another one, which measured no faster on halves.
    return len(rows) >= _SPLIT_COLUMNS and rows.dtype == jnp.float64


def _product_of_halves(A: Array, B: Array) -> Array:
    AB = A @ B.T
    return jnp.block([[A @ A.T, AB], [AB.T, B @ B.T]])
