"""Dense kernels under the direct solvers: symmetric products, pivoted QR, minimum-norm factors.

Everything works inside `jit` and `vmap`, in float32 and float64. Where the best algorithm differs
between the CPU and accelerators, `jax.lax.platform_dependent` chooses when the program is compiled.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax.linalg import ormqr
from jax.scipy.linalg import solve_triangular

# Accelerators round float32 products to fewer bits by default, which a Gram matrix cannot afford.
_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

# Rows per block of `gram` on the CPU: large enough for the matrix product to reach its peak, small
# enough for a transposed block to stay in cache (measured, see benchmarks/bench_gram.py).
_BLOCK_ROWS = 2048
# Fewer columns than this are limited by memory, where halving the flops gains nothing.
_SPLIT_COLUMNS = 64


def gram(Y: Array) -> Array:
    """The symmetric product YᵀY of a k × p matrix.

    On the CPU, XLA has no symmetric product and is slow at contracting the leading axis; blocks of
    rows are transposed and split in two halves of columns A and B, [AᵀA, AᵀB; (AᵀB)ᵀ, BᵀB], which
    saves a quarter of the flops.

    >>> gram(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[1., 2.],
           [2., 5.]], dtype=float32)

    Cost: 1.5·kp² flops on the CPU, 2kp² elsewhere.
    """
    return jax.lax.platform_dependent(Y, cpu=_gram_by_blocks, default=lambda Y: _product(Y.T, Y))


def gram_outer(Y: Array) -> Array:
    """The kernel matrix YYᵀ of a k × p matrix, see `gram`.

    >>> gram_outer(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[5., 2.],
           [2., 1.]], dtype=float32)

    Cost: 1.5·k²p flops on the CPU, 2k²p elsewhere.
    """
    return gram(Y.T)


def _gram_by_blocks(Y: Array) -> Array:
    k, p = Y.shape
    if p < _SPLIT_COLUMNS:
        return Y.T @ Y
    blocks = k // _BLOCK_ROWS
    if blocks < 2:
        return _gram_of_halves(Y)

    def add_block(G: Array, start: Array) -> tuple[Array, None]:
        return G + _gram_of_halves(jax.lax.dynamic_slice_in_dim(Y, start, _BLOCK_ROWS)), None

    first = _gram_of_halves(Y[: k - blocks * _BLOCK_ROWS])
    starts = k - _BLOCK_ROWS * jnp.arange(blocks, 0, -1)
    return jax.lax.scan(add_block, first, starts)[0]


def _gram_of_halves(Y: Array) -> Array:
    half = Y.shape[1] // 2
    # Without the barrier XLA folds the transposes into the product and loses what they gain.
    A, B = jax.lax.optimization_barrier((Y[:, :half].T, Y[:, half:].T))
    AB = A @ B.T
    return jnp.block([[A @ A.T, AB], [AB.T, B @ B.T]])


def safe_cholesky(G: Array) -> tuple[Array, Array]:
    """The lower Cholesky factor of G = LLᵀ, and whether it can be trusted.

    `ok` is False if L is not finite or min L_jj² < p·eps·max L_jj², that is, G is numerically
    singular. Rows and columns of G that are exactly zero (parameters without effect) get a unit
    diagonal and do not count: with a zero right-hand side their solution is zero.

    >>> L, ok = safe_cholesky(jnp.diag(jnp.array([4.0, 0.0, 9.0])))
    >>> jnp.diag(L), ok
    (Array([2., 1., 3.], dtype=float32), Array(True, dtype=bool))

    Cost: p³/3 flops.
    """
    p = len(G)
    without_effect = jnp.all(G == 0, axis=0)
    L = jnp.linalg.cholesky(G + jnp.diag(without_effect.astype(G.dtype)), symmetrize_input=False)
    pivots = jnp.diag(L) ** 2
    smallest = jnp.min(jnp.where(without_effect, jnp.inf, pivots))
    largest = jnp.max(jnp.where(without_effect, 0.0, pivots))
    # Failed factorisations are NaN throughout, and comparisons with NaN are False.
    return L, jnp.isfinite(largest) & (smallest >= p * jnp.finfo(G.dtype).eps * largest)


def condition_estimate(R: Array) -> Array:
    """An estimate, from below, of the 2-norm condition number of an upper triangular R.

    Six power iterations x ← RᵀRx and y ← R⁻¹R⁻ᵀy from a fixed start give σ_max and 1/σ_min, together
    within a factor of 2 on all matrices tried; a zero on the diagonal gives infinity.

    >>> condition_estimate(jnp.diag(jnp.array([1.0, 10.0, 1000.0]))).round()
    Array(1000., dtype=float32)

    Cost: 24p² flops. Reference: Golub and Van Loan, Matrix Computations, §3.5.4, §8.2.
    """
    # Irregular, so that no structure of R makes it orthogonal to the singular vectors.
    start = jnp.sin(1.0 + jnp.arange(len(R), dtype=R.dtype) ** 2)

    def step(_: int, vectors: tuple[Array, Array, Array, Array]):
        x, y, _, _ = vectors
        x, y = x / jnp.linalg.norm(x), y / jnp.linalg.norm(y)
        Rx, Ry = _product(R, x), solve_triangular(R, y, trans="T")
        norm, inverse_norm = jnp.linalg.norm(Rx), jnp.linalg.norm(Ry)
        # Dividing before the second product keeps squares of σ from overflowing.
        x, y = _product(R.T, Rx / norm), solve_triangular(R, Ry / inverse_norm)
        return x, y, norm, inverse_norm

    one = jnp.ones((), R.dtype)
    _, _, norm, inverse_norm = jax.lax.fori_loop(0, 6, step, (start, start, one, one))
    return jnp.where(jnp.any(jnp.diag(R) == 0), jnp.inf, norm * inverse_norm)


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
        return _pivoted_qr_of_core(jnp.linalg.qr(Y, mode="r"), _relative_tolerance(Y, rtol))
    return _pivoted_qr_of_core(Y, _relative_tolerance(Y, rtol))


def _relative_tolerance(Y: Array, rtol: float | Array | None) -> Array:
    default = max(Y.shape) * jnp.finfo(Y.dtype).eps
    return jnp.asarray(default if rtol is None else rtol, Y.dtype)


def _pivoted_qr_of_core(A: Array, rtol: Array) -> PivotedQR:
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
        row = jnp.where(order < rank, 0, _product(columns, q))
        order = order.at[pivot].set(rank)
        columns = jnp.where(order[:, None] <= rank, 0, columns - row[:, None] * q)
        squares = jnp.where(order <= rank, -1, jnp.sum(columns**2, axis=1))
        return rank + 1, columns, order, squares, R.at[rank].set(row)

    not_chosen = jnp.full(p, p, jnp.int32)
    state = (jnp.int32(0), columns, not_chosen, squares, jnp.zeros((m, p), A.dtype))
    rank, _, order, _, R = jax.lax.while_loop(above_threshold, eliminate_largest, state)
    permutation = jnp.argsort(order).astype(jnp.int32)
    return PivotedQR(scale * R[:, permutation], permutation, rank)


class _Orthogonal(eqx.Module):
    """The orthonormal columns of a QR factor, as Householder reflectors."""

    reflectors: Array
    scales: Array

    def times(self, x: Array) -> Array:
        return ormqr(self.reflectors, self.scales, _pad_rows(x, len(self.reflectors)))

    def transpose_times(self, x: Array) -> Array:
        return ormqr(self.reflectors, self.scales, x, transpose=True)[: len(self.scales)]


def _pad_rows(x: Array, rows: int) -> Array:
    return jnp.pad(x, ((0, rows - len(x)), (0, 0)))


def _householder_qr(A: Array) -> tuple[_Orthogonal, Array]:
    transposed, scales = jnp.linalg.qr(A, mode="raw")
    reflectors = transposed.T
    m = len(scales)
    return _Orthogonal(reflectors[:, :m], scales), jnp.triu(reflectors[:m])


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
        rows = self._Q_core if self._Q_tall is None else self._Q_tall
        return self.solve_both(jnp.zeros((len(rows.reflectors), *r.shape[1:]), r.dtype), r, damping)

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
    _, permutation, rank = _pivoted_qr_of_core(core, _relative_tolerance(Y, rtol))
    Q_core, R = _householder_qr(core[:, permutation])
    kept = jnp.arange(len(R)) < rank
    Q1, R1 = _householder_qr(jnp.where(kept[:, None], R, 0).T)
    # |R₁[0, 0]| lies between the singular values, so the filling leaves `condition` as it is.
    filling = jnp.where(rank > 0, R1[0, 0], 1) * jnp.eye(len(R), dtype=Y.dtype)
    R1 = jnp.where(kept[:, None] & kept, R1, filling)
    return MinimumNormFactor(rank, R1, permutation, Q_tall, Q_core, Q1)
