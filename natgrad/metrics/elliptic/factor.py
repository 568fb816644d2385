"""What every factorisation of K = BBᵀ offers, and the projection on the range of B."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .stencils import Stencil, conservative_classes, divergence, weighted_gradient


class Solution(NamedTuple):
    """φ, and for each right-hand side the iterations taken and the error left (0 and 0 if direct).

    The error is the energy norm of that of φ, as a share of the energy norm of φ. `converged` is
    whether it reached the tolerance.
    """

    phi: Array
    iterations: Array
    error: Array
    converged: Array


class Factor(eqx.Module):
    """A factorised K = BBᵀ; ζ and the fluxes may have batch axes before those of the grid."""

    stencils: eqx.AbstractVar[tuple[Stencil, ...]]
    weights: eqx.AbstractVar[tuple[Array, ...]]

    @abc.abstractmethod
    def solve(self, zeta: Array) -> Array:
        """φ with Kφ = ζ.

        Where K is singular (`conservative_classes`), one cell is grounded, the one with the
        largest weights: what ζ has in excess of zero mass leaves there, φ is fixed up to a
        constant by that cell, and `solve` is symmetric. `remove_null_component` comes first for
        the pseudo-inverse in the strict sense.
        """

    def solution(self, zeta: Array, tolerance: float | None = None) -> Solution:
        """`solve` with its diagnosis; an iterative solve may be asked for less than usual."""
        lead = zeta.shape[: zeta.ndim - len(self.stencils)]
        none, zero = jnp.zeros(lead, jnp.int32), jnp.zeros(lead, zeta.dtype)
        return Solution(self.solve(zeta), none, zero, jnp.ones(lead, bool))

    def flows(
        self, zeta: Array, tolerance: float | None = None
    ) -> tuple[tuple[Array, ...], Solution]:
        """B†ζ and the solution that it comes from."""
        solution = self.solution(zeta, tolerance)
        return weighted_gradient(self.stencils, self.weights, solution.phi), solution

    def pseudo_inverse(self, zeta: Array) -> tuple[Array, ...]:
        """B†ζ = BᵀK⁻¹ζ, the fluxes v of least norm with Bv = ζ."""
        return self.flows(zeta)[0]

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        """The exact transpose of `pseudo_inverse`, K⁻¹Bv."""
        return self.solve(divergence(self.stencils, self.weights, fluxes))


def remove_null_component(stencils: Sequence[Stencil], zeta: Array) -> Array:
    """ζ minus its mean on every conservative class.

    For positive weights and two-point stencils this is the orthogonal projection on range(B); the
    fourth-order scheme with odd n on every axis has a null vector besides, which stays.

    >>> from natgrad.elliptic.stencils import staggered_neumann
    >>> remove_null_component((staggered_neumann(1.0),), jnp.array([1.0, 2.0, 6.0])).tolist()
    [-2.0, -1.0, 3.0]

    Cost: O(k).
    """
    for cells in conservative_classes(stencils, zeta.shape[zeta.ndim - len(stencils) :]):
        grid_axes = tuple(range(-len(stencils), 0))
        mean = jnp.mean(zeta[..., *cells], axis=grid_axes, keepdims=True)
        zeta = zeta.at[..., *cells].add(-mean)
    return zeta
