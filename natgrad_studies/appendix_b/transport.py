"""Transport by the differences of appendix B.1, which reproduce the paper's figures."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from natgrad import FisherRao, Grid, InputError
from natgrad.metrics import AdjointOperator, Geometry, Metric

from .factorisations import factorise
from .stencils import (
    Factor,
    Stencil,
    central,
    forward,
    fourth_order,
    remove_null_component,
    weighted_gradient,
)

POSITIVE = frozenset({lx.symmetric_tag, lx.positive_semidefinite_tag})
Scheme = Literal["collocated", "forward", "fourth_order"]
STENCILS = {"collocated": central, "forward": forward, "fourth_order": fourth_order}


class CollocatedTransport(Metric):
    """The metric of transport with mobility a = ρ^{2k}, discretised as in the paper's appendix B.1.

    ‖ζ‖² = min { ∫ |v|² dx : Bv = ζ } with B v = −∇·(√a v), so L = √w B† and a covector is whitened
    by Bᵀc/√w. k = ½ is the paper's W₂. Fluxes and densities share the grid points, with zero
    outside: `"collocated"` takes central differences, `"forward"` a forward divergence and a
    backward gradient, `"fourth_order"` central differences of that order.

    There is no mass projection, and the central schemes decouple into sublattices, which makes
    their metric wrong by orders of magnitude where the density is small: `natgrad.Wasserstein` is
    the one to use. a is raised to `floor` times its maximum, by default not at all.

    ```python
    CollocatedTransport(grid), CollocatedTransport(grid, 0.5, "forward")
    ```

    Cost: block by block along the longest axis, O(n₁ m³) for the set-up, with m the product of the
    other sides. Reference: section 2.5 and appendix B.1 of the paper.
    """

    grid: Grid = eqx.field(static=True)
    exponent: float = eqx.field(static=True, default=0.5)
    scheme: Scheme = eqx.field(static=True, default="collocated")
    floor: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        FisherRao(self.grid)  # refuses what is not a grid
        if not (isinstance(self.exponent, (int, float)) and 0 <= self.exponent < math.inf):
            raise InputError("exponent", f"{self.exponent!r} is not a number ≥ 0", "0.5 for W₂")
        if self.scheme not in get_args(Scheme):
            raise InputError("scheme", f"{self.scheme!r} is unknown", f"one of {get_args(Scheme)}")
        if not 0 <= self.floor < 1:
            raise InputError("floor", f"{self.floor!r} is not in [0, 1)", "1e-14")
        if self.grid.boundary == "periodic":
            raise InputError(
                "grid",
                "the schemes of appendix B.1 take zero outside the grid, not periodic values",
                "a neumann or dirichlet grid, or natgrad.Wasserstein",
            )

    def at(self, rho: Array) -> Geometry:
        return _CollocatedGeometry(self, rho)

    def mobility(self, rho: Array) -> Array:
        """a = ρ^{2k}, raised to the floor."""
        if self.exponent == 0:
            return jnp.ones_like(rho)
        a = rho if self.exponent == 0.5 else rho ** (2 * self.exponent)
        axes = tuple(range(-self.grid.dimension, 0))
        return jnp.maximum(a, self.floor * jnp.max(a, axis=axes, keepdims=True))

    @property
    def stencils(self) -> tuple[Stencil, ...]:
        """One difference stencil for each axis."""
        return tuple(STENCILS[self.scheme](h) for h in self.grid.spacing)

    @property
    def annihilates(self) -> bool:
        """Whether some ζ has no flux: the mean of a sublattice without outflow."""
        return self.scheme != "forward" and all(n % 2 for n in self.grid.shape)

    def weights(self, a: Array) -> tuple[Array, ...]:
        """√a at the flux positions, which are the points."""
        return (jnp.sqrt(a),) * self.grid.dimension

    def factorise(self, a: Array) -> Factor:
        """K = BBᵀ at one mobility."""
        deficient = self.scheme == "fourth_order" and self.annihilates
        return factorise(self.stencils, self.weights(a), method="truncated" if deficient else None)

    def squared_distance(self, a: Array, b: Array) -> Array:
        """The squared norm of Ḣ⁻¹ for k = 0; the schemes conserve no mass, so other k have none."""
        if self.exponent > 0:
            return super().squared_distance(a, b)
        fluxes = self.at(a).factor.mv(a - b)
        return jnp.sum(jnp.stack([jnp.sum(jnp.square(flux)) for flux in fluxes]))

    def check_structure(self, state: Any) -> None:
        FisherRao(self.grid).check_structure(state)

    def check_values(self, state: Array) -> None:
        if self.exponent > 0:
            FisherRao(self.grid).check_values(state)

    def admissible(self, rho: Array) -> Array:
        return (FisherRao(self.grid) if self.exponent > 0 else super()).admissible(rho)


class _CollocatedGeometry(Geometry):
    """√w B† and w (BBᵀ)†, without the mean of a sublattice that has no outflow."""

    metric: CollocatedTransport
    whitens_shortest = True

    def __init__(self, metric: CollocatedTransport, rho: Array):
        super().__init__(metric, rho)
        self.annihilates = metric.annihilates

    @cached_property
    def _factors(self) -> Factor:
        """K for each function of a batch."""
        return self._each(lambda rho: self.metric.factorise(self.metric.mobility(rho)), self.rho)

    @property
    def _root(self) -> float:
        return math.sqrt(self.metric.grid.cell_volume)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        factors = self._factors

        def flows(factor: Factor, zeta: Array) -> tuple[Array, ...]:
            return factor.pseudo_inverse(self._root * self._project(zeta))

        def transpose(factor: Factor, fluxes: tuple[Array, ...]) -> Array:
            return self._root * self._project(factor.pseudo_inverse_transpose(fluxes))

        mv = lambda zeta: self._each(flows, factors, zeta)
        rmv = lambda fluxes: self._each(transpose, factors, fluxes)
        return AdjointOperator(mv, rmv, self.rho, jax.eval_shape(mv, self.rho))

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        factors = self._factors

        def product(factor: Factor, zeta: Array) -> Array:
            phi = factor.solve(self._root * self._project(zeta))
            return self._root * self._project(phi)

        mv = lambda zeta: self._each(product, factors, zeta)
        return AdjointOperator(mv, mv, self.rho, self.rho, POSITIVE)

    def whiten(self, c: Array) -> tuple[Array, ...]:
        weights = self.metric.weights(self.metric.mobility(self.rho))
        return weighted_gradient(self.metric.stencils, weights, c / self._root)

    def report(self) -> dict[str, Array | str]:
        if self.metric.exponent == 0:
            return {}
        a = self.rho ** (2 * self.metric.exponent)
        raised = a < self.metric.mobility(self.rho)
        return {"floored": jnp.mean(raised.astype(self.rho.dtype))}

    def _project(self, zeta: Array) -> Array:
        return remove_null_component(self.metric.stencils, zeta)

    def _each(self, function: Callable[..., Any], *stacks: Any) -> Any:
        """`function` for each function of a batch and what belongs to it."""
        for _ in range(self.rho.ndim - self.metric.grid.dimension):
            function = jax.vmap(function)
        return function(*stacks)
