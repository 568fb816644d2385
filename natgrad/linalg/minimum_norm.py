"""Minimum-norm solutions with a Y of any rank: appendix B.2 of the paper."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax.linalg import ormqr
from jax.scipy.linalg import solve_triangular

from .pivoting import pivoted_qr_of_core, relative_tolerance
from .triangles import condition_estimate


class _Orthogonal(eqx.Module):
    """The orthonormal columns of a QR factor, as Householder reflectors.

    The reflectors are rows here, as LAPACK's columns lie in memory, which spares copies. Their
    leading ones, which LAPACK leaves out, are there: on the CPU its `ormqr` writes them into its
    input while it runs and restores what was there, so that others who read the same array at that
    time, a triangle R or another product, would see them.
    """

    reflectors: Array
    scales: Array

    @property
    def rows(self) -> int:
        return self.reflectors.shape[1]

    def times(self, x: Array) -> Array:
        return ormqr(self.reflectors.T, self.scales, _pad_rows(x, self.rows))

    def transpose_times(self, x: Array) -> Array:
        return ormqr(self.reflectors.T, self.scales, x, transpose=True)[: len(self.scales)]


def _pad_rows(x: Array, rows: int) -> Array:
    return jnp.pad(x, ((0, rows - len(x)), (0, 0)))


def _householder_qr(A: Array) -> tuple[_Orthogonal, Array]:
    raw, scales = jnp.linalg.qr(A, mode="raw")
    m = len(scales)
    ones = jnp.eye(m, raw.shape[1], dtype=raw.dtype)
    return _Orthogonal(jnp.triu(raw[:m], 1) + ones, scales), jnp.triu(raw.T[:m])


class MinimumNormFactor(eqx.Module):
    """YP = Q̃ R₁ᵀ Q₁ᵀ with numerical rank r, see `minimum_norm_factor`.

    The shapes are those of full rank m = min(k, p): past r, R₁ is a multiple of the identity and
    right-hand sides are masked.
    """

    rank: Array
    R1: Array
    permutation: Array
    _Q_tall: _Orthogonal | None  # Q̃ is the product of these two
    _Q_core: _Orthogonal
    _Q1: _Orthogonal

    @property
    def condition(self) -> Array:
        """An estimate of σ_1/σ_r of Y, see `condition_estimate`."""
        return condition_estimate(self.R1)

    def solve(self, b: Array, damping: float | Array = 0.0) -> Array:
        """Y†b: argmin ‖Yη − b‖² + λ‖η‖² on the retained row space, of minimum norm for λ = 0.

        Never forms YᵀY: λ enters by a QR of [R₁ᵀ; √λ I], so that the error grows with the condition
        number of Y, not its square. `b` is a vector or a matrix of columns.

        Cost: 4kp flops per column, and with damping (10/3)m³.
        """
        r = jnp.zeros((len(self.permutation), *b.shape[1:]), b.dtype)
        return self.solve_both(b, r, damping)

    def solve_gram(self, r: Array, damping: float | Array = 0.0) -> Array:
        """G†r with G = YᵀY: (G + λI)⁻¹r on the retained row space. Cost: as `solve`, without k."""
        k = (self._Q_tall or self._Q_core).rows
        return self.solve_both(jnp.zeros((k, *r.shape[1:]), r.dtype), r, damping)

    def row_space_part(self, r: Array) -> Array:
        """The orthogonal projection of r onto the retained row space."""
        kept = jnp.arange(len(self.R1))[:, None] < self.rank
        s = jnp.where(kept, self._Q1.transpose_times(r[self.permutation][:, None]), 0)
        return jnp.zeros_like(r).at[self.permutation].set(self._Q1.times(s)[:, 0])

    def solve_both(self, b: Array, r: Array, damping: float | Array = 0.0) -> Array:
        """Y†b + G†r, `solve` and `solve_gram` for the price of one."""
        m = len(self.R1)
        kept = jnp.arange(m)[:, None] < self.rank
        damping = jnp.asarray(damping, self.R1.dtype)

        c = b.reshape(len(b), -1)
        if self._Q_tall is not None:
            c = self._Q_tall.transpose_times(c)
        c = jnp.where(kept, self._Q_core.transpose_times(c), 0)
        s = r.reshape(len(r), -1)[self.permutation]
        s = jnp.where(kept, self._Q1.transpose_times(s), 0)

        def undamped() -> Array:
            return solve_triangular(self.R1, c + solve_triangular(self.R1, s), trans="T")

        def damped() -> Array:
            rows = jnp.sqrt(damping) * jnp.eye(m, dtype=self.R1.dtype)
            Q, R = _householder_qr(jnp.concatenate([self.R1.T, rows]))
            c_damped = Q.transpose_times(_pad_rows(c, 2 * m))
            return solve_triangular(R, c_damped + solve_triangular(R, s, trans="T"))

        z = jax.lax.cond(damping == 0, undamped, damped)
        permuted = self._Q1.times(z)
        return jnp.zeros_like(permuted).at[self.permutation].set(permuted).reshape(r.shape)


def minimum_norm_factor(Y: Array, rtol: float | Array | None = None) -> MinimumNormFactor:
    """The factors of YP = Q̃ R₁ᵀ Q₁ᵀ, so that Y† = P Q₁ R₁⁻ᵀ Q̃ᵀ, for Y of any shape and rank.

    Columns whose pivot is at most `rtol` (default max(k, p)·eps) times the first are dropped.

    >>> factor = minimum_norm_factor(jnp.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    >>> factor.rank, factor.solve(jnp.array([2.0, 5.0, 2.0])).round(5)
    (Array(1, dtype=int32), Array([1., 1.], dtype=float32))

    Cost: 2kp² for a tall Y plus about 4m²p + `pivoted_qr` of its m × p core, m = min(k, p).
    Reference: appendix B.2 of the paper.
    """
    Q_tall, core = _householder_qr(Y) if Y.shape[0] > Y.shape[1] else (None, Y)
    _, permutation, rank = pivoted_qr_of_core(core, relative_tolerance(Y, rtol))
    Q_core, R = _householder_qr(core[:, permutation])
    kept = jnp.arange(len(R)) < rank
    Q1, R1 = _householder_qr(jnp.where(kept[:, None], R, 0).T)
    # |R₁[0, 0]| lies between the singular values, so the filling leaves `condition` as it is.
    filling = jnp.where(rank > 0, R1[0, 0], 1) * jnp.eye(len(R), dtype=Y.dtype)
    R1 = jnp.where(kept[:, None] & kept, R1, filling)
    return MinimumNormFactor(rank, R1, permutation, Q_tall, Q_core, Q1)
