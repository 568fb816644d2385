"""Functions on an unstructured mesh, given by their values at its nodes."""

import importlib
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.settings import Public
from ..errors import InputError, import_optional, name_kind
from ..metrics.base import check_on_grid
from .matrices import Elements, Matrices

Boundary = Literal["neumann", "dirichlet"]


class Space(Public, eqx.Module):
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

    Args:
        mesh: A mesh of scikit-fem, or a `Basis`.
        boundary: "neumann", or "dirichlet" for functions that vanish on the boundary.
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
        found = _elements_of(mesh, boundary == "dirichlet")
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
        return jnp.sum(self._weights.astype(u.dtype) * self.interpolate(u), axis=(-2, -1))

    def integrate(self, function: Callable[..., Array], *states: Array) -> Array:
        """∫ function(u, v, …) dx, the function taken at quadrature points, summed over all."""
        values = function(*map(self.interpolate, states))
        return jnp.sum(self._weights.astype(values.dtype) * values)

    def interpolate(self, u: Array) -> Array:
        """u at the quadrature points of each cell, (..., E, Q)."""
        return self._on_cells(u) @ self._values.T.astype(u.dtype)

    def at_slopes(self, u: Array) -> Array:
        """u where gradients are taken, (..., E, R): there a density weights them."""
        return self._on_cells(u) @ self._slope_values.T.astype(u.dtype)

    def weigh_values(self, u: Array) -> Array:
        """W u = √w u(x_q)."""
        return jnp.sqrt(self._weights).astype(u.dtype) * self.interpolate(u)

    def weigh_values_transpose(self, y: Array) -> Array:
        """Wᵀ y."""
        scaled = jnp.sqrt(self._weights).astype(y.dtype) * y
        return self._to_nodes(scaled @ self._values.astype(y.dtype))

    def weigh_slopes(self, u: Array, a: Array | None = None) -> Array:
        """D_a u = √(w a) ∇u(x_q), (..., E, R, d); a is 1 unless given at those points."""
        slopes = self._slopes.astype(u.dtype)
        gradients = jnp.einsum("erdi,...ei->...erd", slopes, self._on_cells(u))
        return self._slope_roots(a, u)[..., None] * gradients

    def weigh_slopes_transpose(self, y: Array, a: Array | None = None) -> Array:
        """D_aᵀ y."""
        scaled = self._slope_roots(a, y)[..., None] * y
        return self._to_nodes(
            jnp.einsum("erdi,...erd->...ei", self._slopes.astype(y.dtype), scaled)
        )

    def mass(self, u: Array) -> Array:
        """M u = ∫ u φᵢ dx for every basis function φᵢ."""
        return self.weigh_values_transpose(self.weigh_values(u))

    def check(self, state: Any) -> None:
        """Raise `InputError` if `state` is not a function of this space."""
        check_on_grid(self, state)
        if state.dtype == jnp.float64 and self.points.dtype != jnp.float64:
            what = "was made in single precision, and the state is in double"
            advice = 'jax.config.update("jax_enable_x64", True) before ng.fem.Space(mesh)'
            raise InputError("space", what, advice)

    def _slope_roots(self, a: Array | None, like: Array) -> Array:
        weights = self._slope_weights if a is None else a * self._slope_weights
        return jnp.sqrt(weights).astype(like.dtype)

    def _on_cells(self, u: Array) -> Array:
        """u at the nodes of each cell, (..., E, n); zero at a node that is held there."""
        if u.shape[-1:] != self.shape:
            what = f"has shape {u.shape} on a mesh with {self.size} nodes"
            raise InputError("state", what, "one value for each of space.points, on the last axis")
        return jnp.take(u, self.cells, axis=-1, mode="fill", fill_value=0)

    def _to_nodes(self, y: Array) -> Array:
        """The transpose of `_on_cells`."""
        zeros = jnp.zeros((*y.shape[:-2], self.size), y.dtype)
        return zeros.at[..., self.cells].add(y, mode="drop")


