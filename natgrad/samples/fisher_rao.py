"""The Fisher–Rao metric from log-densities at samples."""

from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array

from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..errors import InputError
from ..metrics.base import Geometry, Metric, PyTree
from ..metrics.diagonal import DiagonalGeometry, DiagonalMetric


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
            what = f"has shape {shape}" if shape is not None else f"is a {type(state).__name__}"
            raise InputError(
                "model", f"the state {what}", "log ρ(xᵢ) in one array (N,), or Wasserstein"
            )
        if self.proposal is not None and np.shape(self.proposal) != shape:
            what = f"has shape {np.shape(self.proposal)}, the state {shape}"
            raise InputError("proposal", what, "log q(xᵢ) at the same samples")


class _CentredGeometry(Geometry):
    """L = diag(√w)(I − 1wᵀ)."""

    metric: FisherRao

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

    @property
    def annihilates(self) -> bool:
        return True

    @property
    def whitens_shortest(self) -> bool:
        return True
