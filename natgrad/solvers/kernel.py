"""The kernel form, for more parameters than data."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve

from ..linalg import condition_estimate, gram_outer, safe_cholesky
from .base import DenseSolver, SolveInfo
from .dense import rank_tolerance, smallest_pivot


class _Dual(NamedTuple):
    Y: Any  # an array, or what has its shape, dtype, `Y @ v` and `Y.T @ u`
    K: Array
    b: Array
    r: Array


class Kernel(DenseSolver):
    """η = −Yᵀ(YYᵀ + λI)⁻¹ b: the same direction from a k × k matrix, cheaper for p > k.

    The part r that b leaves over is added as (G + λI)⁻¹r = (r − Yᵀ(K + λI)⁻¹Yr)/λ, or as
    Yᵀ(K†)²Yr without damping; the first form cancels, and loses about as many digits of that part
    as λ is orders of magnitude below K. If K + λI is numerically singular its eigenvalues give the
    minimum-norm solution, and `info.status` says "rank_deficient".

    Cost: pk² (symmetric product) + k³/3. Reference: the push-through identity.
    """

    def prepare(self, Y: Array, b: Array, r: Array) -> _Dual:
        return self.prepare_kernel(Y, gram_outer(Y), b, r)

    def prepare_kernel(self, Y: Any, K: Array, b: Array, r: Array) -> _Dual:
        """As `prepare`, from K = YYᵀ and a Y of which only products are there."""
        return _Dual(Y, K, b, r)

    def aimed(self, prepared: _Dual, b: Array, g: Array) -> _Dual:
        return prepared._replace(b=b, r=jnp.zeros_like(prepared.r))

    def solve(self, prepared: _Dual, damping: Array) -> tuple[Array, SolveInfo]:
        Y, K, b, r = prepared
        k, p = Y.shape
        shifted = K + damping * jnp.eye(k, dtype=K.dtype)
        tolerance = rank_tolerance(Y)
        factor, ok = safe_cholesky(shifted, smallest_pivot(K, damping, tolerance))
        columns = jnp.stack([b, Y @ r], axis=1)

        def regular(_: None) -> tuple[Array, SolveInfo]:
            once = cho_solve((factor, True), columns)
            undamped = Y.T @ cho_solve((factor, True), once[:, 1])
            seen = jnp.sum(jnp.any(shifted != 0, axis=0))
            info = SolveInfo(seen, condition_estimate(factor.T), (seen < p) & (damping == 0))
            return -(Y.T @ once[:, 0]) - _remainder(Y, r, once[:, 1], undamped, damping), info

        def deficient(_: None) -> tuple[Array, SolveInfo]:
            values, vectors = jnp.linalg.eigh(shifted)
            kept = values > tolerance * values[-1]
            inverse = jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0)
            modes = vectors.T @ columns
            once = vectors @ (inverse[:, None] * modes)
            undamped = Y.T @ (vectors @ (inverse**2 * modes[:, 1]))
            smallest = jnp.min(jnp.where(kept, values, jnp.inf))
            rank = jnp.sum(kept)
            info = SolveInfo(rank, jnp.sqrt(values[-1] / smallest), rank < p)
            return -(Y.T @ once[:, 0]) - _remainder(Y, r, once[:, 1], undamped, damping), info

        return jax.lax.cond(ok, regular, deficient, None)


def _remainder(Y: Any, r: Array, once: Array, undamped: Array, damping: Array) -> Array:
    damped = (r - Y.T @ once) / jnp.where(damping > 0, damping, 1.0)
    return jnp.where(damping > 0, damped, undamped)
