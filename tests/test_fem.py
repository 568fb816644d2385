"""Metrics on unstructured meshes: dense oracles, convergence to the regular grid, closed forms."""

import sys
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import Delaunay

import dense_oracle
import natgrad as ng
from natgrad.operators import as_dense

skfem = pytest.importorskip("skfem", reason="scikit-fem is not installed")
pytest.importorskip("pyamg", reason="pyamg is not installed")

SPARSE, MULTIGRID = ng.Elliptic("sparse"), ng.Elliptic("multigrid")
NAMES = ("L2", "H1", "H-1", "dotH1", "dotH-1", "W2")


def metric_on(name: str, space: ng.fem.Space, elliptic: ng.Elliptic = SPARSE) -> ng.Metric:
    if name == "L2":
        return ng.fem.L2(space)
    if name == "W2":
        return ng.fem.Wasserstein(space, elliptic=elliptic)
    kind = ng.fem.HomogeneousSobolev if name.startswith("dot") else ng.fem.Sobolev
    return kind(space, -1 if "-" in name else 1, elliptic)


def jittered(n: int, dim: int = 2, seed: int = 0):
    """Simplices between the points of a lattice in the unit cube, moved at random inside."""
    axis = np.linspace(0, 1, n + 1)
    kind = {2: skfem.MeshTri, 3: skfem.MeshTet}[dim]
    mesh = kind.init_tensor(*[axis] * dim)
    inside = np.all((mesh.p > 0) & (mesh.p < 1), axis=0)
    moved = np.random.default_rng(seed).uniform(-0.2 / n, 0.2 / n, mesh.p.shape)
    points = mesh.p + np.where(inside, moved, 0)
    return kind(points, Delaunay(points.T).simplices.T if dim == 2 else mesh.t)


BASES = {
    "triangles": lambda: skfem.MeshTri.init_circle(1),
    "tetrahedra": lambda: skfem.MeshTet().refined(1),
    "quadratic triangles": lambda: skfem.Basis(skfem.MeshTri().refined(), skfem.ElementTriP2()),
    "quadratic tetrahedra": lambda: skfem.Basis(skfem.MeshTet(), skfem.ElementTetP2()),
    "curved triangles": lambda: skfem.MeshTri2.init_circle(1),
    "quadrilaterals": lambda: skfem.MeshQuad().refined(1),
    "intervals": lambda: skfem.MeshLine().refined(2),
}


def dense(name: str, mesh, rho: np.ndarray, held: bool) -> np.ndarray:
    """A from scikit-fem's own assembly, with pseudo-inverses written out."""
    basis = mesh if isinstance(mesh, skfem.CellBasis) else skfem.Basis(mesh, mesh.elem())
    basis = skfem.Basis(basis.mesh, basis.elem, intorder=8)
    kept = np.setdiff1d(np.arange(basis.N), basis.get_dofs().all() if held else [])
    dot = lambda u, v: sum(u.grad[i] * v.grad[i] for i in range(len(u.grad)))
    assembled = lambda form, **data: (
        skfem.BilinearForm(form).assemble(basis, **data).toarray()[np.ix_(kept, kept)]
    )
    M, K = assembled(lambda u, v, _: u * v), assembled(lambda u, v, _: dot(u, v))
    if name == "W2":
        K = assembled(lambda u, v, w: w.rho * dot(u, v), rho=rho)
    if name in ("L2", "H1", "dotH1"):
        return {"L2": M, "H1": M + K, "dotH1": K}[name]
    if name == "H-1":
        return M @ np.linalg.inv(M + K) @ M
    if held:
        return M @ np.linalg.inv(K) @ M
    carrier, masses = rho if name == "W2" else np.ones(len(M)), M.sum(axis=0)
    P = np.eye(len(M)) - np.outer(carrier, masses) / (masses @ carrier)
    return P.T @ M @ dense_oracle.pseudo_inverse(K) @ M @ P


@eqx.filter_jit
def everything(metric: ng.Metric, rho: jax.Array, c: jax.Array):
    L = metric.factor(rho)
    remainder = metric.remainder(rho, c) if metric.annihilates else jnp.zeros_like(c)
    information = metric.information(rho, jnp.eye(len(rho)))[0]
    return as_dense(L), as_dense(L.T), as_dense(metric.gram(rho)), information, remainder, (
        metric.whiten(rho, c)
    )  # fmt: skip


def check_against_dense(name: str, mesh, boundary: str, elliptic: ng.Elliptic) -> None:
    space = ng.fem.Space(mesh, boundary)  # pyright: ignore
    generator = np.random.default_rng(0)
    rho = np.exp(0.3 * generator.normal(size=space.size))
    c = generator.normal(size=space.size)
    expected = dense(name, mesh, rho, boundary == "dirichlet")
    metric = metric_on(name, space, elliptic)
    found = everything(metric, jnp.asarray(rho), jnp.asarray(c))
    L, transposed, gram, information, remainder = map(np.asarray, found[:-1])
    b = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found[-1])])
    close = lambda a, b, size: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * size)
    scale = np.abs(expected).max()
    for matrix in (L.T @ L, gram, information):
        close(matrix, expected, scale)
    close(transposed, L.T, np.abs(L).max())
    close(c - L.T @ b, remainder, np.abs(c).max())
    shortest = np.linalg.pinv(L.T, rcond=1e-10) @ (c - remainder)
    close(b, shortest, np.abs(shortest).max())
    assert metric.annihilates == (np.linalg.matrix_rank(expected, tol=1e-10 * scale) < len(c))


FAST = ("triangles", "tetrahedra")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "basis", [pytest.param(b, marks=[pytest.mark.slow] * (b not in FAST)) for b in BASES]
)
def test_metric_against_its_dense_oracle(basis: str, name: str):
    """A, its factor and transpose, G, and (Lᵀ)† with what it does not see."""
    check_against_dense(name, BASES[basis](), "neumann", SPARSE)


@pytest.mark.parametrize("name", ["H-1", "W2"])
def test_multigrid_against_the_dense_oracle(name: str):
    check_against_dense(name, BASES["triangles"](), "neumann", MULTIGRID)


@pytest.mark.parametrize("name", ["dotH1", "dotH-1", pytest.param("L2", marks=pytest.mark.slow)])
def test_functions_that_vanish_on_the_boundary(name: str):
    check_against_dense(name, skfem.MeshTri.init_circle(2), "dirichlet", SPARSE)
