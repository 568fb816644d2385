"""The CUDA kernels of waves on a GPU: whether they compute what XLA does, and how fast.

    python benchmarks/bench_kernels.py compile                 # without a GPU, where NVRTC is
    python benchmarks/bench_kernels.py check [--out folder]    # about three minutes
    python benchmarks/bench_kernels.py time [--out folder]     # about four minutes
    python benchmarks/bench_kernels.py store [--out folder]    # about two minutes, 90 GB

Every check and every engine is a process of its own with a limit in seconds, so that one that
crashes or hangs leaves the others alone. What is found is printed, and added to kernels.jsonl in
the folder, at once.

A check is a mode of a case. "error" is the kernel's against XLA in double precision, "XLA" that of
XLA in the precision of the kernel: in float32 both are off by the rounding of hundreds of steps,
and by that of stored waves where these are bfloat16. A check passes where the kernel's is at most
the limit, or twice XLA's; it fails where XLA would have run in the kernel's place, and says why.
The kernel runs three times: results that differ by more than the order of a few sums show a race.

Times are wall times, the shortest of several runs, of a call that waits for its result. "in a row"
is one of 32 that a program does one after the other, which leaves out what the call costs the host
(2D, our kernels). 2D is the paper's size: 21 shots, 2000 steps, 306 × 120 cells and 20 around them,
order 4. "2D large" is the same with 1200 × 500 cells, which no cluster of thread blocks holds
whole, and 504 steps. 3D is 512³ cells with the 20 around the model, order 8, one shot of 304 steps.
GB/s count 16 bytes a cell and step, reads of u, u⁻ and w and a write of u⁺, which is what a step in
3D cannot do without; "copy" is the bandwidth of the memory. In 2D fields stay on the chip for many
steps, so that GB/s may exceed it.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tables import show_table

MODES = ("forward", "keep", "born", "adjoint")
# name: shape, cells of the layer, order, dtype, whether points lie on the grid, shots, steps; with
# bfloat16 waves are in single precision, and stored as that
CASES: dict[str, tuple] = {
    "2D order 4": ((306, 120), 20, 4, "float32", True, 5, 300),
    "2D order 8": ((200, 110), 10, 8, "float32", False, 3, 200),
    "2D double": ((200, 111), 10, 4, "float64", False, 3, 200),
    "2D many shots": ((120, 90), 10, 4, "float32", True, 150, 60),
    "2D large": ((820, 620), 10, 8, "float32", True, 2, 60),
    "2D large, double": ((401, 301), 10, 4, "float64", False, 2, 60),
    "2D bfloat16": ((200, 110), 10, 4, "bfloat16", True, 3, 200),
    "3D order 4": ((60, 70, 108), 10, 4, "float32", False, 2, 60),
    "3D order 8": ((61, 70, 172), 10, 8, "float32", True, 2, 60),
    "3D double": ((40, 51, 77), 10, 8, "float64", False, 2, 60),
    "3D bfloat16": ((40, 51, 76), 10, 4, "bfloat16", True, 2, 60),
}
LIMITS = {"bfloat16": 1e-5, "float32": 1e-5, "float64": 1e-12}
CHECK_SECONDS, TIME_SECONDS, TOTAL_SECONDS = 100.0, 80.0, 220.0
TOGETHER = min(14, os.cpu_count() or 1)  # checks
# engine: the module that it needs, settings of the model
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "kernels": ("natgrad", {"engine": "kernels"}),
    "deepwave": ("deepwave", {}),
    "xla": ("natgrad", {"engine": "xla"}),  # last: where time is short, it goes without
}
TASKS = ("forward", "keeping", "Born", "adjoint", "gradient", "Gauss-Newton")
IN_A_ROW = 32
LARGE, LARGE_STEPS = (1200, 500), 504  # too large for a cluster
VOLUME, VOLUME_STEPS = (472, 472, 472), 304  # as long as the wavelet is
STORED, STORED_STEPS, BUDGETS = (400, 400, 400), 2000, (40e9, 60e9, 100e9)
STORE_SECONDS = 100.0


def make(case: str, engine: str, dtype: str) -> Any:
    """A model with a rough velocity, and points drawn at random."""
    import jax.numpy as jnp
    import numpy as np

    from natgrad import waves

    shape, layer, order, _, on_grid, shots, steps = CASES[case]
    rng, spacing = np.random.default_rng(0), (10.0, 12.0, 11.0)[: len(shape)]
    spacing = (12.0, 12.0) if case == "2D order 4" else spacing  # the paper's is equal, too
    place = lambda n: rng.uniform(0, 1, (n, len(shape))) * (np.array(shape) - 1) * spacing
    sources, receivers = place(shots), place(40)
    if on_grid:
        sources, receivers = (spacing * np.round(x / spacing) for x in (sources, receivers))
    wavelet = waves.ricker(12.0, 0.0015, steps, 0.03)
    survey = waves.Survey(shape, spacing, 0.0015, sources, receivers, wavelet)
    velocity = 2000.0 + 300 * rng.normal(size=shape).clip(-1, 1)
    settings = {"order": order, "absorbing": layer, "stored_every": 3, "memory": 2**36}
    if dtype == "bfloat16":
        dtype, settings["stored_as"] = "float32", jnp.bfloat16
    return waves.Acoustic(survey, velocity, engine=engine, dtype=np.dtype(dtype).type, **settings)


def run_mode(case: str, mode: str, engine: str, dtype: str, times: int = 1) -> list[list[Any]]:
    """The arrays that one mode gives, as often as asked."""
    import equinox as eqx
    import jax.numpy as jnp
    import numpy as np

    model, rng = make(case, engine, dtype), np.random.default_rng(1)
    eta = jnp.asarray(rng.normal(size=model.start.size), model.start.dtype)
    xi = jnp.asarray(rng.normal(size=model.survey.data_shape), model.start.dtype)
    evaluate = eqx.filter_jit(lambda model: model.evaluate(model.start))
    known = evaluate(model) if mode in ("born", "adjoint") else None

    @eqx.filter_jit
    def compute(model: Any, known: Any) -> Any:
        if mode == "forward":
            return [model(model.start)]
        if mode == "keep":
            return list(model.evaluate(model.start))
        shaped = lambda flat: flat.reshape(model.survey.shape)
        products = model.products(shaped, model.start.ravel(), known)
        return [products.push(eta) if mode == "born" else products.pull(xi)]

    bits = lambda x: x.view(jnp.bfloat16) if x.dtype == np.uint16 else x  # of stored waves
    found = [
        [np.asarray(bits(np.asarray(x)), float) for x in compute(model, known)]
        for _ in range(times)
    ]
    if mode == "keep" and engine != "xla" and len(model.survey.shape) == 2:
        for parts in found:  # the kernels have the longer axis first, whatever the array says
            *rows, short, long = parts[1].shape
            parts[1] = parts[1].reshape(*rows, long, short).swapaxes(-1, -2)
    return found


def check(case: str, mode: str) -> Iterator[dict[str, Any]]:
    """In a process of its own: what differs between runs, then the error against XLA."""
    import jax
    import numpy as np

    from natgrad.errors import PrecisionWarning

    dtype = CASES[case][3]
    limit = LIMITS[dtype]
    jax.config.update("jax_enable_x64", True)

    def worst(parts: list, others: list) -> float:
        pairs = zip(parts, others, strict=True)
        return max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in pairs)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "engine: XLA computes", PrecisionWarning)
        found = run_mode(case, mode, "kernels", dtype, 3)
    apart = max(worst(parts, found[0]) for parts in found)
    yield {"ok": False, "apart": apart, "limit": limit}  # should XLA take too long
    exact = run_mode(case, mode, "xla", "float64")[0]
    error = max(worst(parts, exact) for parts in found)
    xla = worst(run_mode(case, mode, "xla", dtype)[0], exact) if dtype != "float64" else 0.0
    ok = error <= max(limit, 2 * xla) and apart <= limit / 10  # and none is NaN
    yield {"ok": ok, "apart": apart, "limit": limit, "error": error, "xla": xla}


def volume(shape: tuple[int, ...], steps: int) -> Any:
    """One shot in the middle of a cube, recorded on a line."""
    import numpy as np
    import wave_cases

    from natgrad import waves

    dt, h, frequency = 0.001, 10.0, 10.0
    middle = h * (np.array(shape) // 2)
    line = np.stack([np.arange(shape[0]) * h, *np.full((2, shape[0]), 50.0)], 1)
    survey = waves.Survey(shape, h, dt, middle[None], line, waves.ricker(frequency, dt, steps))
    velocity = np.linspace(1800.0, 3000.0, shape[2]) * np.ones(shape)
    data = np.random.default_rng(0).normal(size=survey.data_shape).astype(np.float32)
    return wave_cases.Case(survey, velocity, np.full(shape, 0.01), data)


def measure(engine: str, size: str) -> Iterator[dict[str, Any]]:
    """In a process of its own: seconds of every task, as they come."""
    import wave_cases

    cases = {
        "2D": lambda: wave_cases.paper(21, 2000),
        "2D large": lambda: wave_cases.paper(21, LARGE_STEPS, LARGE),
        "3D": lambda: volume(VOLUME, VOLUME_STEPS),
    }
    case, settings = cases[size](), {"order": 8 if size == "3D" else 4, "memory": 2**36}
    if engine == "deepwave":
        tasks = wave_cases.deepwave_tasks(case, 8, "cuda", settings["order"])
    else:
        warnings.filterwarnings("error", "engine: XLA computes")
        tasks = wave_cases.natgrad_tasks(case, **settings, **ENGINES[engine][1])
    again = (engine, size) == ("kernels", "2D")  # in a row
    waiting: list[dict[str, Any]] = []
    for task in TASKS:
        if task not in tasks:
            continue
        first, seconds = clock(tasks[task])
        rate = case.cell_steps / seconds
        memory = peak_bytes() / 2**30
        if engine == "deepwave":
            import torch

            memory = torch.cuda.max_memory_allocated() / 2**30
        row = {"task": task, "first": first, "ms": 1e3 * seconds, "Gcell/s": rate / 1e9}
        row |= {"GB/s": 16 * rate / 1e9, "peak GiB": memory}
        if again:
            waiting.append(row)
        else:
            yield row
    if again:  # after the others, whose memory is theirs alone
        calls = wave_cases.natgrad_in_a_row(case, IN_A_ROW, **ENGINES[engine][1])
        for row in waiting:
            if row["task"] in calls:
                row["in a row ms"] = 1e3 * clock(calls[row["task"]])[1] / IN_A_ROW
            yield row


def store(memory: str, folder: str) -> Iterator[dict[str, Any]]:
    """In a process of its own: a gradient by the way that so many bytes allow, or by the boundary.

    It is kept in the folder, for the next to compare with.
    """
    import numpy as np
    import wave_cases

    case, path = volume(STORED, STORED_STEPS), Path(folder, "gradient.npy")
    allowed = int(float(memory))
    tasks = wave_cases.natgrad_tasks(case, order=8, memory=allowed, boundary=allowed == BUDGETS[1])
    storage, times = tasks["model"]().storage, []
    for _ in range(2):
        start = time.perf_counter()
        found = tasks["gradient"]()
        times.append(time.perf_counter() - start)
    kept = str(storage).partition(",")[0]
    row = {"stored": kept, "stored GB": storage.bytes / 1e9, "first s": times[0], "s": times[1]}
    row["peak GB"] = peak_bytes() / 1e9
    new, before = np.asarray(found, float), np.load(path) if path.exists() else None
    if before is not None:
        row["apart"] = float(np.linalg.norm(new - before) / np.linalg.norm(before))
    np.save(path, new)
    yield row


def peak_bytes() -> int:
    """The most that this process has had on the GPU."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def clock(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the first call, and the least of the others."""
    start = time.perf_counter()
    call()
    first, times = time.perf_counter() - start, []
    while len(times) < 3 or (sum(times) < 1.0 and len(times) < 20):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return first, min(times)


