"""Metrics of transport with a mobility ρ^{2k}: k = ½ is W₂, k = 0 is Ḣ⁻¹."""

import math
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from ..core.selection import Selection, Sublattice
from ..core.settings import check_instance
from ..errors import InputError
from ..grids import Grid
from .base import (
    GRIDS,
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
    squared_length,
)
from .distances import squared_wasserstein
from .elliptic.divergence import Fluxes, Solution
from .elliptic.equation import Elliptic, Method, TransportEquation, divergence_at
from .potential import PotentialGeometry, PotentialMetric


class Mobility(PotentialMetric):
    """The metric of transport with mobility a = ρ^{2k}: the least kinetic energy of a motion ζ.

    ‖ζ‖² = min { ∫ |v|² dx : −∇·(√a v) = ζ } = ∫ ζ φ dx,  −∇·(a∇φ) = ζ with zero flux.

    k = ½ is W₂, k = 0 is Ḣ⁻¹. With B v = −∇·(√a v): L = √w B†P, A = w Pᵀ(BBᵀ)†P, and a covector
    is whitened by Bᵀc/√w, which needs no solve. P = I − a1ᵀ/(1ᵀa) removes the mass of a tangent
    along a, because transport conserves mass.

    The scheme is that of staggered finite volumes, of second order, with a averaged on faces; it
    takes Neumann (zero-flux) and periodic grids.

    a is raised to `floor` times its maximum: by default 1e-14 in double and 1e-8 in single
    precision. `info.metric["floored"]` is the share of cells touched; the bias of G is about four
    times the floor. `elliptic` says how the equation is solved; `info.metric["elliptic"]` tells
    which method was taken.

    ```python
    ng.Mobility(grid, 0.5)
    ```

    Cost: O(k) for k cells, set-up and every product, by multigrid or in 1D; see `Elliptic` for
    the direct methods on small grids. Reference: section 2.5 and remark 2.3 of the paper.

    Args:
        grid: The grid of the density.
        exponent: k in a = ρ^{2k}.
        floor: Smallest mobility, as a share of the largest.
        elliptic: How the elliptic equation is solved.
    """

    grid: Grid = eqx.field(static=True)
    exponent: float = eqx.field(static=True)
    floor: float | None = eqx.field(static=True)
    elliptic: Elliptic = eqx.field(static=True)

    def __init__(
        self,
        grid: Grid,
        exponent: float,
        floor: float | None = None,
        elliptic: Elliptic = Elliptic(),
    ):
        check_instance("grid", grid, Grid, GRIDS)
        if not (isinstance(exponent, (int, float)) and 0 <= exponent < math.inf):
            raise InputError("exponent", f"{exponent!r} is not a number ≥ 0", "0.5 for W₂")
        if floor is not None and not 0 <= floor < 1:
            raise InputError("floor", f"{floor!r} is not in [0, 1)", "1e-14")
        if floor == 0:
            raise InputError(
                "floor", "0 would let a density of zero cut the domain into islands", "1e-14"
            )
        if grid.boundary == "dirichlet":
            raise InputError(
                "grid",
                "transport conserves mass, so it needs a zero-flux or a periodic boundary",
                'Grid(..., boundary="neumann") or boundary="periodic"',
            )
        check_instance("elliptic", elliptic, Elliptic, 'ng.metrics.Elliptic("multigrid")')
        elliptic.choose(grid.shape)
        self.grid, self.exponent, self.floor, self.elliptic = grid, float(exponent), floor, elliptic

    def distributed(self, mesh: Mesh) -> Metric:
        """Over several devices nothing is factorised on the host."""
        if self.elliptic.method == "sparse":
            raise InputError("mesh", "'sparse' factorises on one host", 'Elliptic("multigrid")')
        elliptic = replace(self.elliptic, on_host=False)
        return Mobility(self.grid, self.exponent, self.floor, elliptic)

    def at(self, rho: Array) -> "_TransportGeometry":
        method = partial(self.elliptic.choose, self.grid.shape)
        return _TransportGeometry(self, rho, self.grid.dimension, method)

    def mobility(self, rho: Array) -> Array:
        """a = ρ^{2k}, raised to the floor."""
        if self.exponent == 0:
            return jnp.ones_like(rho)
        a = rho if self.exponent == 0.5 else rho ** (2 * self.exponent)
        return jnp.maximum(a, find_floor(a, self.floor, grid_axes(self.grid)))

    def squared_distance(self, a: Array, b: Array) -> Array:
        """W₂² for k = ½ and the squared norm of Ḣ⁻¹ for k = 0; no other k has a formula.

        W₂² is that of `squared_wasserstein`, between the densities raised to the floor; its
        derivative with respect to a density of zero is that at the floor.
        """
        if self.exponent == 0:
            return squared_length(self, a, b)
        if self.exponent != 0.5:
            return super().squared_distance(a, b)
        check_pair(self, a, b)
        defined = check_densities(a, b, grid_axes(self.grid))

        def each(density: Array) -> Array:
            raised = density + jax.lax.stop_gradient(self.mobility(density) - density)
            return raised.reshape(-1, *self.grid.shape)

        one = partial(squared_wasserstein, self.grid)
        pairs = each(jnp.asarray(a)), each(jnp.asarray(b))
        if self.grid.dimension == 1:  # one formula
            squares = jax.vmap(one)(*pairs)
        else:  # a Sinkhorn iteration ends for each density in its own time
            squares = jax.lax.map(lambda pair: one(*pair), pairs)
        return jnp.where(defined, jnp.sum(squares), jnp.nan)

    def potential(self, rho: Array, zeta: Array) -> Solution:
        """φ with −∇·(a∇φ) = ζ, its weighted mean ∫aφ dx zero, with the solver's diagnosis.

        For one density. ζ must have no mass, to 1e-6 of its size: transport moves mass and makes
        none. (A metric applied to a tangent with mass removes it in proportion to a.)

        ```python
        phi, iterations, error, converged = ng.Wasserstein(grid).potential(rho, zeta)
        ```
        """
        rho, zeta = jnp.asarray(rho), jnp.asarray(zeta)
        for name, value in (("rho", rho), ("zeta", zeta)):
            if value.shape != self.grid.shape:
                raise InputError(name, f"has shape {value.shape}", f"{self.grid.shape}")
        if not bool(jnp.all(jnp.isfinite(zeta))):
            raise InputError("zeta", "has entries that are not finite", "a finite tangent")
        if self.exponent > 0:
            check_density("rho", rho, grid_axes(self.grid))
        excess, size = float(jnp.sum(zeta)), float(jnp.sum(jnp.abs(zeta)))
        if abs(excess) > 1e-6 * size:
            raise InputError(
                "zeta",
                f"is not compatible: its mass is {excess / size:.2g} of its size ∫|ζ| dx",
                "zeta - rho * zeta.sum() / rho.sum()",
            )
        return _potential(self, rho, zeta)

    def restricted(self, selection: Selection) -> Metric:
        """On a sublattice the metric of the coarser grid; a sample of points has no transport."""
        if not isinstance(selection, Sublattice):
            return super().restricted(selection)
        grid = self.grid.coarsen(selection)
        return Mobility(grid, self.exponent, self.floor, self.elliptic)

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)

    def check_values(self, state: Array) -> None:
        if self.exponent > 0:
            check_density("model", state, grid_axes(self.grid))

    def admissible(self, rho: Array) -> Array:
        if self.exponent == 0:
            return super().admissible(rho)
        return admissible_density(rho, grid_axes(self.grid))


