"""Waves by kernels of our own on an NVIDIA GPU.

A 2D shot, or a tile of a large one, stays in the shared memory of a cluster of thread blocks for
many steps (kernels_2d.cu). In 3D, and in 2D where tiles would take longer, a launch is a step of
all shots, in which each field is read once (kernels_3d.cu). A plan has the sizes (kernel_plans.py).
The scheme is that of `Medium`, and so are the numbers, but for the order of sums.

    find("forward", medium, source, receivers)  # the kernel, or a line that says why there is none
"""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..core import cuda
from ..core.cuda import CudaError, Kernel, Launch
from .kernel_plans import Device, Plan, Stream, Task, in_3d, plan_kernel, round_up
from .scheme import GAMMA, SECOND, Layer, Medium, Positions

MODES = ("forward", "keep", "born", "adjoint")


@cache
def find_device() -> Device | str:
    """The GPU that programs run on, or why our kernels cannot run on it."""
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    devices = jax.local_devices()
    found = sorted({str(getattr(device, "compute_capability", "0.0")) for device in devices})
    if len(found) > 1:
        return f"the GPUs differ (compute capability {', '.join(found)})"
    capability, ordinal = found[0], getattr(devices[0], "local_hardware_id", None) or 0
    if not (capability.split(".")[0].isdecimal() and int(capability.split(".")[0]) >= 9):
        what = f"{devices[0].device_kind} has compute capability {capability}"
        return f"{what}, and clusters of thread blocks need 9.0"
    try:
        shared, count = cuda.limits(ordinal)
    except (CudaError, OSError) as error:
        return str(error)
    name = f"sm_{capability.replace('.', '')}"
    return Device(name, shared, multiprocessors=count, ordinal=ordinal)


def unit(order: int, spacing: tuple[float, ...]) -> float:
    """What sums over stencils are in units of, which w has: the last weight, if it is that of both
    axes in 2D. The others are then whole numbers at order 4, which add up to zero as they should.
    """
    return SECOND[order][-1] / spacing[0] ** 2 if spacing == 2 * spacing[:1] else 1.0