def copy() -> Iterator[dict[str, Any]]:
    """The bandwidth of the memory: bytes read and written."""
    import jax
    import jax.numpy as jnp

    x = jnp.arange(2**30, dtype=jnp.float32)
    shifted = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        x = jax.block_until_ready(shifted(x))
        times.append(time.perf_counter() - start)
    yield {"task": "copy", "ms": 1e3 * min(times), "GB/s": 8 * x.size / min(times) / 1e9}


def child(*words: str, seconds: float) -> tuple[list[dict[str, Any]], str]:
    """The lines of JSON that this script prints with these words, and what went wrong."""
    command = [sys.executable, __file__, *words]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds
        )
        out, ended = done.stdout, f"ended with code {done.returncode}"  # a crash says no more
        wrong = (done.stderr.strip() or ended) if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        given = error.stdout or b""
        out = given if isinstance(given, str) else given.decode(errors="replace")
        wrong = f"over {seconds:.0f} s"
    # a process that was ended may have left half a line
    found = [json.loads(line) for line in out.splitlines() if line[:1] + line[-1:] == "{}"]
    lines = [line for line in wrong.splitlines() if line.strip()]
    return found, lines[-1][:300] if lines else ""


def check_all(file: Path) -> Iterator[list]:
    began = time.monotonic()

    def one(key: tuple[str, str]) -> tuple[tuple[str, str], dict[str, Any], str]:
        left = TOTAL_SECONDS - (time.monotonic() - began)
        if left < 15:
            return key, {}, "no time left"
        found, wrong = child("child-check", *key, seconds=min(CHECK_SECONDS, left))
        return key, found[-1] if found else {}, wrong

    keys = [(case, mode) for case in CASES for mode in MODES]
    with ThreadPoolExecutor(TOGETHER) as pool:
        for (case, mode), found, wrong in pool.map(one, keys):
            verdict = "passed" if found.get("ok") else "failed"
            write(file, {"case": case, "mode": mode, "verdict": verdict, "wrong": wrong} | found)
            numbers = [found.get(name) for name in ("error", "xla", "apart", "limit")]
            yield [case, mode, verdict, *numbers, wrong]


