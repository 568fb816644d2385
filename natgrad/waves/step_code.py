"""The code of waves on a CPU, in 2D: the step of `Medium` in one pass over the fields.

XLA has a loop for each part of the layer, and reads and writes the fields in each. Here a step goes
once through blocks of rows, a vector of columns at a time. What a cell needs of the layer is made
on the way: across rows, ψ of the rows ahead is computed just before it is used; along a row, the
vectors at its two ends are in registers all at once. u⁺ replaces u⁻.
benchmarks/bench_absorbing.py has the time of a step with and without the layer, beside XLA's.

The fields of a shot are in the caches, so instructions count, among them those that move numbers
between the lanes of vectors: the order of the cells in `Grid` avoids most of these.

The code is made for a grid, an order and a precision, by the instructions of core/llvm.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..core.llvm import Code, Value
from .scheme import GAMMA, SECOND

# What the code is given. `other` is η/m, the image or the force, `coming` the part of the next q to
# fetch.
FIELDS = ("%u", "%v", "%w", "%psi0", "%zeta0", "%psi1", "%zeta1", "%other")
ARRAYS = (*FIELDS, "%lines0", "%lines1", "%kept", "%coming")


class Grid(NamedTuple):
    """The cells of a field as the code has them: rows of whole vectors, zeros all around.

    A row has three parts, two ends with the layer and the middle, or one if it is short. Each is
    cut into as many pieces as a vector has lanes, one for each lane. So the next vector has the
    next columns, and values are moved between lanes only where a part begins or ends. Zeros fill up
    the ends, before the first column and after the last. There are `ahead` rows of zeros before the
    first and after the last, as far as a block of rows reaches beyond itself.
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
    def ends(self) -> tuple[int, int]:
        """Cells at the start and at the end of a row: those of the layer and one more at least, and
        as many as their vectors have room for, so that whole vectors are left between them."""
        reach = self.layer + 1 if self.layer else 0
        room = -(-reach // self.width) * self.width
        both = 2 * room - (2 * room - self.last) % self.width
        both += self.width * (both < 2 * reach)
        if self.last - both < self.order * self.width:
            return self.last, 0
        right = min(room, both - reach)
        return both - right, right

    @property
    def parts(self) -> tuple[int, int, int]:
        """Vectors at the start, in the middle and at the end of a row."""
        left, right = self.ends
        middle = (self.last - left - right) // self.width
        return -(-left // self.width), middle, -(-right // self.width)

    @property
    def stride(self) -> int:
        return sum(self.parts) * self.width

    @property
    def columns(self) -> np.ndarray:
        """The column at every place of a row, (vectors, lanes); −1 where there is none."""
        return _columns(self)

    @property
    def places(self) -> np.ndarray:
        """Where every column is in a row."""
        return np.argsort(self.columns, axis=None)[-self.last :]

    def held(self, row: Any, column: Any) -> Any:
        """Where q of a cell is kept: first the middle of all rows, in whole vectors, then the ends
        of all rows, without what fills them up."""
        before, middle, _ = self.parts
        whole, place = middle * self.width, self.places[column]
        inner = place - before * self.width
        rank = np.cumsum(self.columns >= 0)[place] - 1 - whole * (inner >= whole)
        rest = self.shape[0] * whole + row * (self.last - whole) + rank
        return np.where((inner >= 0) & (inner < whole), row * whole + inner, rest)

    @property
    def rows(self) -> int:
        return self.shape[0] + 2 * self.ahead

    @property
    def origin(self) -> int:
        return self.ahead * self.stride

    @property
    def size(self) -> int:
        return self.rows * self.stride

    def lay_out(self, x: np.ndarray) -> np.ndarray:
        """Rows, (…, n), as the code has them, filled up with zeros."""
        rows = np.zeros((*x.shape[:-1], self.stride), x.dtype)
        rows[..., self.places] = x[..., : self.last]
        return rows

    def cut_ends(self, rows: np.ndarray) -> np.ndarray:
        """The ends of such rows, one after the other."""
        before, middle, _ = self.parts
        start, stop = before * self.width, (before + middle) * self.width
        return np.concatenate([rows[..., :start], rows[..., stop:]], axis=-1)

    def inside(self, field: np.ndarray) -> np.ndarray:
        """A view of the cells of a field."""
        rows = field[self.origin :][: self.shape[0] * self.stride]
        return rows.reshape(self.shape[0], -1)


@cache
def _columns(grid: Grid) -> np.ndarray:
    start, found = grid.ends[0] - grid.parts[0] * grid.width, []
    for vectors in grid.parts:
        pieces = start + vectors * np.arange(grid.width)
        found.append(pieces + np.arange(vectors)[:, None])
        start += vectors * grid.width
    columns = np.concatenate(found)
    return np.where((columns >= 0) & (columns < grid.last), columns, -1)


class Step:
    """The code of one step, or of its transpose, in the notation of scheme.py.

    `extra` is what else is done on the way: "keep" adds `other` to u⁺ and keeps q, past the caches
    if it lies in whole vectors; "born" adds `other` · q to u⁺, "image" adds q u to `other`. q is of
    the kind `kept`. A step fetches one of `fetched` parts of the next q into the caches.

    K u over its last weight k/h², and G u over γ/h, take a product less each. So sums here are in
    units of k/h² of axis 0: w is given times that, a of ψ times γ²/k, and axis 1 counts as `ratio`.
    """

    def __init__(
        self,
        grid: Grid,
        transposed: bool,
        extra: str,
        fetched: int,
        kept: str,
        past_caches: bool = False,
    ):
        self.grid, self.transposed, self.extra = grid, transposed, extra
        self.fetched, self.kept, self.past_caches = fetched, kept, past_caches
        self.code = Code(grid.real, grid.width)
        centre, *bends, unit = SECOND[grid.order]
        self.centre, self.bends = centre / unit, [self.code.constant(x / unit) for x in bends]
        self.slope = self.code.constant(1 / GAMMA[grid.order] + 3)
        self.ratio = (grid.spacing[0] / grid.spacing[1]) ** 2
        # cells from an edge on which the layer has a part in the step
        reach = grid.layer + (grid.order // 2 if transposed else 1) if grid.layer else 0
        self.edge = -(-reach // grid.block) * grid.block
        self.columns, self.place = grid.columns, dict(enumerate(grid.places.tolist()))
        self.rest = grid.last - grid.parts[1] * grid.width  # cells at the ends of a row
        self.outer = (grid.parts[0] + grid.parts[2]) * grid.width  # of a row of ψ and ζ of axis 1

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
        for start, stop, layer in zones:
            if layer and (start == 0 or self.transposed):
                with code.loop(self.grid.stride, self.grid.width) as column:
                    place = self.grid.origin + start * self.grid.stride
                    self.begin(start, code.whole("add", column, place))
            whole = stop - (stop - start) % block
            with code.loop(whole, block, start) as row:
                self.advance(row, block, layer)
            if whole < stop:
                self.advance(code.whole("add", whole, 0), stop - whole, layer)
        return code.function(name, list(ARRAYS))

    def advance(self, row: str, count: int, layer: bool) -> None:
        """Some rows, from their first vector to the last."""
        code, grid, width, half = self.code, self.grid, self.grid.width, self.grid.order // 2
        before, middle, after = grid.parts
        start = code.whole("add", code.whole("mul", row, grid.stride), grid.origin)
        kept, rest = (code.whole("mul", row, n) for n in (middle * width, self.rest))
        one = int(not layer and self.ratio == 1)  # axis 0 has the share of both in u
        across = partial(self.across, row if layer else None, count)
        edges = [self.to_model(row, r) for r in range(count)] if layer else None
        finish = partial(self.finish, edges)
        load = lambda at, r, j: code.load("%u", at, r * grid.stride + j * width)

        def fetch(place: Any) -> None:
            if self.extra in ("born", "image"):  # q of the next rows, from further caches
                there = code.whole("add", kept, place)
                for r in range(count, 2 * count):
                    code.fetch("%kept", there, r * middle * width, self.kept)
            if self.fetched:  # a share of the next q, on its way while this step runs
                done = code.whole("add", code.whole("mul", place, count), kept)
                for j in range(-(-count // self.fetched)):
                    part = code.whole("sdiv", done, self.fetched)
                    code.fetch("%coming", part, j * width, self.kept)

        def some(ends: range, inner: range) -> None:
            """An end of the rows, and what of the middle has neighbours in other lanes."""
            own = self.columns[[*ends, *inner]]
            columns = own[own >= 0][:, None] + np.arange(-half, half + 1)
            needed = {self.place[c] // width for c in columns.clip(0, grid.last - 1).flat}
            look = lambda r: {j: load(start, r, j) for j in sorted(needed)}
            found = [self.along_end(row, r, look(r), ends) for r in range(count)]
            for j in (*ends, *inner):
                code.forget("%u")
                at, share = code.whole("add", start, j * width), one * (j in inner)
                rows = [look(r) for r in range(count)]
                sums = across(at, {r: u[j] for r, u in enumerate(rows)}, 1 + share)
                lanes, held, stride = np.flatnonzero(self.columns[j] >= 0), rest, self.rest
                first = int(grid.held(0, self.columns[j, lanes[0]]))
                if j in inner:
                    fetch((j - before) * width)
                    lanes, held, stride = None, kept, middle * width
                for r, (new, along) in enumerate(found):
                    bend = along[j] if j in along else self.along(rows[r] | new, j, 1 - share)
                    total = self.join(sums[r], bend)
                    finish(at, r, rows[r][j], total, (held, first + r * stride), lanes)

        if not middle:
            return some(range(before), range(0))
        end = before + middle
        some(range(before), range(before, before + half))
        back = half if grid.block > 2 and half == 2 else 0  # if there are registers for them
        at = code.whole("add", start, (before + half) * width)
        near = [load(at, r, j) for r in range(count) for j in range(-back, half)]
        with code.loop((middle - half) * width, width, half * width, near) as place:
            at = code.whole("add", code.whole("add", start, place), before * width)
            there = code.whole("add", kept, place)
            fetch(place)
            rows = [{j: load(at, r, j) for j in (*range(-half, -back), half)} for r in range(count)]
            for r, u in enumerate(rows):
                u.update(zip(range(-back, half), near[(back + half) * r :], strict=False))
            sums = across(at, {r: u[0] for r, u in enumerate(rows)}, 1 + one)
            for r, u in enumerate(rows):
                total = self.join(sums[r], self.second(u.__getitem__, 1 - one))
                finish(at, r, u[0], total, (there, r * middle * width))
            near[:] = [u[j] for u in rows for j in range(1 - back, half + 1)]
        some(range(end, end + after), range(end - half, end))

    def to_model(self, row: str, r: int) -> str:
        """How far it is from a row to the one r after it or, in the layer, to the nearest of the
        model. w is the same there, and one row for all of the layer stays in the caches."""
        code, layer = self.code, self.grid.layer
        nearest = code.clip(code.whole("add", row, r), layer, self.grid.shape[0] - 1 - layer)
        return code.whole("mul", code.whole("sub", nearest, row), self.grid.stride)

    def line(self, axis: int, at: Any, kind: int, more: int) -> Value:
        """a of ψ, b of ψ, a of ζ or b of ζ: of a row for axis 0, of columns for axis 1."""
        if axis:
            return self.code.load("%lines1", at, kind * self.outer + more)
        return self.code.spread("%lines0", at, kind * self.grid.rows + self.grid.ahead + more)

    def remember(self, axis: int, kind: int, line: tuple, at: str, more: int, x: Value) -> Value:
        """f' = bf + ax of a memory, ψ for kind 0 and ζ for kind 2, which is written too."""
        field = f"%{'zeta' if kind else 'psi'}{axis}"
        a, b = (self.line(axis, line[0], kind + i, line[1]) for i in (0, 1))
        new = b * self.code.load(field, at, more) + a * x
        self.code.store(new, field, at, more)
        return new

    def across(
        self, row: str | None, count: int, at: str, known: dict[int, Value], centres: int
    ) -> list[Value]:
        """K u along axis 0, on some rows of a vector of columns, with c where there is a `row`.

        `known` is u of some of these rows.
        ψ is known up to the point after the first row, and ζ of the transpose up to `ahead` rows
        after it, excluding this one.
        """
        code, grid, stride = self.code, self.grid, self.grid.stride
        half, seen = grid.order // 2, known

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

    def begin(self, row: int, at: str) -> None:
        """What `across` takes for known, before the first rows of a strip."""
        code, grid = self.code, self.grid
        u = {r: code.load("%u", at, r * grid.stride) for r in range(-1, grid.ahead)}
        for r in range(grid.ahead if self.transposed else 0):
            u[r] = u[r] + self.remember(0, 2, (row, r), at, r * grid.stride, u[r])
        self.remember(0, 0, (row, 0), at, 0, self.first(u.__getitem__))

    def near(self, x: dict[int, Value], j: int, by: int) -> Value:
        """The values `by` columns after those of a vector, from those of its row; else zeros."""
        width, columns = self.grid.width, self.columns[j].tolist()
        places = [self.place.get(c + by) if c >= 0 else None for c in columns]
        places = [None if p is None or p // width not in x else p for p in places]
        known = [(lane, p) for lane, p in enumerate(places) if p is not None]
        if known:  # any number will do in what fills up a row, where w is zero
            lane, place = known[len(known) // 2]
            turn = [place // width * width + (place + i - lane) % width for i in range(width)]
            places = [turn[i] if columns[i] < 0 else p for i, p in enumerate(places)]
        return self.code.pick(x, places)

    def along(self, u: dict[int, Value], j: int, centres: int) -> Value:
        """K u along axis 1, on a vector."""
        return self.second(lambda d: self.near(u, j, d), centres)

    def along_end(
        self, row: str, r: int, u: dict[int, Value], ends: range
    ) -> tuple[dict[int, Value], dict[int, Value]]:
        """For vectors at an end of a row what takes the place of u, and K u + c along axis 1."""
        if not self.edge:
            return {}, {}
        at, skip = self.code.whole("mul", row, self.outer), self.grid.parts[1] if ends.start else 0
        place = lambda j: (j - skip) * self.grid.width
        remember = lambda kind, j, x: self.remember(
            1, kind, (0, place(j)), at, r * self.outer + place(j), x
        )
        new = {j: u[j] + remember(2, j, u[j]) for j in ends} if self.transposed else {}
        u = u | new
        psi: dict[int, Value] = {}
        for j in ends:
            psi[j] = remember(0, j, self.first(lambda d, j=j: self.near(u, j, d)))
        sums: dict[int, Value] = {}
        for j in ends:
            total = self.along(u, j, 1) + self.first(lambda d, j=j: self.near(psi, j, d - 1))
            sums[j] = total if self.transposed else total + remember(2, j, total)
        return new, sums

    def finish(
        self,
        edges: list[str] | None,
        at: str,
        r: int,
        u: Value,
        total: Value,
        held: tuple[str, int],
        lanes: np.ndarray | None = None,
    ) -> None:
        """u⁺ of a vector of the r-th row from the sum over the axes, and what else there is to do.

        w is that of the rows `edges`, if they are given. q is `held` there, of all lanes or some.
        """
        code, width, place = self.code, self.grid.width, r * self.grid.stride
        model = (code.whole("add", at, edges[r]), 0) if edges else (at, place)
        change = code.load("%w", *model) * total
        first, count = (0, width) if lanes is None else (int(lanes[0]), len(lanes))
        if self.extra == "keep":
            change = change + code.load("%other", at, place)
            aligned = self.past_caches and lanes is None
            x = code.pick({0: change}, [*range(first, width), *[None] * first])
            code.store(x, "%kept", *held, count, aligned, aligned, self.kept)
        elif self.extra:
            q = code.load("%kept", *held, count, False, self.kept)
            q = code.pick({0: q}, [*[None] * first, *range(width - first)])
            if self.extra == "image":
                code.store(code.load("%other", at, place) + q * u, "%other", at, place)
            else:
                change = change + code.load("%other", *model) * q
        old = code.load("%v", at, place)
        code.store(change + (code.constant(2) * u - old), "%v", at, place)
