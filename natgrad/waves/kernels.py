"""Waves by kernels of our own on an NVIDIA GPU.

A 2D shot stays in the shared memory of a cluster of thread blocks for all steps (kernels_2d.cu), so
that a run is one launch. In 3D, and in 2D where a shot is too large for that, a launch is a step of
all shots, in which each field is read once (kernels_3d.cu). The scheme is that of `Medium`, and so
are the numbers, but for the order of sums.

    find("forward", medium, source, receivers)  # the kernel, or a line that says why there is none
"""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..core import cuda
from ..core.cuda import CudaError, Kernel, Launch
from .scheme import GAMMA, SECOND, Layer, Medium, Positions

MODES = ("forward", "keep", "born", "adjoint")
GROUP = 4  # rows of a thread
TILE = 16, 16  # threads of a 3D block along axes 1 and 2, if each has four cells
# Instructions of a cell, about: its own at order 4, those for neighbours that other threads have,
# and how many more in a strip along x, along z and in a corner.
PLAIN, NEIGHBOURS, ALONG_X, ALONG_Z, CORNER = 11.5, 3, 23, 17, 43
# How much longer patches between the strips along z take, and those in them, if rows of patches
# meet in the banks of shared memory.
CLASH = 1.15, 1.4


class Device(NamedTuple):
    """What a plan needs to know of a GPU; the defaults are those of a Hopper GPU."""

    architecture: str = "sm_90"
    shared: int = 232_448  # bytes that a block can have
    registers: int = 65_536
    multiprocessors: int = 132
    together: int = 16  # multiprocessors that share their memory in clusters
    ordinal: int = 0

    def clusters(self, blocks: int) -> int:
        """About how many clusters run at once, one block on a multiprocessor."""
        if blocks == 1:
            return self.multiprocessors
        return self.multiprocessors // self.together * (self.together // blocks)


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


class Task(NamedTuple):
    """What a kernel is to do: sizes, all of them known when the program is traced."""

    mode: str
    shape: tuple[int, ...]  # with the layer
    spacing: tuple[float, ...]
    order: int
    layer: int
    steps: int
    every: int
    shots: int
    injected: int  # points, and the cells that each is spread over
    injected_corners: int
    recorded: int
    recorded_corners: int
    itemsize: int
    bfloat16: bool  # that is the type of q


class Plan(NamedTuple):
    """How a 2D task is laid out: blocks of a cluster, columns of a block and of a thread."""

    blocks: int
    columns: int
    first: int  # columns of the first block
    patch: int
    outer: int  # columns of a thread in the strips of the layer along z
    threads: int
    column: int  # reals from a column to the next
    line: int  # the same in the memory of the layer along x
    shared: int
    cost: float  # of a step, in issue cycles, by the model below


