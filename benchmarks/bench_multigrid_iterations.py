"""Iterations of the transport solve against the size of the grid, in two and three dimensions.

    python benchmarks/bench_multigrid_iterations.py [--full]

Conjugate gradients with one V-cycle each, to a relative energy error of 1e-8, as tested on the
residual before the last update. "log-normal" is the exponential of a Gaussian field of standard
deviation 2 that is correlated over a fixed share of the domain ("smooth": 1/28) or over two cells.
With --full the mixture goes up to 2240² and 128³.
"""

import sys

import jax
import jax.numpy as jnp
from tables import show_table
from transport_cases import face_weights, log_normal, mixture, prepared

from natgrad.metrics.elliptic.divergence import Divergence
from natgrad.metrics.elliptic.iterative import iterative_factor

TOLERANCE = 1e-8


def iterations(density, tangents, spacing) -> int | None:
    """The larger of the counts of two right-hand sides; None where one has not converged."""
    a, zeta = prepared(density, tangents)
    B = Divergence(tuple(map(jnp.asarray, face_weights(a))), tuple(spacing), periodic=False)

    @jax.jit
    def solve(B, zeta):
        factor = iterative_factor(B, "multigrid", tolerance=TOLERANCE)
        return factor.solution(zeta)[1:]

    counts, _, converged = solve(B, jnp.asarray(zeta))
    return int(jnp.max(counts)) if bool(jnp.all(converged)) else None


def main() -> None:
    full = "--full" in sys.argv
    jax.config.update("jax_enable_x64", True)
    plane = (35, 70, 140, 280, 560) + ((1120, 2240) if full else ())
    space = (16, 32, 64) + ((128,) if full else ())
    cases = {
        "mixture": lambda n, d: mixture(n, d),
        "log-normal, smooth": lambda n, d: log_normal(n, d, n / 28, 2.0),
        "log-normal, 2 cells": lambda n, d: log_normal(n, d, 2.0, 2.0),
    }
    for dim, sizes in ((2, plane), (3, space)):
        power = "²" if dim == 2 else "³"
        rows = ([name, *(iterations(*case(n, dim)) for n in sizes)] for name, case in cases.items())
        show_table(f"{dim}d", ["density", *(f"{n}{power}" for n in sizes)], rows)


if __name__ == "__main__":
    main()
