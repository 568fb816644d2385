"""Randomised low-rank approximation of operators that are given by their products.

Nothing here needs a matrix. Products are mapped with `compiled.each`: compiled where they can be
traced, called one by one where a program outside JAX computes them. Blocks of vectors are stored as
rows. The arithmetic on arrays is in functions that are compiled on their own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from .compiled import each
from .dense import accurate_product

# Vectors that measure what a basis misses before they join it.
PROBES = 4


class Basis(NamedTuple):
    """Orthonormal rows Q, their images QY, and an estimate of what they miss of Y.

    `missed` estimates ‖Y − QᵀQY‖, the largest singular value of the rest.
    """

    rows: Array
    images: Array
    missed: Array


class LowRank(NamedTuple):
    """Y ≈ Σ σᵢ uᵢvᵢᵀ without the uᵢ: `values` σ in falling order, `vectors` the vᵢ as rows.

    `missed` estimates the largest singular value of what is not in the sum.
    """

    values: Array
    vectors: Array
    missed: Array


def basis_sizes(width: int, power_iterations: int, limit: int) -> list[int]:
    """The sizes of the blocks of `range_basis`, the last the probes: its products of either kind.

    >>> basis_sizes(10, 1, 100), basis_sizes(10, 3, 25)
    ([10, 10, 4], [10, 10, 5, 0])
    """
    blocks = [min(width, limit - start) for start in range(0, limit, width)]
    blocks = blocks[: 1 + power_iterations]
    return [*blocks, min(PROBES, limit - sum(blocks))]


def range_basis(
    forward: Callable[[Array], Array],
    backward: Callable[[Array], Array],
    shape: tuple[int, int],
    width: int,
    key: Array,
    dtype: DTypeLike,
    power_iterations: int = 1,
    batch_size: int | None = None,
) -> Basis:
    """An orthonormal basis of (nearly) the range of Y, a k × p operator, from random products.

    The block Krylov space of YYᵀ and YΩ, with Ω Gaussian of the given `width`: every block that the
    power iterations pass through is kept, orthonormalised against those before. The basis contains
    what the last block alone would give, from the same products. Then Y is applied to `PROBES` more
    random vectors and Yᵀ to what the basis misses of the results. The largest singular value found
    is the estimate `missed`: a lower bound for the norm of the rest, by one step of the power
    method, and close to it. The probes join the basis at no further cost.

    ```python
    range_basis(lambda v: Y @ v, lambda u: Y.T @ u, Y.shape, 10, jax.random.key(0), Y.dtype)
    ```

    Cost: `sum(basis_sizes(width, power_iterations, min(k, p)))` products with Y and as many with
    Yᵀ, and the QR factorisation of as many vectors of length k.

    Reference: Halko, Martinsson and Tropp, SIAM Review 53 (2011), sections 4.3 and 4.5; for the
    Krylov space Musco and Musco, NeurIPS 2015.
    """
    *sizes, probes = basis_sizes(width, power_iterations, min(shape))
    push = lambda block: each(forward, block, batch_size)
    pull = lambda block: each(backward, block, batch_size)
    starts, tests = jax.random.split(key)
    rows = orthonormalise(push(jax.random.normal(starts, (sizes[0], shape[1]), dtype)))
    images = pull(rows)
    latest = images
    for size in sizes[1:]:
        new = _extend(rows, push(orthonormalise(latest[:size])))
        latest = pull(new)
        rows, images = jnp.concatenate([rows, new]), jnp.concatenate([images, latest])
    missed = jnp.zeros((), dtype)
    if probes:
        new = _extend(rows, push(jax.random.normal(tests, (probes, shape[1]), dtype)))
        latest = pull(new)
        rows, images = jnp.concatenate([rows, new]), jnp.concatenate([images, latest])
        missed = jnp.linalg.norm(latest, ord=2) if len(rows) < min(shape) else missed
    return Basis(rows, images, missed)


@jax.jit
def decompose(basis: Basis) -> LowRank:
    """The singular values and right singular vectors of QᵀQY. Cost: pr² for r rows in the basis."""
    Q, R = jnp.linalg.qr(basis.images.T)
    _, values, right = jnp.linalg.svd(R.T, full_matrices=False)
    return LowRank(values, accurate_product(right, Q.T), basis.missed)


def nystrom(
    product: Callable[[Array], Array], size: int, rank: int, key: Array, dtype: DTypeLike
) -> tuple[Array, Array]:
    """Eigenpairs (U, Λ) with UΛUᵀ = AΩ(ΩᵀAΩ)†ΩᵀA ⪯ A, for a positive semidefinite A as a product.

    U is `size` × `rank` with orthonormal columns, Λ falls and is not negative. A small multiple ν
    of the identity, at rounding level, is added to A and taken off Λ again. For A = YᵀY this is in
    exact arithmetic what `range_basis` finds without power iterations, at the same products, with
    the eigenvalues to rounding errors of the largest: half of the digits of the singular values.

    ```python
    U, values = nystrom(lambda v: A @ v, 100, 10, jax.random.key(0), A.dtype)
    ```

    Cost: `rank` products with A, and size · rank². Reference: Tropp, Yurtsever, Udell and Cevher,
    NeurIPS 2017; Frangella, Tropp and Udell, SIAM J. Matrix Anal. Appl. 44 (2023), Algorithm 2.1.
    """
    sketch = orthonormalise(jax.random.normal(key, (rank, size), dtype))
    return from_sketch(sketch, each(product, sketch))


@jax.jit
def from_sketch(sketch: Array, images: Array) -> tuple[Array, Array]:
    """Eigenpairs of the Nyström approximation, from orthonormal rows Ω and the rows ΩA."""
    size = sketch.shape[1]
    eps, tiny = jnp.finfo(images.dtype).eps, jnp.finfo(images.dtype).tiny
    shift = jnp.sqrt(size) * eps * jnp.linalg.norm(images) + tiny
    images = images + shift * sketch
    core = accurate_product(images, sketch.T)
    values, vectors = jnp.linalg.eigh(0.5 * (core + core.T))
    # A is positive, so that what is below the shift is rounding
    roots = jnp.sqrt(jnp.maximum(values, shift))
    U, singular, _ = jnp.linalg.svd(
        accurate_product(images.T, vectors) / roots, full_matrices=False
    )
    return U, jnp.maximum(singular**2 - shift, 0.0)


@jax.jit
def orthonormalise(rows: Array) -> Array:
    """Orthonormal rows that span the given ones, and more where these are dependent."""
    return jnp.linalg.qr(rows.T)[0].T


@jax.jit
def _extend(rows: Array, more: Array) -> Array:
    """Orthonormal rows, orthogonal to `rows`, that together with them span `more`.

    One Householder factorisation of all: orthogonal also where `more` adds nothing but rounding.
    """
    return jnp.linalg.qr(jnp.concatenate([rows, more]).T)[0].T[len(rows) :]
