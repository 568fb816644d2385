"""The Wasserstein metric W₂ on an unstructured mesh."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..errors import InputError
from ..metrics.base import PyTree, Report, admissible_density, check_density, default_floor, floored
from ..metrics.elliptic.equation import Elliptic
from .dual import DualMetric
from .equation import Energy, check_equation
from .space import Space


class Wasserstein(DualMetric):
    """⟨ζ, ζ⟩ = ∫ ρ|∇φ|² dx with −∇·(ρ∇φ) = ζ, zero flux: the W₂ metric, A = M K_ρ†M.

    The mass of a tangent is removed along ρ, because transport conserves mass. ρ is raised to
    `floor` times its maximum at the quadrature points (default 1e-14 in double, 1e-8 in single
    precision); `info.metric["floored"]` is the share of them that were. `elliptic` says how the
    equation is solved: `"sparse"` by a factorisation, `"multigrid"` by conjugate gradients with
    smoothed aggregation (pyamg); `"auto"` chooses by size and dimension.

    ```python
    ng.fem.Wasserstein(space)
    ng.fem.Wasserstein(space, elliptic=ng.Elliptic("multigrid", tolerance=1e-10))
    ```

    Cost, on the host: a factorisation O(k^1.5) and O(k log k) for each tangent in 2D, O(k²) and
    O(k^1.33) in 3D; O(k) for both by multigrid. There is no `squared_distance`.
    Reference: section 2.5 of the paper.
    """

    floor: float | None = eqx.field(static=True)

    def __init__(self, space: Space, floor: float | None = None, elliptic: Elliptic = Elliptic()):
        check_equation(space, elliptic, whole=True)
        if space.boundary != "neumann":
            raise InputError(
                "space",
                "transport conserves mass, so it needs a zero-flux boundary",
                'ng.fem.Space(mesh, boundary="neumann")',
            )
        if floor is not None and not 0 < floor < 1:
            raise InputError("floor", f"{floor!r} is not in (0, 1)", "1e-14")
        self.space, self.floor, self.elliptic = space, floor, elliptic

    def energy(self, rho: Array) -> Energy:
        return Energy(self.space, self._mobility(rho), False, self.elliptic)

    def carrier(self, rho: Array) -> Array:
        return floored(rho, self.floor, (-1,))

    def _mobility(self, rho: Array) -> Array:
        """ρ at the points where gradients are taken; elements of degree two can dip below zero."""
        relative = default_floor(rho.dtype) if self.floor is None else self.floor
        least = relative * jnp.max(rho, axis=-1)[..., None, None]
        return jnp.maximum(self.space.at_slopes(rho), least)

    @property
    def annihilates(self) -> bool:
        return True

    def check_values(self, state: PyTree) -> None:
        check_density("model", state, (-1,))
        if not bool(jnp.all(self.space.integral(state) > 0)):
            raise InputError("model", "a density has no mass", "a starting point with ∫ρ dx > 0")

    def admissible(self, rho: Array) -> Array:
        return admissible_density(rho, (-1,)) & jnp.all(self.space.integral(rho) > 0)

    def report(self, rho: Array) -> Report:
        touched = self.space.at_slopes(rho) < self._mobility(rho)
        return {"floored": jnp.mean(touched.astype(rho.dtype))}
