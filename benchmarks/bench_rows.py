"""Rows of Z by reverse mode at each point: how many at once, and against the whole state at once.

Run as `taskset -c 0 python benchmarks/bench_rows.py`. The residuals are those of −Δu = φ in two
dimensions. "seconds" are CPU seconds for all k rows, the best of several runs, made in chunks of so
many points; the table also has the size of a chunk's rows. `natgrad.models.pointwise.CACHE` is
where the time is lowest. Below, `jax.jacrev` and `jax.jacfwd` of the whole state, for few points
(`--few`), against the rows of the same points.
"""

import argparse
import time
from collections.abc import Callable

import jax
from jax import Array
from jax.flatten_util import ravel_pytree
from pinn_cases import Case, paper, sine

from natgrad.models import pointwise
from natgrad.report import versions

SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def best(function: Callable[[Array], Array], x: Array, budget: float = 3.0) -> float:
    """CPU seconds: the shortest of the runs that fit into the budget, after one that compiles."""
    jax.block_until_ready(function(x))
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget:
        start = time.process_time()
        jax.block_until_ready(function(x))
        times.append(time.process_time() - start)
    return min(times)


def by_rows(case: Case, points: Array, chunk: int) -> Callable[[Array], Array]:
    """θ ↦ Z of the interior block, `chunk` rows at once."""
    function = case.pinn.blocks["interior"].function
    unravel = ravel_pytree(case.start)[1]
    row = lambda flat, x: jax.grad(lambda v: function(unravel(v), x))(flat)
    return jax.jit(lambda flat: jax.lax.map(lambda x: row(flat, x), points, batch_size=chunk))


def at_once(case: Case, points: Array, mode: Callable) -> Callable[[Array], Array]:
    """θ ↦ Z of the interior block by a derivative of the whole state."""
    function = case.pinn.blocks["interior"].function
    unravel = ravel_pytree(case.start)[1]
    state = lambda flat: jax.vmap(lambda x: function(unravel(flat), x))(points)
    return jax.jit(mode(state))


def measure(name: str, case: Case, few: int) -> None:
    points, flat = case.pinn.blocks["interior"].points, ravel_pytree(case.start)[0]
    k, p = len(points), flat.size
    print(f"\n{name}: k = {k}, p = {p:,}")
    print(f"{'chunk':>6} {'KiB':>8} {'seconds':>8} {'µs/row':>7}")
    chosen = max(pointwise.SMALLEST_CHUNK, pointwise.CACHE // flat.nbytes)
    for chunk in sorted({*filter(lambda n: n < k, SIZES), k, chosen}):
        seconds = best(by_rows(case, points, chunk), flat)
        note = "  as chosen by CACHE" if chunk == chosen else ""
        size = chunk * flat.nbytes / 1024
        print(f"{chunk:6d} {size:8.0f} {seconds:8.4f} {1e6 * seconds / k:7.1f}{note}", flush=True)
    rows = best(by_rows(case, points[:few], min(chosen, few)), flat)
    print(f"the first {few} points: rows {rows:.4f} s", end="", flush=True)
    for mode in (jax.jacrev, jax.jacfwd):
        seconds = best(at_once(case, points[:few], mode), flat)
        print(f", {mode.__name__} {seconds:.4f} s ({seconds / rows:.0f} times)", end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", type=int, default=16)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(versions())
    measure("2-20-30-20-1", paper(0), arguments.few)
    measure("2-64-64-48-48-1", sine(0), arguments.few)


if __name__ == "__main__":
    main()
