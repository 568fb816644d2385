"""The Fisher–Rao (Hellinger) metric on positive densities."""

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..grids import Grid
from ..selection import Selection
from .base import (
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_grid,
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

    def __check_init__(self):
        check_grid(self.grid)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        return diagonal_operator(jnp.sqrt(self.grid.cell_volume / self._density(rho)), rho)

    def whiten(self, rho: Array, c: Array) -> Array:
        return c * jnp.sqrt(self._density(rho) / self.grid.cell_volume)

    def diagonal(self, rho: Array) -> Array:
        return self.grid.cell_volume / self._density(rho)

    def squared_distance(self, a: Array, b: Array) -> Array:
        check_pair(self, a, b)
        difference = jnp.sqrt(self._density(a)) - jnp.sqrt(self._density(b))
        return 4 * self.grid.cell_volume * jnp.sum(jnp.square(difference))

    def _density(self, rho: Array) -> Array:
        return floored(rho, self.floor, self._axes)

    @property
    def _axes(self) -> tuple[int, ...] | None:
        return grid_axes(self.grid)

    def restricted(self, selection: Selection) -> Metric:
        """w k/k′ over ρ at the points, raised to the floor relative to the sample's maximum."""
        if selection.of == "points":
            return selection.scale * _AtPoints(self.grid, self.floor)
        return selection.scale * self

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)

    def check_values(self, state: Array) -> None:
        check_density("model", state, self._axes)

    def admissible(self, rho: Array) -> Array:
        return admissible_density(rho, self._axes)

    def report(self, rho: Array) -> Report:
        return {"floored": jnp.mean((rho < self._density(rho)).astype(rho.dtype))}


class _AtPoints(FisherRao):
    """At a sample of points, which are one function whatever they were taken from."""

    @property
    def _axes(self) -> None:
        return None
