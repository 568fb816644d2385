"""The code of waves on a CPU, in 2D: the step of `Medium` in one pass over the fields.

XLA has a loop for each part of the layer, and reads and writes the fields in each. Here a step goes
once through blocks of rows, a vector of columns at a time. What a cell needs of the layer is made
on the way: across rows, ψ of the rows ahead is computed just before it is used; along a row, the
vectors at its two ends are in registers all at once. u⁺ replaces u⁻.
benchmarks/bench_absorbing.py has the time of a step with and without the layer, beside XLA's.

The code is made for a grid, an order and a precision, by the instructions of core/llvm.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..core.llvm import Code, Value
from .scheme import GAMMA, SECOND

# What the code is given. `other` is η/m, or the image; `coming` is the part of the next q to fetch.
FIELDS = ("%u", "%v", "%w", "%psi0", "%zeta0", "%psi1", "%zeta1", "%other")
ARRAYS = (*FIELDS, "%lines0", "%lines1", "%kept", "%coming")
PLACES = ("%inject_at", "%keep_at", "%inject_by", "%samples", "%record_at", "%record_by", "%data")
NUMBERS = ("steps", "stride", "injected", "recorded")
TABLE = (*ARRAYS[:-1], *PLACES, *NUMBERS)


class Grid(NamedTuple):
    """The cells of a field as the code has them: rows of whole vectors, zeros all around.

    A vector of zeros lies between rows, and `ahead` rows of them before the first and after the
    last, as far as a block of rows reaches beyond itself.
    """

    shape: tuple[int, ...]
    last: int  # cells of a row without those that fill it up
    spacing: tuple[float, ...]
    order: int
    layer: int
    real: str
    width: int  # of a vector
    block: int  # rows

    @property
    def ahead(self) -> int:
        return max(3, self.order // 2)

    @property
    def columns(self) -> int:
        """Vectors of a row."""
        return -(-self.shape[1] // self.width)

    @property
    def stride(self) -> int:
        return (self.columns + 1) * self.width

    @property
    def rows(self) -> int:
        return self.shape[0] + 2 * self.ahead

    @property
    def origin(self) -> int:
        return self.ahead * self.stride + self.width

    @property
    def size(self) -> int:
        return self.rows * self.stride + self.width

    def inside(self, field: np.ndarray) -> np.ndarray:
        """A view of the cells of a field, as `Medium` has them."""
        rows = field[self.origin :][: self.shape[0] * self.stride]
        return rows.reshape(self.shape[0], -1)[:, : self.shape[1]]


class Step:
    """The code of one step, or of its transpose, in the notation of scheme.py.

    `extra` is what else is done on the way: "keep" q, past the caches where its rows are whole
    vectors; "born" adds `other` · q to u⁺, "image" adds q u to `other`. A step fetches one of
    `fetched` parts of the next q into the caches.

    K u over its last weight k/h², and G u over γ/h, take a product less each. So sums here are in
    units of k/h² of axis 0: w is given times that, a of ψ times γ²/k, and axis 1 counts as `ratio`.
    """

    def __init__(
        self, grid: Grid, transposed: bool, extra: str, fetched: int, past_caches: bool = False
    ):
        self.grid, self.transposed, self.extra = grid, transposed, extra
        self.fetched, self.past_caches = fetched, past_caches
        self.code = Code(grid.real, grid.width)
        centre, *bends, unit = SECOND[grid.order]
        self.centre, self.bends = centre / unit, [self.code.constant(x / unit) for x in bends]
        self.slope = self.code.constant(1 / GAMMA[grid.order] + 3)
        self.ratio = (grid.spacing[0] / grid.spacing[1]) ** 2
        # cells from an edge on which the layer has a part in the step
        reach = grid.layer + (grid.ahead if transposed else 1) if grid.layer else 0
        self.left, self.right = -(-reach // grid.width), (grid.last - reach) // grid.width
        if not reach:
            self.right = grid.shape[1] // grid.width
        elif self.left >= self.right:
            self.left = self.right = grid.columns
        self.edge = -(-reach // grid.block) * grid.block

    def second(self, u: Callable[[int], Value], centres: int = 1) -> Value:
        """K u, where u(d) is that of the cell d further along the axis, u(0) counting `centres`
        times: where axes have the same spacing, one of them has the share of both."""
        half = self.grid.order // 2
        total = u(half) + u(-half)
        for distance, weight in enumerate(self.bends, start=1):
            total = total + weight * (u(distance) + u(-distance))
        return total + self.code.constant(centres * self.centre) * u(0) if centres else total

    def first(self, u: Callable[[int], Value]) -> Value:
        """G u at the point after a cell."""
        return self.slope * (u(1) - u(0)) - (u(2) - u(-1))

    def join(self, across: Value, along: Value) -> Value:
        """The sum over the axes."""
        return across + (along if self.ratio == 1 else self.code.constant(self.ratio) * along)

    def write(self, name: str) -> str:
        """The text of a function of `ARRAYS`."""
        code, rows, block = self.code, self.grid.shape[0], self.grid.block
        zones = [(0, self.edge, True), (self.edge, rows - self.edge, False)]
        zones.append((rows - self.edge, rows, True))
        if 2 * self.edge >= rows or not self.edge:
            zones = [(0, rows, self.edge > 0)]
        if self.edge:
            with code.loop(self.grid.columns * self.grid.width, self.grid.width) as column:
                self.begin(code.whole("add", column, self.grid.origin))
        for start, stop, layer in zones:
            whole = stop - (stop - start) % block
            with code.loop(whole, block, start) as row:
                self.advance(row, block, layer)
            if whole < stop:
                self.advance(code.whole("add", whole, 0), stop - whole, layer)
        return code.function(name, list(ARRAYS))

    def advance(self, row: str, count: int, layer: bool) -> None:
        """Some rows: the vectors of the layer at their start, those between, those at their end."""
        code, grid, width = self.code, self.grid, self.grid.width
        start = code.whole("add", code.whole("mul", row, grid.stride), grid.origin)
        kept = code.whole("mul", row, grid.shape[1])
        one = int(not layer and self.ratio == 1)  # axis 0 has the share of both in u
        across = lambda at, centres=1: self.across(at, row if layer else None, count, centres)

        def fetch(column: Any) -> None:  # a share of the next q, on its way while this step runs
            if self.fetched:
                done = code.whole("add", code.whole("mul", column, count), kept)
                for j in range(-(-count // self.fetched)):
                    code.fetch("%coming", code.whole("sdiv", done, self.fetched), j * width)

        def edge(low: int, high: int) -> None:
            for j in range(low, high):
                fetch(j * width)
            places = [code.whole("add", start, j * width) for j in range(low, high)]
            sums = [across(at) for at in places]
            for r in range(count):
                if self.edge:
                    along = self.along_layer(places[0], r, low, high)
                else:
                    along = [self.along(at, r) for at in places]
                for j, at in enumerate(places):
                    lanes = min(width, grid.shape[1] - (low + j) * width)
                    held = code.whole("add", kept, (low + j) * width)
                    self.finish(at, held, r, self.join(sums[j][r], along[j]), lanes)

        if self.left:
            edge(0, self.left)
        if self.left < self.right:
            with code.loop(self.right * width, width, self.left * width) as column:
                at, held = (code.whole("add", x, column) for x in (start, kept))
                fetch(column)
                for r, total in enumerate(across(at, 1 + one)):
                    total = self.join(total, self.along(at, r, 1 - one))
                    self.finish(at, held, r, total, width)
        if self.right < grid.columns:
            edge(self.right, grid.columns)

    def line(self, axis: int, at: Any, kind: int, more: int) -> Value:
        """a of ψ, b of ψ, a of ζ or b of ζ: of a row for axis 0, of columns for axis 1."""
        if axis:
            return self.code.load("%lines1", at, kind * self.grid.columns * self.grid.width + more)
        return self.code.spread("%lines0", at, kind * self.grid.rows + self.grid.ahead + more)

    def remember(self, axis: int, kind: int, line: tuple, at: str, more: int, x: Value) -> Value:
        """f' = bf + ax of a memory, ψ for kind 0 and ζ for kind 2, which is written too."""
        field = f"%{'zeta' if kind else 'psi'}{axis}"
        a, b = (self.line(axis, line[0], kind + i, line[1]) for i in (0, 1))
        new = b * self.code.load(field, at, more) + a * x
        self.code.store(new, field, at, more)
        return new

    def across(self, at: str, row: str | None, count: int, centres: int) -> list[Value]:
        """K u along axis 0, on some rows of a vector of columns, with c where there is a `row`.

        ψ is known up to the point after the first row, and ζ of the transpose up to `ahead` rows
        after it, excluding this one.
        """
        code, grid, stride = self.code, self.grid, self.grid.stride
        half, seen = grid.order // 2, {}

        def u(r: int) -> Value:
            if r not in seen:
                seen[r] = code.load("%u", at, r * stride)
            return seen[r]

        if row is None:
            return [self.second(lambda d, r=r: u(r + d), centres) for r in range(count)]
        if self.transposed:  # y + ζ' takes the place of u
            for r in range(-half, count + grid.ahead):
                if r < grid.ahead:
                    zeta = code.load("%zeta0", at, r * stride)
                else:
                    zeta = self.remember(0, 2, (row, r), at, r * stride, u(r))
                seen[r] = u(r) + zeta
        psi = {p: code.load("%psi0", at, p * stride) for p in (-2, -1, 0)}
        for p in range(1, count + 1):
            slope = self.first(lambda d, p=p: u(p + d))
            psi[p] = self.remember(0, 0, (row, p), at, p * stride, slope)
        sums = []
        for r in range(count):
            total = self.second(lambda d, r=r: u(r + d))
            total = total + self.first(lambda d, r=r: psi[r - 1 + d])
            if not self.transposed:
                total = total + self.remember(0, 2, (row, r), at, r * stride, total)
            sums.append(total)
        return sums

    def begin(self, at: str) -> None:
        """What `across` takes for known, before the first rows."""
        code, grid = self.code, self.grid
        u = {r: code.load("%u", at, r * grid.stride) for r in range(-1, grid.ahead)}
        for r in range(grid.ahead if self.transposed else 0):
            u[r] = u[r] + self.remember(0, 2, (0, r), at, r * grid.stride, u[r])
        self.remember(0, 0, (0, 0), at, 0, self.first(u.__getitem__))

    def along(self, at: str, r: int, centres: int = 1) -> Value:
        """K u along axis 1, on a vector without the layer."""
        code, grid, seen = self.code, self.grid, {}

        def vector(k: int) -> Value:
            if k not in seen:
                seen[k] = code.load("%u", at, r * grid.stride + k * grid.width)
            return seen[k]

        def u(d: int) -> Value:
            if d == grid.order // 2:  # an unaligned load saves one of many shuffles
                return code.load("%u", at, r * grid.stride + d, aligned=False)
            return code.shift(vector, d)

        return self.second(u, centres)

    def along_layer(self, at: str, r: int, low: int, high: int) -> list[Value]:
        """K u + c along axis 1, on the vectors of an edge; beyond them the memories are zero."""
        code, width, zero = self.code, self.grid.width, self.code.constant(0)
        place = lambda j: r * self.grid.stride + (j - low) * width
        u = {j: code.load("%u", at, place(j)) for j in range(low - 1, high + 1)}
        near = lambda x, j, by: code.shift(lambda k: x.get(j + k, zero), by)
        if self.transposed:
            for j in range(low, high):
                u[j] = u[j] + self.remember(1, 2, (0, j * width), at, place(j), u[j])
        psi: dict[int, Value] = {}
        for j in range(low, high):
            slope = self.first(lambda d, j=j: near(u, j, d))
            psi[j] = self.remember(1, 0, (0, j * width), at, place(j), slope)
        sums = []
        for j in range(low, high):
            total = self.second(lambda d, j=j: near(u, j, d))
            total = total + self.first(lambda d, j=j: near(psi, j, d - 1))
            if not self.transposed:
                total = total + self.remember(1, 2, (0, j * width), at, place(j), total)
            sums.append(total)
        return sums

    def finish(self, at: str, held: str, r: int, total: Value, lanes: int) -> None:
        """u⁺ from the sum over the axes, and what else there is to do; `held` is where q lies."""
        code, more, row = self.code, r * self.grid.stride, r * self.grid.shape[1]
        u, before = code.load("%u", at, more), code.load("%v", at, more)
        change = code.load("%w", at, more) * total
        if self.extra == "keep":
            aligned = self.past_caches
            code.store(change, "%kept", held, row, lanes, aligned, past_caches=aligned)
        elif self.extra:
            q = code.load("%kept", held, row, lanes, aligned=False)
            other = code.load("%other", at, more)
            if self.extra == "image":
                code.store(other + q * u, "%other", at, more)
            else:
                change = change + other * q
        code.store(change + (code.constant(2) * u - before), "%v", at, more)


