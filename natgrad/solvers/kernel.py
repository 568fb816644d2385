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
            inside, lifted = cho_solve((factor, True), columns).T
            twice = cho_solve((factor, True), lifted)
            seen = jnp.sum(jnp.any(shifted != 0, axis=0))
            info = SolveInfo(seen, condition_estimate(factor.T), (seen < p) & (damping == 0))
            return _combined(Y, r, inside, lifted, twice, damping), info

        def deficient(_: None) -> tuple[Array, SolveInfo]:
            values, vectors = jnp.linalg.eigh(shifted)
            kept = values > tolerance * values[-1]
            inverse = jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0)
            inside, lifted = (vectors @ (inverse[:, None] * (vectors.T @ columns))).T
            twice = vectors @ (inverse * (vectors.T @ lifted))
            smallest = jnp.min(jnp.where(kept, values, jnp.inf))
            rank = jnp.sum(kept)
            info = SolveInfo(rank, jnp.sqrt(values[-1] / smallest), rank < p)
            return _combined(Y, r, inside, lifted, twice, damping), info

        return jax.lax.cond(ok, regular, deficient, None)


def _combined(
    Y: Any, r: Array, inside: Array, lifted: Array, twice: Array, damping: Array
) -> Array:
    """η from K⁻¹b, K⁻¹Yr and K⁻²Yr, with the damped K: one product with Yᵀ for all."""
    divisor = jnp.where(damping > 0, damping, 1.0)
    beside = jnp.where(damping > 0, r / divisor, 0.0)
    return -pulled(Y, inside + jnp.where(damping > 0, -lifted / divisor, twice)) - beside


def pulled(Y: Any, v: Array) -> Array:
    """Yᵀv; for an array as v Y, which reads it by rows."""
    return v @ Y if isinstance(Y, Array) else Y.T @ v
