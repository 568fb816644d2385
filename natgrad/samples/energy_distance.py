"""The energy distance between a point cloud and data."""

import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.settings import Public
from ..errors import InputError
from ..metrics.base import PyTree
from .potentials import check_cloud


class EnergyDistance(Public, eqx.Module):
    """f(x) = 2 E|x − y| − E|x − x′| − E|y − y′|, the means over all pairs with the data y.

    Nonnegative, and zero only where the two clouds have the same points; nothing to tune. Its
    gradient is taken to be zero between points that coincide.

    ```python
    problem = ng.Problem(lambda net: jax.vmap(net)(z), ng.samples.EnergyDistance(data))
    ```

    Cost: O((N + M) N d) for N samples and M data, O(NM) memory.
    Reference: Székely, Rizzo, Energy statistics, J. Stat. Plan. Inference 143 (2013).

    Args:
        data: The data y, of shape `(M, d)`.
    """

    data: Array = eqx.field(converter=jnp.array)

    def __check_init__(self):
        shape = np.shape(self.data)
        if len(shape) != 2 or 0 in shape:
            raise InputError("data", f"has shape {shape}", "one array (M, d), a row for each point")
        if not isinstance(self.data, jax.core.Tracer) and not np.all(np.isfinite(self.data)):
            raise InputError("data", "has entries that are not finite", "finite points")

    def check_structure(self, state: PyTree) -> None:
        """The samples must live where the data do."""
        check_cloud(state)
        if state.shape[1] != self.data.shape[1]:
            what = f"in {self.data.shape[1]} dimensions, the samples in {state.shape[1]}"
            raise InputError("data", what, "data and samples in the same dimension")

    def __call__(self, rho: Array) -> Array:
        return (
            2 * _mean_distance(rho, self.data)
            - _mean_distance(rho, rho)
            - _mean_distance(self.data, self.data)
        )


def _mean_distance(x: Array, y: Array) -> Array:
    square = jnp.sum((x[:, None] - y) ** 2, axis=-1)
    apart = square > 0  # the root has no derivative at zero
    return jnp.mean(jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0))
