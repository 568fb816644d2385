"""The wave equation on a grid, and the step in time that forward, Born and adjoint waves share.

    m u_tt − Δu = s,    and in a perfectly matched layer of C cells around the model
    m u_tt − Σ_a (1/s_a) ∂_a (1/s_a) ∂_a u = s,    s_a = 1 + σ_a/(α + iω) for the axis a alone.

**The step.** With w = dt²/m, K_a the second difference of order 2q along a, and u zero beyond the
padded grid,

    u⁺ = 2u − u⁻ + w(Σ_a (K_a u + c_a) + s).

c_a lives in the two strips of a: the C cells of the layer and the q cells of the model beside them.
There are two memories in each, ψ at the points half-way between cells and ζ on the cells. Where x
is filtered by 1/s − 1, a memory f becomes f' = b f + a x, with

    b = exp(−(σ + α)dt),    a = −(1 − b) σ/(σ + α).

The step of forward and Born waves is

    ψ' = bψ + a Gu,    ζ' = bζ + a(K_a u + Dψ'),    c_a = Dψ' + ζ',

and its transpose, which adjoint waves y run backwards in time, is

    ζ' = bζ + ay,    ψ' = bψ + a G(y + ζ'),    c_a = Dψ' + K_a ζ'.

G is the first difference from cells to points half-way, D = −Gᵀ that back to cells:

    (Gu)(i + ½) = ((1 + 3γ)(u_{i+1} − u_i) − γ(u_{i+2} − u_{i−1}))/h.

γ is the largest up to 1/24, the value of fourth order, for which GᵀG ≤ −K_a: the layer then never
takes more than there is, and waves do not grow. Memories of different axes do not meet.

**The profile.** j = 1 … C counts the cells of a layer outwards. On cell j the depth is (j − ½)/C,
half-way between j and j + 1 it is j/C; further out and further in a = b = 0. With c half of the
fastest stable velocity, σ = S (POWER + 1) c/(2Ch) depth^POWER and α = SHIFT c/h: numbers of the
grid and the order alone, so that surveys which differ in m or in the wavelet have the same layer.

**The derivative.** m has the value of the nearest cell of the model in the layer. With
q = u⁺ − 2u + u⁻ = w(Σ_a (K_a u + c_a) + s), a change η of m is the source −(η/m)q of the same step.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..errors import InputError

Shape = tuple[int, ...]
Spacing = tuple[float, ...]
Cut = tuple[Any, ...]  # an ellipsis and slices of the last axes

# Second derivatives of order 2q: the centre, then the neighbours at distance 1 … q.
SECOND = {
    4: (-5 / 2, 4 / 3, -1 / 12),
    8: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}
BUFFERS = 3
LARGE = 2**14  # cells: in smaller models a copy of the fields costs less than compiling more steps
VECTOR = 8  # cells

# For G: the largest γ ≤ 1/24 with (1 + 4γ sin²)² ≤ −K/(4 sin²), which is 1 + sin²/3 at order 4.
GAMMA = {4: (np.sqrt(64 + 64 / 3) - 8) / 32, 8: 1 / 24}

# Chosen by benchmarks/bench_absorbing.py. A wave of velocity c that crosses the layer and comes
# back has lost a factor exp(−S), S = min(STRENGTH, CELL · C): thin layers can take less.
POWER = 3.0
STRENGTH, CELL = 20.0, 2.0
SHIFT = 0.02


def halo(order: int) -> int:
    """How many cells the stencil reaches beyond its centre."""
    if not isinstance(order, (int, np.integer)) or order not in SECOND:
        raise InputError("order", f"{order!r} is not implemented", "order=4 or order=8")
    return int(order) // 2


def second(u: Array, axis: int, weights: tuple[float, ...], h: float, cells: Cut) -> Array:
    """K u along one of the last axes, on the `cells` of an array with more of them around."""
    total = jnp.asarray(weights[0] / h**2, u.dtype) * u[cells]
    for distance, weight in enumerate(weights[1:], start=1):
        pair = u[shift(cells, distance, axis)] + u[shift(cells, -distance, axis)]
        total = total + jnp.asarray(weight / h**2, u.dtype) * pair
    return total


def first(u: Array, axis: int, gamma: float, h: float, cells: Cut) -> Array:
    """(1 + 3γ)(u₊ − u) − γ(u₊₊ − u₋), over h: G from cells to the points half-way after them."""
    before, here, after, beyond = (u[shift(cells, by, axis)] for by in (-1, 0, 1, 2))
    near, far = (jnp.asarray(x / h, u.dtype) for x in (1 + 3 * gamma, gamma))
    return near * (after - here) - far * (beyond - before)


def shift(cells: Cut, by: int | tuple[int, ...], *axes: int) -> Cut:
    """The slices, an ellipsis and one for each axis, moved along some axes, or each by its own."""
    moves = by if isinstance(by, tuple) else [by * (i in axes) for i in range(len(cells) - 1)]
    return (..., *(slice(x.start + n, x.stop + n) for x, n in zip(cells[1:], moves, strict=True)))


class Layer(NamedTuple):
    """a and b along every axis, (2, n): of ψ at the points after cells, and of ζ on the cells."""

    lines: tuple[tuple[Array, Array], ...]

    @classmethod
    def around(
        cls, shape: Shape, scheme: "Scheme", velocity: float, dtype: DTypeLike = float
    ) -> "Layer":
        """That of the module's text for a model of `shape` cells and a nominal velocity c."""
        cells, lines = scheme.absorbing, []
        for axis, h in zip(scheme.axes, scheme.spacing, strict=True) if cells else ():
            unit, n, pair = velocity / h, shape[axis] + 2 * cells, []
            strength = min(STRENGTH, CELL * cells) * (POWER + 1) / (2 * cells)
            for at in (np.arange(n) + 0.5, np.arange(n)):
                depth = np.maximum(cells - 0.5 - at, at - (n - cells - 0.5)) / cells
                depth = np.where((depth > 0) & (depth < 1), depth, 0.0)
                sigma, alpha = strength * unit * depth**POWER, SHIFT * unit
                b = np.where(depth > 0, np.exp(-(sigma + alpha) * scheme.dt), 0.0)
                a = (b - 1) * sigma / (sigma + alpha)
                pair.append(jnp.asarray(np.array([a, b], dtype), dtype))
            lines.append(tuple(pair))
        return cls(tuple(lines))


