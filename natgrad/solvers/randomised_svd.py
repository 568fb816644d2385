"""The randomised singular value decomposition of Y as a solver."""

import equinox as eqx
import jax
from jax import Array

from ..counts import Counts
from ..linalg.randomised import basis_sizes, decomposed, range_basis
from ..settings import Number, number, whole
from .low_rank import (
    LowRankSolver,
    Prepared,
    flat,
    only_identity,
    shape_of,
    size_of,
    too_many,
    unraveller,
)
from .system import System


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
        self.rank = whole(rank, "rank", 1)
        self.power_iterations = whole(power_iterations, "power_iterations", 0)
        self.oversampling = whole(oversampling, "oversampling", 0)
        self.seed = whole(seed, "seed", 0)
        self.batch_size = None if batch_size is None else whole(batch_size, "batch_size", 1)
        self.rtol = None if rtol is None else number(rtol, "rtol", positive=True)

    def spent(self, system: System) -> Counts:
        width, limit = self.rank + self.oversampling, min(shape_of(system))
        products = sum(basis_sizes(width, self.power_iterations, limit))
        return Counts(linearised=products, adjoint=products)

    def prepare(self, system: System) -> Prepared:
        only_identity(self, system)
        shape, factor = shape_of(system), system.factor
        limit = min(*shape, size_of(system.products.rho))
        if self.rank > limit:
            raise too_many("rank", self.rank, limit)
        assert factor is not None
        unravel, g = unraveller(factor.zero()), system.gradient
        basis = range_basis(
            forward=lambda v: flat(factor.mv(system.push(v)), g.dtype),
            backward=lambda y: system.pull(factor.rmv(unravel(y))),
            shape=shape,
            width=self.rank + self.oversampling,
            key=jax.random.key(self.seed),
            dtype=g.dtype,
            power_iterations=self.power_iterations,
            batch_size=self.batch_size,
        )
        return self.prepared(system, decomposed(basis), self.rank)
