"""Metrics of transport with a mobility ρ^{2k}: k = ½ is W₂, k = 0 is Ḣ⁻¹."""

import math
from dataclasses import replace
from functools import cached_property, partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from ..core.selection import Selection, Sublattice
from ..errors import InputError
from ..grids import Grid
from .base import (
    Geometry,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_grid,
    check_on_grid,
    check_pair,
    grid_axes,
    raise_to_floor,
    squared_length,
)
from .distances import squared_wasserstein
from .elliptic.equation import (
    Elliptic,
    Method,
    TransportEquation,
    TransportScheme,
    map_densities,
)
from .elliptic.stencils import Factor, Solution, weighted_gradient
from .potential import Fluxes, PotentialGeometry


class Mobility(Metric):
    """The metric of transport with mobility a = ρ^{2k}: the least kinetic energy of a motion ζ.

    ‖ζ‖² = min { ∫ |v|² dx : −∇·(√a v) = ζ } = ∫ ζ φ dx,  −∇·(a∇φ) = ζ with zero flux.

    k = ½ is W₂, k = 0 is Ḣ⁻¹. With B v = −∇·(√a v): L = √w B†P, A = w Pᵀ(BBᵀ)†P, and a covector
    is whitened by Bᵀc/√w, which needs no solve. P = I − a1ᵀ/(1ᵀa) removes the mass of a tangent
    along a, because transport conserves mass.

    `scheme="staggered"` (default) is the second-order finite volume scheme with a averaged on
    faces; it takes Neumann (zero-flux) and periodic grids. The schemes of the paper's appendix B.1
    are there to reproduce its figures: `"collocated"` (central differences, zero outside),
    `"forward"` (forward divergence, backward gradient) and `"fourth_order"`. They have no mass
    projection, and the central ones decouple into sublattices, which makes their metric
    wrong by orders of magnitude where the density is small.

    a is raised to `floor` times its maximum: by default 1e-14 in double and 1e-8 in single
    precision, 0 for the paper's schemes. `info.metric["floored"]` is the share of cells touched;
    the bias of G is about four times the floor. `elliptic` says how the equation is solved;
    `info.metric["elliptic"]` tells which method was taken.

    ```python
    ng.Mobility(grid, 0.5)
    ```

    Cost: O(k) for k cells, set-up and every product, by multigrid or in 1D; see `Elliptic` for
    the direct methods on small grids. The paper's schemes factorise block by block along the
    longest axis, O(n₁ m³) with m the product of the other sides.
    Reference: section 2.5 and remark 2.3 of the paper.
    """

    grid: Grid = eqx.field(static=True)
    exponent: float = eqx.field(static=True)
    floor: float | None = eqx.field(static=True)
    equation: TransportEquation = eqx.field(static=True)

    def __init__(
        self,
        grid: Grid,
        exponent: float,
        scheme: TransportScheme = "staggered",
        floor: float | None = None,
        elliptic: Elliptic = Elliptic(),
    ):
        check_grid(grid)
        if not (isinstance(exponent, (int, float)) and 0 <= exponent < math.inf):
            raise InputError("exponent", f"{exponent!r} is not a number ≥ 0", "0.5 for W₂")
        if floor is not None and not 0 <= floor < 1:
            raise InputError("floor", f"{floor!r} is not in [0, 1)", "1e-14")
        if floor == 0 and scheme == "staggered":
            raise InputError(
                "floor", "0 would let a density of zero cut the domain into islands", "1e-14"
            )
        self.grid, self.exponent, self.floor = grid, float(exponent), floor
        self.equation = TransportEquation(grid, scheme, elliptic)

    @property
    def scheme(self) -> TransportScheme:
        """The scheme of the equation."""
        return self.equation.scheme

    def distributed(self, mesh: Mesh) -> Metric:
        """Over several devices nothing is factorised on the host."""
        elliptic = self.equation.elliptic
        if elliptic.method == "sparse":
            raise InputError("mesh", "'sparse' factorises on one host", 'Elliptic("multigrid")')
        elliptic = replace(elliptic, on_host=False)
        return Mobility(self.grid, self.exponent, self.scheme, self.floor, elliptic)

    def at(self, rho: Array) -> Geometry:
        return _TransportGeometry(self, rho)

    def mobility(self, rho: Array) -> Array:
        """a = ρ^{2k}, raised to the floor."""
        if self.exponent == 0:
            return jnp.ones_like(rho)
        a = rho if self.exponent == 0.5 else rho ** (2 * self.exponent)
        floor = 0.0 if self.floor is None and self.scheme != "staggered" else self.floor
        return raise_to_floor(a, floor, grid_axes(self.grid))

    def squared_distance(self, a: Array, b: Array) -> Array:
        """W₂² for k = ½ and the squared norm of Ḣ⁻¹ for k = 0; no other k has a formula.

        W₂² is that of `squared_wasserstein`, between the densities raised to the floor; its
        derivative with respect to a density of zero is that at the floor. The schemes of the
        paper's appendix B.1 conserve no mass and have a distance for k = 0 only.
        """
        if self.exponent == 0:
            return squared_length(self, a, b)
        if self.exponent != 0.5 or self.scheme != "staggered":
            return super().squared_distance(a, b)
        check_pair(self, a, b)

        def each(density: Array) -> Array:
            raised = density + jax.lax.stop_gradient(self.mobility(density) - density)
            return raised.reshape(-1, *self.grid.shape)

        one = partial(squared_wasserstein, self.grid)
        # a line is one formula, a Sinkhorn iteration ends for each density in its own time
        method = "line" if self.grid.dimension == 1 else "multigrid"
        return jnp.sum(map_densities(method, one, each(jnp.asarray(a)), each(jnp.asarray(b))))

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
        if self.scheme == "staggered" and abs(excess) > 1e-6 * size:
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
        grid, elliptic = selection.coarse(self.grid), self.equation.elliptic
        return Mobility(grid, self.exponent, self.scheme, self.floor, elliptic)

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)

    def check_values(self, state: Array) -> None:
        if self.exponent > 0:
            check_density("model", state, grid_axes(self.grid))

    def admissible(self, rho: Array) -> Array:
        if self.exponent == 0:
            return super().admissible(rho)
        return admissible_density(rho, grid_axes(self.grid))


