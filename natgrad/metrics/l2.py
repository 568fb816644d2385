"""The flat metrics: Euclidean on parameters, L² on states."""

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..errors import InputError
from ..grids import Grid
from ..selection import Selection
from .base import FlatMetric, Metric, PyTree, check_grid, check_on_grid, diagonal_operator


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

    def restricted(self, selection: Selection) -> Metric:
        return self


class L2(FlatMetric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ dx, so A = w I with the cell volume w; A = I where no grid is given.

    On a least-squares loss the natural gradient step of length 1 is Gauss–Newton.

    ```python
    ng.L2(grid)
    ng.L2()          # Σ ζ ζ̂, for data that is not on a grid
    ```

    Cost: O(k). Reference: section 2.1 of the paper.
    """

    grid: Grid | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.grid is not None:
            check_grid(self.grid)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        return diagonal_operator(self._root(rho), rho)

    def whiten(self, rho: Array, c: Array) -> Array:
        return c / self._root(c)

    def diagonal(self, rho: Array) -> Array:
        return jnp.full_like(rho, self._root(rho) ** 2)

    def _root(self, like: Array) -> Array:
        return jnp.sqrt(1.0 if self.grid is None else self.grid.cell_volume).astype(like.dtype)

    def restricted(self, selection: Selection) -> Metric:
        """The weight w k/k′ on whatever is selected."""
        return selection.scale * self

    def check_structure(self, state: PyTree) -> None:
        if self.grid is not None:
            check_on_grid(self.grid, state)
        elif not hasattr(state, "shape"):
            raise InputError(
                "metric",
                f"L2() got a state that is a {type(state).__name__}",
                "Blocks(...) with one metric per entry of the state",
            )
