"""A metric on densities for values that need not be positive: evaluated at max(ρ, least)."""

from typing import Any

import jax.numpy as jnp
import lineax as lx
from jax import Array

from natgrad import Metric
from natgrad.core.selection import Selection


class Clipped(Metric):
    """g at max(ρ, least), defined for every ρ.

    A network that is to become positive need not be so on its way. Where only positive values are
    admissible a line search walks up to the first zero and stays there: every further step is cut
    to nothing by one point. Here values below `least` count as `least` in the metric, and the steps
    are free.
    """

    metric: Metric
    least: float

    def _density(self, rho: Array) -> Array:
        return jnp.maximum(rho, jnp.asarray(self.least, rho.dtype))

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        return self.metric.factor(self._density(rho))

    def whiten(self, rho: Array, c: Array) -> Any:
        return self.metric.whiten(self._density(rho), c)

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        return self.metric.gram(self._density(rho))

    def image(self, rho: Array, columns: Array) -> tuple[Array, Any]:
        return self.metric.image(self._density(rho), columns)

    def information(self, rho: Array, columns: Array) -> tuple[Array, Any]:
        return self.metric.information(self._density(rho), columns)

    def diagonal(self, rho: Array) -> Any:
        return self.metric.diagonal(self._density(rho))

    @property
    def annihilates(self) -> bool:
        return self.metric.annihilates

    def remainder(self, rho: Array, c: Array) -> Any:
        return self.metric.remainder(self._density(rho), c)

    def restricted(self, selection: Selection) -> Metric:
        return Clipped(self.metric.restricted(selection), self.least)

    def check_structure(self, state: Any) -> None:
        self.metric.check_structure(state)

    def report(self, rho: Array) -> Any:
        """The metric's own, and the share of values that were raised."""
        raised = jnp.mean((rho < self.least).astype(rho.dtype))
        return {**self.metric.report(self._density(rho)), "clipped": raised}