def launch(task: Task, plan: Plan | Stream, device: Device) -> Launch:
    """The kernels of a plan, all of its numbers written into the source."""
    state: tuple[tuple[int, ...], ...] = ()
    real, suffix = ("float", "f") if task.itemsize == 4 else ("double", "")
    number = lambda x: f"{float(x)!r}{suffix}"
    scales = [h**-2 / unit(task.order, task.spacing) for h in task.spacing]
    weights = [", ".join(number(w * scale) for w in SECOND[task.order]) for scale in scales]
    if isinstance(plan, Stream) and len(weights) == 2:  # none along the axis that is not there
        weights.insert(1, number(0))
        scales.insert(1, 0.0)
    macros: dict[str, Any] = {
        "REAL": real,
        "MODE": MODES.index(task.mode),
        "HALF": task.order // 2,
        "LAYER": task.layer,
        "STEPS": task.steps,
        "EVERY": task.every,
        "SHOTS": task.shots,
        "INJECTED": task.injected,
        "INJECTED_CORNERS": task.injected_corners,
        "RECORDED": task.recorded,
        "RECORDED_CORNERS": task.recorded_corners,
        "THREADS": plan.threads,
        "SHARED": plan.shared,
        "AXES_WEIGHTS": ", ".join(f"{{{w}}}" for w in weights),
        "AXES_SLOPES": ", ".join(map(number, scales)),
        "GAMMA": number(GAMMA[task.order]),
        "BFLOAT16": int(task.bfloat16),
    }
    if isinstance(plan, Plan):
        files = ("layout_2d.cuh", "kernels_2d.cu")
        rounds = -(-task.steps // plan.burst) if plan.burst else 1
        names = ("GX", "GZ", "NX", "NZ", "TX", "TZ")
        macros |= dict(zip(names, (*task.shape, *plan.tile, *plan.tiles), strict=True))
        macros |= {"BURST": plan.burst, "OVERLAP": plan.burst * task.order // 2}
        macros |= {"BLOCKS": plan.blocks, "COLS": plan.columns, "FIRST": plan.first}
        macros |= {"PX": plan.patch, "PO": plan.outer, "COLUMN": plan.column, "LINE": plan.line}
        macros |= {"RESIDENT": 1}
        grid = task.shots * math.prod(plan.tiles) * plan.blocks
        kernels = (Kernel("wave", grid, plan.threads, plan.blocks, plan.shared),)
        if plan.burst:
            # Two sets of u and u⁻, and of ψ and ζ at both ends of both axes; a group is four rows.
            (gx, gz), (columns, groups) = task.shape, plan.strips
            memories = 8 * columns * gz + 32 * groups * gx
            state = (2, 2, task.shots, gx, gz), (task.shots, memories)
    else:
        files, rounds = ("kernels_3d.cu",), task.steps
        # u and u⁻, and two sets of ψ and ζ at both ends of every axis
        widths = [task.layer] * (len(task.shape) - 1) + [round_up(task.layer, 4)]
        cells = math.prod(task.shape)
        strips = sum(4 * w * cells // n for w, n in zip(widths, task.shape, strict=True))
        state = (2, task.shots, *task.shape), (2, task.shots, max(1, strips))
        n0, n1, n2 = in_3d(task.shape)
        macros |= {"N0": n0, "N1": n1, "N2": n2, "BLOCKS": 1, "RESIDENT": plan.resident}
        macros |= {"VECTOR": plan.vector, "ROWS": plan.rows, "LANES": plan.lanes}
        macros |= {"CHUNKS": plan.chunks}
        tiles = -(-n1 // plan.rows) * -(-n2 // (plan.lanes * plan.vector))
        grid = tiles * plan.chunks * task.shots
        points = max(task.injected * task.injected_corners, task.recorded) * task.shots
        step = Kernel("step", grid, plan.threads, shared=plan.shared)
        kernels = (step, Kernel("points", -(-points // plan.threads), plan.threads))
    named = tuple((name, str(value)) for name, value in macros.items())
    paths = tuple(f"waves/{file}" for file in ("kernels.cuh", *files))
    return Launch(paths, named, device.architecture, kernels, rounds, state)


def prepare(task: Task) -> Launch | str:
    """The kernel of a task, compiled and seen to fit on the GPU, or why there is none."""
    device = find_device()
    if isinstance(device, str):
        return device
    plan: Any = None
    for largest in (16, 8, 0):  # blocks of a cluster: the GPU may have room for 8 at most, or none
        plan = plan_kernel(task, device, largest)
        if isinstance(plan, str):
            return plan
        found = launch(task, plan, device)
        try:
            usage = found.usage(device.ordinal)
        except (CudaError, OSError) as error:
            return str(error)
        if all(used.clusters for used in usage):
            return found
    return f"the GPU has no room for {plan}"


def find(mode: str, medium: Medium, source: Positions, receivers: Positions) -> Launch | str:
    """The kernel that runs these shots, or a line that says why it is XLA that does.

    What one kernel keeps the others read, so there are all three of them or none. NVRTC compiles
    all four side by side when the first is asked for, because most who ask for one soon need the
    others; a process that ends before waits for them.
    """
    scheme, shape = medium.scheme, medium.weight.shape
    if scheme.recomputes and mode != "forward":
        return "the waves are not kept, but computed again"
    if scheme.slab_axis is not None:
        return "devices share a shot"
    wanted = MODES[:1] if mode == "forward" else MODES[1:]
    numbers = (scheme.order, scheme.absorbing, scheme.steps, scheme.every, len(receivers.cells))
    turn = turned(medium)
    begun = {}
    for name in MODES[:1] if scheme.recomputes else MODES:
        given = {"born": None, "adjoint": receivers}.get(name, source)
        seen = None if name == "adjoint" else receivers
        points = [(0, 1) if at is None else at.cells.shape[1:3] for at in (given, seen)]
        sizes = (*points[0], *points[1], medium.weight.dtype.itemsize)
        grid = (shape[::turn], scheme.spacing[::turn])
        bfloat16 = scheme.stored is not None and name != "forward"
        begun[name] = _begin(prepare, Task(name, *grid, *numbers, *sizes, bfloat16=bfloat16))
    found = {name: begun[name].result() for name in wanted}
    refused = [kernel for kernel in found.values() if isinstance(kernel, str)]
    return refused[0] if refused else found[mode]


_compilers = ThreadPoolExecutor(thread_name_prefix="natgrad compiles")


@cache
def _begin(prepare: Callable[[Task], Launch | str], task: Task) -> "Future[Launch | str]":
    return _compilers.submit(prepare, task)


def turned(medium: Medium) -> int:
    """−1 where the axes change places: in 2D the longer one is dealt out to blocks. Else 1."""
    shape = medium.weight.shape
    return -1 if len(shape) == 2 and shape[0] < shape[1] else 1


def turn(medium: Medium, x: Array) -> Array:
    """An array on the grid as the kernels have it, and back."""
    return x if turned(medium) == 1 else x.T


def point(medium: Medium, at: Positions) -> tuple[Array, Array]:
    return at.cells[..., :: turned(medium)], at.weights.astype(medium.weight.dtype)


def filters(layer: Layer) -> Array:
    """b and a of the cells of an axis, then of the points before and after them; axis by axis."""
    lines = []
    for psi, zeta in layer.lines:  # none without a layer
        points = jnp.pad(psi, ((0, 0), (1, 0)))
        lines += [zeta[1], zeta[0], points[1], points[0]]
    return jnp.concatenate(lines) if lines else jnp.zeros(1)


def run(launch: Launch, medium: Medium, results: list, *given: Array) -> list[Array]:
    """The kernels on w, the filters and what is given; fields begin as zeros."""
    by, dtype = turned(medium), medium.weight.dtype
    lines = filters(Layer(medium.layer.lines[::by])).astype(dtype)
    weight = medium.weight * unit(medium.scheme.order, medium.scheme.spacing[::by])
    given = (turn(medium, weight), lines, *given)
    kinds = dtype, medium.scheme.stored or dtype  # of what is computed, and of q
    results = [jax.ShapeDtypeStruct(*x) for x in zip(results, kinds, strict=False)]
    state = [jnp.zeros(shape, dtype) for shape in launch.state]
    return launch.call(results, *state, *given)


def forward(
    launch: Launch, medium: Medium, wavelet: Array, source: Positions, receivers: Positions
) -> list[Array]:
    """The data, (shots, receivers, steps), and q where the kernel keeps it; a scaled source."""
    results: list = [_data(medium, receivers)]
    if dict(launch.macros)["MODE"] == str(MODES.index("keep")):  # in the kernels' order
        results.append((medium.scheme.blocks, len(wavelet), *medium.weight.shape))
    places = (*point(medium, source), wavelet, *point(medium, receivers))
    return run(launch, medium, results, *places)[: len(results)]


def born(launch: Launch, medium: Medium, ratio: Array, kept: Array, receivers: Positions) -> Array:
    """The data of the linearised waves for the source ratio · q."""
    given = (turn(medium, ratio), kept, *point(medium, receivers))
    return run(launch, medium, [_data(medium, receivers)], *given)[0]


def adjoint(launch: Launch, medium: Medium, kept: Array, receivers: Positions, xi: Array) -> Array:
    """Σ q y over steps and shots, for scaled receivers."""
    image = (len(xi), *medium.weight.shape[:: turned(medium)])
    found = run(launch, medium, [image], kept, *point(medium, receivers), xi)[0]
    # The barrier keeps this sum out of the sums that take it; XLA would unroll one in the other.
    return jax.lax.optimization_barrier(turn(medium, found.sum(axis=0)))


def _data(medium: Medium, receivers: Positions) -> tuple[int, ...]:
    return (*receivers.cells.shape[:2], medium.scheme.steps)
