"""Metrics of transport with a mobility ρ^{2k}: k = ½ is W₂, k = 0 is Ḣ⁻¹."""

import math
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.sharding import Mesh

from ..core.dense import accurate_product, gram
from ..core.operators import AdjointOperator
from ..core.selection import Selection, Sublattice
from ..errors import InputError
from ..grids import Grid
from .base import (
    POSITIVE,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_grid,
    check_on_grid,
    check_pair,
    floored,
    grid_axes,
    squared_length,
)
from .distances import squared_wasserstein
from .elliptic.equation import (
    Elliptic,
    TransportEquation,
    TransportScheme,
    map_densities,
    report_solution,
)
from .elliptic.stencils import Solution, weighted_gradient


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

    def _mobility(self, rho: Array) -> Array:
        if self.exponent == 0:
            return jnp.ones_like(rho)
        a = rho if self.exponent == 0.5 else rho ** (2 * self.exponent)
        floor = 0.0 if self.floor is None and self.scheme != "staggered" else self.floor
        return floored(a, floor, grid_axes(self.grid))

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        root, method = math.sqrt(self.grid.cell_volume), self.equation.method()
        a = self._batch(self._mobility(rho))
        factors = map_densities(method, lambda a: self.equation.factor(method, a), a)

        def mv(zeta: Array) -> tuple[Array, ...]:
            one = lambda a, f, z: f.pseudo_inverse(root * self.equation.project(a, z))
            fluxes = map_densities(method, one, a, factors, self._batch(zeta))
            return tuple(self._unbatch(v, rho) for v in fluxes)

        def rmv(fluxes: tuple[Array, ...]) -> Array:
            one = lambda a, f, v: (
                root * self.equation.project_transpose(a, f.pseudo_inverse_transpose(v))
            )
            batches = tuple(map(self._batch, fluxes))
            return map_densities(method, one, a, factors, batches).reshape(rho.shape)

        return AdjointOperator(mv, rmv, rho, jax.eval_shape(mv, rho))

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        weight, method = self.grid.cell_volume, self.equation.method()
        a = self._batch(self._mobility(rho))
        factors = map_densities(method, lambda a: self.equation.factor(method, a), a)

        def product(zeta: Array) -> Array:
            one = lambda a, f, z: self.equation.project_transpose(
                a, f.solve(self.equation.project(a, z))
            )
            potentials = map_densities(method, one, a, factors, self._batch(zeta))
            return weight * potentials.reshape(rho.shape)

        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def image(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        p, root, method = (
            len(columns),
            math.sqrt(self.grid.cell_volume),
            self.equation.method(len(columns)),
        )

        def one(a: Array, columns: Array) -> tuple[tuple[Array, ...], Solution]:
            projected = jax.vmap(lambda z: root * self.equation.project(a, z))(columns)
            fluxes, solution = self.equation.factor(method, a).flows(projected)
            return fluxes, solution._replace(phi=None)

        a, stacked = self._batch(self._mobility(rho)), self._stacked(columns)
        fluxes, solution = map_densities(method, one, a, stacked)
        rows = [jnp.moveaxis(flux, 1, 0).reshape(p, -1) for flux in fluxes]
        return jnp.concatenate(rows, axis=1), report_solution(method, solution)

    def information(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        """G = ΦᵀZ + ZᵀΦ − ΦᵀKΦ for the potentials Φ: second order in their error.

        With Φ = K⁺Z + E the three terms leave −EᵀKE, so that an iteration stopped at 1e-6
        gives G to 1e-12. Direct methods have no such error and take G = YᵀY.
        """
        method = self.equation.method(len(columns))
        if method not in ("multigrid", "sparse"):
            return super().information(rho, columns)
        p, tolerance = len(columns), math.sqrt(self.equation.elliptic.tolerance)

        def one(a: Array, columns: Array) -> tuple[Array, Solution]:
            projected = jax.vmap(lambda z: self.equation.project(a, z))(columns)
            fluxes, solution = self.equation.factor(method, a).flows(projected, tolerance)
            half = accurate_product(solution.phi.reshape(p, -1), projected.reshape(p, -1).T)
            squares = sum(gram(flux.reshape(p, -1).T) for flux in fluxes)
            return half + half.T - squares, solution._replace(phi=None)

        a, stacked = self._batch(self._mobility(rho)), self._stacked(columns)
        G, solution = map_densities(method, one, a, stacked)
        return self.grid.cell_volume * jnp.sum(G, axis=0), report_solution(method, solution)

    def whiten(self, rho: Array, c: Array) -> tuple[Array, ...]:
        scaled = c / math.sqrt(self.grid.cell_volume)
        return weighted_gradient(
            self.equation.stencils, self.equation.weights(self._mobility(rho)), scaled
        )

    def remainder(self, rho: Array, c: Array) -> Array:
        if self.scheme != "staggered":
            return super().remainder(rho, c)
        a, axes = self._mobility(rho), grid_axes(self.grid)
        mean = jnp.sum(a * c, axes, keepdims=True) / jnp.sum(a, axes, keepdims=True)
        return jnp.broadcast_to(mean, c.shape)

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
        raised = lambda x: x + jax.lax.stop_gradient(self._mobility(x) - x)
        pairs = self._batch(raised(jnp.asarray(a))), self._batch(raised(jnp.asarray(b)))
        one = partial(squared_wasserstein, self.grid)
        # a line is one formula, a Sinkhorn iteration ends for each density in its own time
        method = "line" if self.grid.dimension == 1 else "multigrid"
        return jnp.sum(map_densities(method, one, *pairs))

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

    def _batch(self, values: Array) -> Array:
        return values.reshape(-1, *values.shape[-self.grid.dimension :])

    def _stacked(self, columns: Array) -> Array:
        """Columns (p, *batch, *grid) as (batch, p, *grid)."""
        shape = columns.shape[-self.grid.dimension :]
        return jnp.moveaxis(columns.reshape(len(columns), -1, *shape), 1, 0)

    def _unbatch(self, values: Array, rho: Array) -> Array:
        return values.reshape(*rho.shape[: -self.grid.dimension], *values.shape[1:])

    @property
    def annihilates(self) -> bool:
        return self.equation.annihilates

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

    def report(self, rho: Array) -> Report:
        if self.exponent == 0:
            return {}
        a = rho ** (2 * self.exponent)
        return {"floored": jnp.mean((a < self._mobility(rho)).astype(rho.dtype))}


@eqx.filter_jit
def _potential(metric: Mobility, rho: Array, zeta: Array) -> Solution:
    a, equation = metric._mobility(rho), metric.equation
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
