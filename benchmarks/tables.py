"""What the benchmarks share: tables, the shortest of several runs, parts in their own processes."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Cell = str | float | None
KEPT = "NATGRAD_TABLES"  # in the environment: the file that takes every table, a line of JSON each


def show_table(
    name: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = ""
) -> None:
    """Print the rows as they come, rounded; keep them with all their digits where that is asked.

    A cell is a text, a number, or None for what was not measured.
    """
    if title:
        print(f"\n{title}")
    widths = [max(10, len(column)) for column in columns]
    print(_line(columns, widths), flush=True)
    kept = []
    for row in rows:
        cells = [_plain(cell) for cell in row]
        if len(cells) != len(columns):
            raise ValueError(f"{name}: {len(cells)} cells in a row of {len(columns)} columns")
        kept.append(cells)
        print(_line(map(_shown, cells), widths), flush=True)
    if path := os.environ.get(KEPT):
        table = {"name": name, "title": title, "columns": list(columns), "rows": kept}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(table, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(cell: Any) -> Cell:
    if hasattr(cell, "item"):  # a number of NumPy or JAX
        cell = cell.item()
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _line(cells: Iterable[str], widths: list[int]) -> str:
    first, *rest = cells
    return "  ".join(
        [f"{first:<24}", *(f"{c:>{w}}" for c, w in zip(rest, widths[1:], strict=True))]
    )


def best(
    function: Callable[[], Any],
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
    least: int = 1,
) -> float:
    """The shortest of the runs that fit into so many seconds, after one that compiles."""
    import jax

    jax.block_until_ready(function())
    times: list[float] = []
    while len(times) < least or (sum(times) < seconds and len(times) < 30):
        start = clock()
        jax.block_until_ready(function())
        times.append(clock() - start)
    return min(times)


def peak_memory() -> float:
    """The most memory that this process has held, in GiB.

    Not `getrusage`, whose maximum a child takes over from the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def in_process(*words: Any, **environment: str) -> Any:
    """What this script prints last, as JSON, when it is run again with other arguments."""
    command = [sys.executable, sys.argv[0], *map(str, words)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


# on one core for XLA, BLAS and OpenMP; a mask on cores alone leaves their threads waiting
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def one_core() -> None:
    """Bind this process to the first core that it may use."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