class Task(NamedTuple):
    """What is done with a shot: a mode of kernels.py, and every how many steps there is a q."""

    mode: str
    every: int
    injected_corners: int  # cells that a point is spread over
    recorded_corners: int
    grid: Grid

    def write(self, past_caches: bool) -> str:
        """The text of all functions; "run" is the one to call."""
        back, fetched = self.mode == "adjoint", self.every * (self.mode in ("born", "adjoint"))
        text = Step(self.grid, back, "", fetched).write("plain") + write_run(self)
        if self.mode == "forward":
            return text
        extra = "image" if back else self.mode
        return text + Step(self.grid, back, extra, fetched, past_caches).write("special")


def write_run(task: Task) -> str:
    """The text of the loop over the steps of a shot: "run", a function of what `TABLE` names.

    In a step the fields are recorded, stepped, and samples are injected into what comes of it. The
    adjoint goes backwards, and every n-th step does more.
    """
    mode, grid, every = task.mode, task.grid, task.every
    code, real = Code(grid.real, 1), grid.real
    at: dict[str, str] = {}
    for i, name in enumerate(TABLE):
        kind = "ptr" if name.startswith("%") else "i64"
        at[name] = code.new(f"load {kind}, ptr {code.place('%table', i, kind='i64')}")
    number = lambda array, i: code.new(f"load {real}, ptr {code.place(array, i)}")
    index = lambda array, i: code.new(f"load i64, ptr {code.place(array, i, kind='i64')}")
    moved = lambda array, i, by: code.place(array, code.whole("mul", i, by))

    def add(x: str, array: str, i: str) -> None:
        place = code.place(array, i)
        code.put(f"store {real} {code.new(f'fadd {real} {number(place, 0)}, {x}')}, ptr {place}")

    with code.loop(at["steps"]) as s:
        t, odd = s, code.new(f"trunc i64 {s} to i1")
        if mode == "adjoint":
            t = code.whole("sub", code.whole("sub", at["steps"], 1), s)
        u, v = (
            code.new(f"select i1 {odd}, ptr {at[x]}, ptr {at[y]}")
            for x, y in (("%v", "%u"), ("%u", "%v"))
        )
        block, part = code.whole("sdiv", t, every), code.whole("srem", t, every)
        first = code.new(f"icmp eq i64 {part}, 0")
        kept, coming = moved(at["%kept"], block, at["stride"]), u
        if mode in ("born", "adjoint"):  # where no q comes after this one, u, which is at hand
            by, end = 1, code.whole("sdiv", code.whole("sub", at["steps"], 1), every)
            if mode == "adjoint":
                by, end, part = -1, "0", code.whole("sub", every - 1, part)
            q = moved(at["%kept"], code.whole("add", block, by), at["stride"])
            q = moved(q, part, -(-grid.shape[0] * grid.shape[1] // every))
            none = code.new(f"icmp eq i64 {block}, {end}")
            coming = code.new(f"select i1 {none}, ptr {u}, ptr {q}")
        with code.loop(at["recorded"]) as p:
            total = "0.0"
            for corner in range(task.recorded_corners):
                k = code.whole("add", code.whole("mul", p, task.recorded_corners), corner)
                value = number(u, index(at["%record_at"], k))
                value = code.new(f"fmul {real} {value}, {number(at['%record_by'], k)}")
                total = code.new(f"fadd {real} {total}, {value}")
            place = code.place(moved(at["%data"], p, at["steps"]), t)
            code.put(f"store {real} {total}, ptr {place}")
        given = ", ".join(f"ptr {x}" for x in (u, v, *map(at.get, ARRAYS[2:-2]), kept, coming))
        if mode == "forward":
            code.put(f"call void @plain({given})")
        else:
            with code.where(first):
                code.put(f"call void @special({given})")
            with code.where(code.new(f"xor i1 {first}, true")):
                code.put(f"call void @plain({given})")
        with code.loop(at["injected"]) as p:
            sample = number(moved(at["%samples"], p, at["steps"]), t)
            for corner in range(task.injected_corners):
                k = code.whole("add", code.whole("mul", p, task.injected_corners), corner)
                force = code.new(f"fmul {real} {sample}, {number(at['%inject_by'], k)}")
                add(force, v, index(at["%inject_at"], k))
                if mode == "keep":
                    with code.where(first):
                        add(force, kept, index(at["%keep_at"], k))
    return code.function("run", ["%table"], flush=True)
