"""Metrics with a diagonal matrix: L² and Fisher–Rao."""

import abc
from functools import cached_property

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..core.settings import check_instance
from ..errors import InputError, name_kind
from ..grids import Grid
from .base import (
    GRIDS,
    FlatMetric,
    Geometry,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_densities,
    check_density,
    check_on_grid,
    check_pair,
    find_floor,
    grid_axes,
    positive_operator,
)


class DiagonalMetric(Metric):
    """A = diag(a): L = diag(√a) is its own transpose, and a covector is whitened by c/√a."""

    @abc.abstractmethod
    def entries(self, rho: Array) -> Array:
        """a at ρ, or what broadcasts to it: one number where all are the same."""

    def at(self, rho: Array) -> "DiagonalGeometry":
        return DiagonalGeometry(self, rho)


class DiagonalGeometry(Geometry):
    """diag(√a) and diag(a)."""

    metric: DiagonalMetric
    whitens_shortest = True

    @cached_property
    def _root(self) -> Array:
        return jnp.sqrt(self.metric.entries(self.rho)).astype(self.rho.dtype)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        root = self._root
        product = lambda x: root * x
        return AdjointOperator(product, product, self.rho, self.rho)

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        entries = self.metric.entries(self.rho).astype(self.rho.dtype)
        return positive_operator(lambda x: entries * x, self.rho)

    def whiten(self, c: Array) -> Array:
        return c / self._root.astype(c.dtype)

    @cached_property
    def diagonal(self) -> Array:
        entries = self.metric.entries(self.rho).astype(self.rho.dtype)
        return jnp.broadcast_to(entries, self.rho.shape)


class L2(DiagonalMetric, FlatMetric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ dx, so A = w I with the cell volume w; A = I where no grid is given.

    On a least-squares loss the natural gradient step of length 1 is Gauss–Newton.

    ```python
    ng.L2(grid)
    ng.L2()          # Σ ζ ζ̂, for data that is not on a grid
    ```

    Cost: O(k). Reference: section 2.1 of the paper.

    Args:
        grid: The grid of the state; None for plain sums.
    """

    grid: Grid | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.grid is not None:
            check_instance("grid", self.grid, Grid, GRIDS)

    def entries(self, rho: Array) -> Array:
        return jnp.asarray(1.0 if self.grid is None else self.grid.cell_volume)

    def restricted(self, selection: Selection) -> Metric:
        """The weight w k/k′ on whatever is selected."""
        return selection.scale * self

    def check_structure(self, state: PyTree) -> None:
        if self.grid is not None:
            check_on_grid(self.grid, state)
        elif not hasattr(state, "shape"):
            raise InputError(
                "metric",
                f"L2() got a state that is {name_kind(state)}",
                "Blocks(...) with one metric per entry of the state",
            )


class FisherRao(DiagonalMetric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ / ρ dx, so A = diag(w/ρ).

    ρ is raised to `floor` times its maximum where it is smaller (default 1e-14 in double, 1e-8 in
    single precision); `info.metric["floored"]` is the share of cells that were. The distance is
    Hellinger's, d(a, b)² = 4 ∫ (√a − √b)² dx, with both densities raised in the same way: its
    gradient is finite where one is zero, and does not see changes below the floor.

    ```python
    ng.FisherRao(grid)
    ```

    Cost: O(k). Reference: section 2.4 of the paper.

    Args:
        grid: The grid of the density.
        floor: Smallest density that is told apart, as a share of the largest.
    """

    grid: Grid = eqx.field(static=True)
    floor: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_instance("grid", self.grid, Grid, GRIDS)

    def at(self, rho: Array) -> "DiagonalGeometry":
        return _FisherRaoGeometry(self, rho)

    def entries(self, rho: Array) -> Array:
        return self.grid.cell_volume / self.density(rho)

    def squared_distance(self, a: Array, b: Array) -> Array:
        check_pair(self, a, b)
        defined = check_densities(a, b, self._axes)
        difference = jnp.sqrt(self.density(a)) - jnp.sqrt(self.density(b))
        square = 4 * self.grid.cell_volume * jnp.sum(jnp.square(difference))
        return jnp.where(defined, square, jnp.nan)

    def density(self, rho: Array) -> Array:
        """ρ, raised to the floor."""
        return jnp.maximum(rho, find_floor(rho, self.floor, self._axes))

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


class _FisherRaoGeometry(DiagonalGeometry):
    """With the share of cells that the floor touched."""

    metric: FisherRao

    def report(self) -> Report:
        raised = self.rho < self.metric.density(self.rho)
        return {"floored": jnp.mean(raised.astype(self.rho.dtype))}


class _AtPoints(FisherRao):
    """At a sample of points, which are one function whatever they were taken from."""

    @property
    def _axes(self) -> None:
        return None
