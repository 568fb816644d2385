"""The W₂ metric on point clouds: the part of a motion that is a gradient."""

import jax.numpy as jnp
from jax import Array

from ..core.settings import Number, setting
from .dual import DualMetric, optional_number, optional_whole
from .potentials import Potentials, spread


class Wasserstein(DualMetric):
    """⟨v, v⟩ = min { E|u|² : −∇·(ρu) = −∇·(ρv) } for samples that move with velocities v.

    The minimiser is a gradient u = ∇φ, the projection of v in the mean square over the samples.
    φ is sought among a·x plus Gaussians of width `bandwidth` around `centres` of the samples:

        ⟨v, v⟩ = max over φ of 2 E[∇φ·v] − E|∇φ|² − λ|φ|².

    Motions that leave the density as it is, such as the rotation of a ball, cost nothing in the
    limit; E|v|², which is `ng.L2()` over N, charges them. It is an upper bound, and exact for a
    monotone map in one dimension.

    - `centres`: m, by default 200 or all; every N/m-th sample is taken, in the given order.
    - `bandwidth`: h, by default 1.2 √d σ with σ² the mean variance of a coordinate.
    - `ridge`: λ = ridge/N, times the mean energy of one Gaussian.

    ```python
    ng.samples.Wasserstein()
    ng.samples.Wasserstein(centres=500)
    ```

    Cost: O(Nm²d + m³) set-up, O(Nmd) a product, O(Nm) memory.
    Reference: Arbel, Gretton, Li, Montúfar, Kernelized Wasserstein natural gradient, ICLR 2020.
    """

    centres: int | None = optional_whole("centres")
    bandwidth: Number | None = optional_number("bandwidth")
    ridge: Number = setting("ridge", 1.0, positive=True)

    def default_bandwidth(self, x: Array) -> Array:
        return 1.2 * jnp.sqrt(x.shape[1]).astype(x.dtype) * spread(x)

    def potentials(self, x: Array) -> Potentials:
        return Potentials.at(x, self.width(x), self.count(x), linear=True)

    def form(self, potentials: Potentials) -> Array:
        return potentials.energies()
