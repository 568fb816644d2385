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

from .settings import Number

# Accelerators round float32 products to fewer bits by default, which a Gram matrix cannot afford.
accurate_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

# Rows per block of `gram` on the CPU: large enough for the matrix product to reach its peak, small
# enough for a transposed block to stay in cache (measured, see benchmarks/bench_gram.py).
_BLOCK_ROWS = 2048
# Fewer columns than this are limited by memory, where fewer flops gain nothing.
_SPLIT_COLUMNS = 64
# From here on the products of quarters are large enough, too.
_QUARTER_COLUMNS = 512
# With a shift by so many roundings of trace(G), G has a Cholesky factor; products of rows that are
# nearly orthonormal have one down to this share of it.
_SHIFT, _LEAST = 50.0, 2e5
# Rows of Y at a time, for memory.
_STRIP = 2**14
# Measured at 2,971 columns on an H200 (benchmarks/bench_gram.py); narrower ones were not tried.
_HALF_COLUMNS = 1024


def gram(Y: Array) -> Array:
    """The symmetric product YᵀY of a k × p matrix.

    XLA has no symmetric product on the CPU, and contracts the leading axis slowly. In float64,
    blocks of rows are therefore transposed and their columns split in two halves A and B,
    [AᵀA, AᵀB; (AᵀB)ᵀ, BᵀB], which saves a quarter of the flops; in quarters, three eighths.

    >>> gram(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[1., 2.],
           [2., 5.]], dtype=float32)

    On an accelerator there are two halves, as wide as a multiple of 64, from p = 1024 on; they
    share the columns by which they are too wide.

    Cost: 1.25·kp² flops in float64 on the CPU (1.5 for p < 512), 1.5·kp² on an accelerator (2 for
    p < 1024), 2kp² in float32.
    """
    return jax.lax.platform_dependent(Y, cpu=_gram_by_blocks, default=_gram_by_halves)


def gram_outer(Y: Array) -> Array:
    """The kernel matrix YYᵀ of a k × p matrix, split as in `gram`.

    >>> gram_outer(jnp.array([[1.0, 2.0], [0.0, 1.0]]))
    Array([[5., 2.],
           [2., 1.]], dtype=float32)

    Cost: 1.25·k²p flops in float64 on the CPU (1.5 for k < 512), 1.5·k²p on an accelerator (2 for
    k < 1024), 2k²p in float32.
    """
    return jax.lax.platform_dependent(
        Y,
        cpu=lambda Y: _product_of_parts(_split(Y)),
        default=lambda Y: _gram_by_halves(Y.T),
    )