def compile_all() -> Iterator[list]:
    """The kernels of every check by NVRTC (pip install nvidia-cuda-nvrtc), for a Hopper GPU."""
    import jax

    from natgrad.core.cuda import Launch, Usage
    from natgrad.waves import kernels, scheme

    jax.config.update("jax_enable_x64", True)
    kernels.find_device = kernels.Device
    Launch.usage = lambda self, _: [Usage(0, 0, int(len(self.cubin()) > 0))]
    for case in CASES:
        model = make(case, "xla", CASES[case][3])
        medium = scheme.Medium(model.slowness(model.start), model.layer, model.scheme)
        for mode in MODES:
            found = kernels.find(mode, medium, model.gathers.source, model.gathers.receivers)
            wrong = found if isinstance(found, str) else ""
            yield [case, mode, "failed" if wrong else "passed", wrong]


def time_all(file: Path) -> Iterator[list]:
    began = time.monotonic()
    sizes = ("2D", "2D large", "3D")
    own, *others = ([(engine, size) for size in sizes] for engine in ENGINES)
    keys = [("copy", "copy"), *own, *(key for keys in zip(*others, strict=True) for key in keys)]
    for engine, size in keys:
        module = ENGINES.get(engine, ("jax",))[0]
        left = TOTAL_SECONDS - (time.monotonic() - began)
        if importlib.util.find_spec(module) is None or left < 15:
            why = "no time left" if left < 15 else f"{module} is not installed"
            yield [size, engine, "–", *[None] * 6, why]
            continue
        found, wrong = child("child-time", engine, size, seconds=min(TIME_SECONDS, left))
        for row in found:
            write(file, {"engine": engine, "size": size} | row)
            names = ("first", "ms", "in a row ms", "Gcell/s", "GB/s", "peak GiB")
            yield [size, engine, row["task"], *(row.get(name) for name in names), ""]
        if wrong or not found:
            write(file, {"engine": engine, "size": size, "wrong": wrong})
            yield [size, engine, "–", *[None] * 6, wrong or "nothing came"]