class _Transport(eqx.Module):
    """−∇·(a∇φ) = √w Pζ at one mobility a, with E = √a∇ and K factorised."""

    a: Array
    factor: Factor
    scheme: TransportEquation = eqx.field(static=True)

    @property
    def _root(self) -> float:
        return math.sqrt(self.scheme.grid.cell_volume)

    def source(self, zeta: Array) -> Array:
        return self._root * self.scheme.project(self.a, zeta)

    def source_transpose(self, phi: Array) -> Array:
        return self._root * self.scheme.project_transpose(self.a, phi)


class _TransportGeometry(PotentialGeometry):
    """√w B†P and w Pᵀ(BBᵀ)†P."""

    metric: Mobility
    iterates_by = ("multigrid", "sparse")
    in_turn = True

    def __init__(self, metric: Mobility, rho: Array):
        super().__init__(metric, rho)
        self.dimension, self.elliptic = metric.grid.dimension, metric.equation.elliptic

    @cached_property
    def _mobility(self) -> Array:
        return self.metric.mobility(self.rho)

    def method(self, columns: int | None = None) -> Method | None:
        return self.metric.equation.method(columns)

    def set_up(self, rho: Array, method: Method | None) -> _Transport:
        a, equation = self.metric.mobility(rho), self.metric.equation
        return _Transport(a, equation.factor(method, a), equation)

    def whiten(self, c: Array) -> Fluxes:
        equation, scaled = self.metric.equation, c / math.sqrt(self.metric.grid.cell_volume)
        return weighted_gradient(equation.stencils, equation.weights(self._mobility), scaled)

    def remainder(self, c: Array) -> Array:
        if self.metric.scheme != "staggered":
            return super().remainder(c)
        a, axes = self._mobility, grid_axes(self.metric.grid)
        mean = jnp.sum(a * c, axes, keepdims=True) / jnp.sum(a, axes, keepdims=True)
        return jnp.broadcast_to(mean, c.shape)

    @property
    def annihilates(self) -> bool:
        return self.metric.equation.annihilates

    def report(self) -> Report:
        if self.metric.exponent == 0:
            return {}
        a = self.rho ** (2 * self.metric.exponent)
        return {"floored": jnp.mean((a < self._mobility).astype(self.rho.dtype))}


@eqx.filter_jit
def _potential(metric: Mobility, rho: Array, zeta: Array) -> Solution:
    a, equation = metric.mobility(rho), metric.equation
    solution = equation.factor(equation.method(1), a).solution(equation.project(a, zeta))
    return solution._replace(phi=equation.project_transpose(a, solution.phi))


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

    Cost and schemes: those of `Mobility`. Reference: section 2.5 and appendix B.1 of the paper.
    """

    def __init__(
        self,
        grid: Grid,
        scheme: TransportScheme = "staggered",
        floor: float | None = None,
        elliptic: Elliptic = Elliptic(),
    ):
        super().__init__(grid, 0.5, scheme, floor, elliptic)