def _gram_by_halves(Y: Array) -> Array:
    p = Y.shape[1]
    if p < _HALF_COLUMNS or Y.dtype != jnp.float64:
        return accurate_product(Y.T, Y)
    width = 64 * -(-p // 128)
    A, B, shared = Y[:, :width].T, Y[:, p - width :].T, 2 * width - p  # columns in both
    corner = (A @ B.T)[:, shared:]
    return jnp.block([[A @ A.T, corner], [corner.T, (B @ B.T)[shared:, shared:]]])


def _gram_by_blocks(Y: Array) -> Array:
    k = len(Y)
    if len(_split(Y.T)) == 1:
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


def _split(rows: Array) -> list[Array]:
    # XLA's float32 product is another one, which measured no faster on halves.
    if len(rows) < _SPLIT_COLUMNS or rows.dtype != jnp.float64:
        return [rows]
    return jnp.array_split(rows, 4 if len(rows) >= _QUARTER_COLUMNS else 2)


def _product_of_parts(parts: list[Array]) -> Array:
    products = {(i, j): A @ B.T for i, A in enumerate(parts) for j, B in enumerate(parts[: i + 1])}
    n = range(len(parts))
    return jnp.block([[products[i, j] if j <= i else products[j, i].T for j in n] for i in n])


def rank_tolerance(Y: Array) -> Array:
    """max(k, p)·eps: rounding errors of sums over the long side pass for nothing smaller."""
    return jnp.asarray(max(Y.shape) * jnp.finfo(Y.dtype).eps, Y.dtype)


def factor_damped(
    G: Array, damping: Array, tolerance: Array, Y: Array | None = None
) -> tuple[Array, Array]:
    """The lower factor of G + λI = LLᵀ for G = YᵀY, and whether it can be trusted.

    Without damping, or with one that is lost in G, a pivot at rounding level is a dependence. With
    damping it is λ, by intention. Where λ is below the rounding of G but not of Y, a second pass on
    Y keeps what squaring has lost: with L₁L₁ᵀ = G + (λ + s)I, the rows L₁⁻¹[Yᵀ, √λ I] are nearly
    orthonormal, and L = L₁L₂ for the factor L₂L₂ᵀ of their products.

    >>> Y = jnp.array([[1.0, 1.0], [0.0, 0.0]])
    >>> L, ok = factor_damped(Y.T @ Y, jnp.array(1e-6), rank_tolerance(Y), Y)
    >>> jnp.sum((L.T @ jnp.array([1.0, -1.0])) ** 2).round(8)
    Array(2.e-06, dtype=float32)

    Cost: p³/3 flops; with the second pass 2.5(k + p)p² + p³ more. Reference: Fukaya, Kannan,
    Nakatsukasa, Yamamoto and Yanagisawa, SIAM J. Sci. Comput. 42 (2020), with the shift s.
    """
    eps = jnp.finfo(G.dtype).eps
    shifted = lambda by: G + by * jnp.eye(len(G), dtype=G.dtype)
    diagonal = jnp.diag(G)
    pivot = jnp.where(damping > 4 * eps * jnp.max(diagonal), 4 * eps, tolerance)
    once = lambda: safe_cholesky(shifted(damping), pivot)
    if Y is None:
        return once()
    trace = jnp.sum(diagonal)
    shift = _SHIFT * eps * trace

    def twice() -> tuple[Array, Array]:
        first = jnp.linalg.cholesky(shifted(damping + shift), symmetrize_input=False)
        parts = [Y[i : i + _STRIP] for i in range(0, len(Y), _STRIP)]
        parts.append(jnp.sqrt(damping) * jnp.eye(len(G), dtype=G.dtype))
        products = [gram_outer(solve_triangular(first, part.T, lower=True)) for part in parts]
        second = jnp.linalg.cholesky(sum(products[1:], products[0]), symmetrize_input=False)
        L = first @ second
        return L, jnp.isfinite(L[-1, -1])

    least = _LEAST * eps**2 * trace
    return jax.lax.cond((damping >= least) & (damping < shift), twice, once)


def safe_cholesky(G: Array, tolerance: Array | None = None) -> tuple[Array, Array]:
    """The lower Cholesky factor of G = LLᵀ, and whether it can be trusted.

    G is scaled to a unit diagonal first, so that units do not matter. `ok` is False if a pivot of
    the scaled matrix is not finite or at most `tolerance` (default p·eps), that is, G is
    numerically singular. Rows and columns of G that are exactly zero (parameters without effect)
    get a unit diagonal and do not count: with a zero right-hand side their solution is zero.

    >>> L, ok = safe_cholesky(jnp.diag(jnp.array([4.0, 0.0, 9.0])))
    >>> jnp.diag(L), ok
    (Array([2., 1., 3.], dtype=float32), Array(True, dtype=bool))

    Cost: p³/3 flops.
    """
    if tolerance is None:
        tolerance = jnp.asarray(len(G) * jnp.finfo(G.dtype).eps)
    without_effect = jnp.all(G == 0, axis=0)
    root = jnp.sqrt(jnp.where(without_effect, 1.0, jnp.diag(G)))
    scaled = G / root[:, None] / root + jnp.diag(without_effect.astype(G.dtype))
    L = jnp.linalg.cholesky(scaled, symmetrize_input=False)
    # Failed factorisations are NaN throughout, and comparisons with NaN are False.
    return root[:, None] * L, jnp.min(jnp.diag(L) ** 2) > tolerance


def solve_and_estimate(R: Array, columns: Array | None = None) -> tuple[Array, Array]:
    """(RᵀR)⁻¹ `columns` for an upper triangular R, and an estimate of its condition number.

    σ_max and 1/σ_min are the norms of R on the span of RᵀRV and of R⁻¹ on that of R⁻ᵀV, for four
    fixed columns V, which cost next to nothing beside the others. From below, and together within
    a factor of 2 on all matrices tried; a zero on the diagonal gives infinity.

    >>> solve_and_estimate(jnp.diag(jnp.array([1.0, 10.0, 1000.0])))[1].round()
    Array(1000., dtype=float32)

    Cost: 32p² flops. Reference: Golub and Van Loan, Matrix Computations, §8.2.
    """

    def norms_on(both: Array) -> Array:
        """The largest ‖Yc‖/‖Xc‖ for pairs of (X, Y), by Gram–Schmidt on X that is done to Y too."""
        sizes = jnp.max(jnp.abs(both), axis=(2, 3), keepdims=True)
        both, units = both.swapaxes(2, 3) / sizes, []
        while both.shape[2]:  # unrolled: on a GPU every operation of a loop is a launch
            first, rest = both[:, :, :1], both[:, :, 1:]
            products = jnp.sum(both[0] * first[0], axis=2, keepdims=True)
            square = products[:, :1]
            usable = square > (4 * jnp.finfo(R.dtype).eps) ** 2
            inverse = jnp.where(usable, 1 / jnp.where(usable, square, 1.0), 0.0)
            units.append(first[1] * jnp.sqrt(inverse))
            both = rest - (inverse * products[:, 1:]) * first
        images = jnp.concatenate(units, axis=1)  # with entries between 1/p and 1/eps
        square = accurate_product(images, images.swapaxes(1, 2))
        diagonal = lambda x: jnp.diagonal(x, axis1=1, axis2=2)
        # no eigenvalue is above 1, and the largest not below ¼
        power = square / jnp.sum(diagonal(square), axis=1)[:, None, None]
        for _ in range(5):
            power = accurate_product(power, power)
        largest = jnp.argmax(diagonal(power), axis=1)  # in its row, the vector of that eigenvalue
        vector = jnp.take_along_axis(power, largest[:, None, None], axis=1)
        vector = vector / jnp.max(jnp.abs(vector), axis=2, keepdims=True)
        moved = jnp.sum(square * vector * vector.swapaxes(1, 2), axis=(1, 2))
        return jnp.sqrt(moved / jnp.sum(vector**2, axis=(1, 2))) * (sizes[1] / sizes[0])[:, 0, 0]

    p, n = len(R), 0 if columns is None else columns.shape[1]
    # Irregular, so that no structure of R makes it orthogonal to the singular vectors.
    waves = jnp.arange(1, 1 + min(4, p), dtype=R.dtype)
    V = jnp.sin(1.0 + jnp.arange(p, dtype=R.dtype)[:, None] ** 2 * waves)
    scale = jnp.max(jnp.abs(R))
    R = R / scale  # or squares of small entries underflow
    right = V if columns is None else jnp.concatenate([columns / scale, V], axis=1)
    # LAPACK reads columns: naming the transpose spares a copy of R in every solve.
    half = solve_triangular(R.T, right, lower=True)
    whole = solve_triangular(R.T, half, lower=True, trans="T")
    images = accurate_product(R.T, accurate_product(R, V))
    pairs = [[images, half[:, n:]], [accurate_product(R, images), whole[:, n:]]]
    of_matrix, of_inverse = norms_on(jnp.stack([jnp.stack(pair) for pair in pairs]))
    condition = of_matrix * of_inverse
    return whole[:, :n] / scale, jnp.where(jnp.any(jnp.diag(R) == 0), jnp.inf, condition)


class PivotedQR(NamedTuple):
    """YP = QR up to the numerical rank: Y[:, permutation] ≈ Q R, rows of R past `rank` zero."""

    R: Array
    permutation: Array
    rank: Array


def pivoted_qr(Y: Array, rtol: Number | None = None) -> PivotedQR:
    """Column-pivoted QR without Q, truncated where |R_jj| ≤ rtol·|R_11|.

    A tall Y is first reduced to its p × p triangle, which has the same R and the same pivots. The
    pivoting is LAPACK's on the CPU; elsewhere a loop that stops at the numerical rank.

    >>> R, permutation, rank = pivoted_qr(jnp.array([[1.0, 3.0, 3.0], [0.0, 4.0, 4.0]]))
    >>> permutation, rank
    (Array([1, 0, 2], dtype=int32), Array(2, dtype=int32))

    Cost: 2kp² + (4/3)p³ flops on the CPU, 2kp² + 6p²·rank elsewhere. `rtol` defaults to
    max(k, p)·eps. Reference: appendix B.2 of the paper.
    """
    rtol = rank_tolerance(Y) if rtol is None else jnp.asarray(rtol, Y.dtype)
    return pivoted_qr_of_core(jnp.linalg.qr(Y, mode="r") if Y.shape[0] > Y.shape[1] else Y, rtol)


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


class _Orthogonal(eqx.Module):
    """The orthonormal columns of a QR factor, as Householder reflectors.

    The reflectors are stored as rows, because LAPACK's columns lie in memory that way: no copies.
    Their leading ones, which LAPACK leaves implicit, are stored too. On the CPU `ormqr` writes them
    into its input while it runs and restores the old values afterwards; whatever else reads that
    array meanwhile, a triangle R or another product, would see them.
    """

    reflectors: Array
    scales: Array

    def apply(self, x: Array, transpose: bool = False) -> Array:
        """Qx or Qᵀx."""
        if not transpose:
            x = jnp.pad(x, ((0, self.reflectors.shape[1] - len(x)), (0, 0)))
        y = ormqr(self.reflectors.T, self.scales, x, transpose=transpose)
        return y[: len(self.scales)] if transpose else y


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

    def solve(self, b: Array, r: Array, damping: float | Array = 0.0) -> Array:
        """Y†b + G†r with G = YᵀY, on the retained row space; (G + λI)⁻¹(Yᵀb + r) for λ > 0.

        Never forms G: λ enters by a QR of [R₁ᵀ; √λ I], so that the error grows with the condition
        number of Y, not its square. The part of r outside the row space is damped by λ alone.
        `b` and `r` are vectors, or matrices of columns.

        Cost: 4kp flops per column, and with damping (10/3)m³.
        """
        m = len(self.R1)
        kept = jnp.arange(m)[:, None] < self.rank
        damping = jnp.asarray(damping, self.R1.dtype)

        c = b.reshape(len(b), -1)
        if self._Q_tall is not None:
            c = self._Q_tall.apply(c, transpose=True)
        c = jnp.where(kept, self._Q_core.apply(c, transpose=True), 0)
        rows = r.reshape(len(r), -1)[self.permutation]
        s = jnp.where(kept, self._Q1.apply(rows, transpose=True), 0)

        def undamped() -> Array:
            return solve_triangular(self.R1, c + solve_triangular(self.R1, s), trans="T")

        def damped() -> Array:
            below = jnp.sqrt(damping) * jnp.eye(m, dtype=self.R1.dtype)
            Q, R = _householder_qr(jnp.concatenate([self.R1.T, below]))
            c_damped = Q.apply(jnp.pad(c, ((0, m), (0, 0))), transpose=True)
            return solve_triangular(R, c_damped + solve_triangular(R, s, trans="T"))

        z = jax.lax.cond(damping == 0, undamped, damped)
        outside = (rows - self._Q1.apply(s)) / jnp.where(damping > 0, damping, 1.0)
        permuted = self._Q1.apply(z) + jnp.where(damping > 0, outside, 0.0)
        return jnp.zeros_like(permuted).at[self.permutation].set(permuted).reshape(r.shape)


def minimum_norm_factor(Y: Array, rtol: Number | None = None) -> MinimumNormFactor:
    """The factors of YP = Q̃ R₁ᵀ Q₁ᵀ, so that Y† = P Q₁ R₁⁻ᵀ Q̃ᵀ, for Y of any shape and rank.

    Columns whose pivot is at most `rtol` (default max(k, p)·eps) times the first are dropped.

    >>> factor = minimum_norm_factor(jnp.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    >>> factor.rank, factor.solve(jnp.array([2.0, 5.0, 2.0]), jnp.zeros(2)).round(5)
    (Array(1, dtype=int32), Array([1., 1.], dtype=float32))

    Cost: 2kp² for a tall Y plus about 4m²p + `pivoted_qr` of its m × p core, m = min(k, p).
    Reference: appendix B.2 of the paper.
    """
    Q_tall, core = _householder_qr(Y) if Y.shape[0] > Y.shape[1] else (None, Y)
    rtol = rank_tolerance(Y) if rtol is None else jnp.asarray(rtol, Y.dtype)
    _, permutation, rank = pivoted_qr_of_core(core, rtol)
    Q_core, R = _householder_qr(core[:, permutation])
    kept = jnp.arange(len(R)) < rank
    Q1, R1 = _householder_qr(jnp.where(kept[:, None], R, 0).T)
    # |R₁[0, 0]| lies between the singular values, so the filling leaves its condition as it is.
    filling = jnp.where(rank > 0, R1[0, 0], 1) * jnp.eye(len(R), dtype=Y.dtype)
    R1 = jnp.where(kept[:, None] & kept, R1, filling)
    return MinimumNormFactor(rank, R1, permutation, Q_tall, Q_core, Q1)


def in_row_order(matrix: Array) -> Array:
    """The same matrix, in memory row by row.

    LAPACK takes columns, and XLA hands that order on to what made the matrix; an FFT refuses it.
    """
    return jax.lax.optimization_barrier(matrix.ravel()).reshape(matrix.shape)
