"""Rows of Z by reverse mode at each point: how many at once, and against the whole state at once.

Run as `taskset -c 0 python benchmarks/bench_rows.py`. The residuals are those of −Δu = φ in two
dimensions. "seconds" are CPU seconds for all k rows, the best of several runs, made in chunks of so
many points; the table also has the size of a chunk's rows. `natgrad.models.pointwise.CACHE` is
where the time is lowest. Below, `jax.jacrev` and `jax.jacfwd` of the whole state, for few points
(`--few`), against the rows of the same points.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import jax
from jax import Array
from jax.flatten_util import ravel_pytree
from pinn_cases import Case, paper, sine
from tables import best, show_table

from natgrad.models import pointwise

SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


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


def chunks(case: Case, chosen: int) -> Iterator[list]:
    """A row for each number of points at once."""
    points, flat = case.pinn.blocks["interior"].points, ravel_pytree(case.start)[0]
    k = len(points)
    for chunk in sorted({*filter(lambda n: n < k, SIZES), k, chosen}):
        seconds = spent(by_rows(case, points, chunk), flat)
        said = "chosen" if chunk == chosen else ""
        yield [chunk, chunk * flat.nbytes / 1024, seconds, 1e6 * seconds / k, said]


def spent(function: Callable[[Array], Array], x: Array) -> float:
    return best(lambda: function(x), 3.0, time.process_time, least=3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", type=int, default=16)
    few = parser.parse_args().few
    jax.config.update("jax_enable_x64", True)
    whole = []
    for name, case in {"2-20-30-20-1": paper(0), "2-64-64-48-48-1": sine(0)}.items():
        points, flat = case.pinn.blocks["interior"].points[:few], ravel_pytree(case.start)[0]
        chosen = max(pointwise.SMALLEST_CHUNK, pointwise.CACHE // flat.nbytes)
        columns = ["chunk", "KiB", "CPU s", "µs a row", "by CACHE"]
        show_table(name, columns, chunks(case, chosen), f"{name}: p = {flat.size:,}")
        rows = spent(by_rows(case, points, min(chosen, few)), flat)
        modes = [spent(at_once(case, points, mode), flat) for mode in (jax.jacrev, jax.jacfwd)]
        whole.append([name, rows, *modes, *(seconds / rows for seconds in modes)])
    columns = ["network", "rows, s", "jacrev, s", "jacfwd, s", "jacrev / rows", "jacfwd / rows"]
    show_table("whole_state", columns, whole, f"The first {few} points: CPU seconds")


if __name__ == "__main__":
    main()
