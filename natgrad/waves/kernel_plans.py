"""How kernels of waves are laid out on a GPU (kernels.py): what fits, and the fastest by a model.

A 2D shot that fits into the shared memory of a cluster of thread blocks stays there for all steps
(`lay_out`). A larger one is cut into tiles that overlap: clusters take them in turn, each for a
round of steps (`plan_tiles`). In 3D, and where tiles cost more, a launch is a step (`plan_stream`).

    plan_kernel(task, device)  # a `Plan`, a `Stream`, or a line that says why there is neither
"""

import math
from itertools import product
from typing import Any, NamedTuple

from .scheme import SECOND

GROUP = 4  # rows of a thread
TILE = 16, 16  # threads of a 3D block along axes 1 and 2, if each has four cells
# Instructions of a cell, about: its own at order 4, those for neighbours that other threads have,
# and how many more in a strip along x, along z and in a corner.
PLAIN, NEIGHBOURS, ALONG_X, ALONG_Z, CORNER = 11.5, 3, 23, 17, 43
# How much longer patches between the strips along z take, and those in them, if rows of patches
# meet in the banks of shared memory.
CLASH = 1.15, 1.4
BURSTS = (8, 12, 16, 24)  # steps of a round of tiles
# Issue cycles that a round takes beside its steps; where a launch is a step, those of the launch
# and of a cell.
ROUND, LAUNCH, STREAMED = 45_000, 8_000, 0.011


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
        groups = self.multiprocessors // self.together - 1
        fewer = self.together - 1  # in one more, as on an H200
        return max(1, groups * (self.together // blocks) + fewer // blocks)


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
    strips: tuple[int, int]  # of the layer: columns of the one along x, groups of rows along z
    tile: tuple[int, ...]  # its cells
    tiles: tuple[int, int] = (1, 1)
    burst: int = 0  # steps of a round


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
    task: Task, device: Device, blocks: int, patch: int, outer: int, more: int = 0, spare: int = 0
) -> Plan | str:
    """That layout, or why it is none.

    Blocks between others are wider than an equal share by `more` times the columns that are a whole
    number of both kinds of patches; those at the ends are narrower. Of the registers that a thread
    can have, `spare` stay free.
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
    needed = words * (8 * mine + held + 32) + 36 + spare
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
    sizes = patch, outer, threads, column, line, shared
    return Plan(blocks, columns, first, *sizes, cost, (strip + margin, quads), task.shape)


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
        return plan_tiles(task, device, largest) or stream
    what = f"{_size(task)} of {task.itemsize} bytes fit into no cluster of {largest} blocks"
    return f"{what} ({', '.join(sorted(reasons))}), and {stream}"


def plan_tiles(task: Task, device: Device, largest: int) -> Plan | None:
    """The fastest layout of overlapping tiles, if it beats a launch for each step.

    A cluster has a tile for a round of steps. In each of them cells at its rim become wrong, as far
    as the stencil reaches. Other tiles own those, and after a round tiles read from each other.
    """
    found: dict[Any, Plan] = {}
    room = device.shared // task.itemsize // 2  # cells of a block, but for what else it needs
    for burst in BURSTS:
        rim = task.order // 2 * burst
        wide, high = (cut(n, rim, task.layer + task.order) for n in task.shape)
        for (across, width), (down, height), blocks in product(wide, high, (16, 8, 4)):
            if blocks > largest or not room // 4 < width * height // blocks < room:
                continue
            part = task._replace(shape=(width, height))
            rounds = -(-task.shots * across * down // device.clusters(blocks))
            for patch, outer in product(range(3, 7), range(1, 5) if task.layer else (1,)):
                plan = lay_out(part, device, blocks, patch, outer, spare=4)
                if isinstance(plan, Plan):
                    cost = rounds * (plan.cost + ROUND / burst)
                    plan = plan._replace(tiles=(across, down), burst=burst)
                    found[cost, -patch, blocks, outer, burst] = plan
    best = min(found, default=(math.inf,))
    streamed = LAUNCH + STREAMED * task.shots * math.prod(task.shape)
    return found[best] if best[0] < streamed else None


def cut(n: int, rim: int, strip: int) -> list[tuple[int, int]]:
    """Ways to cut an axis into tiles: their number, and their cells with the rims they share.

    Every tile owns cells, and only those at the ends reach into the layer.
    """
    ways = [(1, n)]
    for tiles in range(2, 1 + n // (2 * rim)):
        cells = round_up(-(-(n + 2 * rim * (tiles - 1)) // tiles), 4)
        apart = cells - 2 * rim
        if apart >= max(strip, 2 * rim) and (tiles - 2) * apart + cells <= n - strip:
            ways.append((tiles, cells))
    return ways


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
