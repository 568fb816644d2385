"""Accuracy of the transport solve on hard densities, for natgrad's methods and sparse direct ones.

    python benchmarks/bench_hard_densities.py [--size 128]

The tangents are ζ = −∇·(ρ∇φ₀) of smooth potentials φ₀, discretised in difference form, so that
G = ⟨∇φ₀, ρ∇φ₀⟩ is known to rounding whatever the contrast; the error is that of G⁻¹g in its worst
direction, |G_exact⁻¹ G − I|. Densities are floored at 1e-14 of their maximum. "not converged" is
what `info.status` reports; the direction is then NaN. Rivals take part where they are installed
(see bench_transport.py).
"""

import argparse
import importlib.util
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from bench_transport import direct_information
from tables import show_table
from transport_cases import FLOOR, face_weights, log_normal, prepared

import natgrad as ng

OURS = {
    "double": ng.metrics.Elliptic("multigrid", max_iterations=500),
    "mixed": ng.metrics.Elliptic("multigrid", precision="mixed", max_iterations=500),
    "single": ng.metrics.Elliptic(
        "multigrid", precision="single", tolerance=1e-10, max_iterations=500
    ),
    "sparse": ng.metrics.Elliptic("sparse"),
    "elimination": ng.metrics.Elliptic("elimination"),
}
ITERATIVE = 3  # the first of them
RIVALS = {"spqr": "sparseqr", "cholmod": "sksparse", "superlu": "scipy"}


def densities(n: int) -> dict[str, np.ndarray]:
    """The cases, on n × n cells of the unit square."""
    x = (np.arange(n) + 0.5) / n
    X, Y = np.meshgrid(x, x, indexing="ij")
    bump = lambda a, b, s: np.exp(-((X - a) ** 2 + (Y - b) ** 2) / (2 * s * s))
    return {
        "mixture, smooth": 0.2 * bump(0.4, 0.5, 0.15) + 0.8 * bump(0.6, 0.5, 0.15),
        "deep tails": bump(0.5, 0.5, 0.05),
        "two separated bumps": bump(0.2, 0.2, 0.04) + bump(0.8, 0.7, 0.04),
        "compact support": np.maximum(0.0, 0.04 - (X - 0.3) ** 2 - (Y - 0.4) ** 2),
        "discs, exact zeros": 1.0 * (((X - 0.3) ** 2 + (Y - 0.3) ** 2 < 0.04) | (X + Y > 1.6)),
        "log-normal, smooth": log_normal(n, 2, n / 28, 2.0)[0],
        "log-normal, 2 cells": log_normal(n, 2, 2.0, 2.0)[0],
        "white noise, 1e6": log_normal(n, 2, 0.0, 1.7)[0],
        "white noise, 1e11": log_normal(n, 2, 0.0, 3.0)[0],
    }


def manufactured(rho: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    """Tangents of two smooth potentials, and G of them over the cell volume."""
    n = len(rho)
    x = (np.arange(n) + 0.5) / n
    X, Y = np.meshgrid(x, x, indexing="ij")
    potentials = np.stack([np.sin(3 * X + Y), X - 0.3 * Y**2])
    a = np.maximum(rho, FLOOR * rho.max())
    tangents, exact = np.zeros_like(potentials), np.zeros((2, 2))
    for axis, root in enumerate(face_weights(a)):
        drop = -np.diff(potentials, axis=1 + axis) / h
        width = [(0, 0)] + [(1, 1) if i == axis else (0, 0) for i in (0, 1)]
        tangents += np.diff(np.pad(root**2 * drop, width), axis=1 + axis) / h
        exact += np.einsum("ixy,jxy->ij", drop, root**2 * drop)
    return tangents, exact


def information_by(metric: ng.metrics.Metric):
    """(ρ, Z) ↦ G with its report, compiled."""
    return eqx.filter_jit(lambda rho, columns: metric.at(rho).information(columns))


def errors(n: int, programs: dict, rivals: list[str]) -> Iterator[list]:
    """A row for each density: the error of G by method, then the iterations."""
    for name, rho in densities(n).items():
        tangents, exact = manufactured(rho, 1.0 / n)
        contrast = rho.max() / max(rho.min(), FLOOR * rho.max())
        cells, counts = [], []
        for program in programs.values():
            G, report = program(jnp.asarray(rho), jnp.asarray(tangents))
            error = np.abs(np.linalg.solve(exact, np.asarray(G) * n**2) - np.eye(2)).max()
            cells.append(error if report.get("converged", True) else "not converged")
            counts.append(int(report["elliptic_iterations"]) if "converged" in report else None)
        for method in rivals:
            try:
                G = direct_information(method, *prepared(rho, tangents), (1 / n, 1 / n))()
                cells.append(np.abs(np.linalg.solve(exact, G) - np.eye(2)).max())
            except Exception as error:
                cells.append(type(error).__name__)
        yield [name, contrast, *cells, *counts[:ITERATIVE]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=128)
    n = parser.parse_args().size
    jax.config.update("jax_enable_x64", True)
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n))
    ours = {name: e for name, e in OURS.items() if name != "elimination" or n <= 160}
    programs = {name: information_by(ng.Wasserstein(grid, elliptic=e)) for name, e in ours.items()}
    rivals = [m for m, package in RIVALS.items() if importlib.util.find_spec(package)]
    counts = [f"iterations, {name}" for name in list(ours)[:ITERATIVE]]
    columns = ["density", "contrast", *programs, *rivals, *counts]
    show_table("errors", columns, errors(n, programs, rivals), f"Error of G, {n} × {n}")


if __name__ == "__main__":
    main()
