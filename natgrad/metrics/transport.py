"""Transport metrics: Wasserstein W₂ and its generalisation to other mobilities."""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..elliptic.factor import Factor, Solution, remove_null_component
from ..elliptic.factorise import factorise
from ..elliptic.methods import Elliptic, Method
from ..elliptic.stencils import (
    Stencil,
    collocated_central,
    collocated_forward,
    collocated_fourth_order,
    staggered_neumann,
    staggered_periodic,
    weighted_gradient,
)
from ..errors import InputError
from ..grids import Grid
from ..linalg import gram
from ..linalg.products import accurate_product
from ..operators import AdjointOperator
from .base import (
    POSITIVE,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_on_grid,
    floored,
    grid_axes,
)

TransportScheme = Literal["staggered", "collocated", "forward", "fourth_order"]
COLLOCATED = {
    "collocated": collocated_central,
    "forward": collocated_forward,
    "fourth_order": collocated_fourth_order,
}


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
    scheme: TransportScheme = eqx.field(static=True)
    floor: float | None = eqx.field(static=True)
    elliptic: Elliptic = eqx.field(static=True)

    def __init__(
        self,
        grid: Grid,
        exponent: float,
        scheme: TransportScheme = "staggered",
        floor: float | None = None,
        elliptic: Elliptic = Elliptic(),
    ):
        if not (isinstance(exponent, (int, float)) and 0 <= exponent < math.inf):
            raise InputError("exponent", f"{exponent!r} is not a number ≥ 0", "0.5 for W₂")
        if scheme != "staggered" and scheme not in COLLOCATED:
            raise InputError(
                "scheme", f"{scheme!r} is unknown", f"one of {('staggered', *COLLOCATED)}"
            )
        if scheme == "staggered" and grid.boundary == "dirichlet":
            raise InputError(
                "grid",
                "transport conserves mass, so it needs a zero-flux or a periodic boundary",
                'Grid(..., boundary="neumann") or boundary="periodic"',
            )
        if scheme != "staggered" and grid.boundary == "periodic":
            raise InputError(
                "scheme",
                "the schemes of appendix B.1 take zero outside the grid, not periodic values",
                "a neumann or dirichlet grid, or scheme='staggered'",
            )
        if floor is not None and not 0 <= floor < 1:
            raise InputError("floor", f"{floor!r} is not in [0, 1)", "1e-14")
        if floor == 0 and scheme == "staggered":
            raise InputError(
                "floor", "0 would let a density of zero cut the domain into islands", "1e-14"
            )
        if not isinstance(elliptic, Elliptic):
            raise InputError("elliptic", f"is {elliptic!r}", 'ng.Elliptic("multigrid")')
        if scheme != "staggered" and elliptic.method != "auto":
            raise InputError("elliptic", "is for the staggered scheme", "Elliptic()")
        elliptic.choose(grid.shape)
        self.grid, self.exponent, self.scheme = grid, float(exponent), scheme
        self.floor, self.elliptic = floor, elliptic

    def _mobility(self, rho: Array) -> Array:
        if self.exponent == 0:
            return jnp.ones_like(rho)
        a = rho if self.exponent == 0.5 else rho ** (2 * self.exponent)
        floor = 0.0 if self.floor is None and self.scheme != "staggered" else self.floor
        return floored(a, floor, grid_axes(self.grid))

    def _stencils(self) -> tuple[Stencil, ...]:
        if self.scheme != "staggered":
            return tuple(COLLOCATED[self.scheme](h) for h in self.grid.spacing)
        if self.grid.boundary == "periodic":
            return tuple(staggered_periodic(h) for h in self.grid.spacing)
        return tuple(staggered_neumann(h) for h in self.grid.spacing)

    def _weights(self, a: Array) -> tuple[Array, ...]:
        """√a at the flux positions: on faces by the arithmetic mean, or at the points."""
        if self.scheme != "staggered":
            return (jnp.sqrt(a),) * self.grid.dimension
        return tuple(
            jnp.sqrt(_face_mean(a, axis, self.grid.boundary == "periodic"))
            for axis in grid_axes(self.grid)
        )

    def _project(self, a: Array, zeta: Array) -> Array:
        """P ζ = ζ − a Σζ/Σa; the paper's schemes lose only the mean of a class without outflow."""
        if self.scheme != "staggered":
            return remove_null_component(self._stencils(), zeta)
        return zeta - a * (jnp.sum(zeta) / jnp.sum(a))

    def _project_transpose(self, a: Array, phi: Array) -> Array:
        """Pᵀφ = φ − Σ(aφ)/Σa."""
        if self.scheme != "staggered":
            return remove_null_component(self._stencils(), phi)
        return phi - jnp.sum(a * phi) / jnp.sum(a)

    def _method(self, columns: int | None = None) -> Method | None:
        """How the equation is solved; None for the schemes with a factorisation of their own."""
        if self.scheme != "staggered":
            return None
        return self.elliptic.choose(self.grid.shape, columns)

    def _factor(self, method: Method | None, a: Array) -> Factor:
        stencils, weights = self._stencils(), self._weights(a)
        if method is not None:
            return self.elliptic.factorise(method, stencils, weights)
        deficient = self.scheme == "fourth_order" and self.annihilates
        return factorise(stencils, weights, method="truncated" if deficient else None)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        root, method = math.sqrt(self.grid.cell_volume), self._method()
        a = self._batch(self._mobility(rho))
        factors = _over_densities(method, lambda a: self._factor(method, a), a)

        def mv(zeta: Array) -> tuple[Array, ...]:
            one = lambda a, f, z: f.pseudo_inverse(root * self._project(a, z))
            fluxes = _over_densities(method, one, a, factors, self._batch(zeta))
            return tuple(self._unbatch(v, rho) for v in fluxes)

        def rmv(fluxes: tuple[Array, ...]) -> Array:
            one = lambda a, f, v: root * self._project_transpose(a, f.pseudo_inverse_transpose(v))
            batches = tuple(map(self._batch, fluxes))
            return _over_densities(method, one, a, factors, batches).reshape(rho.shape)

        return AdjointOperator(mv, rmv, rho, jax.eval_shape(mv, rho))

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        weight, method = self.grid.cell_volume, self._method()
        a = self._batch(self._mobility(rho))
        factors = _over_densities(method, lambda a: self._factor(method, a), a)

        def product(zeta: Array) -> Array:
            one = lambda a, f, z: self._project_transpose(a, f.solve(self._project(a, z)))
            potentials = _over_densities(method, one, a, factors, self._batch(zeta))
            return weight * potentials.reshape(rho.shape)

        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def image(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        p, root, method = len(columns), math.sqrt(self.grid.cell_volume), self._method(len(columns))

        def one(a: Array, columns: Array) -> tuple[tuple[Array, ...], Solution]:
            projected = jax.vmap(lambda z: root * self._project(a, z))(columns)
            fluxes, solution = self._factor(method, a).flows(projected)
            return fluxes, solution._replace(phi=None)

        a, stacked = self._batch(self._mobility(rho)), self._stacked(columns)
        fluxes, solution = _over_densities(method, one, a, stacked)
        rows = [jnp.moveaxis(flux, 1, 0).reshape(p, -1) for flux in fluxes]
        return jnp.concatenate(rows, axis=1), _told(method, solution)

    def information(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        """G = ΦᵀZ + ZᵀΦ − ΦᵀKΦ for the potentials Φ: second order in their error.

        With Φ = K⁺Z + E the three terms leave −EᵀKE, so that an iteration stopped at 1e-6
        gives G to 1e-12. Direct methods have no such error and take G = YᵀY.
        """
        method = self._method(len(columns))
        if method not in ("multigrid", "sparse"):
            return super().information(rho, columns)
        p, tolerance = len(columns), math.sqrt(self.elliptic.tolerance)

        def one(a: Array, columns: Array) -> tuple[Array, Solution]:
            projected = jax.vmap(lambda z: self._project(a, z))(columns)
            fluxes, solution = self._factor(method, a).flows(projected, tolerance)
            half = accurate_product(solution.phi.reshape(p, -1), projected.reshape(p, -1).T)
            squares = sum(gram(flux.reshape(p, -1).T) for flux in fluxes)
            return half + half.T - squares, solution._replace(phi=None)

        a, stacked = self._batch(self._mobility(rho)), self._stacked(columns)
        G, solution = _over_densities(method, one, a, stacked)
        return self.grid.cell_volume * jnp.sum(G, axis=0), _told(method, solution)

    def whiten(self, rho: Array, c: Array) -> tuple[Array, ...]:
        scaled = c / math.sqrt(self.grid.cell_volume)
        return weighted_gradient(self._stencils(), self._weights(self._mobility(rho)), scaled)

    def remainder(self, rho: Array, c: Array) -> Array:
        if self.scheme != "staggered":
            return super().remainder(rho, c)
        a, axes = self._mobility(rho), grid_axes(self.grid)
        mean = jnp.sum(a * c, axes, keepdims=True) / jnp.sum(a, axes, keepdims=True)
        return jnp.broadcast_to(mean, c.shape)

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
        odd_central = self.scheme in ("collocated", "fourth_order") and all(
            n % 2 for n in self.grid.shape
        )
        return self.scheme == "staggered" or odd_central

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


class Wasserstein(Mobility):
    """The W₂ metric: `Mobility(grid, 0.5)`, a = ρ.

    ⟨ζ, ζ⟩ is the kinetic energy ∫ ρ|∇φ|² dx of the cheapest flow −∇·(ρ∇φ) = ζ. The density is
    used as given, not divided by its mass.

    ```python
    ng.Wasserstein(grid)
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


@eqx.filter_jit
def _potential(metric: Mobility, rho: Array, zeta: Array) -> Solution:
    a = metric._mobility(rho)
    solution = metric._factor(metric._method(1), a).solution(metric._project(a, zeta))
    return solution._replace(phi=metric._project_transpose(a, solution.phi))


def _over_densities(method: Method | None, function, *batched: PyTree) -> PyTree:
    """`function` for each density of a batch: side by side, or in turn where one fills the device.

    Side by side, an iteration would run on every density until the slowest has converged.
    """
    if jax.tree.leaves(batched)[0].shape[0] == 1:
        alone = jax.tree.map(lambda x: x[0], batched)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(*alone))
    if method in ("multigrid", "sparse"):
        return jax.lax.map(lambda arguments: function(*arguments), batched)
    return jax.vmap(function)(*batched)


def _told(method: Method | None, solution: Solution) -> Report:
    """What `info.metric` says of the elliptic solves."""
    if method is None:
        return {}
    if method not in ("multigrid", "sparse"):
        return {"elliptic": method}
    finite = jnp.all(jnp.isfinite(solution.error))
    return {
        "elliptic": method,
        "elliptic_iterations": jnp.max(solution.iterations),
        "elliptic_error": jnp.where(finite, jnp.max(solution.error), jnp.nan),
        "converged": jnp.all(solution.converged),
    }


def _face_mean(a: Array, axis: int, periodic: bool) -> Array:
    n = a.shape[axis]
    if periodic:
        return 0.5 * (a + jnp.roll(a, -1, axis))
    lower = jax.lax.slice_in_dim(a, 0, n - 1, axis=axis % a.ndim)
    upper = jax.lax.slice_in_dim(a, 1, n, axis=axis % a.ndim)
    return 0.5 * (lower + upper)
