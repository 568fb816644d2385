"""A metric on densities for values that need not be positive: evaluated at max(ρ, least)."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from natgrad import Metric
from natgrad.core.selection import Selection
from natgrad.metrics import Geometry, WrappedGeometry


class Clipped(Metric):
    """g at max(ρ, least), defined for every ρ.

    A network that is to become positive need not be so on its way. Where only positive values are
    admissible a line search walks up to the first zero and stays there: every further step is cut
    to nothing by one point. Here values below `least` count as `least` in the metric, and the steps
    are free.
    """

    metric: Metric
    least: float

    def at(self, rho: Array) -> Geometry:
        least = jnp.asarray(self.least, rho.dtype)
        return _ClippedGeometry(self, rho, self.metric.at(jnp.maximum(rho, least)))

    def restricted(self, selection: Selection) -> Metric:
        return Clipped(self.metric.restricted(selection), self.least)

    def check_structure(self, state: Any) -> None:
        self.metric.check_structure(state)


class _ClippedGeometry(WrappedGeometry):
    """That at the raised values, with the share of them that were."""

    metric: Clipped

    @property
    def whitens_shortest(self) -> bool:
        return self.inner.whitens_shortest

    def report(self) -> Any:
        raised = jnp.mean((self.rho < self.metric.least).astype(self.rho.dtype))
        return {**self.inner.report(), "clipped": raised}
