"""Functions on an unstructured mesh, given by their values at its nodes."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..errors import InputError
from ..metrics.base import check_on_grid
from .elements import elements
from .matrices import Matrices

Boundary = Literal["neumann", "dirichlet"]


class Space(eqx.Module):
    """Continuous finite elements on a mesh of scikit-fem: the state is u at the k nodes.

    `mesh` is a mesh, or a `Basis` for elements other than its own (a mesh of triangles has P1,
    `skfem.Basis(mesh, skfem.ElementTriP2())` has P2). With `boundary="dirichlet"` the functions
    vanish on the boundary and the state is u at the nodes inside. A state may have leading axes,
    which are independent functions.

    ```python
    space = ng.fem.Space(skfem.MeshTri.init_circle(4))
    space.points.shape, space.size              # (545, 2), 545
    space.integral(space.points[:, 0] ** 2)     # ∫ x² dx, of the interpolant
    ```

    W u = √w u(x_q) and D_a u = √(w a) ∇u(x_q) at quadrature points give M = WᵀW and
    K_a = D_aᵀD_a without a square root of a matrix. Cost: O(k) for every product.
    """

    points: Array
    cells: Array
    _values: Array
    _weights: Array
    _slopes: Array
    _slope_values: Array
    _slope_weights: Array
    matrices: Matrices = eqx.field(static=True)
    boundary: Boundary = eqx.field(static=True)

    def __init__(self, mesh: Any, boundary: Boundary = "neumann"):
        if boundary not in ("neumann", "dirichlet"):
            raise InputError("boundary", f"{boundary!r} is unknown", "'neumann' or 'dirichlet'")
        found = elements(mesh, boundary == "dirichlet")
        self.points, self.cells = jnp.asarray(found.points), jnp.asarray(found.cells)
        self._values, self._weights = jnp.asarray(found.values), jnp.asarray(found.weights)
        self._slopes, self._slope_values, self._slope_weights = map(
            jnp.asarray, (found.slopes, found.slope_values, found.slope_weights)
        )
        self.matrices, self.boundary = Matrices(found, boundary == "neumann"), boundary

    @property
    def size(self) -> int:
        """Number of nodes that carry a value, k."""
        return len(self.points)

    @property
    def shape(self) -> tuple[int]:
        """The trailing axes of a state: (k,)."""
        return (self.size,)

    @property
    def dimension(self) -> int:
        """Of the space around the mesh, d."""
        return self.points.shape[1]

    def integral(self, u: Array) -> Array:
        """∫ u dx over the trailing axis."""
        return jnp.sum(self._weights.astype(u.dtype) * self.interpolated(u), axis=(-2, -1))

    def integrate(self, function: Callable[..., Array], *states: Array) -> Array:
        """∫ function(u, v, …) dx, the function taken at quadrature points, summed over all."""
        values = function(*map(self.interpolated, states))
        return jnp.sum(self._weights.astype(values.dtype) * values)

    def interpolated(self, u: Array) -> Array:
        """u at the quadrature points of each cell, (..., E, Q)."""
        return self._on_cells(u) @ self._values.T.astype(u.dtype)

    def at_slopes(self, u: Array) -> Array:
        """u where gradients are taken, (..., E, R): there a density weights them."""
        return self._on_cells(u) @ self._slope_values.T.astype(u.dtype)

    def weighted_values(self, u: Array) -> Array:
        """W u = √w u(x_q)."""
        return jnp.sqrt(self._weights).astype(u.dtype) * self.interpolated(u)

    def weighted_values_transpose(self, y: Array) -> Array:
        """Wᵀ y."""
        scaled = jnp.sqrt(self._weights).astype(y.dtype) * y
        return self._to_nodes(scaled @ self._values.astype(y.dtype))

    def weighted_slopes(self, u: Array, a: Array | None = None) -> Array:
        """D_a u = √(w a) ∇u(x_q), (..., E, R, d); a is 1 unless given at those points."""
        slopes = self._slopes.astype(u.dtype)
        gradients = jnp.einsum("erdi,...ei->...erd", slopes, self._on_cells(u))
        return self._slope_roots(a, u)[..., None] * gradients

    def weighted_slopes_transpose(self, y: Array, a: Array | None = None) -> Array:
        """D_aᵀ y."""
        scaled = self._slope_roots(a, y)[..., None] * y
        return self._to_nodes(
            jnp.einsum("erdi,...erd->...ei", self._slopes.astype(y.dtype), scaled)
        )

    def mass(self, u: Array) -> Array:
        """M u = ∫ u φᵢ dx for every basis function φᵢ."""
        return self.weighted_values_transpose(self.weighted_values(u))

    def check(self, state: Any) -> None:
        """Raise `InputError` if `state` is not a function of this space."""
        check_on_grid(self, state)
        if state.dtype == jnp.float64 and self.points.dtype != jnp.float64:
            raise InputError(
                "space",
                "was made in single precision, and the state is in double",
                'jax.config.update("jax_enable_x64", True) before ng.fem.Space(mesh)',
            )

    def _slope_roots(self, a: Array | None, like: Array) -> Array:
        weights = self._slope_weights if a is None else a * self._slope_weights
        return jnp.sqrt(weights).astype(like.dtype)

    def _on_cells(self, u: Array) -> Array:
        """u at the nodes of each cell, (..., E, n); zero at a node that is held there."""
        if u.shape[-1:] != self.shape:
            raise InputError(
                "state",
                f"has shape {u.shape} on a mesh with {self.size} nodes",
                "one value for each of space.points, on the last axis",
            )
        return jnp.take(u, self.cells, axis=-1, mode="fill", fill_value=0)

    def _to_nodes(self, y: Array) -> Array:
        """The transpose of `_on_cells`."""
        zeros = jnp.zeros((*y.shape[:-2], self.size), y.dtype)
        return zeros.at[..., self.cells].add(y, mode="drop")
