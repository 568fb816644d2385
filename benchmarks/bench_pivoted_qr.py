"""Time the rank-revealing factorisations of `natgrad.core.dense` against plain QR and Cholesky.

Run as `python benchmarks/bench_pivoted_qr.py`. Best of many, all routes of a size taking turns in
one process.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from bench_gram import best_of_turns
from tables import show_table

from natgrad.core.dense import (
    MinimumNormFactor,
    gram,
    minimum_norm_factor,
    pivoted_qr,
    safe_cholesky,
    solve_and_estimate,
)

SIZES_AND_RANKS = [
    *((2500, 1331, rank) for rank in (55, 175, 1331)),
    (19600, 200, 200),
    (19600, 20, 20),
    (400, 3000, 400),
]


def of_rank(k: int, p: int, rank: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((k, rank)) @ rng.standard_normal((rank, p))


def factorisations() -> Iterator[list]:
    """A row for each size, rank and route."""
    solve, condition = jax.jit(MinimumNormFactor.solve), jax.jit(solve_and_estimate)
    for k, p, rank in SIZES_AND_RANKS:
        Y = jnp.asarray(of_rank(k, p, rank))
        b, r = jnp.ones(k), jnp.ones(p)
        factor = jax.jit(minimum_norm_factor)(Y)
        on_Y = {
            "unpivoted QR": lambda Y: jnp.linalg.qr(Y, mode="r"),
            "jax.scipy pivoted QR": lambda Y: jax.scipy.linalg.qr(Y, mode="r", pivoting=True),
            "natgrad pivoted_qr": pivoted_qr,
            "natgrad minimum_norm_factor": minimum_norm_factor,
            "Gram + Cholesky": lambda Y: safe_cholesky(gram(Y)),
        }
        routes = {name: lambda f=jax.jit(f), Y=Y: f(Y) for name, f in on_Y.items()}
        routes["solve, undamped"] = lambda a=(factor, b, r): solve(*a, 0.0)
        routes["solve, damped"] = lambda a=(factor, b, r): solve(*a, 1e-3)
        routes["condition number"] = lambda R=factor.R1: condition(R)
        best = best_of_turns(routes, 12.0)
        rival = best["jax.scipy pivoted QR"][0]
        for name, (wall, cpu) in best.items():
            times = [1e3 * wall, 1e3 * cpu, rival / wall]
            yield [name, f"{k} × {p}", rank, int(factor.rank), *times]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    columns = ["route", "size", "rank", "found", "wall ms", "CPU ms", "pivoted QR over it"]
    show_table("factorisations", columns, factorisations(), "Double precision")


if __name__ == "__main__":
    main()
