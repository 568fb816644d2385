"""Smoothness of a field: M = I − ℓ²Δ, its inverse, and coordinates in which the prior is white."""

from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array

from natgrad import AdjointOperator, Grid, Sobolev

POSITIVE = frozenset({lx.symmetric_tag, lx.positive_semidefinite_tag})


class Smoothness:
    """D = M²/γ² with M = I − ℓ²Δ: the precision of a random field with correlation length ℓ.

    A field γM⁻¹x with white noise x of unit variance has the standard deviation `size`, on average
    over the cells; γ is chosen so. M is the Gram operator of `Sobolev(grid, 1)` over the cell
    volume, on a grid that measures lengths in units of ℓ, and M⁻¹ that of `Sobolev(grid, -1)`.

    Cost: one fast transform and its inverse a product. Reference: Lindgren, Rue and Lindström,
    J. R. Stat. Soc. B 73 (2011); Bui-Thanh, Ghattas, Martin and Stadler, SIAM J. Sci. Comput. 35
    (2013).
    """

    def __init__(self, n: int, length: float, size: float):
        self.n, self.length, self.size = n, length, size
        self.grid = Grid((0.0, 0.0), (1 / length, 1 / length), (n, n))
        self._forward = Sobolev(self.grid, 1).at(jnp.zeros((n, n))).gram
        self._inverse = Sobolev(self.grid, -1).at(jnp.zeros((n, n))).gram

    def __hash__(self) -> int:
        return hash((self.n, self.length, self.size))

    def __eq__(self, other: object) -> bool:
        mine = (self.n, self.length, self.size)
        return isinstance(other, Smoothness) and mine == (other.n, other.length, other.size)

    def rough(self, field: Array) -> Array:
        """M field."""
        return self._forward.mv(field) / self.grid.cell_volume

    def smooth(self, field: Array) -> Array:
        """M⁻¹ field."""
        return self._inverse.mv(field) / self.grid.cell_volume

    @cached_property
    def _spectrum(self) -> np.ndarray:
        """The eigenvalues of M, for the products of cosines of both directions."""
        angles = np.pi * np.arange(self.n) / (2 * self.n)
        one_side = (2 * self.n * self.length * np.sin(angles)) ** 2  # of −ℓ²∂²
        return 1 + one_side[:, None] + one_side

    @cached_property
    def gain(self) -> float:
        """γ, from the mean of the diagonal of M⁻²: that is the mean of its eigenvalues."""
        return float(self.size / np.sqrt(np.mean(self._spectrum**-2.0)))

    def variance(self) -> np.ndarray:
        """diag D⁻¹, from the squares of the eigenvectors. Cost: O(n³)."""
        k = np.arange(self.n)
        cosines = np.cos(np.pi * (k[:, None] + 0.5) * k / self.n) * np.sqrt(2 / self.n)
        cosines[:, 0] = np.sqrt(1 / self.n)
        return self.gain**2 * cosines**2 @ self._spectrum**-2.0 @ (cosines**2).T

    def field(self, coordinates: Array) -> Array:
        """γM⁻¹x: the field whose coordinates are x, in which D is the identity."""
        return self.gain * self.smooth(coordinates)

    def coordinates(self, field: Array) -> Array:
        """x with γM⁻¹x = field."""
        return self.rough(field) / self.gain

    def precision(self) -> lx.AbstractLinearOperator:
        """D = M²/γ², for `ParameterDamping`."""
        return self._operator(lambda v: self.rough(self.rough(v)) / self.gain**2)

    def covariance(self) -> lx.AbstractLinearOperator:
        """D⁻¹ = γ²M⁻², as a preconditioner."""
        return self._operator(lambda v: self.gain**2 * self.smooth(self.smooth(v)))

    def _operator(self, product: Callable[[Array], Array]) -> lx.AbstractLinearOperator:
        like = jax.ShapeDtypeStruct((self.n, self.n), jnp.result_type(float))
        product = jax.jit(product)  # a run on the host applies it by itself
        return AdjointOperator(product, product, like, like, POSITIVE)
