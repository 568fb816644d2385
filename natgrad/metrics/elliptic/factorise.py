"""Direct solves with K = BBᵀ and minimum-norm solutions B†ζ, block by block, in pure JAX.

Bv = −Σ_i A_i(s_i v_i) is the weighted divergence of `stencils.py`. The cells are ordered by slabs
across one axis, so that K is block tridiagonal with dense blocks, and `lax.scan` runs over the
blocks. Everything is jittable, vmappable over weights and runs on any device.

Three factorisations share the interface of `Factor`:

* `BlockElimination` (default for two-point stencils): K is a graph Laplacian there, and is
  eliminated without a single subtraction, so that no contrast of the weights loses digits.
* `BlockQR` (default otherwise): the factor R of Bᵀ = QR, so that cond(B) is not squared.
* `TruncatedInverse`: the truncated pivoted QR for (nearly) rank-deficient B, dense.

Cost: with k cells in blocks of b, elimination takes about (10/3)kb² and `BlockQR` 18kb² flops,
both store kb numbers or twice that, and a solve takes 8kb flops per right-hand side. On an n × n
grid b = n, so kb = n³: past n of a few hundred an iterative solve is the better choice.
"""

from collections.abc import Sequence

from jax import Array

from .block_qr import block_qr
from .elimination import block_elimination
from .factor import Factor
from .stencils import Stencil, cell_shape
from .truncated import truncated_inverse


def factorise(
    stencils: Sequence[Stencil],
    weights: Sequence[Array],
    *,
    method: str | None = None,
    tolerance: float | None = None,
) -> Factor:
    """Factorise K = BBᵀ for weights s_i at the flux positions of axis i.

    `method` is "elimination" (two-point stencils only), "qr" or "truncated"; None takes the
    first of these that applies. `tolerance` is the relative truncation of "truncated", by
    default the rounding error times the number of cells.

    >>> import jax.numpy as jnp
    >>> from natgrad.elliptic.stencils import staggered_neumann
    >>> factor = factorise((staggered_neumann(1.0),), (jnp.ones(2),))
    >>> [flux.round(5).tolist() for flux in factor.pseudo_inverse(jnp.array([1.0, 0.0, -1.0]))]
    [[-1.0, -1.0]]
    """
    stencils, weights = tuple(stencils), tuple(weights)
    cell_shape(stencils, weights)
    is_graph = all(s.is_two_point and (s.gap == 1 or not s.wrap) for s in stencils)
    if method is None:
        method = "elimination" if is_graph else "qr"
    if method == "elimination" and not is_graph:
        raise ValueError("elimination needs two-point stencils; use method='qr'")
    if method == "elimination":
        return block_elimination(stencils, weights)
    if method == "qr":
        return block_qr(stencils, weights)
    if method == "truncated":
        return truncated_inverse(stencils, weights, tolerance)
    raise ValueError(f"unknown method {method!r}: use 'elimination', 'qr' or 'truncated'")