def _elements_of(mesh: Any, held_at_zero: bool) -> Elements:
    """The elements of a scikit-fem mesh or basis; with `held_at_zero` without boundary nodes.

    On straight cells products of two functions are integrated exactly, and so is a ∇u·∇v for an a
    of the same space.
    """
    skfem = import_optional("skfem", "mesh")
    domain, elem = _mesh_and_element(skfem, mesh)
    degree = elem.maxdeg
    with np.errstate(divide="ignore", invalid="ignore"):  # flat cells are reported below
        rule, slope_rule = (
            skfem.CellBasis(domain, elem, quadrature=_positive_rule(elem, order))
            for order in (2 * degree, 3 * degree - 2)
        )
    if not np.all(rule.dx > 0):
        count = int(np.sum(np.any(rule.dx <= 0, axis=1)))
        raise InputError("mesh", f"{count} cells have no volume", "a mesh without flat cells")
    points, cells = rule.doflocs.T, rule.element_dofs.T
    if held_at_zero:
        inner = np.setdiff1d(np.arange(rule.N), rule.get_dofs().all())
        if not inner.size:
            raise InputError("mesh", "all its nodes are on the boundary", "mesh.refined()")
        renumbered = np.full(rule.N, inner.size)
        renumbered[inner] = np.arange(inner.size)
        points, cells = points[inner], renumbered[cells]
    slopes = np.stack([np.asarray(part[0].grad) for part in slope_rule.basis], axis=-1)
    return Elements(
        points,
        cells,
        _at(elem, rule.X),
        rule.dx,
        np.ascontiguousarray(np.moveaxis(slopes, 0, 2)),
        _at(elem, slope_rule.X),
        slope_rule.dx,
    )


def _mesh_and_element(skfem: Any, mesh: Any) -> tuple[Any, Any]:
    """A mesh with its own element, or those of a basis."""
    if isinstance(mesh, skfem.Mesh):
        if not mesh.nelements:
            raise InputError("mesh", "has no cells", "skfem.MeshTri().refined(4)")
        return mesh, mesh.elem()
    if not isinstance(mesh, skfem.CellBasis):
        raise InputError("mesh", f"is {name_kind(mesh)}", "a mesh or a Basis of scikit-fem")
    if mesh.nelems != mesh.mesh.nelements:
        raise InputError("mesh", "the basis is on some cells only", "a Basis on mesh.restrict(...)")
    elem = mesh.elem
    conforming = isinstance(elem, skfem.element.ElementH1) and elem.nodal_dofs == 1
    if not conforming or not np.allclose(_at(elem, elem.doflocs.T), np.eye(len(elem.doflocs))):
        raise InputError(
            "mesh",
            f"{type(elem).__name__} is not a Lagrange element: a state is its values at the nodes",
            "ElementTriP1(), ElementTriP2(), ElementTetP1() or ElementTetP2()",
        )
    return mesh.mesh, elem


def _positive_rule(elem: Any, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The first rule exact to this order or a higher one whose weights have a square root."""
    if order == 1:  # linear elements on simplices: the centroid alone, where scikit-fem takes more
        corners = elem.refdom.p
        return corners.mean(axis=1, keepdims=True), np.array([1 / math.factorial(len(corners))])
    get_quadrature = importlib.import_module("skfem.quadrature").get_quadrature
    rules = (get_quadrature(elem.refdom, n) for n in range(order, order + 10))
    return next(rule for rule in rules if np.all(rule[1] > 0))


def _at(elem: Any, places: np.ndarray) -> np.ndarray:
    """The basis functions at points of the reference cell, (points, functions)."""
    count, ones = len(elem.doflocs), np.ones(places.shape[1])
    return np.stack([elem.lbasis(places, i)[0] * ones for i in range(count)], axis=-1)
