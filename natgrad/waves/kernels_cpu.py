"""Waves by code of our own on a CPU, in 2D: the interface of kernels.py for run_code.py.

A shot is run from the first to the last step by one call; shots are dealt out to the cores that the
process may use. The numbers are those of `Medium`, but for the order of sums. What is kept of the
waves has the order of `Grid.held`, and is only read by the code that has written it.

    find("forward", medium, source, receivers)     # the task, or why XLA runs instead
"""

import ctypes
import json
import math
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..core import ffi, llvm
from ..core.ffi import Call, register
from .run_code import NUMBERS, TABLE, Task
from .scheme import GAMMA, SECOND, Medium, Positions
from .step_code import FIELDS, Grid

TARGET, ROOM = "natgrad_waves", "natgrad_room"
GAP = 576  # bytes between fields, so that the same cell of all of them is not in one set of a cache


@cache
def prepare(task: Task, past_caches: bool) -> Any:
    """The compiled run of one shot."""
    address = llvm.compile_code(task.write(past_caches), "run")
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


def find(mode: str, medium: Medium, source: Positions, receivers: Positions) -> Task | str:
    """The task that runs these shots, or a line that says why it is XLA that does.

    What one task keeps the others read, so there are all three of them or none.
    """
    scheme, shape, dtype = medium.scheme, medium.weight.shape, medium.weight.dtype
    if len(shape) != 2:
        return "the kernels for CPUs are for 2D"
    if scheme.recomputes and mode != "forward":
        return "the waves are not kept, but computed again"
    if scheme.slab_axis is not None:
        return "devices share a shot"
    if reason := llvm.missing():
        return reason
    try:
        wide = llvm.vector_bytes()
        numbers = (shape[1] - scheme.fill, scheme.spacing, scheme.order, scheme.absorbing)
        kind = ("float" if dtype == jnp.float32 else "double", max(4, wide // dtype.itemsize))
        block = 2 if wide == 32 else 3  # AVX has half as many registers as AVX-512 and ARM
        grid = Grid(shape, *numbers, *kind, block)
        tasks = {}
        for name in ("forward",) if mode == "forward" else ("keep", "born", "adjoint"):
            injected = receivers if name == "adjoint" else source
            corners = injected.cells.shape[2], receivers.cells.shape[2]
            bfloat16 = scheme.stored is not None and name != "forward"
            tasks[name] = Task(name, scheme.every, *corners, grid, bfloat16)
            prepare(tasks[name], passes_caches(tasks[name], 0))
    except (RuntimeError, OSError, ImportError, AttributeError) as error:  # of another llvmlite
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return tasks[mode]


def passes_caches(task: Task, address: int) -> bool:
    """Whether q is kept there in whole vectors, which may be written past the caches."""
    grid, size = task.grid, 2 if task.bfloat16 else 4 if task.grid.real == "float" else 8
    whole = address % (grid.width * size) == 0 and math.prod(grid.shape) % grid.width == 0
    return task.mode == "keep" and whole


def call(task: Task, medium: Medium, results: list, *given: Array) -> list[Array]:
    """The task on w, the lines of the layer and what is given, in a function that is traced."""
    register(TARGET, "cpu", _execute)
    dtype = medium.weight.dtype
    lines = [jnp.concatenate(pair).astype(dtype) for pair in medium.layer.lines]
    lines = lines or [jnp.zeros((4, 0), dtype)] * 2
    kinds = dtype, medium.scheme.stored or dtype  # of what is computed, and of q
    shapes = [jax.ShapeDtypeStruct(*x) for x in zip(results, kinds, strict=False)]
    return ffi.call(TARGET, shapes, medium.weight, *lines, *given, launch=json.dumps(task))


def point(medium: Medium, at: Positions) -> tuple[Array, Array]:
    lead = jnp.asarray(medium.scheme.lead, at.cells.dtype)
    return at.cells - lead, at.weights.astype(medium.weight.dtype)


def forward(
    task: Task, medium: Medium, wavelet: Array, source: Positions, receivers: Positions
) -> list[Array]:
    """The data, (shots, receivers, steps), and q where it is kept; a scaled source."""
    results: list = [(*receivers.cells.shape[:2], medium.scheme.steps)]
    if task.mode == "keep":
        results.append((medium.scheme.blocks, len(wavelet), *medium.weight.shape))
    given = (*point(medium, source), wavelet, *point(medium, receivers))
    return call(task, medium, results, *given)


def born(task: Task, medium: Medium, ratio: Array, kept: Array, receivers: Positions) -> Array:
    """The data of the linearised waves for the source ratio · q."""
    results: list = [(*receivers.cells.shape[:2], medium.scheme.steps)]
    return call(task, medium, results, ratio, kept, *point(medium, receivers))[0]


def adjoint(task: Task, medium: Medium, kept: Array, receivers: Positions, xi: Array) -> Array:
    """Σ q y over steps and shots, for scaled receivers."""
    results: list = [(len(xi), *medium.weight.shape)]
    return call(task, medium, results, kept, *point(medium, receivers), xi)[0].sum(axis=0)


# Arguments after w and the lines of the layer, then results.
GIVEN = {
    "forward": ("inject_at", "inject_by", "samples", "record_at", "record_by", "data"),
    "keep": ("inject_at", "inject_by", "samples", "record_at", "record_by", "data", "kept"),
    "born": ("other", "kept", "record_at", "record_by", "data"),
    "adjoint": ("kept", "inject_at", "inject_by", "samples", "image"),
}


def _execute(call: Call) -> None:
    """All shots, as many at once as there are cores for this process."""
    mode, every, injected, recorded, grid, bfloat16 = json.loads(call.launch)
    grid = Grid(tuple(grid[0]), grid[1], tuple(grid[2]), *grid[3:])
    weight, line0, line1, *rest = call.arrays
    given = dict(zip(GIVEN[mode], rest, strict=True))
    room = lambda *shape: _zeros(shape, weight.dtype)
    common = {"%w": room(grid.size), "%other": room(grid.size)}  # to all shots
    unit = SECOND[grid.order][-1]  # of sums: see `Step`
    grid.inside(common["%w"])[:] = grid.lay_out(weight * (unit / grid.spacing[0] ** 2))
    if "other" in given:
        grid.inside(common["%other"])[:] = grid.lay_out(given["other"])
    if grid.layer:
        line1 = grid.cut_ends(grid.lay_out(line1))
    for name, line, count, begin in (
        ("%lines0", line0, grid.rows, grid.ahead),
        ("%lines1", line1, line1.shape[1], 0),
    ):
        common[name] = room(4, count)
        common[name][:, begin : begin + line.shape[1]] = line
        common[name][0] *= GAMMA[grid.order] ** 2 / unit
    each = {f"%{x}": given[x] for x in given if x not in ("kept", "other", "image")}
    sizes: dict[str, int] = dict.fromkeys(NUMBERS, 0)
    for kind in ("inject", "record"):
        if (cells := given.get(f"{kind}_at")) is not None:
            sizes[f"{kind}ed"] = cells.shape[1]
            row, column = cells[..., 0].astype(np.int64), cells[..., 1]
            each[f"%{kind}_at"] = row * grid.stride + grid.places[column] + grid.origin
    shots, _, sizes["steps"] = given["samples" if mode == "adjoint" else "data"].shape
    sizes["stride"] = shots * weight.size
    kept = given.get("kept", np.zeros((1, shots, 1)))
    for name in ("data", "kept") if mode == "keep" else ("data",):
        if name in given:
            ask_for_large_pages(given[name])
    task = Task(mode, every, injected, recorded, grid, bfloat16)
    function = prepare(task, passes_caches(task, kept.ctypes.data))

    def run(shot: int) -> None:
        apart = -(-(grid.size * weight.itemsize + GAP) // 64) * 64 // weight.itemsize
        arrays = dict(zip(FIELDS, room(len(FIELDS), apart), strict=True))
        own = {name: x[shot] for name, x in each.items()}
        if mode in ("keep", "adjoint"):
            own["%other"] = image = arrays["%other"]
        arrays |= common | own | {"%kept": kept[0, shot]}
        address = lambda name: arrays[name].ctypes.data if name in arrays else 0
        table = [sizes[name] if name in sizes else address(name) for name in TABLE]
        function((ctypes.c_int64 * len(table))(*table))
        if mode == "adjoint":
            given["image"][shot][:, : grid.last] = grid.inside(image)[:, grid.places]
            given["image"][shot][:, grid.last :] = 0

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    several = min(shots, cores or 1) > 1
    list((_pool(cores).map if several else map)(run, range(shots)))


_pool = cache(ThreadPoolExecutor)  # one for all devices, which together have these cores


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin at a line of the cache."""
    count = math.prod(shape) * dtype.itemsize
    raw = np.zeros(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count].view(dtype).reshape(shape)


def ask_for_large_pages(x: np.ndarray) -> None:
    """Let Linux back an array by pages of 2 MiB; one of 4 kiB costs more than to write it."""
    advice, large = getattr(mmap, "MADV_HUGEPAGE", None), 2**21
    start, stop = -(-x.ctypes.data // large) * large, (x.ctypes.data + x.nbytes) // large * large
    if advice is not None and stop > start:
        with suppress(OSError, AttributeError):  # advice may be ignored, or unknown to the system
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)


def ask_for_room(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Room for the waves that XLA keeps: on large pages, and not set to zero.

    But for the first number: a step adds zero times that (`Medium.advance`), which may be NaN.
    """

    def execute(call: Call) -> None:
        ask_for_large_pages(call.arrays[0])
        call.arrays[0].ravel()[:1] = 0

    register(ROOM, "cpu", execute)
    return ffi.call(ROOM, [jax.ShapeDtypeStruct(shape, dtype)], launch="")[0]
