"""Low-rank solvers: the inverse of an approximate G that has few directions.

Nothing k × p is formed. What is prepared are singular values and right singular vectors of an
approximate Y, so that another λ costs two small products and one check of the residual.
"""

import abc
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..core.compiled import each
from ..core.dense import accurate_product
from ..core.outcomes import Counts, Status
from ..core.randomised import LowRank, basis_sizes, decompose, range_basis
from ..core.settings import Number, check_integer, check_number
from ..errors import InputError
from .base import MatrixFreeSolver, Parts, Solution, SolveInfo, System


class Projection(NamedTuple):
    """The approximate Y, with the gradient in its directions and beside them."""

    approximation: LowRank
    coefficients: Array  # Vᵀ∂_θf
    rest: Array  # ∂_θf − VVᵀ∂_θf
    leading: Array  # how many of the directions are inverted without damping
    floor: Array  # what stands for the eigenvalues of G that are not found, and for smaller ones
    tolerance: Array  # of singular values, relative to the largest


class Prepared(NamedTuple):
    """A system with its low-rank approximation."""

    system: System
    projection: Projection


class LowRankSolver(MatrixFreeSolver):
    """η from σ and V with G ≈ V diag(σ²) Vᵀ: exactly, with a check of the true residual.

    η = −V(max(σ², τ) + λ)⁻¹Vᵀg − (g − VVᵀg)/(τ + λ) for g = ∂_θ f, where τ estimates the largest
    eigenvalue of G that V misses; with λ = 0 the leading directions only, and no rest. Cost: 4pr
    for r directions, one product Zη and one Zᵀξ.
    """

    rtol: eqx.AbstractVar[Array | None]

    @property
    def uses(self) -> Parts:
        return ("factor",)

    @abc.abstractmethod
    def approximate(self, system: System) -> tuple[LowRank, int, Counts]:
        """σ and V, how many of them serve without damping, and the products spent."""

    def prepare(self, system: System) -> tuple[Prepared, Counts]:
        if system.parameter is not None:
            raise InputError(
                "damping",
                f"{type(self).__name__} damps with the identity only",
                "CG for an operator D, or AbsoluteDamping in parameters scaled so that D = I",
            )
        g, (approximation, leading, counts) = system.gradient, self.approximate(system)
        rtol = max(shape_of(system)) * jnp.finfo(g.dtype).eps if self.rtol is None else self.rtol
        parts = (approximation, jnp.asarray(leading), jnp.asarray(rtol, g.dtype))
        return Prepared(system, _project(g, *parts)), counts

    def solve(self, prepared: Prepared, damping: Array) -> Solution:
        system, g = prepared.system, prepared.system.gradient
        assert system.factor is not None
        damping = damping.astype(g.dtype)
        eta, info = _invert(prepared.projection, damping)
        eta = system.mask(eta)
        motion = system.push(eta)
        product = system.pull(system.factor.rmv(system.factor.mv(motion))) + damping * eta
        return Solution(eta, _measure_residual(info, product, g), motion)


@jax.jit
def _project(g: Array, approximation: LowRank, leading: Array, tolerance: Array) -> Projection:
    vectors, missed = approximation.vectors, approximation.missed
    coefficients = accurate_product(vectors, g)
    rest = g - accurate_product(vectors.T, coefficients)
    # once more: 1/λ amplifies what is left along V
    rest = rest - accurate_product(vectors.T, accurate_product(vectors, rest))
    floor = jnp.where(jnp.isnan(missed), 0.0, missed**2)
    return Projection(approximation, coefficients, rest, leading, floor, tolerance)


@jax.jit
def _invert(projection: Projection, damping: Array) -> tuple[Array, SolveInfo]:
    values, vectors, missed = projection.approximation
    damped = damping > 0
    wanted = damped | (jnp.arange(len(values)) < projection.leading)
    used = (values > projection.tolerance * values[0]) & wanted
    floor = jnp.where(used | damped, projection.floor, 0.0)
    divisor = jnp.maximum(jnp.where(used, values**2, 0.0), floor) + damping
    divided = projection.coefficients / jnp.where(divisor > 0, divisor, 1.0)
    outside = projection.rest / jnp.where(damped, damping + projection.floor, 1.0)
    inside = accurate_product(vectors.T, jnp.where(divisor > 0, divided, 0.0))
    eta = -inside - jnp.where(damped, outside, 0.0)
    smallest = jnp.min(jnp.where(used, values, values[0]))
    cut = jnp.hypot(jnp.max(jnp.where(used, 0.0, values)), missed)
    info = SolveInfo(
        rank=jnp.sum(used),
        condition=jnp.sqrt((values[0] ** 2 + damping) / (smallest**2 + damping)),
        rank_deficient=~damped & (jnp.sum(used) < len(eta)),
        counts=Counts().plus(linearised=1, adjoint=1),
        truncation=cut / jnp.where(values[0] > 0, values[0], 1.0),
    )
    return eta, info


