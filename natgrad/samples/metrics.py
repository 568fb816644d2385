"""Metrics on point clouds: W₂, Sobolev and Fisher–Rao."""

import abc
import math
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array

from ..core.dense import accurate_product as product
from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..core.settings import Number, check_integer, setting
from ..errors import InputError, name_kind
from ..metrics.base import Geometry, Metric, PyTree, Report
from ..metrics.diagonal import DiagonalGeometry, DiagonalMetric
from .potentials import Potentials, check_cloud, spread

CENTRES = 200
NODES = 32  # of the quadrature for (1 − Δ)⁻¹
LONGEST = 40.0  # where its weight e^{−t} has ended


class _DualMetric(Metric):
    """‖v‖² = max over φ of 2 (1/N) Σᵢ ∇φ(xᵢ)·vᵢ − Q(φ) − λ|φ|², for motions v of samples x.

    ζ = −∇·(ρv) is seen only through ∫ζφ dx = ∫ρ v·∇φ dx, which is a mean over the samples: no
    density has to be known. A subclass says what Q is. With pairs Rv, Q as a matrix and its
    inverse root M: L = MR, an m × Nd matrix of which O(Nm) numbers are kept.
    """

    centres: eqx.AbstractVar[int | None]
    bandwidth: eqx.AbstractVar[Number | None]
    ridge: eqx.AbstractVar[Number]
    linear: eqx.AbstractClassVar[bool]  # whether a·x is among the φ

    @abc.abstractmethod
    def default_bandwidth(self, x: Array) -> Array:
        """h where none is given."""

    @abc.abstractmethod
    def form(self, geometry: "_DualGeometry") -> Array:
        """Q on the coefficients."""

    def width(self, x: Array) -> Array:
        """h."""
        if self.bandwidth is None:
            return self.default_bandwidth(x)
        return jnp.asarray(self.bandwidth, x.dtype)

    def at(self, rho: Array) -> Geometry:
        return _DualGeometry(self, rho)

    def check_structure(self, state: PyTree) -> None:
        check_cloud(state)
        if self.centres is not None and self.centres > state.shape[0]:
            what = f"{self.centres} of {state.shape[0]} samples cannot be chosen"
            raise InputError("centres", what, f"at most {state.shape[0]}, or None")

    def check_values(self, state: Array) -> None:
        x = jnp.asarray(state)
        rounding = len(x) * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x))
        if not float(spread(x)) > rounding:
            raise InputError("model", "all samples coincide", "a map that spreads them")

    def admissible(self, rho: Array) -> Array:
        return jnp.all(jnp.isfinite(rho)) & (spread(rho) > 0)


class _DualGeometry(Geometry):
    """L = MR, with MᵀM = (Q + λ)⁻¹ and the pairs R of the potentials."""

    metric: _DualMetric
    annihilates = True
    whitens_shortest = True

    @cached_property
    def potentials(self) -> Potentials:
        """The φ among which the maximum is sought."""
        x, metric = self.rho, self.metric
        count = min(len(x), CENTRES) if metric.centres is None else metric.centres
        return Potentials.at(x, metric.width(x), count, metric.linear)

    @cached_property
    def energies(self) -> Array:
        """S with E|∇φ|² as a form on the coefficients."""
        return self.potentials.energies()

    @cached_property
    def _inverse_root(self) -> Array:
        """M; λ = ridge/N times the mean of Q for a single Gaussian."""
        potentials, Q = self.potentials, self.metric.form(self)
        share = jnp.asarray(self.metric.ridge, Q.dtype) / len(potentials.samples)
        ridge = share * potentials.mean_of(Q)
        Q = Q + jnp.diag(jnp.where(jnp.arange(len(Q)) < potentials.extra, 0.0, ridge))
        values, vectors = jnp.linalg.eigh(Q)
        smallest = jnp.finfo(Q.dtype).eps * values[-1]
        return (vectors / jnp.sqrt(jnp.maximum(values, smallest))).T

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        potentials, M = self.potentials, self._inverse_root
        out = jax.ShapeDtypeStruct((len(M),), M.dtype)
        mv = lambda v: product(M, potentials.pairings(v))
        rmv = lambda y: potentials.gradients(product(M.T, y))
        return AdjointOperator(mv, rmv, self.rho, out)

    def whiten(self, c: Array) -> Array:
        """(LLᵀ)†Lc, with LLᵀ = MSMᵀ/N for the energies S."""
        potentials, M = self.potentials, self._inverse_root
        energies = product(M, product(self.energies, M.T)) / len(self.rho)
        values, vectors = jnp.linalg.eigh(energies)
        kept = values > jnp.sqrt(jnp.finfo(self.rho.dtype).eps) * values[-1]
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1.0), 0.0)
        return product(vectors, inverse * product(vectors.T, product(M, potentials.pairings(c))))

    def report(self) -> Report:
        return {"bandwidth": self.metric.width(self.rho)}


