"""Random covectors in place of a basis of states: the estimators of the paper's appendix B."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..control import each
from ..counts import Counts
from ..errors import InputError
from ..linalg.products import accurate_product
from ..linalg.randomised import LowRank
from ..settings import Number, number, whole
from .low_rank import LowRankSolver, Prepared, flat, only_identity, size_of, too_many, unraveller
from .system import System

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
        self.samples, self.probes = whole(samples, "samples", 1), probes
        self.seed = whole(seed, "seed", 0)
        self.batch_size = None if batch_size is None else whole(batch_size, "batch_size", 1)
        self.rtol = None if rtol is None else number(rtol, "rtol", positive=True)

    def spent(self, system: System) -> Counts:
        pushed = self.samples if self.probes == "column_space" else 0
        return Counts(linearised=pushed, adjoint=self.samples)

    def prepare(self, system: System) -> Prepared:
        only_identity(self, system)
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
        approximation = _product_svd(images, weight * pulled)
        return self.prepared(system, approximation, len(approximation.values))

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
