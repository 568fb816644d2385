"""L², H^±1 and Ḣ^±1 on an unstructured mesh."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.sharding import Mesh

from ..core.operators import AdjointOperator
from ..errors import InputError
from ..metrics.base import POSITIVE, FlatMetric, Metric, PyTree, Report, on_one_host
from ..metrics.elliptic.equation import Elliptic
from .dual import DualMetric
from .equation import Energy, check_equation, check_space, mass_solve
from .space import Space


class L2(FlatMetric):
    """⟨ζ, ζ̂⟩ = ∫ ζ ζ̂ dx, so A = M, L = W.

    ```python
    ng.fem.L2(space)
    ```

    Cost: O(k); a covector is whitened by W M⁻¹c, some tens of products with M on the host.
    """

    space: Space

    def __check_init__(self):
        check_space(self.space)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        mv = self.space.weighted_values
        return AdjointOperator(
            mv, self.space.weighted_values_transpose, rho, jax.eval_shape(mv, rho)
        )

    def whiten(self, rho: Array, c: Array) -> Array:
        return self.space.weighted_values(mass_solve(self.space, c))

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        return AdjointOperator(self.space.mass, self.space.mass, rho, rho, POSITIVE)

    def distributed(self, mesh: Mesh) -> Metric:
        raise on_one_host(self)

    def check_structure(self, state: PyTree) -> None:
        self.space.check(state)


class _ElementSobolev(DualMetric, FlatMetric):
    """s = 1: A = EᵀE. s = −1: its dual. E has values or not."""

    s: int = eqx.field(static=True)
    _homogeneous: eqx.AbstractClassVar[bool]

    def __init__(self, space: Space, s: int, elliptic: Elliptic):
        if isinstance(s, bool) or s not in (1, -1):
            raise InputError("s", f"{s!r} is not to be had on a mesh", "1 or -1, or fem.L2 for 0")
        check_equation(space, elliptic, whole=self._homogeneous)
        self.space, self.s, self.elliptic = space, int(s), elliptic

    def energy(self, rho: Array) -> Energy:
        return Energy(self.space, None, not self._homogeneous, self.elliptic)

    def carrier(self, rho: Array) -> Array | None:
        return jnp.ones_like(rho) if self.annihilates else None

    @property
    def annihilates(self) -> bool:
        return self._homogeneous and self.space.boundary == "neumann"

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        if self.s == -1:
            return super().factor(rho)
        energy = self.energy(rho)
        out = jax.eval_shape(energy.factor, rho)
        return AdjointOperator(energy.factor, energy.factor_transpose, rho, out)

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        if self.s == -1:
            return super().gram(rho)
        product = self.energy(rho).gram
        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def image(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        if self.s == -1:
            return super().image(rho, columns)
        return Metric.image(self, rho, columns)

    def information(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        if self.s == -1:
            return super().information(rho, columns)
        return Metric.information(self, rho, columns)

    def whiten(self, rho: Array, c: Array) -> tuple[Array, ...]:
        if self.s == -1:
            return super().whiten(rho, c)
        energy = self.energy(rho)
        return energy.factor(energy.solve(c - self.remainder(rho, c)))


class Sobolev(_ElementSobolev):
    """‖ζ‖²_{H¹} = ∫ ζ² + |∇ζ|² dx for s = 1, its dual norm for s = −1.

    A = K + M, or M(K + M)⁻¹M. Natural boundary conditions, or zero values where the space has
    them. Second-order accurate with P1 elements, for smooth states.

    ```python
    ng.fem.Sobolev(space, 1), ng.fem.Sobolev(space, -1)
    ```

    Cost: a solve with K + M, for s = 1 only to whiten; see `Wasserstein`.
    Reference: section 2.2 of the paper.
    """

    _homogeneous = False

    def __init__(self, space: Space, s: int, elliptic: Elliptic = Elliptic()):
        super().__init__(space, s, elliptic)


class HomogeneousSobolev(_ElementSobolev):
    """‖ζ‖²_{Ḣ¹} = ∫ |∇ζ|² dx for s = 1, its dual norm for s = −1.

    A = K, or M K†M. Unless the space has zero boundary values, the constant has length zero, and
    tangents are measured without their mean, as on a grid. The mesh must then be connected.

    ```python
    ng.fem.HomogeneousSobolev(space, -1)
    ```

    Cost: a solve with K, for s = 1 only to whiten; see `Wasserstein`.
    Reference: section 2.3 of the paper.
    """

    _homogeneous = True

    def __init__(self, space: Space, s: int, elliptic: Elliptic = Elliptic()):
        super().__init__(space, s, elliptic)
