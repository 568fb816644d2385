"""The transport equation −∇·(a∇φ) = ζ on a grid: its schemes, projections and solves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ...errors import InputError
from ...grids import Grid
from ..base import Report, grid_axes
from .factor import Factor, Solution, remove_null_component
from .factorise import factorise
from .methods import Elliptic, Method
from .stencils import (
    Stencil,
    collocated_central,
    collocated_forward,
    collocated_fourth_order,
    staggered_neumann,
    staggered_periodic,
)

TransportScheme = Literal["staggered", "collocated", "forward", "fourth_order"]
COLLOCATED = {
    "collocated": collocated_central,
    "forward": collocated_forward,
    "fourth_order": collocated_fourth_order,
}


@dataclass(frozen=True)
class TransportEquation:
    """B v = −∇·(√a v) and K = BBᵀ for a mobility a on `grid`, in one of the schemes of `Mobility`.

    Static and hashable: a is always an argument.
    """

    grid: Grid
    scheme: TransportScheme
    elliptic: Elliptic

    def __post_init__(self):
        if self.scheme != "staggered" and self.scheme not in COLLOCATED:
            raise InputError(
                "scheme", f"{self.scheme!r} is unknown", f"one of {('staggered', *COLLOCATED)}"
            )
        if self.scheme == "staggered" and self.grid.boundary == "dirichlet":
            raise InputError(
                "grid",
                "transport conserves mass, so it needs a zero-flux or a periodic boundary",
                'Grid(..., boundary="neumann") or boundary="periodic"',
            )
        if self.scheme != "staggered" and self.grid.boundary == "periodic":
            raise InputError(
                "scheme",
                "the schemes of appendix B.1 take zero outside the grid, not periodic values",
                "a neumann or dirichlet grid, or scheme='staggered'",
            )
        if not isinstance(self.elliptic, Elliptic):
            raise InputError("elliptic", f"is {self.elliptic!r}", 'ng.Elliptic("multigrid")')
        if self.scheme != "staggered" and self.elliptic.method != "auto":
            raise InputError("elliptic", "is for the staggered scheme", "Elliptic()")
        self.elliptic.choose(self.grid.shape)

    @property
    def stencils(self) -> tuple[Stencil, ...]:
        """One difference stencil for each axis."""
        if self.scheme != "staggered":
            return tuple(COLLOCATED[self.scheme](h) for h in self.grid.spacing)
        if self.grid.boundary == "periodic":
            return tuple(staggered_periodic(h) for h in self.grid.spacing)
        return tuple(staggered_neumann(h) for h in self.grid.spacing)

    @property
    def annihilates(self) -> bool:
        """Whether some ζ has no flux: mass, or the mean of a sublattice without outflow."""
        odd_central = self.scheme in ("collocated", "fourth_order") and all(
            n % 2 for n in self.grid.shape
        )
        return self.scheme == "staggered" or odd_central

    def weights(self, a: Array) -> tuple[Array, ...]:
        """√a at the flux positions: on faces by the arithmetic mean, or at the points."""
        if self.scheme != "staggered":
            return (jnp.sqrt(a),) * self.grid.dimension
        return tuple(
            jnp.sqrt(_face_mean(a, axis, self.grid.boundary == "periodic"))
            for axis in grid_axes(self.grid)
        )

    def project(self, a: Array, zeta: Array) -> Array:
        """P ζ = ζ − a Σζ/Σa; the paper's schemes lose only the mean of a class without outflow."""
        if self.scheme != "staggered":
            return remove_null_component(self.stencils, zeta)
        return zeta - a * (jnp.sum(zeta) / jnp.sum(a))

    def project_transpose(self, a: Array, phi: Array) -> Array:
        """Pᵀφ = φ − Σ(aφ)/Σa."""
        if self.scheme != "staggered":
            return remove_null_component(self.stencils, phi)
        return phi - jnp.sum(a * phi) / jnp.sum(a)

    def method(self, columns: int | None = None) -> Method | None:
        """How the equation is solved; None for the schemes with a factorisation of their own."""
        if self.scheme != "staggered":
            return None
        return self.elliptic.choose(self.grid.shape, columns)

    def factor(self, method: Method | None, a: Array) -> Factor:
        """K at one a, set up."""
        if method is not None:
            return self.elliptic.factorise(method, self.stencils, self.weights(a))
        deficient = self.scheme == "fourth_order" and self.annihilates
        truncated = "truncated" if deficient else None
        return factorise(self.stencils, self.weights(a), method=truncated)


def over_densities(
    method: Method | None, function: Callable[..., PyTree], *batched: PyTree
) -> PyTree:
    """`function` for each density of a batch: side by side, or in turn where one fills the device.

    Side by side, an iteration would run on every density until the slowest has converged.
    """
    if jax.tree.leaves(batched)[0].shape[0] == 1:
        alone = jax.tree.map(lambda x: x[0], batched)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(*alone))
    if method in ("multigrid", "sparse"):
        return jax.lax.map(lambda arguments: function(*arguments), batched)
    return jax.vmap(function)(*batched)


def told(method: Method | None, solution: Solution) -> Report:
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