def _optional_whole(name: str):
    """A static field that holds a positive integer, or None."""
    convert = lambda value: None if value is None else check_integer(value, name, 1)
    return eqx.field(converter=convert, static=True, default=None)


class Wasserstein(_DualMetric):
    """⟨v, v⟩ = min { E|u|² : −∇·(ρu) = −∇·(ρv) } for samples that move with velocities v.

    The minimiser is a gradient u = ∇φ, the projection of v in the mean square over the samples.
    φ is sought among a·x plus Gaussians of width `bandwidth` around `centres` of the samples:

        ⟨v, v⟩ = max over φ of 2 E[∇φ·v] − E|∇φ|² − λ|φ|².

    Motions that leave the density as it is, such as the rotation of a ball, cost nothing in the
    limit; E|v|², which is `ng.L2()` over N, charges them. It is an upper bound, and exact for a
    monotone map in one dimension.

    ```python
    ng.samples.Wasserstein()
    ng.samples.Wasserstein(centres=500)
    ```

    Cost: O(Nm²d + m³) set-up, O(Nmd) a product, O(Nm) memory.
    Reference: Arbel, Gretton, Li, Montúfar, Kernelized Wasserstein natural gradient, ICLR 2020.

    Args:
        centres: m, by default 200 or all; every N/m-th sample is taken, in the given order.
        bandwidth: h, by default 1.2 √d σ with σ² the mean variance of a coordinate.
        ridge: λ = ridge/N, times the mean energy of one Gaussian.
    """

    linear = True
    centres: int | None = _optional_whole("centres")
    bandwidth: Number | None = setting("bandwidth", positive=True, optional=True)
    ridge: Number = setting("ridge", 1.0, positive=True)

    def default_bandwidth(self, x: Array) -> Array:
        return 1.2 * jnp.sqrt(x.shape[1]).astype(x.dtype) * spread(x)

    def form(self, geometry: _DualGeometry) -> Array:
        return geometry.energies


class Sobolev(_DualMetric):
    """⟨ζ, (1 − Δ)ˢ ζ⟩ with ζ = −∇·(ρv), for s = −1, 0 or 1 and samples that move with v.

    It is the dual of the norm of H⁻ˢ: with φ among Gaussians of width h around the centres,

        ⟨v, v⟩ = max over φ of 2 E[∇φ·v] − ∫ φ (1 − Δ)⁻ˢ φ dx − λ|φ|²,

    and the integrals of Gaussians are known. Only the mean E[∇φ·v] is taken over samples; its
    noise is what limits h from below, the more so the larger s is: for s = 1 look at more than
    one `bandwidth`. The unit of length is that of x: 1 − Δ compares with it.

    ```python
    ng.samples.Sobolev(-1)
    ```

    Cost: O(Nmd + m³) set-up, O(Nmd) a product, O(Nm) memory.

    Args:
        s: −1, 0 or 1.
        centres: As in `Wasserstein`.
        bandwidth: h, by default 2.5 σ N^{−1/(d+5+s)} with σ² the mean variance of a coordinate.
        ridge: As in `Wasserstein`.
    """

    linear = False
    s: int = eqx.field(static=True)
    centres: int | None = _optional_whole("centres")
    bandwidth: Number | None = setting("bandwidth", positive=True, optional=True)
    ridge: Number = setting("ridge", 1.0, positive=True)

    def __check_init__(self):
        if self.s not in (-1, 0, 1):
            raise InputError("s", f"{self.s!r} is not −1, 0 or 1", "s=-1")

    def default_bandwidth(self, x: Array) -> Array:
        count, dimension = x.shape
        return 2.5 * count ** (-1 / (dimension + 5 + self.s)) * spread(x)

    def form(self, geometry: _DualGeometry) -> Array:
        potentials = geometry.potentials
        h2, d = potentials.bandwidth**2, potentials.samples.shape[1]
        apart = potentials.separations()
        if self.s < 1:
            Q = (math.pi * h2) ** (d / 2) * jnp.exp(-apart / (4 * h2))
            Q = Q * (1 + d / (2 * h2) - apart / (4 * h2**2)) if self.s < 0 else Q
        else:
            Q = _smooth(apart, h2, d)
        return potentials.in_basis(Q)


