"""The flat metrics: Euclidean on parameters, L² on states."""

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..errors import InputError
from ..grids import Grid
from .base import FlatMetric, Metric, PyTree, check_on_grid, diagonal_operator


class Euclidean(Metric):
    """The flat metric on parameters, G = I: plain gradient descent, η = −∂_θ f.

    The only metric that is not on states: no Z is formed and no system solved.
    """

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        raise InputError(
            "metric",
            "Euclidean measures parameters, not states, so it has no factor on ρ",
            "AbsoluteDamping(λ) to add a multiple of the identity to G",
        )

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        return self.factor(rho)


class L2(FlatMetric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ dx, so A = w I with the cell volume w.

    On a least-squares loss the natural gradient step of length 1 is Gauss–Newton.

    ```python
    ng.L2(grid)
    ```

    Cost: O(k). Reference: section 2.1 of the paper.
    """

    grid: Grid = eqx.field(static=True)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        return diagonal_operator(jnp.sqrt(self.grid.cell_volume).astype(rho.dtype), rho)

    def whiten(self, rho: Array, c: Array) -> Array:
        return c / jnp.sqrt(self.grid.cell_volume).astype(c.dtype)

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)