@jax.jit
def _measure_residual(info: SolveInfo, product: Array, gradient: Array) -> SolveInfo:
    """With the residual of (G + λI) η = −∂_θ f, and whether everything is finite."""
    length = jnp.linalg.norm(gradient)
    residual = jnp.linalg.norm(product + gradient) / jnp.where(length > 0, length, 1.0)
    reason = jnp.where(jnp.isfinite(residual), Status.OK.code, Status.NOT_FINITE.code)
    return info._replace(residual=residual, reason=reason)


def too_many(name: str, value: int, limit: int) -> InputError:
    """More directions asked for than there can be."""
    problem = f"{value} is more than the rank {limit} that Y can have"
    return InputError(name, problem, f"{name}={limit} or less, or a direct solver such as SVD")


def shape_of(system: System) -> tuple[int, int]:
    """The rows and columns of Y."""
    assert system.factor is not None
    return size_of(system.factor.zero()), system.gradient.size


def flat(tree: PyTree, dtype: DTypeLike) -> Array:
    """A pytree as one vector of this precision."""
    return ravel_pytree(tree)[0].astype(dtype)


def size_of(tree: PyTree) -> int:
    """The number of entries in all leaves."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def unraveller(like: PyTree) -> Callable[[Array], PyTree]:
    """From a vector of any precision to the structure of `like`."""
    vector, unravel = ravel_pytree(like)
    return lambda row: unravel(row.astype(vector.dtype))


class RandomizedSVD(LowRankSolver):
    """The randomised singular value decomposition of Y: G ≈ V diag(σ²) Vᵀ, inverted exactly.

    η = −V(max(σ², τ) + λ)⁻¹Vᵀg − (g − VVᵀg)/(τ + λ) for the gradient g = ∂_θ f. `rank` +
    `oversampling` random combinations of the columns of Y are followed through `power_iterations`
    products with YYᵀ. All the blocks on the way are kept: a block Krylov space, which contains what
    its last block gives, at the same products. τ is an estimate of the largest eigenvalue of G that
    this misses; it stands for all that are not resolved, so that a λ far below them shortens the
    direction instead of blowing it up. With λ > 0 all M directions found are used. Without damping
    the leading `rank`, those that are accurate, and nothing beyond; of them those with σ above
    `rtol` times the first (default max(k, p)·eps).

    It works where the singular values of Y fall to about √λ within the directions found. On others,
    and for a single direction in general, `CG` gets further with the same products, because it
    builds its space from the gradient. What speaks for this solver: the products of a block are
    independent of each other (`batch_size` of them run as one), every further λ costs one pair, and
    a small λ does not slow it down. Parameters are damped by the identity only.

    `info.truncation` estimates the largest singular value of Y that was cut, relative to the
    largest of all; `info.residual` is the true one of (G + λI) η = −∂_θ f; `info.rank` counts the
    directions. `info.status` is "ok", "rank_deficient" (λ = 0: η is of least norm, in the
    directions found) or "not_finite".

    ```python
    solver = ng.RandomizedSVD(rank=30)
    ng.natural_gradient(problem, theta, metric=ng.L2(grid), solver=solver, damping=1e-6)
    ```

    Cost: M = (`rank` + `oversampling`)(1 + `power_iterations`) + 4 products Zη, as many Zᵀξ, and
    (k + p)M²; each λ one Zη and one Zᵀξ, for the residual. Zη is returned to the step. Memory: M
    vectors like θ and like Lρ.

    Reference: Halko, Martinsson and Tropp, SIAM Review 53 (2011); Musco and Musco, NeurIPS 2015;
    for a floor in place of what is cut Frangella, Tropp and Udell, SIAM J. Matrix Anal. Appl. 44
    (2023); the end of the paper's appendix B.4.

    Args:
        rank: Number of directions that are wanted accurately.
        power_iterations: Products with YYᵀ that refine the basis.
        oversampling: Random combinations beyond `rank`.
        rtol: Smallest singular value that counts, relative to the largest.
        seed: Seed of the random numbers.
        batch_size: Products that run as one; None for as many as fit.
    """

    rank: int = eqx.field(static=True)
    power_iterations: int = eqx.field(static=True)
    oversampling: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    rtol: Array | None

    def __init__(
        self,
        rank: int,
        power_iterations: int = 1,
        oversampling: int = 8,
        *,
        rtol: Number | None = None,
        seed: int = 0,
        batch_size: int | None = None,
    ):
        self.rank = check_integer(rank, "rank", 1)
        self.power_iterations = check_integer(power_iterations, "power_iterations", 0)
        self.oversampling = check_integer(oversampling, "oversampling", 0)
        self.seed = check_integer(seed, "seed", 0)
        self.batch_size = None if batch_size is None else check_integer(batch_size, "batch_size", 1)
        self.rtol = None if rtol is None else check_number(rtol, "rtol", positive=True)

    def approximate(self, system: System) -> tuple[LowRank, int, Counts]:
        shape, factor = shape_of(system), system.factor
        limit = min(*shape, size_of(system.products.rho))
        if self.rank > limit:
            raise too_many("rank", self.rank, limit)
        assert factor is not None
        unravel, g = unraveller(factor.zero()), system.gradient
        width = self.rank + self.oversampling
        basis = range_basis(
            forward=lambda v: flat(factor.mv(system.push(v)), g.dtype),
            backward=lambda y: system.pull(factor.rmv(unravel(y))),
            shape=shape,
            width=width,
            key=jax.random.key(self.seed),
            dtype=g.dtype,
            power_iterations=self.power_iterations,
            batch_size=self.batch_size,
        )
        products = sum(basis_sizes(width, self.power_iterations, min(shape)))
        return decompose(basis), self.rank, Counts(linearised=products, adjoint=products)


Probes = Literal["signs", "column_space"]


class Hutchinson(LowRankSolver):
    """Y ≈ L Σᵢ wξᵢξᵢᵀZ from m = `samples` covectors ξᵢ: the paper's appendices B.3 and B.4.

    `probes="signs"`, appendix B.3: independent random signs and w = 1/m. The estimate H_m(Z) of
    Z is unbiased with E‖H_m(Z) − Z‖_F² = (k − 1)/m · ‖Z‖_F²: a relative error of √((k − 1)/m)
    whatever the spectrum of Z. It takes m ≫ k samples to be of use, more than the k adjoint
    products that give Z itself, and with fewer G comes out too large by 1 + (k − 1)/m on average.

    `probes="column_space"`, appendix B.4: m random combinations of the columns of Z, made
    orthonormal, and w = 1. Then Σᵢ ξᵢξᵢᵀ is the orthogonal projection onto their span, exact for a
    Z of rank up to m, and good where the singular values of Z fall fast.

    The least-squares problem is solved in factored form, by the QR factorisation of L(ξ₁ … ξ_m) and
    the singular values of an m × p matrix: η = −(G_m + λI)†∂_θ f, of least norm, with the exact
    gradient, so that η descends (the paper's B.3 estimates that as well). Singular values below
    `rtol` times the largest are dropped. `RandomizedSVD` supersedes both kinds: it projects Y
    itself and not Z, refines the basis, and estimates what it cut. This one is there to compare.

    ```python
    ng.Hutchinson(40, probes="column_space")
    ```

    Cost: m products Zᵀξ (and m products Zη for "column_space"), m with L, (k + p)m²; each λ one Zη
    and one Zᵀξ, for the residual. Reference: appendices B.3 and B.4 of the paper; Hutchinson 1990.

    Args:
        samples: Number m of covectors.
        probes: How they are drawn: "signs" or "column_space".
        rtol: Smallest singular value that counts, relative to the largest.
        seed: Seed of the random numbers.
        batch_size: Products that run as one; None for as many as fit.
    """

    samples: int = eqx.field(static=True)
    probes: Probes = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    rtol: Array | None

    def __init__(
        self,
        samples: int,
        probes: Probes = "signs",
        *,
        rtol: Number | None = None,
        seed: int = 0,
        batch_size: int | None = None,
    ):
        if probes not in ("signs", "column_space"):
            raise InputError("probes", f"{probes!r} is unknown", "'signs' or 'column_space'")
        self.samples, self.probes = check_integer(samples, "samples", 1), probes
        self.seed = check_integer(seed, "seed", 0)
        self.batch_size = None if batch_size is None else check_integer(batch_size, "batch_size", 1)
        self.rtol = None if rtol is None else check_number(rtol, "rtol", positive=True)

    def approximate(self, system: System) -> tuple[LowRank, int, Counts]:
        limit = min(system.gradient.size, size_of(system.products.rho))
        if self.probes == "column_space" and self.samples > limit:
            raise too_many("samples", self.samples, limit)
        covectors = self._covectors(system)
        unravel, g, factor = unraveller(system.products.rho), system.gradient, system.factor
        assert factor is not None

        def both(row: Array) -> tuple[Array, Array]:
            xi = unravel(row)
            return flat(factor.mv(xi), g.dtype), system.pull(xi)

        images, pulled = each(both, covectors, self.batch_size)
        weight = 1.0 if self.probes == "column_space" else 1.0 / self.samples
        found = _product_svd(images, weight * pulled)
        pushed = self.samples if self.probes == "column_space" else 0
        return found, len(found.values), Counts(linearised=pushed, adjoint=self.samples)

    def _covectors(self, system: System) -> Array:
        """The ξᵢ as rows."""
        key, g = jax.random.key(self.seed), system.gradient
        if self.probes == "signs":
            shape = (self.samples, size_of(system.products.rho))
            return jax.random.rademacher(key, shape, g.dtype)
        combinations = jax.random.normal(key, (self.samples, g.size), g.dtype)
        push = lambda v: flat(system.push(v), g.dtype)
        return jnp.linalg.qr(each(push, combinations, self.batch_size).T)[0].T


@jax.jit
def _product_svd(left: Array, right: Array) -> LowRank:
    """Singular values and right vectors of leftᵀ · right, by a QR of the first factor."""
    _, values, vectors = jnp.linalg.svd(
        accurate_product(jnp.linalg.qr(left.T, mode="r"), right), full_matrices=False
    )
    return LowRank(values, vectors, jnp.full((), jnp.nan, values.dtype))
