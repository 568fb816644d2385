"""L², H^±1, Ḣ^±1 and W₂ on an unstructured mesh."""

from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.sharding import Mesh

from ..core.operators import AdjointOperator
from ..errors import InputError
from ..metrics.base import (
    FlatMetric,
    Geometry,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    find_floor,
    one_host_only,
    positive_operator,
)
from ..metrics.elliptic.divergence import Fluxes
from ..metrics.elliptic.equation import Elliptic, Method
from ..metrics.potential import PotentialGeometry, PotentialMetric
from .equation import Energy, MeshEquation, check_equation, check_space, choose_method, mass_solve
from .space import Space


class _MeshMetric(Metric):
    """A metric on functions of a finite element space, which computes on one host."""

    space: eqx.AbstractVar[Space]

    def distributed(self, mesh: Mesh) -> Metric:
        raise one_host_only(self)

    def check_structure(self, state: PyTree) -> None:
        self.space.check(state)


class L2(_MeshMetric, FlatMetric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ dx, so A = M, L = W.

    ```python
    ng.fem.L2(space)
    ```

    Cost: O(k); a covector is whitened by W M⁻¹c, some tens of products with M on the host.

    Args:
        space: The finite element space of the state.
    """

    space: Space

    def __check_init__(self):
        check_space(self.space)

    def at(self, rho: Array) -> Geometry:
        return _L2Geometry(self, rho)


class _L2Geometry(Geometry):
    """W and M."""

    metric: L2
    whitens_shortest = True

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        space = self.metric.space
        mv, rmv = space.weigh_values, space.weigh_values_transpose
        return AdjointOperator(mv, rmv, self.rho, jax.eval_shape(mv, self.rho))

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        return positive_operator(self.metric.space.mass, self.rho)

    def whiten(self, c: Array) -> Array:
        return self.metric.space.weigh_values(mass_solve(self.metric.space, c))


class _EquationMetric(_MeshMetric, PotentialMetric):
    """A metric with an equation Kφ = M P ζ, see `MeshEquation`; K may depend on ρ."""

    space: Space
    elliptic: Elliptic = eqx.field(static=True)
    with_mass: eqx.AbstractClassVar[bool]  # whether the energy has ∫ φ² dx

    @property
    def conserves_mass(self) -> bool:
        """Whether the constants have no energy, so that the mass of a tangent is removed."""
        return not self.with_mass and self.space.boundary == "neumann"

    def energy(self, mobility: Array | None) -> Energy:
        """K for an a at the quadrature points."""
        return Energy(self.space, mobility, self.with_mass, self.elliptic)

    def mobility(self, rho: Array) -> Array | None:
        """a at one state; None for 1."""

    def carrier(self, rho: Array) -> Array:
        """What takes up the mass of a tangent, at one state."""
        return jnp.ones_like(rho)


class _DualGeometry(PotentialGeometry):
    """L = E K†M P, A = PᵀM K†M P.

    A covector is whitened by E M⁻¹c: LᵀE M⁻¹c = PᵀM M⁻¹c = Pᵀc, because what K annihilates, the
    constant, PᵀM annihilates too.
    """

    metric: _EquationMetric
    iterates_by = ("multigrid",)
    in_turn = False  # the host takes all functions at once

    def __init__(self, metric: _EquationMetric, rho: Array):
        method = lambda columns: choose_method(metric.elliptic, metric.space)
        super().__init__(metric, rho, 1, method)
        self.annihilates = metric.conserves_mass

    def set_up(self, rho: Array, method: Method) -> tuple[Array | None, Array | None]:
        carrier = self.metric.carrier(rho) if self.metric.conserves_mass else None
        return self.metric.mobility(rho), carrier

    def equation(self, set_up: tuple[Array | None, Array | None]) -> MeshEquation:
        mobility, carrier = set_up
        return MeshEquation(self.metric.energy(mobility), carrier)

    def whiten(self, c: Array) -> Fluxes:
        space = self.metric.space
        one = lambda set_up, c: self.equation(set_up).factor.fluxes(mass_solve(space, c))
        return self.each(self.method(None), one, self.kept, c)

    def remainder(self, c: Array) -> Array:
        one = lambda set_up, c: self.equation(set_up).lost(c)
        return self.each(self.method(None), one, self.kept, c)


class _EnergyGeometry(Geometry):
    """L = E, A = K, the same at every ρ; a covector is whitened by E K†Pᵀc."""

    metric: "_Sobolev"
    whitens_shortest = True

    def __init__(self, metric: "_Sobolev", rho: Array):
        super().__init__(metric, rho)
        self.annihilates = metric.conserves_mass

    @cached_property
    def _equation(self) -> MeshEquation:
        carrier = jnp.ones(self.metric.space.shape, self.rho.dtype)
        carrier = carrier if self.metric.conserves_mass else None
        return MeshEquation(self.metric.energy(None), carrier)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        energy = self._equation.factor
        out = jax.eval_shape(energy.fluxes, self.rho)
        return AdjointOperator(energy.fluxes, energy.fluxes_transpose, self.rho, out)

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        return positive_operator(self._equation.factor.apply, self.rho)

    def whiten(self, c: Array) -> Fluxes:
        return self._equation.factor.pseudo_inverse(c - self.remainder(c))

    def remainder(self, c: Array) -> Array:
        return self._equation.lost(c)


class _Sobolev(_EquationMetric, FlatMetric):
    """s = 1: A = K. s = −1: its dual. E has values or not."""

    s: int = eqx.field(static=True)

    def __init__(self, space: Space, s: int, elliptic: Elliptic = Elliptic()):
        if isinstance(s, bool) or s not in (1, -1):
            raise InputError("s", f"{s!r} is not available on a mesh", "1 or -1, or fem.L2 for 0")
        check_equation(space, elliptic, whole=not self.with_mass)
        self.space, self.s, self.elliptic = space, int(s), elliptic

    def at(self, rho: Array) -> Geometry:
        return _EnergyGeometry(self, rho) if self.s == 1 else _DualGeometry(self, rho)


class Sobolev(_Sobolev):
    """‖ζ‖²_{H¹} = ∫ ζ² + |∇ζ|² dx for s = 1, its dual norm for s = −1.

    A = K + M, or M(K + M)⁻¹M. Natural boundary conditions, or zero values where the space has
    them. Second-order accurate with P1 elements, for smooth states.

    ```python
    ng.fem.Sobolev(space, 1), ng.fem.Sobolev(space, -1)
    ```

    Cost: a solve with K + M, for s = 1 only to whiten; see `Wasserstein`.
    Reference: section 2.2 of the paper.

    Args:
        space: The finite element space of the state.
        s: 1 or −1.
        elliptic: How the elliptic equation is solved.
    """

    with_mass = True


class HomogeneousSobolev(_Sobolev):
    """‖ζ‖²_{Ḣ¹} = ∫ |∇ζ|² dx for s = 1, its dual norm for s = −1.

    A = K, or M K†M. Unless the space has zero boundary values, the constant has length zero, and
    tangents are measured without their mean, as on a grid. The mesh must then be connected.

    ```python
    ng.fem.HomogeneousSobolev(space, -1)
    ```

    Cost: a solve with K, for s = 1 only to whiten; see `Wasserstein`.
    Reference: section 2.3 of the paper.

    Args:
        space: The finite element space of the state.
        s: 1 or −1.
        elliptic: How the elliptic equation is solved.
    """

    with_mass = False


class Wasserstein(_EquationMetric):
    """⟨ζ, ζ⟩ = ∫ ρ|∇φ|² dx with −∇·(ρ∇φ) = ζ, zero flux: the W₂ metric, A = M K_ρ†M.

    The mass of a tangent is removed along ρ, because transport conserves mass. ρ is raised to
    `floor` times its maximum at the quadrature points (default 1e-14 in double, 1e-8 in single
    precision); `info.metric["floored"]` is the share of them that were. `elliptic` says how the
    equation is solved: `"sparse"` by a factorisation, `"multigrid"` by conjugate gradients with
    smoothed aggregation (pyamg); `"auto"` chooses by size and dimension.

    ```python
    ng.fem.Wasserstein(space)
    ng.fem.Wasserstein(space, elliptic=ng.metrics.Elliptic("multigrid", tolerance=1e-10))
    ```

    Cost, on the host: a factorisation O(k^1.5) and O(k log k) for each tangent in 2D, O(k²) and
    O(k^1.33) in 3D; O(k) for both by multigrid. There is no `squared_distance`.
    Reference: section 2.5 of the paper.

    Args:
        space: The finite element space of the density.
        floor: Smallest density, as a share of the largest.
        elliptic: How the elliptic equation is solved.
    """

    with_mass = False
    floor: float | None = eqx.field(static=True)

    def __init__(self, space: Space, floor: float | None = None, elliptic: Elliptic = Elliptic()):
        check_equation(space, elliptic, whole=True)
        if space.boundary != "neumann":
            what = "transport conserves mass, so it needs a zero-flux boundary"
            raise InputError("space", what, 'ng.fem.Space(mesh, boundary="neumann")')
        if floor is not None and not 0 < floor < 1:
            raise InputError("floor", f"{floor!r} is not in (0, 1)", "1e-14")
        self.space, self.floor, self.elliptic = space, floor, elliptic

    def at(self, rho: Array) -> Geometry:
        return _WassersteinGeometry(self, rho)

    def mobility(self, rho: Array) -> Array:
        """ρ at the points where gradients are taken; elements of degree two can dip below zero."""
        least = find_floor(rho, self.floor, (-1,))[..., None]
        return jnp.maximum(self.space.at_slopes(rho), least)

    def carrier(self, rho: Array) -> Array:
        return jnp.maximum(rho, find_floor(rho, self.floor, (-1,)))

    def check_values(self, state: PyTree) -> None:
        check_density("model", state, (-1,))
        if not bool(jnp.all(self.space.integral(state) > 0)):
            raise InputError("model", "a density has no mass", "a starting point with ∫ρ dx > 0")

    def admissible(self, rho: Array) -> Array:
        return admissible_density(rho, (-1,)) & jnp.all(self.space.integral(rho) > 0)


class _WassersteinGeometry(_DualGeometry):
    """With the share of quadrature points that the floor touched."""

    metric: Wasserstein

    def report(self) -> Report:
        touched = self.metric.space.at_slopes(self.rho) < self.metric.mobility(self.rho)
        return {"floored": jnp.mean(touched.astype(self.rho.dtype))}
