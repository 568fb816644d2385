"""What a metric needs of a scikit-fem basis, as NumPy arrays."""

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, import_optional


class Elements(NamedTuple):
    """E cells with n nodes each, and two quadrature rules: for u v, and for a ∇u·∇v.

    A node that is held at zero has the number of unknowns as its index.
    """

    points: np.ndarray  # (k, d)
    cells: np.ndarray  # (E, n), indices of nodes
    values: np.ndarray  # (Q, n), the basis functions at the points of the first rule
    weights: np.ndarray  # (E, Q)
    slopes: np.ndarray  # (E, R, d, n), their gradients at the points of the second rule
    slope_values: np.ndarray  # (R, n), and their values there
    slope_weights: np.ndarray  # (E, R)


def elements(mesh: Any, held_at_zero: bool) -> Elements:
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
        raise InputError("mesh", f"is a {type(mesh).__name__}", "a mesh or a Basis of scikit-fem")
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