def _smooth(apart: Array, h2: Array, d: int) -> Array:
    """∫ φᵢ (1 − Δ)⁻¹ φⱼ dx for Gaussians of width h: a mean of wider Gaussians.

    (1 + |ξ|²)⁻¹ = ∫₀^∞ exp(−τ − τ|ξ|²) dτ; t = h² + τ, Gauss–Legendre nodes in log t.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    low, high = jnp.log(h2), jnp.log(h2 + LONGEST)
    total = jnp.zeros_like(apart)
    for node, weight in zip(nodes, weights, strict=True):
        t = jnp.exp(0.5 * ((high - low) * node + low + high))
        share = 0.5 * (high - low) * weight * t * jnp.exp(h2 - t)
        total += share * (math.pi * h2 * h2 / t) ** (d / 2) * jnp.exp(-apart / (4 * t))
    return total


class FisherRao(DiagonalMetric):
    """G = E[s sᵀ] with the scores s = ∂_θ log ρ_θ(xᵢ): the state is ℓᵢ = log ρ_θ(xᵢ), shape (N,).

    The samples are drawn from ρ_θ, as `jax.lax.stop_gradient(T(theta, z))` is for a map with a
    known density, and count 1/N each. Samples that stay where they were drawn, from a density q,
    need `proposal=` log q(xᵢ): then they count wᵢ ∝ ρ_θ/q, made to sum to one.

    With `centred=True` the mean score is subtracted, G = E[s sᵀ] − E[s]E[s]ᵀ: for log-densities
    whose constant is not known. A constant added to ℓ then has length zero.

    ```python
    ng.samples.FisherRao()
    ng.samples.FisherRao(proposal=log_q, centred=True)
    ```

    Cost: O(N).

    Args:
        proposal: log q at the samples, where they were not drawn from ρ_θ.
        centred: Whether the mean score is subtracted.
    """

    proposal: Array | None = eqx.field(
        converter=lambda value: None if value is None else jnp.asarray(value), default=None
    )
    centred: bool = eqx.field(static=True, default=False)

    def at(self, rho: Array) -> Geometry:
        return _CentredGeometry(self, rho) if self.centred else DiagonalGeometry(self, rho)

    def entries(self, rho: Array) -> Array:
        """The weights wᵢ of the samples."""
        if self.proposal is None:
            return jnp.full_like(rho, 1 / rho.size)
        return jax.nn.softmax(rho - self.proposal)

    def restricted(self, selection: Selection) -> Metric:
        """The same mean over fewer samples."""
        proposal = None if self.proposal is None else selection.take(self.proposal)
        return FisherRao(proposal, self.centred)

    def check_structure(self, state: PyTree) -> None:
        shape = tuple(state.shape) if hasattr(state, "shape") else None
        if shape is None or len(shape) != 1:
            what = f"has shape {shape}" if shape is not None else f"is {name_kind(state)}"
            what = f"the state {what}"
            raise InputError("model", what, "log ρ(xᵢ) in one array (N,), or Wasserstein")
        if self.proposal is not None and np.shape(self.proposal) != shape:
            what = f"has shape {np.shape(self.proposal)}, the state {shape}"
            raise InputError("proposal", what, "log q(xᵢ) at the same samples")


class _CentredGeometry(Geometry):
    """L = diag(√w)(I − 1wᵀ)."""

    metric: FisherRao
    annihilates = True
    whitens_shortest = True

    @cached_property
    def _weights(self) -> Array:
        return self.metric.entries(self.rho)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        w, root = self._weights, jnp.sqrt(self._weights)
        mv = lambda x: root * (x - w @ x)
        return AdjointOperator(mv, lambda y: root * y - w * (root @ y), self.rho, self.rho)

    def whiten(self, c: Array) -> Array:
        root = jnp.sqrt(self._weights)
        return c / root - root * jnp.sum(c)

    def remainder(self, c: Array) -> Array:
        return self._weights * jnp.sum(c)