class Strip(NamedTuple):
    """Some cells of an axis, and all of the others: where ψ and ζ of that axis live."""

    axis: int
    begin: int
    count: int


class Storage(NamedTuple):
    """What is kept of the source waves, one of the ways of storage.py."""

    every: int
    segment: int | None  # blocks between two checkpoints
    bytes: int
    boundary: bool = False
    bfloat16: bool = False  # responses are rounded to that

    def __str__(self) -> str:
        """What is kept, how large it is and what a product costs."""
        kept = f"the source waves at every {self.every} steps" if self.every > 1 else "all waves"
        if self.boundary:
            kept = "the boundary of the source waves"
        elif self.segment is not None:
            kept = f"checkpoints of the source waves, {self.segment * self.every} steps apart"
        kept += " in bfloat16" * self.bfloat16
        runs = "two propagations" if self.boundary or self.segment else "one propagation"
        return f"{kept}, {print_bytes(self.bytes)}; a product takes {runs}"


def print_bytes(count: float) -> str:
    if count < 2**20:
        return f"{count / 2**10:.3g} KiB"
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{count / 2**20:.3g} MiB"


class Scheme(NamedTuple):
    """The numbers of a discretisation, and how much of the source field is kept.

    Time is cut into `blocks` of `every` steps, and the response of the medium is taken at the start
    of each. `segment` blocks lie between two checkpoints; where it is None, the response itself is
    stored. A loop has `unroll` blocks in its body, so that the rotating buffers of a field return
    to their places where a block has but one step; the loop over the steps of a block after its
    first has `inner` of them. `halo` is how many cells the stencil reaches beyond its centre.

    A field has `lead` and `trail` zeros before and after its cells along each axis. On a CPU, rows
    of the grid and of fields are whole numbers of vectors, which then do not lie across two lines
    of the cache: they have `fill` more cells at their end, where w is zero, and waves are.
    """

    axes: tuple[int, ...]  # of the model, as fields have them: the longest last, for long loops
    spacing: Spacing
    dt: float
    steps: int
    order: int
    absorbing: int
    every: int
    segment: int | None
    halo: int
    blocks: int
    unroll: int
    inner: int
    strip: int  # cells across one: the layer, and what its stencils reach
    lead: tuple[int, ...]
    trail: tuple[int, ...]
    fill: int
    engine: str = "xla"  # or "kernels", or "auto": those where there are some
    boundary: bool = False
    stored: str | None = None  # type of q, if it is not that of the waves: uint16, for bfloat16
    slab_axis: int | None = None  # that of the fields which is cut, where devices share a shot

    @classmethod
    def of(cls, survey: Any, order: int, absorbing: int, storage: Storage) -> "Scheme":
        """That of a survey, with as many blocks as fill up whole segments."""
        every, segment, _, boundary, bfloat16 = storage
        group, large = segment or 1, np.prod(survey.shape) > LARGE
        unroll = BUFFERS if every == 1 and large else 1
        inner = max(1, every - 1) if large else 1
        blocks = -(-survey.steps // (every * group)) * group
        axes = tuple(int(i) for i in np.argsort(survey.shape, kind="stable"))
        spacing = tuple(survey.spacing[i] for i in axes)
        given = (axes, spacing, survey.dt, survey.steps, order, absorbing, every, segment)
        width, last = halo(order), survey.shape[axes[-1]] + 2 * absorbing
        before, after, fill = width, width, 0
        if large and jax.default_backend() == "cpu":
            before, fill = VECTOR, 0 if boundary else -last % VECTOR
            after += -(last + fill + width) % VECTOR
        lead, trail = ((*[width] * (len(axes) - 1), n) for n in (before, after))
        sizes = (width, blocks, unroll, inner, absorbing + width, lead, trail, fill)
        return cls(*given, *sizes, boundary=boundary, stored="uint16" if bfloat16 else None)

    @property
    def recomputes(self) -> bool:
        """Whether products run the source waves again."""
        return self.boundary or self.segment is not None

    @property
    def inside(self) -> tuple:
        """The cells of a field without the zeros around them, whatever its leading axes."""
        return (..., *(slice(a, -b) for a, b in zip(self.lead, self.trail, strict=True)))

    @property
    def near(self) -> tuple:
        """The same with their halo."""
        starts, ends = ([n - self.halo for n in rim] for rim in (self.lead, self.trail))
        return (..., *(slice(a, -b or None) for a, b in zip(starts, ends, strict=True)))

    def cut(self, xs: Array) -> Array:
        """Traces (shots, …, steps) as (blocks, every, shots, …), zeros filling up the last."""
        missing = self.blocks * self.every - xs.shape[-1]
        rows = jnp.pad(jnp.moveaxis(xs, -1, 0), ((0, missing), *[(0, 0)] * (xs.ndim - 1)))
        return rows.reshape(self.blocks, self.every, *xs.shape[:-1])

    def join(self, data: Array) -> Array:
        """Data (blocks, every, shots, receivers) as traces (shots, receivers, steps)."""
        rows = data.reshape(-1, *data.shape[2:])[: self.steps]
        return jnp.moveaxis(rows, 0, -1)

    def group(self, blocks: Array) -> Array:
        """(blocks, …) as (segments, blocks of one, …)."""
        assert self.segment is not None
        return blocks.reshape(-1, self.segment, *blocks.shape[1:])


class Positions(NamedTuple):
    """For n points of each shot the indices of c cells, (shots, n, c, d), and their weights.

    c = 1 where every point is a grid point, else 2^d.
    """

    cells: Array
    weights: Array

    def read(self, field: Array) -> Array:
        """The fields (shots, …) at the points, (shots, n)."""
        index = (jnp.arange(len(self.cells))[:, None, None], *jnp.moveaxis(self.cells, -1, 0))
        values = field.at[index].get(mode="promise_in_bounds")
        return jnp.sum(self.weights.astype(field.dtype) * values, axis=-1)

    def add(self, field: Array, values: Array) -> Array:
        """The fields with these values added at the points: the transpose of `read`."""
        spread = self.weights.astype(field.dtype) * values[..., None]
        index = (jnp.arange(len(self.cells))[:, None, None], *jnp.moveaxis(self.cells, -1, 0))
        return field.at[index].add(spread, mode="promise_in_bounds")

    def scale(self, field: Array, lead: tuple[int, ...]) -> "Positions":
        """The same points with their weights times a field without zeros around, for all shots."""
        cells = tuple(self.cells[..., axis] - n for axis, n in enumerate(lead))
        return Positions(self.cells, self.weights.astype(field.dtype) * field[cells])


def locate(
    name: str, points: np.ndarray, shape: Shape, spacing: Spacing, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """The cells around points, (n, c, d), and their multilinear weights, (n, c).

    Points are in metres from the first cell of a model of `shape` cells; the array has `offset`
    more cells before it. Points outside the model are an input error.
    """
    points = np.atleast_2d(np.asarray(points, float))
    if points.ndim != 2 or points.shape[1] != len(shape) or points.size == 0:
        raise InputError(name, f"have shape {points.shape}", f"(n, {len(shape)}), in metres")
    cells = points / np.asarray(spacing)
    last = np.asarray(shape) - 1
    outside = ~np.all((cells >= -1e-9) & (cells <= last + 1e-9), axis=1)
    if not np.all(np.isfinite(points)) or np.any(outside):
        which = int(np.argmax(outside))
        extent = " × ".join(f"{n * h:g}" for n, h in zip(last, spacing, strict=True))
        what = f"number {which} at {points[which].tolist()} m lies outside the model of {extent} m"
        raise InputError(name, what, "positions between 0 and (cells − 1) · spacing")
    base = np.clip(np.floor(cells + 1e-9).astype(int), 0, np.maximum(last - 1, 0))
    share = np.clip(cells - base, 0.0, 1.0)
    share = np.where(np.abs(share - np.round(share)) < 1e-9, np.round(share), share)
    corners = np.stack(np.meshgrid(*[[0, 1]] * len(shape), indexing="ij"), -1)
    corners = corners.reshape(-1, len(shape))
    weights = np.prod(np.where(corners == 1, share[:, None], 1 - share[:, None]), axis=-1)
    index = np.minimum(base[:, None] + corners, last) + offset
    if np.all(np.isin(weights, (0.0, 1.0))):  # every point is a grid point
        best = np.argmax(weights, axis=1)[:, None]
        index = np.take_along_axis(index, best[..., None], 1)
        weights = np.ones_like(best, float)
    return index.astype(np.int32), weights


class Wave(NamedTuple):
    """u, (shots, …) with zeros around it, and the memories ψ and ζ of every strip.

    ψ has two zeros before its values and one after, ζ a halo, so that differences need no cases.
    """

    u: Array
    memories: tuple[Any, ...] = ()


class Fields(NamedTuple):
    """u⁻, u with its memories, and buffers for the next u and for c of axes after the first.

    Three buffers of u in rotation: the step writes the inside of one and leaves its halo, so XLA
    updates it in place, in one pass, and sources are scattered into it without a copy. Memories are
    updated where they lie.
    """

    before: Wave
    now: Wave
    spare: Wave


class Medium(eqx.Module):
    """What waves run through: w, on the cells inside the halo, and the layer.

    An axis has two strips, or one of all its cells in a small model, whose programs are shorter so.
    Along the last axis a strip is a whole number of vectors of the processor.
    """

    slowness: Array  # m, on the cells of the model
    weight: Array
    layer: Layer
    scheme: Scheme = eqx.field(static=True)
    strips: tuple[Strip, ...] = eqx.field(static=True)

    def __init__(self, m: Array, layer: Layer, scheme: Scheme):
        """That for a squared slowness m on the model's cells, in s²/m²."""
        extended = jnp.pad(m.transpose(scheme.axes), scheme.absorbing, mode="edge")
        self.weight = jnp.pad(scheme.dt**2 / extended, [*[(0, 0)] * (m.ndim - 1), (0, scheme.fill)])
        self.slowness, self.layer, self.scheme = m, layer, scheme
        strips, (*shape, last) = [], extended.shape
        for axis, n in enumerate((*shape, last) if layer.lines else ()):
            count = scheme.strip if axis < len(shape) else -(-scheme.strip // VECTOR) * VECTOR
            if 2 * count >= n or extended.size <= LARGE:
                strips.append(Strip(axis, 0, n))
            else:
                strips += [Strip(axis, 0, count), Strip(axis, n - count, count)]
        self.strips = tuple(strips)

    def rest(self, shots: int) -> Fields:
        """Fields of zeros, to start from."""
        (*shape,), width = self.weight.shape, self.scheme.halo
        zeros = lambda *sides: jnp.zeros((shots, *sides), self.weight.dtype)
        pairs = []
        for axis, _, count in self.strips:
            sides = [[*shape[:axis], count + n, *shape[axis + 1 :]] for n in (3, 2 * width)]
            pairs.append((zeros(*sides[0]), zeros(*sides[1])))
        u = zeros(*map(sum, zip(shape, self.scheme.lead, self.scheme.trail, strict=True)))
        rooms = {axis: zeros(*shape) for axis, _, n in self.strips if axis and n < shape[axis]}
        return Fields(Wave(u), Wave(u, tuple(pairs)), Wave(u, tuple(rooms.values())))

    def advance(
        self,
        fields: Fields,
        source: Array | None = None,
        force: tuple[Positions, Array] | None = None,
        transposed: bool = False,
        after: tuple[Array | None, ...] = (),
    ) -> Fields:
        """The next fields, with a source on the cells inside and a force at some points.

        `after` is what was made of these fields. XLA copies a field that may be read after it is
        overwritten; a zero that is made of `after` orders the two.
        """
        scheme, shape, u = self.scheme, self.weight.shape, fields.now.u
        put = jax.lax.dynamic_update_slice
        memories, whole, rows, free = [], [], {}, iter(fields.spare.memories)
        rooms: dict[int, Array] = {}
        for strip, old in zip(self.strips, fields.now.memories, strict=True):
            memory, c = self._remember(strip, old, u, transposed)
            memories.append(memory)
            if strip.count == shape[strip.axis]:
                whole.append(c)
            elif strip.axis == 0:
                rows[strip.begin] = c
            else:  # into a room as large as the grid, so that the loop below is long
                room = rooms[strip.axis] if strip.begin else next(free)
                corner = [strip.begin if i == strip.axis else 0 for i in range(len(shape))]
                rooms[strip.axis] = put(room, c, [0, *corner])
        # as numbers of the fields, because XLA leaves out a product of zero and an integer
        made = [x[(0,) * x.ndim].astype(u.dtype) for x in after if x is not None]
        written, zero = fields.spare.u, sum(0 * x for x in made)
        edges = sorted({0, shape[0]}.union(*((a, a + c.shape[1]) for a, c in rows.items())))
        for begin, end in pairwise(edges):
            here = (..., slice(begin, end), *(slice(0, n) for n in shape[1:]))
            inside = shift(here, scheme.lead)
            bend = lambda axis, h, at=inside: second(u, axis, SECOND[scheme.order], h, at)
            parts = [bend(axis, h) for axis, h in enumerate(scheme.spacing)]
            parts += [c[here] for c in (*whole, *rooms.values())]
            parts += [rows[begin]] if begin in rows else []
            new = 2 * u[inside] - fields.before.u[inside] + self.weight[here] * sum(parts)
            new = new if source is None else new + source[here]
            new, zero = new + zero if after else new, 0  # once
            written = put(written, new, [0, *(x.start for x in inside[1:])])
        now = jax.lax.optimization_barrier(written)
        if force is not None:
            points, values = force
            now = points.add(now, values)
        spare = Wave(fields.before.u, tuple(rooms.values()))
        return Fields(Wave(u), Wave(now, tuple(memories)), spare)

    def _remember(
        self, strip: Strip, memory: tuple[Array, Array], u: Array, transposed: bool
    ) -> tuple[tuple[Array, Array], Array]:
        """ψ' and ζ' of a strip, and c."""
        scheme, shape, (axis, begin, count) = self.scheme, self.weight.shape, strip
        (psi, zeta), h, width = memory, scheme.spacing[axis], scheme.halo
        slope = lambda x, cells: first(x, axis, GAMMA[scheme.order], h, cells)
        bend = lambda x, cells: second(x, axis, SECOND[scheme.order], h, cells)
        own = (..., *(slice(0, count if i == axis else n) for i, n in enumerate(shape)))
        cells = shift(shift(own, begin, axis), scheme.lead)
        on_cells, around = shift(own, width, axis), shift(own, 1, axis)  # of ζ; of ψ, for D
        line = [-1 if i == axis else 1 for i in range(len(shape))]
        lines = [x[:, begin : begin + count].reshape(2, *line) for x in self.layer.lines[axis]]

        def update(f: Array, line: Array, x: Array, rim: int) -> Array:
            corner = [rim if i == axis else 0 for i in range(len(shape))]
            new = line[1] * f[shift(own, rim, axis)] + line[0] * x
            return jax.lax.dynamic_update_slice(f, new, [0, *corner])

        # Barriers make what comes next read the fields. Where XLA hands on the values before they
        # are written, it copies the fields, and has a loop of its own for Dψ', used in two sums.
        barrier = jax.lax.optimization_barrier
        if transposed:
            zeta = update(zeta, lines[1], u[cells], width)
            psi = update(psi, lines[0], slope(u, cells) + slope(zeta, on_cells), 2)
            psi, zeta = barrier((psi, zeta))
            return (psi, zeta), slope(psi, around) + bend(zeta, on_cells)
        psi = update(psi, lines[0], slope(u, cells), 2)
        zeta = update(zeta, lines[1], bend(u, cells) + slope(psi, around), width)
        psi, zeta = barrier((psi, zeta))
        return (psi, zeta), slope(psi, around) + zeta[on_cells]

    def extend(self, eta: Array) -> Array:
        """η/m on the cells of the layer too, which are like those at the edge."""
        ratio = (eta / self.slowness).transpose(self.scheme.axes)
        for axis in range(ratio.ndim):
            # The transpose is a sum for each axis. Without barriers XLA nests and unrolls them in
            # kernels that a GPU's compiler takes long for.
            width = [self.scheme.absorbing * (i == axis) for i in range(ratio.ndim)]
            padded = jnp.pad(ratio, [(n, n) for n in width], mode="edge")
            ratio = jax.lax.optimization_barrier(padded)
        return jnp.pad(ratio, [*[(0, 0)] * (ratio.ndim - 1), (0, self.scheme.fill)])
