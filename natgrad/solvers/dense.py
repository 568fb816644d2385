"""Direct solvers on a dense Y: Cholesky of G, QR, pivoted QR and SVD."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve, solve_triangular

from ..core.dense import (
    MinimumNormFactor,
    factor_damped,
    gram,
    minimum_norm_factor,
    rank_tolerance,
    solve_and_estimate,
)
from ..core.settings import Number, setting
from .base import DenseSolver, InformationSolver, SolveInfo


class _Factor(NamedTuple):
    """The Cholesky factor of G + λI, without the rows of parameters that are rounding."""

    G: Array
    L: Array
    ok: Array
    effective: Array
    rank: Array
    unknown: Array  # NaN where G is not finite, else 0


class _Normal(NamedTuple):
    G: Array
    gradient: Array
    tolerance: Array
    Y: Array | None = None
    factor: _Factor | None = None  # for one λ
    aimed: bool = False  # then a diagnosis has been made


class Cholesky(InformationSolver):
    """The information matrix G = YᵀY and its Cholesky factor: η = −(G + λI)⁻¹ (Yᵀb + r).

    The fastest for k ≥ p, with the condition number of Y squared: the choice whenever there is
    damping. A λ that adapts may fall below the rounding of G: it takes a second pass on Y, where
    that is held. If G + λI is numerically singular an eigenvalue decomposition gives the
    minimum-norm solution instead, and `info.status` says "rank_deficient".

    Cost: kp² (symmetric product) + p³/3, with a second pass 2.5(k + p)p² more. Reference: equation
    (3.3) of the paper.
    """

    def prepare(self, Y: Array, b: Array, r: Array) -> _Normal:
        return _Normal(gram(Y), Y.T @ b + r, rank_tolerance(Y))

    def prepare_information(
        self, G: Array, gradient: Array, k: int, Y: Array | None = None
    ) -> _Normal:
        tolerance = max(k, len(G)) * jnp.finfo(G.dtype).eps
        return _Normal(G, gradient, jnp.asarray(tolerance, G.dtype), Y)

    def aim(self, prepared: _Normal, b: Array, g: Array) -> _Normal:
        return prepared._replace(gradient=g, aimed=prepared.factor is not None)

    def factorise(self, prepared: _Normal, damping: Array) -> _Normal:
        tolerance, G, Y = prepared.tolerance, prepared.G, prepared.Y
        squares = jnp.diag(G) + damping  # no entry of G is larger than the largest of them
        largest = jnp.max(squares)
        unknown = jnp.where(jnp.isfinite(largest), 0.0, jnp.nan)  # NaN must not pass for rank 0
        effective = squares > tolerance**2 * largest  # the other columns are rounding
        G = jnp.where(effective[:, None] & effective, G, 0.0)
        Y = None if Y is None else jnp.where(effective, Y, 0.0)
        L, ok = factor_damped(G, damping, tolerance, Y)
        factor = _Factor(G, L, ok, effective, jnp.sum(effective), unknown.astype(G.dtype))
        return prepared._replace(factor=factor)

    def solve(self, prepared: _Normal, damping: Array) -> tuple[Array, SolveInfo]:
        if prepared.factor is None:
            prepared = self.factorise(prepared, damping)
        assert prepared.factor is not None
        G, L, ok, effective, rank, unknown = prepared.factor
        tolerance = prepared.tolerance
        gradient = jnp.where(effective, prepared.gradient, 0.0)  # nothing is known of the others

        def regular(_: None) -> tuple[Array, ...]:
            if prepared.aimed:
                found, condition = cho_solve((L, True), gradient), jnp.full_like(unknown, jnp.nan)
            else:
                found, condition = solve_and_estimate(L.T, gradient[:, None])
            return -found.reshape(-1), rank, condition, rank < len(G)

        def deficient(_: None) -> tuple[Array, ...]:
            values, vectors = jnp.linalg.eigh(G + damping * jnp.diag(effective.astype(G.dtype)))
            kept = values > tolerance * values[-1]
            inverse = jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0)
            smallest = jnp.min(jnp.where(kept, values, jnp.inf))
            eta = -vectors @ (inverse * (vectors.T @ gradient))
            return eta, jnp.sum(kept), jnp.sqrt(values[-1] / smallest), jnp.asarray(True)

        eta, *seen = jax.lax.cond(ok, regular, deficient, None)
        return eta + unknown, SolveInfo(*seen)


class _Triangular(NamedTuple):
    R: Array
    c: Array  # Qᵀb
    r: Array
    tolerance: Array


class QR(DenseSolver):
    """Y = QR, η = −R⁻¹Qᵀb: the paper's Algorithm 1, for Y of full column rank.

    Damping enters as a small QR of [R; √λ I]. If R is numerically singular its singular value
    decomposition gives the minimum-norm solution, and `info.status` says "rank_deficient".

    Cost: 2kp² − ⅔p³. Reference: Algorithm 1 of the paper.
    """

    def prepare(self, Y: Array, b: Array, r: Array) -> _Triangular:
        return triangularise(Y, b, r)

    def aim(self, prepared: _Triangular, b: Array, g: Array) -> _Triangular:
        return prepared._replace(c=jnp.zeros_like(prepared.c), r=g)  # Q is not kept

    def solve(self, prepared: _Triangular, damping: Array) -> tuple[Array, SolveInfo]:
        R, c = damped_triangle(prepared.R, prepared.c, damping)
        # each pivot against its own column: a small unit is no dependence
        columns = jnp.linalg.norm(R, axis=0)
        independent = jnp.abs(jnp.diag(R)) > prepared.tolerance * columns
        ok = jnp.all(independent & (columns > prepared.tolerance * jnp.max(columns)))

        def regular(_: None) -> tuple[Array, SolveInfo]:
            inner = c + solve_triangular(R, prepared.r, trans="T")
            info = SolveInfo(jnp.asarray(len(c)), solve_and_estimate(R)[1], jnp.asarray(False))
            return -solve_triangular(R, inner), info

        def deficient(_: None) -> tuple[Array, SolveInfo]:
            U, values, Vt = jnp.linalg.svd(R, full_matrices=False)
            none = jnp.zeros_like(damping)  # it is in R already
            return spectral_solution(U.T @ c, values, Vt, prepared.r, prepared.tolerance, none)

        return jax.lax.cond(ok, regular, deficient, None)


def triangularise(Y: Array, b: Array, r: Array) -> _Triangular:
    """R and Qᵀb of Y = QR, without Q: b travels as one more column."""
    k, p = Y.shape
    augmented = jnp.concatenate([Y, b[:, None]], axis=1)
    if k < p + 1:
        augmented = jnp.pad(augmented, ((0, p + 1 - k), (0, 0)))
    R = jnp.linalg.qr(augmented, mode="r")
    return _Triangular(R[:p, :p], R[:p, p], r, rank_tolerance(Y))


def damped_triangle(R: Array, c: Array, damping: Array) -> tuple[Array, Array]:
    """R and Qᵀb of the least-squares problem with the rows √λ I appended."""

    def damped(_: None) -> tuple[Array, Array]:
        rows = jnp.sqrt(damping) * jnp.eye(len(c), dtype=R.dtype)
        stacked = triangularise(
            jnp.concatenate([R, rows]), jnp.concatenate([c, jnp.zeros_like(c)]), c
        )
        return stacked.R, stacked.c

    return jax.lax.cond(damping > 0, damped, lambda _: (R, c), None)


_Pivoted = tuple[MinimumNormFactor, Array, Array]  # of Y, b and r


class PivotedQR(DenseSolver):
    """Column-pivoted QR and a second QR: minimum-norm directions for rank-deficient Y.

    Columns whose pivot falls below `rtol` times the first are dropped (default max(k, p)·eps);
    `info.rank` counts the rest. On a GPU the pivoting runs on the small triangle of an unpivoted QR
    and stops at the rank.

    Cost: 2kp² + 4p²·rank. Reference: appendix B.2 of the paper.

    Args:
        rtol: Smallest pivot that counts, relative to the first.
    """

    rtol: Number | None = setting("rtol", positive=True, optional=True)

    def prepare(self, Y: Array, b: Array, r: Array) -> _Pivoted:
        return minimum_norm_factor(Y, self.rtol), b, r

    def aim(self, prepared: _Pivoted, b: Array, g: Array) -> _Pivoted:
        return prepared[0], b, jnp.zeros_like(g)

    def solve(self, prepared: _Pivoted, damping: Array) -> tuple[Array, SolveInfo]:
        factor, b, r = prepared
        condition = solve_and_estimate(factor.R1)[1]
        info = SolveInfo(factor.rank, condition, factor.rank < len(r))
        return -factor.solve(b, r, damping), info


class _Spectral(NamedTuple):
    c: Array
    values: Array
    Vt: Array
    r: Array
    tolerance: Array


class SVD(DenseSolver):
    """Y = U diag(σ) Vᵀ: the reference for rank decisions, and every λ for free.

    Singular values below `rtol` times the first are dropped (default max(k, p)·eps).

    Cost: a QR of Y, then about 20 p³. Reference: section 3.2 of the paper.

    Args:
        rtol: Smallest singular value that counts, relative to the largest.
    """

    rtol: Number | None = setting("rtol", positive=True, optional=True)

    def prepare(self, Y: Array, b: Array, r: Array) -> _Spectral:
        triangle = triangularise(Y, b, r)
        U, values, Vt = jnp.linalg.svd(triangle.R, full_matrices=False)
        rtol = triangle.tolerance if self.rtol is None else jnp.asarray(self.rtol, Y.dtype)
        return _Spectral(U.T @ triangle.c, values, Vt, r, rtol)

    def aim(self, prepared: _Spectral, b: Array, g: Array) -> _Spectral:
        return prepared._replace(c=jnp.zeros_like(prepared.c), r=g)

    def solve(self, prepared: _Spectral, damping: Array) -> tuple[Array, SolveInfo]:
        return spectral_solution(*prepared, damping)


def spectral_solution(
    c: Array, values: Array, Vt: Array, r: Array, tolerance: Array, damping: Array
) -> tuple[Array, SolveInfo]:
    """−V [σ c + Vᵀr] / (σ² + λ), with σ = 0 for the singular values that are dropped."""
    largest = values[0]
    kept = values > tolerance * largest
    sigma = jnp.where(kept, values, 0.0)
    divisor = sigma**2 + damping
    divided = (sigma * c + Vt @ r) / jnp.where(divisor > 0, divisor, 1.0)
    filtered = jnp.where(divisor > 0, divided, 0.0)
    smallest = jnp.min(jnp.where(kept, values, jnp.inf))
    condition = jnp.sqrt((largest**2 + damping) / (smallest**2 + damping))
    rank = jnp.sum(kept)
    return -Vt.T @ filtered, SolveInfo(rank, condition, rank < len(values))