class Stream(NamedTuple):
    """A launch for each step: cells of a thread, threads of a tile, pieces of the first axis."""

    vector: int
    rows: int
    lanes: int
    chunks: int
    resident: int  # blocks of a multiprocessor
    shared: int

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def lay_out(
    task: Task, device: Device, blocks: int, patch: int, outer: int, more: int = 0
) -> Plan | str:
    """That layout, or why it is none.

    Blocks between others are wider than an equal share by `more` times the columns that are a whole
    number of both kinds of patches; those at the ends are narrower.
    """
    nx, nz = task.shape
    half, groups, words = task.order // 2, -(-nz // GROUP), task.itemsize // 4
    strip = task.layer + (half if task.mode == "adjoint" else 1)
    sides, margin, reach = 2 if blocks == 1 else 1, max(patch, outer) - 1, max(half, 3)
    quads = -(-(strip + groups * GROUP - nz) // GROUP) if task.layer else 0
    unit, inner = math.lcm(patch, outer), groups - 2 * quads
    columns = first = last = round_up(-(-nx // blocks), unit) + more * unit
    if blocks > 1:
        rest = nx - (blocks - 2) * columns
        first = rest // (2 * unit) * unit
        first += unit * (rest - first > columns)
        last = rest - first
    if not half <= min(first, last) <= max(first, last) <= columns:
        return "a block without columns"
    if task.layer:
        if inner < 0 or quads > 32 or (blocks == 1 and nx < 2 * strip + unit):
            return "a layer wider than the grid"
        if blocks > 1 and min(first, last) < strip:
            return "the layer does not fit into the blocks at the ends"
    # Warps as layout_2d.cuh has them: patches of a strip along x, other patches, pieces of the
    # strips along z that cross one along x, other pieces.
    end, per = nx if blocks == 1 else last, 32 // max(1, quads)
    near, far = -(-strip // patch), -(-end // patch) - (end - strip) // patch
    strips = -(-(near + far if blocks == 1 else max(near, far)) * inner // 32)
    between = {1: columns} if blocks > 2 else {}
    warps, costs = 0, []
    cell = PLAIN + 1.5 * (task.order - 4) + NEIGHBOURS * half / patch
    for at, width in {0: first, blocks - 1: last, **between}.items():
        begins, ends = task.layer > 0 and at == 0, task.layer > 0 and at == blocks - 1
        patches, pieces = -(-width // patch), -(-width // outer)
        crossing = -(-strip // outer) * begins + (pieces - (width - strip) // outer) * ends
        lines = strips * (begins or ends)
        rows = -(-inner * (patches - near * begins - far * ends) // 32)
        corners = -(-2 * crossing // per)
        bands = -(-2 * (pieces - crossing) // per) * (task.layer > 0)
        warps = max(warps, lines + rows, corners + bands)
        inside = patch * (lines * (cell + ALONG_X) + rows * cell)
        around = outer * (corners * (cell + CORNER) + bands * (cell + ALONG_Z))
        costs.append((inside, around))  # of four rows by four schedulers
    threads = 32 * warps
    mine = patch + outer * (task.layer > 0)  # columns of a thread
    held = 0 if task.mode == "adjoint" else 4 * (mine - patch)  # u⁻ in the strips along z
    needed = words * (8 * mine + held + 32) + 36
    # a thread's share as ptxas counts it: warps in fours, registers in eights
    if threads > 1024 or 4 * mine > 32:
        return "too many threads"
    if min(255, device.registers // round_up(threads, 128) // 8 * 8) < needed:
        return "too many registers"
    # A wrap from one row of patches to the next should look to the banks like one more group, so
    # should one from a patch across a strip along z to the next.
    wide, least = columns + 2 * half, 4 * groups + 8
    even = [c for c in range(least, least + 32, 2) if wide * c % 4 == 0]
    clash = lambda c: ((patch * c - 2 * inner) % 32 > 0, (outer * c - 2 * quads) % 32 > 0)
    column = min(even, key=lambda c: (sum(clash(c)), c))
    line = min(range(4 * groups, 4 * groups + 32, 2), key=lambda n: (clash(n)[1], n))
    entries = task.injected * task.injected_corners
    records = task.recorded * task.recorded_corners
    reals = 2 * wide * column + 4 * entries + records
    if task.layer:
        memories = 4 if task.mode == "adjoint" else 3
        reals += memories * round_up(sides * (strip + margin) * line, 4)
        reals += max(8 * outer * threads, round_up((margin + reach) * line, 4))
        reals += 32 * quads + sides * 4 * (strip + 2 * margin + 2 * reach)
    shared = reals * task.itemsize + 4 * (2 * entries + records + task.recorded + 4) + 72
    shared = round_up(shared, 16)
    if shared > device.shared:
        return "too much shared memory"
    longer = [by if so else 1.0 for by, so in zip(CLASH, clash(column), strict=True)]
    cost = 600 + max(longer[0] * inside + longer[1] * around for inside, around in costs)
    return Plan(blocks, columns, first, patch, outer, threads, column, line, shared, cost)


def plan_kernel(task: Task, device: Device = Device(), largest: int = 16) -> Plan | Stream | str:
    """The fastest layout of a task by a rough model, or a line that says why there is none."""
    if task.order not in SECOND:
        return f"no kernel of order {task.order}"
    if len(task.shape) == 3:
        return plan_stream(task, device)
    if len(task.shape) != 2:
        return "the kernels are for 2D and 3D"
    found: dict[Any, Plan] = {}
    reasons: set[str] = set()
    for blocks in range(1, largest + 1):
        wider = range(5) if task.layer and blocks > 2 else (0,)
        outers = range(1, 5) if task.layer else (1,)
        for patch, outer, more in product(range(1, 9), outers, wider):
            plan = lay_out(task, device, blocks, patch, outer, more)
            if isinstance(plan, str):
                reasons.add(plan)
            else:
                rounds = -(-task.shots // device.clusters(blocks))
                found[rounds * plan.cost, -patch, blocks, outer, more] = plan
    if found:
        return found[min(found)]
    stream = plan_stream(task, device)
    if isinstance(stream, Stream):
        return stream
    what = f"{_size(task)} of {task.itemsize} bytes fit into no cluster of {largest} blocks"
    return f"{what} ({', '.join(sorted(reasons))}), and {stream}"


def plan_stream(task: Task, device: Device) -> Stream | str:
    """As many chunks as keep all multiprocessors at work to the end: each reads a rim twice."""
    n0, n1, n2 = in_3d(task.shape)
    if min(task.shape) < 2 * round_up(task.layer, 4) + 4:
        return f"{_size(task)} are fewer than 4 across beside the layer"
    vector = 4 if task.itemsize == 4 and n2 % 4 == 0 else 1
    rows, lanes = TILE if vector == 4 else (16, 32)
    if flat := n1 == 1:
        rows, lanes = 1, 32  # a warp, so that most blocks have no cell of the layer
    tiles = -(-n1 // rows) * -(-n2 // (lanes * vector)) * task.shots
    points = max(task.recorded, task.injected * task.injected_corners) * task.shots
    if max(tiles * n0, points, n1 * n2) >= 2**31:
        return f"{task.shots} shots of {_size(task)} are more than a grid of blocks can count"
    # 512 threads that have four cells each, or as many registers
    resident = (512 if vector == 4 else 4096 // task.itemsize) // (rows * lanes)
    reach = max(task.order // 2, 3 if task.layer else 0)
    share = tiles / (resident * device.multiprocessors)
    # the rim and the start of a chunk take about as long as two planes, or as one in 2D
    rim, shortest = (1, reach) if flat else (2, 2 * reach)
    cost = lambda chunks: (chunks * share + 1) * (n0 / chunks + rim)
    chunks = min(range(1, max(1, n0 // shortest) + 1), key=cost)
    high, wide = rows if flat else rows + 2 * reach, lanes * vector
    pitch, longest = wide + 2 * round_up(reach, vector), 8 * n0 // (5 * chunks) + 1
    reals = 2 * high * pitch
    if task.layer:
        beside = 0 if flat else high * wide + high
        reals += 4 * (beside + rows * pitch + longest + 2 * reach + pitch)
    return Stream(vector, rows, lanes, chunks, resident, round_up(reals * task.itemsize, 16))


def in_3d(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sides of a grid for kernels_3d.cu: a 2D one has a single cell along axis 1."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


def _size(task: Task) -> str:
    return f"{' × '.join(map(str, task.shape))} cells"


def unit(order: int, spacing: tuple[float, ...]) -> float:
    """What sums over stencils are in units of, which w has: the last weight, if it is that of both
    axes in 2D. The others are then whole numbers at order 4, which add up to zero as they should.
    """
    return SECOND[order][-1] / spacing[0] ** 2 if spacing == 2 * spacing[:1] else 1.0


def launch(task: Task, plan: Plan | Stream, device: Device) -> Launch:
    """The kernels of a plan, all of its numbers written into the source."""
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
        files, rounds = ("layout_2d.cuh", "kernels_2d.cu"), 1
        macros |= dict(zip(("NX", "NZ"), task.shape, strict=True))
        macros |= {"BLOCKS": plan.blocks, "COLS": plan.columns, "FIRST": plan.first}
        macros |= {"PX": plan.patch, "PO": plan.outer, "COLUMN": plan.column, "LINE": plan.line}
        macros |= {"RESIDENT": 1}
        size = (task.shots * plan.blocks, plan.threads, plan.blocks, plan.shared)
        kernels = (Kernel("wave", *size),)
    else:
        files, rounds = ("kernels_3d.cu",), task.steps
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
    return Launch(paths, named, device.architecture, kernels, rounds)


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


def run(launch: Launch, medium: Medium, shots: int, results: list, *given: Array) -> list[Array]:
    """The kernels on w, the filters and what is given; those of a step begin with zero fields."""
    by, (*shape,), dtype = turned(medium), medium.weight.shape, medium.weight.dtype
    lines = filters(Layer(medium.layer.lines[::by])).astype(dtype)
    weight = medium.weight * unit(medium.scheme.order, medium.scheme.spacing[::by])
    given = (turn(medium, weight), lines, *given)
    kinds = dtype, medium.scheme.stored or dtype  # of what is computed, and of q
    results = [jax.ShapeDtypeStruct(*x) for x in zip(results, kinds, strict=False)]
    if len(launch.kernels) == 1:  # all steps in shared memory
        return launch.call(results, *given)
    width, shape = medium.scheme.absorbing, shape[::by]
    widths = [width] * (len(shape) - 1) + [round_up(width, 4)]
    strips = sum(4 * w * medium.weight.size // n for w, n in zip(widths, shape, strict=True))
    state = [jnp.zeros(size, dtype) for size in ((2, shots, *shape), (2, shots, max(1, strips)))]
    return launch.call(results, *state, *given, changed=len(state))


def forward(
    launch: Launch, medium: Medium, wavelet: Array, source: Positions, receivers: Positions
) -> list[Array]:
    """The data, (shots, receivers, steps), and q where the kernel keeps it; a scaled source."""
    results: list = [_data(medium, receivers)]
    if dict(launch.macros)["MODE"] == str(MODES.index("keep")):  # in the kernels' order
        results.append((medium.scheme.blocks, len(wavelet), *medium.weight.shape))
    places = (*point(medium, source), wavelet, *point(medium, receivers))
    return run(launch, medium, len(wavelet), results, *places)[: len(results)]


def born(launch: Launch, medium: Medium, ratio: Array, kept: Array, receivers: Positions) -> Array:
    """The data of the linearised waves for the source ratio · q."""
    given = (turn(medium, ratio), kept, *point(medium, receivers))
    return run(launch, medium, len(receivers.cells), [_data(medium, receivers)], *given)[0]


def adjoint(launch: Launch, medium: Medium, kept: Array, receivers: Positions, xi: Array) -> Array:
    """Σ q y over steps and shots, for scaled receivers."""
    image = (len(xi), *medium.weight.shape[:: turned(medium)])
    found = run(launch, medium, len(xi), [image], kept, *point(medium, receivers), xi)[0]
    # The barrier keeps this sum out of the sums that take it; XLA would unroll one in the other.
    return jax.lax.optimization_barrier(turn(medium, found.sum(axis=0)))


def _data(medium: Medium, receivers: Positions) -> tuple[int, ...]:
    return (*receivers.cells.shape[:2], medium.scheme.steps)