def store_all(file: Path) -> Iterator[list]:
    names = ("stored GB", "first s", "s", "peak GB", "apart")
    with tempfile.TemporaryDirectory() as folder:
        for memory in BUDGETS:
            words = ("child-store", str(memory), folder)
            found, wrong = child(*words, seconds=STORE_SECONDS)
            row = {"memory GB": memory / 1e9} | (found[0] if found else {})
            write(file, row | {"wrong": wrong})
            first = [row.get("stored", "–"), row["memory GB"]]
            yield [*first, *(row.get(name) for name in names), wrong]


def write(file: Path, row: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    told = ("compile", "check", "time", "store")
    parser.add_argument("what", choices=(*told, *(f"child-{name}" for name in told[1:])))
    parser.add_argument("words", nargs="*", help="of a process of its own")
    parser.add_argument("--out", type=Path, default=Path("."), help="the folder of kernels.jsonl")
    arguments = parser.parse_args()
    if arguments.what.startswith("child"):
        run = {"child-check": check, "child-time": measure, "child-store": store}[arguments.what]
        try:
            for row in copy() if "copy" in arguments.words else run(*arguments.words):
                print(json.dumps(row), flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
            os._exit(1)  # nothing comes after that line
        return None
    if arguments.what == "compile":
        columns = ["case", "mode", "verdict", "what went wrong"]
        return show_table("compiled", columns, compile_all(), "Kernels by NVRTC")
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "kernels.jsonl"
    if arguments.what == "check":
        columns = ["case", "mode", "verdict", "error", "XLA", "between runs", "limit", "wrong"]
        return show_table("checks", columns, check_all(file), "Kernels against XLA")
    if arguments.what == "store":
        columns = ["stored", "memory GB", "stored GB", "first s", "s", "peak GB", "apart", "wrong"]
        return show_table("stored", columns, store_all(file), "A gradient by ways of storing")
    columns = ["size", "engine", "task", "first s", "ms", "in a row ms", "Gcell/s", "GB/s"]
    columns += ["peak GiB", "wrong"]
    return show_table("times", columns, time_all(file), "Wall times")


if __name__ == "__main__":
    main()