class _TransportGeometry(PotentialGeometry):
    """√w B†P and w Pᵀ(BBᵀ)†P."""

    metric: Mobility
    annihilates = True
    iterates_by = ("multigrid", "sparse")
    in_turn = True

    def set_up(self, rho: Array, method: Method) -> TransportEquation:
        grid, a = self.metric.grid, self.metric.mobility(rho)
        factor = self.metric.elliptic.factorise(method, divergence_at(grid, a))
        return TransportEquation(a, factor, math.sqrt(grid.cell_volume))

    def whiten(self, c: Array) -> Fluxes:
        B = divergence_at(self.metric.grid, self.metric.mobility(self.rho))
        return B.apply_transpose(c / math.sqrt(self.metric.grid.cell_volume))

    def remainder(self, c: Array) -> Array:
        a, axes = self.metric.mobility(self.rho), grid_axes(self.metric.grid)
        mean = jnp.sum(a * c, axes, keepdims=True) / jnp.sum(a, axes, keepdims=True)
        return jnp.broadcast_to(mean, c.shape)

    def report(self) -> Report:
        if self.metric.exponent == 0:
            return {}
        a = self.rho ** (2 * self.metric.exponent)
        raised = a < self.metric.mobility(self.rho)
        return {"floored": jnp.mean(raised.astype(self.rho.dtype))}


@eqx.filter_jit
def _potential(metric: Mobility, rho: Array, zeta: Array) -> Solution:
    geometry = metric.at(rho)
    equation = replace(geometry.set_up(rho, geometry.method(1)), root=1.0)  # ζ itself, not √w ζ
    solution = equation.factor.solution(equation.source(zeta))
    return solution._replace(phi=equation.source_transpose(solution.phi))


class Wasserstein(Mobility):
    """The W₂ metric: `Mobility(grid, 0.5)`, a = ρ.

    ⟨ζ, ζ⟩ is the kinetic energy ∫ ρ|∇φ|² dx of the cheapest flow −∇·(ρ∇φ) = ζ. The density is
    used as given, not divided by its mass.

    `squared_distance(a, b)` is W₂² itself, times the mass: exact on lines and rings for densities
    that are constant on cells, a Sinkhorn divergence with ε = 2h² in 2D and 3D. Both agree with
    the metric to second order in h for smooth densities; masses that differ are scaled to one.

    ```python
    metric = ng.Wasserstein(grid)
    metric.squared_distance(a, b)
    ```

    Cost: that of `Mobility`. Reference: section 2.5 of the paper.

    Args:
        grid: The grid of the density.
        floor: Smallest density, as a share of the largest.
        elliptic: How the elliptic equation is solved.
    """

    def __init__(
        self,
        grid: Grid,
        floor: float | None = None,
        elliptic: Elliptic = Elliptic(),
    ):
        super().__init__(grid, 0.5, floor, elliptic)
