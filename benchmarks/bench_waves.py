"""Waves at the paper's size beside deepwave and devito: seconds, memory, and what thinning costs.

    python benchmarks/bench_waves.py [--shots 21] [--steps 2000]

306 × 120 cells of 25 m and 20 around them, a 6 Hz Ricker wavelet, 306 receivers, float32, order 4.
Seconds are of the CPU, on one thread, the shorter of two runs after one that compiles. Every task
of every library is a process of its own, with the most memory that it held. "gradient" is a forward
and the adjoint run. A Gauss–Newton product is ZᵀZη; natgrad has kept the waves of the evaluation
("keeping" is one that does), as every step of conjugate gradients does, and the peers compute
them again. Peers that are not installed are left out: `pip install deepwave devito`. Without
llvmlite, natgrad's own code for CPUs is left out too, and its two rows are both XLA's.

Then where the forward run stands: nanoseconds and flops a cell and step, and the bytes of one step
against the bandwidth of a triad a = b + sc measured here on arrays as large as those of a shot.
Last, the products with waves stored at every n-th step, in single precision or bfloat16, and
computed again from the boundary or from checkpoints, against n = 1.
"""

import argparse
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tables import ONE_THREAD, in_process, peak_memory, show_table

SETTINGS = ONE_THREAD | {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "DEVITO_LANGUAGE": "C",
    "DEVITO_ARCH": "gcc",
}
# name: the module that it needs, the function that gives its tasks, its settings
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "natgrad": ("natgrad", "natgrad_tasks", {}),
    "natgrad, XLA": ("natgrad", "natgrad_tasks", {"engine": "xla"}),
    "devito": ("devito", "devito_tasks", {"every": 1}),
    "devito, every 8th": ("devito", "devito_tasks", {"every": 8}),
    "deepwave, every 8th": ("deepwave", "deepwave_tasks", {"every": 8}),
}
TASKS = ("forward", "Born", "gradient", "Gauss-Newton")
LONG = 8.0
PRODUCTS = ("Born", "adjoint", "Gauss-Newton")
OWN_TASKS = ("forward", "keeping", "Born", "gradient", "Gauss-Newton")


def best(task: Callable[[], Any], runs: int) -> float:
    """CPU seconds of the shortest run after one that compiles; fewer where they take long."""
    clock = time.process_time
    start = clock()
    task()
    times: list[float] = []
    for _ in range(1 if clock() - start > LONG else runs):
        start = clock()
        task()
        times.append(clock() - start)
    return min(times)


def measure(variant: str, task: str, shots: int, steps: int) -> dict[str, float]:
    """In a process of its own."""
    import wave_cases

    _, function, settings = VARIANTS[variant]
    tasks = getattr(wave_cases, function)(wave_cases.paper(shots, steps), **settings)
    return {"seconds": best(tasks[task], 2), "peak": peak_memory()}


def side_by_side(arguments: argparse.Namespace) -> Iterator[list]:
    """A row for each task and library."""
    import wave_cases

    updates = wave_cases.paper(arguments.shots, arguments.steps).cell_steps
    size = ["--shots", arguments.shots, "--steps", arguments.steps]
    own: dict[str, float] = {}
    for task in OWN_TASKS:
        for variant, (module, _, _) in VARIANTS.items():
            if importlib.util.find_spec(module) is None:
                continue
            if task not in TASKS and module != "natgrad":
                continue
            if variant == "devito, every 8th" and task in ("forward", "Born"):  # store nothing
                continue
            try:
                found = in_process("--child", variant, task, *size, **SETTINGS)
            except RuntimeError as error:
                if module == "natgrad":
                    raise
                print(error)
                continue
            seconds = found["seconds"]
            own.setdefault(task, seconds)
            each = 1e9 * seconds / updates
            yield [task, variant, seconds, own[task] / seconds, each, found["peak"]]


def limits(seconds: float, shots: int, steps: int) -> list[float]:
    """Nanoseconds, flops and bytes of the forward run against what this core can do."""
    import numpy as np
    import wave_cases

    case = wave_cases.paper(shots, steps)
    # Reads of u⁻, u and w, a write of u⁺. Along each axis two pairs, each two additions and a
    # product, the centre, and two products and two additions of the step.
    bytes_each, flops = 4 * 4, 2 * 2 * 3 + 1 + 4
    size = case.cells  # three arrays take as much as those of a shot
    a, b, c = (np.ones(size, np.float32) for _ in range(3))

    def triad() -> None:
        for _ in range(200):
            np.multiply(c, np.float32(0.5), out=a)
            np.add(a, b, out=a)

    moved = 200 * 4 * size * 5  # reads of c, a and b, and a written twice
    bandwidth = moved / best(triad, 5)
    each = seconds / case.cell_steps
    rate = bytes_each / each
    work = [1e9 * each, flops, flops / each / 1e9, bytes_each, rate / 1e9]
    return [*work, bandwidth / 1e9, rate / bandwidth]


def thinning(shots: int, steps: int) -> Iterator[list]:
    """Errors of the products with fewer stored waves, and what computing them again costs."""
    import jax.numpy as jnp
    import numpy as np
    import wave_cases

    case = wave_cases.paper(shots, steps)
    field = 4 * case.cells * shots
    settings = {f"every {n}": {"stored_every": n, "memory": 2**50} for n in (1, 2, 4, 8, 12)}
    settings["every 8, bfloat16"] = settings["every 8"] | {"stored_as": jnp.bfloat16}
    settings["boundary"] = {"stored_every": 1, "memory": 2**50, "boundary": True}
    settings["checkpoints"] = {"stored_every": 1, "memory": field * steps // 6}
    exact: list[np.ndarray] = []
    for name, storage in settings.items():
        tasks = wave_cases.natgrad_tasks(case, **storage)
        seconds = [best(tasks[task], 2) for task in ("keeping", "Born", "adjoint")]
        found = [np.asarray(tasks[task](), float) for task in PRODUCTS]
        exact = exact or found
        wrong = [
            np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(found, exact, strict=True)
        ]
        yield [name, tasks["model"]().storage.bytes / 2**30, *wrong, *seconds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shots", type=int, default=21)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--child", nargs=2, help="a library and a task, in a process of its own")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    from natgrad.errors import PrecisionWarning

    warnings.simplefilter("ignore", PrecisionWarning)
    size = arguments.shots, arguments.steps
    if arguments.child:
        return print(json.dumps(measure(*arguments.child, *size)))
    columns = ["task", "library", "seconds", "natgrad / it", "ns a cell-step", "peak GiB"]
    rows = list(side_by_side(arguments))
    title = f"{size[0]} shots, {size[1]} steps, CPU seconds"
    show_table("libraries", columns, rows, title)
    columns = ["ns a cell-step", "flops", "Gflop/s", "bytes", "GB/s", "triad GB/s", "of it"]
    show_table("limits", columns, [limits(rows[0][2], *size)], "Where the forward run stands")
    shots = min(3, arguments.shots)
    errors = ["error of Zη", "error of Zᵀξ", "error of ZᵀZη"]
    columns = ["stored", "GiB", *errors, "keeping s", "Zη s", "Zᵀξ s"]
    title = f"Stored waves, {shots} shots: relative errors of the products against every step"
    show_table("stored", columns, thinning(shots, arguments.steps), title)


if __name__ == "__main__":
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    main()
