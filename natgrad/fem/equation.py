"""The norm ∫ a|∇φ|² dx, with ∫ φ² dx or without, and the equation it belongs to."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax

from ..core.compiled import can_call_back
from ..core.settings import check_instance
from ..errors import InputError, import_optional
from ..metrics.elliptic.divergence import Fluxes, Solution
from ..metrics.elliptic.equation import Elliptic
from ..metrics.elliptic.sparse_direct import available_backend
from .matrices import System
from .space import Space

# Nodes up to which a factorisation is taken, by dimension: there it costs as much as five to twenty
# solves by multigrid, in benchmarks/bench_unstructured.py.
LARGEST_SPARSE = {
    "cholmod": {1: math.inf, 2: 300_000, 3: 50_000},
    "superlu": {1: math.inf, 2: 130_000, 3: 20_000},
}
MASS_TOLERANCE, MASS_ITERATIONS = 1e-15, 500


class Energy(eqx.Module):
    """E φ = (D_a φ) or (D_a φ, W φ), and K = EᵀE = K_a or K_a + M set up for solves.

    a is given at quadrature points, None for 1.
    """

    space: Space
    a: Array | None
    with_mass: bool = eqx.field(static=True)
    elliptic: Elliptic = eqx.field(static=True)

    def fluxes(self, phi: Array) -> Fluxes:
        """E φ."""
        slopes = self.space.weigh_slopes(phi, self.a)
        return (slopes, self.space.weigh_values(phi)) if self.with_mass else (slopes,)

    def fluxes_transpose(self, parts: Fluxes) -> Array:
        """Eᵀ y."""
        phi = self.space.weigh_slopes_transpose(parts[0], self.a)
        return phi + self.space.weigh_values_transpose(parts[1]) if self.with_mass else phi

    def apply(self, phi: Array) -> Array:
        """K φ."""
        return self.fluxes_transpose(self.fluxes(phi))

    def solution(self, b: Array, tolerance: float | None = None) -> Solution:
        """φ with K φ = b, for b in its range; NaN where an iteration gave up."""
        system: System = "both" if self.with_mass else "stiffness"
        solver = choose_method(self.elliptic, self.space)
        limits = max(self.elliptic.tolerance, tolerance or 0.0), self.elliptic.max_iterations
        on_host = partial(self.space.matrices.solve, system, solver, limits)
        return _solve(self.apply, on_host, b, self.a)

    def solve(self, b: Array) -> Array:
        """φ with K φ = b."""
        return self.solution(b).phi

    def flows(self, b: Array, tolerance: float | None = None) -> tuple[Fluxes, Solution]:
        """E φ for K φ = b, and that φ with the diagnosis of its solve."""
        solution = self.solution(b, tolerance)
        return self.fluxes(solution.phi), solution

    def pseudo_inverse(self, b: Array) -> Fluxes:
        """E K†b."""
        return self.flows(b)[0]

    def pseudo_inverse_transpose(self, fluxes: Fluxes) -> Array:
        """K†Eᵀy."""
        return self.solve(self.fluxes_transpose(fluxes))


class MeshEquation(eqx.Module):
    """Kφ = M P ζ at one state.

    Pζ = ζ − ρ̂ ∫ζ dx / ∫ρ̂ dx removes the mass of a tangent along a carrier ρ̂, where the constants
    have no energy; else P = I.
    """

    factor: Energy
    carrier: Array | None

    def source(self, zeta: Array) -> Array:
        """M P ζ."""
        space = self.factor.space
        if self.carrier is None:
            return space.mass(zeta)
        share = space.integral(zeta) / space.integral(self.carrier)
        return space.mass(zeta - share[..., None] * self.carrier)

    def source_transpose(self, phi: Array) -> Array:
        """PᵀM φ."""
        image = self.factor.space.mass(phi)
        return image - self.lost(image)

    def lost(self, c: Array) -> Array:
        """c − Pᵀc = M1 ⟨ρ̂, c⟩ / ∫ρ̂ dx: what a covector says of the mass."""
        if self.carrier is None:
            return jnp.zeros_like(c)
        space = self.factor.space
        share = c @ self.carrier / space.integral(self.carrier)
        return share[..., None] * space.mass(jnp.ones_like(self.carrier))


def mass_solve(space: Space, c: Array) -> Array:
    """M⁻¹c."""
    on_host = partial(space.matrices.solve, "mass", "diagonal", (MASS_TOLERANCE, MASS_ITERATIONS))
    return _solve(space.mass, on_host, c).phi


def choose_method(elliptic: Elliptic, space: Space) -> Literal["sparse", "multigrid"]:
    """How equations on this space are solved."""
    if elliptic.method == "multigrid":
        return "multigrid"
    small = space.size <= LARGEST_SPARSE[available_backend()][space.dimension]
    return "sparse" if elliptic.method == "sparse" or small else "multigrid"


def check_space(space: Any) -> None:
    """The space must be one, and its solves possible here."""
    check_instance("space", space, Space, "ng.fem.Space(mesh)")
    if not can_call_back():
        raise InputError("space", "its solves need a second CPU for the host", "a regular Grid")


def check_equation(space: Any, elliptic: Any, whole: bool) -> None:
    """`elliptic` must be a method for meshes, and the mesh in one piece if it has to be `whole`."""
    check_space(space)
    check_instance("elliptic", elliptic, Elliptic, 'ng.metrics.Elliptic("multigrid")')
    if elliptic.method not in ("auto", "sparse", "multigrid"):
        what = f"{elliptic.method!r} is for grids"
        raise InputError("elliptic", what, "'sparse', 'multigrid' or 'auto'")
    if elliptic.precision != "double":
        raise InputError("elliptic", "meshes are solved in double precision", "precision='double'")
    if choose_method(elliptic, space) == "multigrid":
        import_optional("pyamg", "elliptic")
    if whole and space.boundary == "neumann" and space.matrices.parts > 1:
        what = f"the mesh falls into {space.matrices.parts} parts, between which nothing can move"
        advice = "Blocks with a space for each part, or L2 or Sobolev, which need no connected mesh"
        raise InputError("space", what, advice)


def _solve(
    product: Callable[[Array], Array], on_host: Callable, b: Array, a: Array | None = None
) -> Solution:
    """Solve on the host, for b of (..., k); as a linear equation it is differentiable."""
    dtype = b.dtype
    columns = b.reshape(-1, b.shape[-1])
    numbers = [jax.ShapeDtypeStruct(columns.shape[:1], kind) for kind in (jnp.int32, dtype, bool)]
    shapes = jax.ShapeDtypeStruct(columns.shape, dtype), *numbers

    def iterate(_: Any, columns: Array) -> tuple[Array, tuple[Array, ...]]:
        arguments = (columns,) if a is None else (columns, lax.stop_gradient(a))
        phi, *rest = jax.pure_callback(on_host, shapes, *arguments, vmap_method="expand_dims")
        return phi, tuple(rest)

    phi, rest = lax.custom_linear_solve(product, columns, iterate, symmetric=True, has_aux=True)
    lead = b.shape[:-1]
    return Solution(phi.reshape(b.shape), *(part.reshape(lead) for part in rest))
