"""The Fisher–Rao (Hellinger) metric on positive densities."""

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..grids import Grid
from .base import (
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_on_grid,
    check_pair,
    diagonal_operator,
    floored,
    grid_axes,
)


class FisherRao(Metric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ / ρ dx, so A = diag(w/ρ).

    ρ is raised to `floor` times its maximum where it is smaller (default 1e-14 in double, 1e-8 in
    single precision); `info.metric["floored"]` is the share of cells that were. The distance is
    Hellinger's, d(a, b)² = 4 ∫ (√a − √b)² dx, with both densities raised in the same way: its
    gradient is finite where one is zero, and does not see changes below the floor.

    ```python
    ng.FisherRao(grid)
    ```

    Cost: O(k). Reference: section 2.4 of the paper.
    """

    grid: Grid = eqx.field(static=True)
    floor: float | None = eqx.field(static=True, default=None)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        return diagonal_operator(jnp.sqrt(self.grid.cell_volume / self._density(rho)), rho)

    def whiten(self, rho: Array, c: Array) -> Array:
        return c * jnp.sqrt(self._density(rho) / self.grid.cell_volume)

    def squared_distance(self, a: Array, b: Array) -> Array:
        check_pair(self, a, b)
        difference = jnp.sqrt(self._density(a)) - jnp.sqrt(self._density(b))
        return 4 * self.grid.cell_volume * jnp.sum(jnp.square(difference))

    def _density(self, rho: Array) -> Array:
        return floored(rho, self.floor, grid_axes(self.grid))

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)

    def check_values(self, state: Array) -> None:
        check_density("model", state, grid_axes(self.grid))

    def admissible(self, rho: Array) -> Array:
        return admissible_density(rho, grid_axes(self.grid))

    def report(self, rho: Array) -> Report:
        return {"floored": jnp.mean((rho < self._density(rho)).astype(rho.dtype))}
