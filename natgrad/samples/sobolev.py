"""The Sobolev metrics H⁻¹, L² and H¹ of densities, on point clouds."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.settings import Number, setting
from ..errors import InputError
from .dual import DualMetric, optional_number, optional_whole
from .potentials import Potentials, spread

NODES = 32  # of the quadrature for (1 − Δ)⁻¹
LONGEST = 40.0  # where its weight e^{−t} has ended


class Sobolev(DualMetric):
    """⟨ζ, (1 − Δ)ˢ ζ⟩ with ζ = −∇·(ρv), for s = −1, 0 or 1 and samples that move with v.

    It is the dual of the norm of H⁻ˢ: with φ among Gaussians of width h around the centres,

        ⟨v, v⟩ = max over φ of 2 E[∇φ·v] − ∫ φ (1 − Δ)⁻ˢ φ dx − λ|φ|²,

    and the integrals of Gaussians are known. Only the mean E[∇φ·v] is taken over samples; its
    noise is what limits h from below, the more so the larger s is: for s = 1 look at more than
    one `bandwidth`. The unit of length is that of x: 1 − Δ compares with it.

    - `bandwidth`: h, by default 2.5 σ N^{−1/(d+5+s)} with σ² the mean variance of a coordinate.
    - `centres`, `ridge`: as in `Wasserstein`.

    ```python
    ng.samples.Sobolev(-1)
    ```

    Cost: O(Nmd + m³) set-up, O(Nmd) a product, O(Nm) memory.
    """

    s: int = eqx.field(static=True)
    centres: int | None = optional_whole("centres")
    bandwidth: Number | None = optional_number("bandwidth")
    ridge: Number = setting("ridge", 1.0, positive=True)

    def __check_init__(self):
        if self.s not in (-1, 0, 1):
            raise InputError("s", f"{self.s!r} is not −1, 0 or 1", "s=-1")

    def default_bandwidth(self, x: Array) -> Array:
        count, dimension = x.shape
        return 2.5 * count ** (-1 / (dimension + 5 + self.s)) * spread(x)

    def potentials(self, x: Array) -> Potentials:
        return Potentials.at(x, self.width(x), self.count(x), linear=False)

    def form(self, potentials: Potentials) -> Array:
        h2, d = potentials.bandwidth**2, potentials.samples.shape[1]
        apart = potentials.separations()
        if self.s < 1:
            Q = (math.pi * h2) ** (d / 2) * jnp.exp(-apart / (4 * h2))
            Q = Q * (1 + d / (2 * h2) - apart / (4 * h2**2)) if self.s < 0 else Q
        else:
            Q = _smoothed(apart, h2, d)
        return potentials.restricted(Q)


def _smoothed(apart: Array, h2: Array, d: int) -> Array:
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
