"""The code of waves on a CPU, in 2D: the step of `Medium` in one pass over the fields.

XLA has a loop for each part of the layer, and reads and writes the fields in each. Here a step goes
once through blocks of rows, a tile of columns at a time. What a cell needs of the layer is made
on the way: across rows, ψ of the rows ahead is computed just before it is used; along a row, the
vectors at its two ends are in registers all at once. u⁺ replaces u⁻.
benchmarks/bench_absorbing.py has the time of a step with and without the layer, beside XLA's.

The code is made for a grid, an order and a precision, by the instructions of core/llvm.py.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..core.llvm import Code, Value
from .scheme import GAMMA, SECOND

# What the code is given. `other` is η/m, or the image; `coming` is the part of the next q to fetch.
FIELDS = ("%u", "%v", "%w", "%psi0", "%zeta0", "%psi1", "%zeta1", "%other")
ARRAYS = (*FIELDS, "%lines0", "%lines1", "%kept", "%coming")


class Grid(NamedTuple):
    """The cells of a field as the code has them: rows of whole tiles, zeros all around.

    A tile is a vector of even columns and one of the odd. The next column is then in the other
    vector as it lies, and what is shifted for one serves the other too: half as many shifts.
    Where pairs would bring more vectors into the layer, a tile is one vector of columns in order.
    A tile of zeros lies between rows, and `ahead` rows of them before the first and after the
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
    def pair(self) -> int:
        """Vectors of a tile."""
        one, two = (sum(self.ends(n * self.width, self.ahead)) * n for n in (1, 2))
        return 1 if self.layer and one < two else 2

    @property
    def tile(self) -> int:
        """Cells of a tile."""
        return self.pair * self.width

    def ends(self, tile: int, beyond: int) -> tuple[int, int]:
        """How many tiles of a row have a part in the layer and so many cells beyond it."""
        reach, tiles = self.layer + beyond, -(-self.shape[1] // tile)
        left, right = -(-reach // tile), tiles - (self.last - reach) // tile
        return (left, right) if left + right < tiles else (tiles, 0)

    @property
    def tiles(self) -> int:
        """Those of a row."""
        return -(-self.shape[1] // self.tile)

    @property
    def columns(self) -> int:
        """Of a row of whole tiles."""
        return self.tiles * self.tile

    @property
    def stride(self) -> int:
        return self.columns + self.tile

    @property
    def rows(self) -> int:
        return self.shape[0] + 2 * self.ahead

    @property
    def origin(self) -> int:
        return self.ahead * self.stride + self.tile

    @property
    def size(self) -> int:
        return self.rows * self.stride + self.tile

    def place(self, column: Any) -> Any:
        """Where a column is in its row."""
        whole, inner = column // self.tile * self.tile, column % self.tile
        return whole + inner % self.pair * self.width + inner // self.pair

    def lay_out(self, x: np.ndarray) -> np.ndarray:
        """Rows, (…, n), as the code has them, filled up with zeros."""
        rows = np.zeros((*x.shape[:-1], self.columns), x.dtype)
        rows[..., self.place(np.arange(x.shape[-1]))] = x
        return rows

    def inside(self, field: np.ndarray) -> np.ndarray:
        """A view of the cells of a field."""
        rows = field[self.origin :][: self.shape[0] * self.stride]
        return rows.reshape(self.shape[0], -1)[:, : self.columns]


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
        beyond = grid.ahead if transposed else 1
        reach = grid.layer + beyond if grid.layer else 0
        self.left, self.right = 0, grid.shape[1] // grid.tile
        if reach:
            self.left, right = grid.ends(grid.tile, beyond)
            self.right = grid.tiles - right
        self.edge = -(-reach // grid.block) * grid.block

    def second(self, u: Callable[[int], Value], centres: int = 1) -> Value:
        """K u, where u(d) is that of the cell d further along the axis, u(0) counting `centres`
        times: where axes have the same spacing, one of them has the share of both."""
        half = self.grid.order // 2
        total = u(half) + u(-half)
        for distance, weight in enumerate(self.bends, start=1):
            total = total + weight * (u(distance) + u(-distance))
        if not centres:
            return total
        return self.code.fused(self.code.constant(centres * self.centre), u(0), total)

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
            with code.loop(self.grid.columns, self.grid.width) as column:
                self.begin(code.whole("add", column, self.grid.origin))
        for start, stop, layer in zones:
            whole = stop - (stop - start) % block
            with code.loop(whole, block, start) as row:
                self.advance(row, block, layer)
            if whole < stop:
                self.advance(code.whole("add", whole, 0), stop - whole, layer)
        return code.function(name, list(ARRAYS))

    def advance(self, row: str, count: int, layer: bool) -> None:
        """Some rows: the tiles of the layer at their start, those between, those at their end."""
        code, grid, width, tile = self.code, self.grid, self.grid.width, self.grid.tile
        start = code.whole("add", code.whole("mul", row, grid.stride), grid.origin)
        kept = code.whole("mul", row, grid.shape[1])
        one = int(not layer and self.ratio == 1)  # axis 0 has the share of both in u
        across = lambda *given: self.across(row if layer else None, count, *given)
        pair = range(grid.pair)

        def load(at: str, r: int, vectors: Any) -> dict[int, Value]:
            return {j: code.load("%u", at, r * grid.stride + j * width) for j in vectors}

        def fetch(column: Any) -> None:
            if self.extra in ("born", "image"):  # q of the next rows, from further caches
                there = code.whole("add", kept, column)
                for r, j in product(range(count, 2 * count), pair):
                    code.fetch("%kept", there, r * grid.shape[1] + j * width)
            if self.fetched:  # a share of the next q, on its way while this step runs
                done = code.whole("add", code.whole("mul", column, count), kept)
                for j in range(-(-grid.pair * count // self.fetched)):
                    code.fetch("%coming", code.whole("sdiv", done, self.fetched), j * width)

        def edge(low: int, high: int) -> None:
            for j in range(low, high):
                fetch(j * tile)
            at, vectors = code.whole("add", start, low * tile), range(grid.pair * (high - low))
            sums = [across(at, j * width, 1) for j in vectors]
            for r in range(count):
                u = load(at, r, range(-grid.pair, len(vectors) + grid.pair))
                if self.edge:
                    along = self.along_layer(at, r, low * tile, u)
                else:
                    along = [self.along(u, j, 1) for j in vectors]
                for j in vectors[:: grid.pair]:
                    totals = [self.join(sums[j + k][r], along[j + k]) for k in pair]
                    first = low * tile + j * width
                    held = code.whole("add", kept, r * grid.shape[1] + first)
                    place = r * grid.stride + j * width
                    now = [u[j + k] for k in pair]
                    self.finish(at, place, held, now, totals, min(tile, grid.shape[1] - first))

        if self.left:
            edge(0, self.left)
        if self.left < self.right:
            first = code.whole("add", start, self.left * tile)
            near = [u for r in range(count) for u in load(first, r, pair).values()]
            with code.loop(self.right * tile, tile, self.left * tile, near) as column:
                at, held = (code.whole("add", x, column) for x in (start, kept))
                fetch(column)
                rows = []
                for r in range(count):
                    u = load(at, r, (*range(-grid.pair, 0), *range(grid.pair, 2 * grid.pair)))
                    rows.append(u | dict(zip(pair, near[grid.pair * r :], strict=False)))
                known = lambda j: {r: u[j] for r, u in enumerate(rows)}
                sums = [across(at, j * width, 1 + one, known(j)) for j in pair]
                for r, u in enumerate(rows):
                    far, half = None, grid.order // 2
                    if grid.pair == 1:  # an unaligned load saves one of many shifts
                        far = code.load("%u", at, r * grid.stride + half, aligned=False)
                    totals = [self.join(sums[j][r], self.along(u, j, 1 - one, far)) for j in pair]
                    there = code.whole("add", held, r * grid.shape[1])
                    now = [u[j] for j in pair]
                    self.finish(at, r * grid.stride, there, now, totals, tile)
                near[:] = [u[j + grid.pair] for u in rows for j in pair]
        if self.right < grid.tiles:
            edge(self.right, grid.tiles)

    def line(self, axis: int, at: Any, kind: int, more: int) -> Value:
        """a of ψ, b of ψ, a of ζ or b of ζ: of a row for axis 0, of columns for axis 1."""
        if axis:
            return self.code.load("%lines1", at, kind * self.grid.columns + more)
        return self.code.spread("%lines0", at, kind * self.grid.rows + self.grid.ahead + more)

    def remember(self, axis: int, kind: int, line: tuple, at: str, more: int, x: Value) -> Value:
        """f' = bf + ax of a memory, ψ for kind 0 and ζ for kind 2, which is written too."""
        field = f"%{'zeta' if kind else 'psi'}{axis}"
        a, b = (self.line(axis, line[0], kind + i, line[1]) for i in (0, 1))
        new = b * self.code.load(field, at, more) + a * x
        self.code.store(new, field, at, more)
        return new

    def across(
        self, row: str | None, count: int, at: str, more: int, centres: int, known: Any = ()
    ) -> list[Value]:
        """K u along axis 0, on some rows of a vector of columns, with c where there is a `row`.

        `known` is u of some of these rows, if it is at hand.
        ψ is known up to the point after the first row, and ζ of the transpose up to `ahead` rows
        after it, excluding this one.
        """
        code, grid, stride = self.code, self.grid, self.grid.stride
        half, seen = grid.order // 2, dict(known)

        def u(r: int) -> Value:
            if r not in seen:
                seen[r] = code.load("%u", at, more + r * stride)
            return seen[r]

        if row is None:
            return [self.second(lambda d, r=r: u(r + d), centres) for r in range(count)]
        if self.transposed:  # y + ζ' takes the place of u
            for r in range(-half, count + grid.ahead):
                if r < grid.ahead:
                    zeta = code.load("%zeta0", at, more + r * stride)
                else:
                    zeta = self.remember(0, 2, (row, r), at, more + r * stride, u(r))
                seen[r] = u(r) + zeta
        psi = {p: code.load("%psi0", at, more + p * stride) for p in (-2, -1, 0)}
        for p in range(1, count + 1):
            slope = self.first(lambda d, p=p: u(p + d))
            psi[p] = self.remember(0, 0, (row, p), at, more + p * stride, slope)
        sums = []
        for r in range(count):
            total = self.second(lambda d, r=r: u(r + d))
            total = total + self.first(lambda d, r=r: psi[r - 1 + d])
            if not self.transposed:
                total = total + self.remember(0, 2, (row, r), at, more + r * stride, total)
            sums.append(total)
        return sums

    def begin(self, at: str) -> None:
        """What `across` takes for known, before the first rows."""
        code, grid = self.code, self.grid
        u = {r: code.load("%u", at, r * grid.stride) for r in range(-1, grid.ahead)}
        for r in range(grid.ahead if self.transposed else 0):
            u[r] = u[r] + self.remember(0, 2, (0, r), at, r * grid.stride, u[r])
        self.remember(0, 0, (0, 0), at, 0, self.first(u.__getitem__))

    def near(self, x: dict[int, Value], j: int, by: int) -> Value:
        """The values `by` columns after those of a vector, from those of its row; else zeros."""
        tile, inner = divmod(j, self.grid.pair)
        lanes, other = divmod(inner + by, self.grid.pair)
        zero = self.code.constant(0)
        return self.code.shift(lambda k: x.get((tile + k) * self.grid.pair + other, zero), lanes)

    def along(self, u: dict[int, Value], j: int, centres: int, far: Value | None = None) -> Value:
        """K u along axis 1, on a vector without the layer; `far` is the last u of the stencil."""
        half = self.grid.order // 2
        return self.second(lambda d: far if far and d == half else self.near(u, j, d), centres)

    def along_layer(self, at: str, r: int, column: int, u: dict[int, Value]) -> list[Value]:
        """K u + c along axis 1, on the vectors of an edge; beyond them the memories are zero."""
        vectors, width = range(len(u) - 2 * self.grid.pair), self.grid.width
        remember = lambda kind, j, x: self.remember(
            1, kind, (column, j * width), at, r * self.grid.stride + j * width, x
        )
        if self.transposed:
            u = u | {j: u[j] + remember(2, j, u[j]) for j in vectors}
        psi: dict[int, Value] = {}
        for j in vectors:
            psi[j] = remember(0, j, self.first(lambda d, j=j: self.near(u, j, d)))
        sums = []
        for j in vectors:
            total = self.second(lambda d, j=j: self.near(u, j, d))
            total = total + self.first(lambda d, j=j: self.near(psi, j, d - 1))
            if not self.transposed:
                total = total + remember(2, j, total)
            sums.append(total)
        return sums

    def finish(
        self, at: str, place: int, held: str, now: list[Value], totals: list[Value], cells: int
    ) -> None:
        """u⁺ of a tile from the sums over the axes, and what else there is to do.

        q lies from `held` on, for so many cells, and its columns are in their order.
        """
        code, width = self.code, self.grid.width
        places = [place + k * width for k in range(self.grid.pair)]
        parts = [(x, min(width, cells - x)) for x in range(0, cells, width)]
        changes = [code.load("%w", at, x) * y for x, y in zip(places, totals, strict=True)]
        if self.extra == "keep":
            aligned = self.past_caches
            for x, (begin, n) in zip(code.weave(changes), parts, strict=False):
                code.store(x, "%kept", held, begin, n, aligned, past_caches=aligned)
        elif self.extra:
            q = [code.load("%kept", held, begin, n, aligned=False) for begin, n in parts]
            q = code.unweave(q + [code.constant(0)] * (self.grid.pair - len(q)))
            for k, x in enumerate(places):
                other = code.load("%other", at, x)
                if self.extra == "image":
                    code.store(other + q[k] * now[k], "%other", at, x)
                else:
                    changes[k] = changes[k] + other * q[k]
        for x, u, change in zip(places, now, changes, strict=True):
            before = code.load("%v", at, x)
            code.store(change + (code.constant(2) * u - before), "%v", at, x)
