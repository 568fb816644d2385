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
# From here on the products of quarters are large enough, too.
_QUARTER_COLUMNS = 512


def gram(Y: Array) -> Array:
    """The symmetric product YᵀY of a k × p matrix.

    XLA has no symmetric product on the CPU, and contracts the leading axis slowly. In float64,
    blocks of rows are therefore transposed and their columns split in two halves A and B,
    [AᵀA, AᵀB; (AᵀB)ᵀ, BᵀB], which saves a quarter of the flops; in quarters, three eighths.

    >>> gram(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[1., 2.],
           [2., 5.]], dtype=float32)

    Cost: 1.25·kp² flops in float64 on the CPU (1.5 for p < 512), 2kp² elsewhere.
    """
    return jax.lax.platform_dependent(
        Y, cpu=_gram_by_blocks, default=lambda Y: accurate_product(Y.T, Y)
    )


def gram_outer(Y: Array) -> Array:
    """The kernel matrix YYᵀ of a k × p matrix, split as in `gram`.

    >>> gram_outer(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[5., 2.],
           [2., 1.]], dtype=float32)

    Cost: 1.25·k²p flops in float64 on the CPU (1.5 for k < 512), 2k²p elsewhere.
    """
    return jax.lax.platform_dependent(
        Y, cpu=_gram_outer_by_parts, default=lambda Y: accurate_product(Y, Y.T)
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
    # Without the barrier XLA folds the transposes into the products and loses what they gain.
    return _product_of_parts(jax.lax.optimization_barrier(_split(Y.T)))


def _gram_outer_by_parts(Y: Array) -> Array:
    return _product_of_parts(_split(Y)) if _worth_splitting(Y) else Y @ Y.T


def _worth_splitting(rows: Array) -> bool:
    # XLA's float32 product is another one, which measured no faster on halves.
    return len(rows) >= _SPLIT_COLUMNS and rows.dtype == jnp.float64


def _split(rows: Array) -> list[Array]:
    return jnp.array_split(rows, 4 if len(rows) >= _QUARTER_COLUMNS else 2)


def _product_of_parts(parts: list[Array]) -> Array:
    products = {(i, j): A @ B.T for i, A in enumerate(parts) for j, B in enumerate(parts[: i + 1])}
    n = range(len(parts))
    return jnp.block([[products[i, j] if j <= i else products[j, i].T for j in n] for i in n])
