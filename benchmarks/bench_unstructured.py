"""Metrics on unstructured meshes: what a factorisation and multigrid cost, and how G converges.

    OPENBLAS_NUM_THREADS=1 python benchmarks/bench_unstructured.py
    python benchmarks/bench_unstructured.py --tables iterations

`cost`: CPU seconds to set up −∇·(ρ∇φ) = ζ on a disc of triangles and a cube of tetrahedra and to
solve it for one ζ, at a density whose contrast is 10⁶. `iterations`: those of conjugate gradients
with multigrid, also for ρ = 1. `convergence`: the error of G against the
regular grid, by metric, for irregular triangles with half the spacing each time.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import skfem
from scipy.spatial import Delaunay
from tables import show_table

import natgrad as ng
from natgrad.fem.matrices import Solver
from natgrad.metrics.elliptic.sparse_direct import available_backend

TABLES = ("cost", "iterations", "convergence")


def cube(nodes: int) -> skfem.MeshTet:
    """Tetrahedra with the inner nodes moved at random by up to a fifth of the spacing."""
    axis = np.linspace(-1, 1, nodes)
    mesh = skfem.MeshTet.init_tensor(axis, axis, axis)
    inside = np.all(np.abs(mesh.p) < 1, axis=0)
    moved = np.random.default_rng(0).uniform(-0.2, 0.2, mesh.p.shape) * 2 / (nodes - 1)
    return skfem.MeshTet(mesh.p + np.where(inside, moved, 0), mesh.t)


def equation(space: ng.fem.Space) -> tuple[np.ndarray, np.ndarray]:
    """ρ at the quadrature points, and M ζ for the ζ that moves its bump."""
    offset = space.points - 0.3
    bump = jnp.exp(-(offset**2).sum(-1) / 0.02)
    rho, zeta = bump + 1e-6, bump * offset[:, 0]
    source = space.mass(zeta - rho * space.integral(zeta) / space.integral(rho))
    return np.asarray(space.at_slopes(rho)), np.asarray(source)


def cost(discs: list[int], cubes: list[int], methods: list[str]) -> Iterator[list]:
    """Set-up and solve, the best of three, by method."""
    meshes = [("triangles", skfem.MeshTri.init_circle(n)) for n in discs]
    meshes += [("tetrahedra", cube(n)) for n in cubes]
    for name, mesh in meshes:
        space = ng.fem.Space(mesh)
        a, source = equation(space)
        row: list = [name, space.size]
        for method in methods:
            if method == "superlu" and name == "tetrahedra" and space.size > 25_000:
                row += [None, None]  # a minute and gigabytes
                continue
            with patch("natgrad.fem.matrices.available_backend", lambda method=method: method):
                solver = "multigrid" if method == "multigrid" else "sparse"
                row += seconds(space, solver, a, source)[:2]
        yield row


def seconds(
    space: ng.fem.Space, solver: Solver, a: np.ndarray, source: np.ndarray
) -> tuple[float, float, int]:
    """CPU seconds of set-up and of one solve, and its iterations."""
    setups, solves, iterations = [], [], np.zeros(1)
    for _ in range(3):
        space.matrices.invert.cache_clear()
        tick = time.process_time()
        inverse = space.matrices.invert("stiffness", solver, a.tobytes())
        setups.append(time.process_time() - tick)
        tick = time.process_time()
        _, iterations, _, converged = inverse(source[None], 1e-12, 200)
        solves.append(time.process_time() - tick)
        if not converged.all():
            raise RuntimeError(f"{solver} has not converged")
    return min(setups), min(solves), int(iterations[0])


def iterations(discs: list[int], cubes: list[int]) -> Iterator[list]:
    """Of multigrid, for the density above and for a constant one."""
    meshes = [("triangles", skfem.MeshTri.init_circle(n)) for n in discs]
    meshes += [("tetrahedra", cube(n)) for n in cubes]
    for name, mesh in meshes:
        space = ng.fem.Space(mesh)
        a, source = equation(space)
        counts = [
            seconds(space, "multigrid", density, source)[2] for density in (np.ones_like(a), a)
        ]
        yield [name, space.size, *counts]


def irregular(level: int) -> skfem.MeshTri:
    """A Delaunay triangulation of the unit square between moved points of a lattice, refined."""
    axis = np.linspace(0, 1, 9)
    mesh = skfem.MeshTri.init_tensor(axis, axis)
    inside = np.all((mesh.p > 0) & (mesh.p < 1), axis=0)
    points = (
        mesh.p + np.where(inside, np.random.default_rng(0).uniform(-1, 1, mesh.p.shape), 0) / 40
    )
    return skfem.MeshTri(points, Delaunay(points.T).simplices.T).refined(level)


def metrics_on(domain: ng.Grid | ng.fem.Space) -> dict[str, ng.metrics.Metric]:
    """The same metrics on a grid or on a mesh."""
    kinds: Any = ng if isinstance(domain, ng.Grid) else ng.fem
    return {
        "L²": kinds.L2(domain),
        "H¹": kinds.Sobolev(domain, 1),
        "H⁻¹": kinds.Sobolev(domain, -1),
        "Ḣ¹": kinds.HomogeneousSobolev(domain, 1),
        "Ḣ⁻¹": kinds.HomogeneousSobolev(domain, -1),
        "W₂": kinds.Wasserstein(domain),
    }


def information(domain: ng.Grid | ng.fem.Space) -> dict[str, np.ndarray]:
    """G of a model with three parameters, by metric."""
    x, y = jnp.moveaxis(jnp.cos(np.pi * domain.points), -1, 0)
    rho, columns = jnp.exp(0.8 * x * y), jnp.stack([x, x * y, 0.5 + y**2])
    G = eqx.filter_jit(lambda metric, rho, columns: metric.at(rho).information(columns)[0])
    metrics = metrics_on(domain)
    return {name: np.asarray(G(metric, rho, columns)) for name, metric in metrics.items()}


def convergence(levels: int) -> Iterator[list]:
    """max |G − G*| / max |G*|, G* extrapolated from grids of 40² and 80² cells."""
    coarse, fine = (information(ng.Grid((0, 0), (1, 1), (n, n))) for n in (40, 80))
    errors = {name: [] for name in fine}
    for level in range(levels):
        found = information(ng.fem.Space(irregular(level)))
        for name, G in found.items():
            limit = (4 * fine[name] - coarse[name]) / 3
            errors[name].append(float(np.abs(G - limit).max() / np.abs(limit).max()))
    for name, row in errors.items():
        yield [name, *row, np.log2(row[-2] / row[-1])]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--discs", type=int, nargs="+", default=[6, 7, 8], help="refinements")
    parser.add_argument("--cubes", type=int, nargs="+", default=[21, 27, 37], help="nodes a side")
    parser.add_argument("--levels", type=int, default=4)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    meshes = arguments.discs, arguments.cubes
    if "cost" in arguments.tables:
        cholmod = ["cholmod"] if available_backend() == "cholmod" else []
        methods = ["superlu", *cholmod, "multigrid"]
        parts = [f"{method}, {part}" for method in methods for part in ("set-up s", "solve s")]
        show_table("cost", ["mesh", "nodes", *parts], cost(*meshes, methods), "CPU seconds")
    if "iterations" in arguments.tables:
        columns = ["mesh", "nodes", "iterations, ρ = 1", "iterations, bump"]
        show_table("iterations", columns, iterations(*meshes))
    if "convergence" in arguments.tables:
        sizes = [f"h = 1/{8 * 2**n}" for n in range(arguments.levels)]
        rows = convergence(arguments.levels)
        show_table("convergence", ["metric", *sizes, "order"], rows, "Errors of G")


if __name__ == "__main__":
    main()
