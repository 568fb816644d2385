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

from functools import partial
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
Box = tuple[tuple[int, int], ...]  # where cells begin and end along each axis

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
    if order not in SECOND:
        raise InputError("order", f"{order!r} is not implemented", "order=4 or order=8")
    return order // 2


def second(u: Array, axis: int, weights: tuple[float, ...], h: float, cells: Cut) -> Array:
    """K u along one of the last axes, on the `cells` of an array with more of them around."""
    total = jnp.asarray(weights[0] / h**2, u.dtype) * u[cells]
    for distance, weight in enumerate(weights[1:], start=1):
        pair = u[shift(cells, axis, distance)] + u[shift(cells, axis, -distance)]
        total = total + jnp.asarray(weight / h**2, u.dtype) * pair
    return total


def first(u: Array, axis: int, gamma: float, h: float, cells: Cut) -> Array:
    """(1 + 3γ)(u₊ − u) − γ(u₊₊ − u₋), over h: G from cells to the points half-way after them."""
    before, here, after, beyond = (u[shift(cells, axis, by)] for by in (-1, 0, 1, 2))
    near, far = (jnp.asarray(x / h, u.dtype) for x in (1 + 3 * gamma, gamma))
    return near * (after - here) - far * (beyond - before)


def cut(box: Box, by: int = 0) -> Cut:
    """The slices of a box in an array that has `by` more cells before it along every axis."""
    return (..., *(slice(begin + by, end + by) for begin, end in box))


def put(field: Array, values: Array, at: Cut) -> Array:
    """The field with these values there: XLA writes them where it lies."""
    corner = [0] * (field.ndim - len(at) + 1) + [side.start for side in at[1:]]
    return jax.lax.dynamic_update_slice(field, values, corner)


def shift(cells: Cut, axis: int, by: int) -> Cut:
    """The slices moved along one of the last axes; they are an ellipsis and one for each axis."""
    moved = slice(cells[1 + axis].start + by, cells[1 + axis].stop + by)
    return (*cells[: 1 + axis], moved, *cells[2 + axis :])


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
                pair.append(jnp.asarray([(b - 1) * sigma / (sigma + alpha), b], dtype))
            lines.append(tuple(pair))
        return cls(tuple(lines))


class Strip(NamedTuple):
    """Some cells of an axis, and all of the others: where ψ and ζ of that axis live."""

    axis: int
    begin: int
    count: int

    def box(self, shape: Shape) -> Box:
        """Its cells in an array of `shape`."""
        across = (self.begin, self.begin + self.count)
        return tuple(across if i == self.axis else (0, n) for i, n in enumerate(shape))


class Storage(NamedTuple):
    """What is kept of the source waves, one of the ways of storage.py."""

    every: int
    segment: int | None  # blocks between two checkpoints
    bytes: int
    boundary: bool = False

    def __str__(self) -> str:
        """What is kept, how large it is and what a product costs."""
        kept = f"the source waves at every {self.every} steps" if self.every > 1 else "all waves"
        if self.boundary:
            kept = "the boundary of the source waves"
        elif self.segment is not None:
            kept = f"checkpoints of the source waves, {self.segment * self.every} steps apart"
        runs = "two propagations" if self.boundary or self.segment else "one propagation"
        return f"{kept}, {print_bytes(self.bytes)}; a product takes {runs}"


def print_bytes(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{count / 2**20:.3g} MiB"


class Scheme(NamedTuple):
    """The numbers of a discretisation, and how much of the source field is kept.

    Time is cut into `blocks` of `every` steps, and the response of the medium is taken at the start
    of each. `segment` blocks lie between two checkpoints; where it is None, the response itself is
    stored. A loop has `unroll` blocks in its body, so that the rotating buffers of a field return
    to their places where a block has but one step; the loop over the steps of a block after its
    first has `inner` of them. `halo` is how many cells the stencil reaches beyond its centre.
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
    engine: str = "xla"  # or "kernels", or "auto": those where there are some
    boundary: bool = False
    slab_axis: int | None = None  # that of the fields which is cut, where devices share a shot

    @classmethod
    def of(cls, survey: Any, order: int, absorbing: int, storage: Storage) -> "Scheme":
        """That of a survey, with as many blocks as fill up whole segments."""
        every, segment, _, boundary = storage
        group, large = segment or 1, np.prod(survey.shape) > LARGE
        unroll = BUFFERS if every == 1 and large else 1
        inner = max(1, every - 1) if large else 1
        blocks = -(-survey.steps // (every * group)) * group
        axes = tuple(int(i) for i in np.argsort(survey.shape, kind="stable"))
        spacing = tuple(survey.spacing[i] for i in axes)
        given = (axes, spacing, survey.dt, survey.steps, order, absorbing, every, segment)
        strip = absorbing + halo(order)
        made = cls(*given, halo(order), blocks, unroll, inner, strip)
        return made._replace(boundary=boundary)

    @property
    def recomputes(self) -> bool:
        """Whether products run the source waves again."""
        return self.boundary or self.segment is not None

    @property
    def inside(self) -> tuple:
        """The cells of a field without its halo, whatever its leading axes."""
        return (..., *(slice(self.halo, -self.halo),) * len(self.spacing))

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

    @property
    def _index(self) -> tuple[Array, ...]:
        shots = jnp.arange(len(self.cells))[:, None, None]
        return (shots, *(self.cells[..., axis] for axis in range(self.cells.shape[-1])))

    def read(self, field: Array) -> Array:
        """The fields (shots, …) at the points, (shots, n)."""
        values = field.at[self._index].get(mode="promise_in_bounds")
        return jnp.sum(self.weights.astype(field.dtype) * values, axis=-1)

    def add(self, field: Array, values: Array) -> Array:
        """The fields with these values added at the points: the transpose of `read`."""
        spread = self.weights.astype(field.dtype) * values[..., None]
        return field.at[self._index].add(spread, mode="promise_in_bounds")

    def scale(self, field: Array, halo: int) -> "Positions":
        """The same points with their weights times a field without its halo, for all shots."""
        cells = tuple(jnp.moveaxis(self.cells - halo, -1, 0))
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
    """u, (shots, …) with a halo of zeros, and the memories ψ and ζ of every strip.

    ψ has two zeros before its values and one after, ζ a halo, so that differences need no cases.
    """

    u: Array
    memories: tuple[tuple[Array, Array], ...] = ()


class Fields(NamedTuple):
    """u⁻, u with its memories, and the buffer that the next u is written to.

    Three buffers in rotation: the step writes the inside of one and leaves its halo, so XLA
    updates it in place, in one pass, and sources are scattered into it without a copy. A memory is
    updated where it lies.
    """

    before: Wave
    now: Wave
    spare: Wave

    def wait(self, value: Array) -> "Fields":
        """The same, once there is this number: no step overwrites what it is made of before."""
        corner = (0,) * self.spare.u.ndim
        zero = jnp.zeros_like(self.spare.u[:1], shape=(1,) * self.spare.u.ndim) * value
        spare = jax.lax.dynamic_update_slice(self.spare.u, zero, corner)
        return self._replace(spare=self.spare._replace(u=spare))


class Medium(eqx.Module):
    """What waves run through: w, on the cells inside the halo, and the layer."""

    slowness: Array  # m, on the cells of the model
    weight: Array
    layer: Layer
    scheme: Scheme = eqx.field(static=True)

    def __init__(self, m: Array, layer: Layer, scheme: Scheme):
        """That for a squared slowness m on the model's cells, in s²/m²."""
        extended = jnp.pad(m.transpose(scheme.axes), scheme.absorbing, mode="edge")
        self.weight = scheme.dt**2 / extended
        self.slowness, self.layer, self.scheme = m, layer, scheme

    def rest(self, shots: int) -> Fields:
        """Fields of zeros, to start from."""
        (*shape,), width = self.weight.shape, self.scheme.halo
        pairs, dtype = [], self.weight.dtype
        for axis, _, count in self._strips:
            more = [[*shape[:axis], count + n, *shape[axis + 1 :]] for n in (3, 2 * width)]
            pairs.append(tuple(jnp.zeros((shots, *x), dtype) for x in more))
        u = jnp.zeros((shots, *(n + 2 * width for n in shape)), dtype)
        split = {s.axis for s in self._strips if s.axis and s.count < shape[s.axis]}
        rooms = tuple(jnp.zeros((shots, *shape), dtype) for _ in split)
        return Fields(Wave(u), Wave(u, tuple(pairs)), Wave(u, rooms))

    @property
    def _strips(self) -> list[Strip]:
        """Two strips of an axis, or all of it where cells are few: programs are shorter then.

        Those of the last axis are as wide as vectors of the processor.
        """
        scheme, shape, strips = self.scheme, self.weight.shape, []
        for axis, n in enumerate(shape if self.layer.lines else ()):
            last = axis == len(shape) - 1
            count = -(-scheme.strip // VECTOR) * VECTOR if last else scheme.strip
            if 2 * count >= n or np.prod(shape) <= LARGE:
                strips.append(Strip(axis, 0, n))
            else:
                strips += [Strip(axis, 0, count), Strip(axis, n - count, count)]
        return strips

    def advance(
        self,
        fields: Fields,
        source: Array | None = None,
        force: tuple[Positions, Array] | None = None,
        transposed: bool = False,
        after: Array | None = None,
    ) -> Fields:
        """The next fields, with a source on the cells inside and a force at some points.

        `after`, (shots, n), is what was read of these fields. XLA copies a field that may be read
        after it is overwritten; a zero that is made of `after` orders the two.
        """
        scheme, shape, u = self.scheme, self.weight.shape, fields.now.u
        strips, old = self._strips, fields.now.memories
        memories = tuple(map(partial(self._remember, u, transposed), strips, old))

        def correction(i: int, box: Box) -> Array:
            """c of a strip on a box of cells in it."""
            (axis, begin, _), (psi, zeta) = strips[i], jax.lax.optimization_barrier(memories[i])
            h, cells = scheme.spacing[axis], shift(cut(box), axis, -begin)
            spread = first(psi, axis, GAMMA[scheme.order], h, shift(cells, axis, 1))
            cells = shift(cells, axis, scheme.halo)
            bend = partial(second, zeta, axis, SECOND[scheme.order], h)
            return spread + (bend(cells) if transposed else zeta[cells])

        # Strips of the first axis are bands of rows. Those of another go to a room as large as the
        # grid, so that loops are long.
        rooms, split = list(fields.spare.memories), [s for s in strips if s.count < shape[s.axis]]
        for i, strip in enumerate(strips):
            if strip.axis and strip in split:
                box, room = strip.box(shape), strip.axis - len(shape)
                rooms[room] = put(rooms[room], correction(i, box), cut(box))
        ends = [(s.begin, s.begin + s.count) for s in strips if not s.axis]
        written = fields.spare.u
        zero = None if after is None else 0 * after[:, 0].reshape(-1, *(1,) * len(shape))
        for begin, end in pairwise(sorted({0, shape[0]}.union(*ends))):
            box = ((begin, end), *((0, n) for n in shape[1:]))
            inside = cut(box, scheme.halo)
            parts = [
                second(u, axis, SECOND[scheme.order], h, inside)
                for axis, h in enumerate(scheme.spacing)
            ]
            for i, strip in enumerate(strips):
                if strip not in split or (
                    not strip.axis and 0 <= begin - strip.begin < strip.count
                ):
                    parts.append(correction(i, box))
            parts += [room[cut(box)] for room in rooms]
            new = 2 * u[inside] - fields.before.u[inside] + self.weight[cut(box)] * sum(parts)
            new = new if source is None else new + source[cut(box)]
            new, zero = new if zero is None else new + zero, None  # once is enough
            written = put(written, new, inside)
        now = jax.lax.optimization_barrier(written)
        if force is not None:
            points, values = force
            now = points.add(now, values)
        return Fields(Wave(u), Wave(now, memories), Wave(fields.before.u, tuple(rooms)))

    def _remember(
        self, u: Array, transposed: bool, strip: Strip, memory: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """ψ' and ζ' of a strip."""
        scheme, (axis, begin, count), (psi, zeta) = self.scheme, strip, memory
        h, shape = scheme.spacing[axis], self.weight.shape
        slope = lambda x, cells: first(x, axis, GAMMA[scheme.order], h, cells)
        line = [-1 if i == axis else 1 for i in range(len(shape))]
        pairs = [x[:, begin : begin + count].reshape(2, *line) for x in self.layer.lines[axis]]
        cells = cut(strip.box(shape), scheme.halo)
        own = cut(strip._replace(begin=0).box(shape))
        at_psi, at_zeta = shift(own, axis, 2), shift(own, axis, scheme.halo)
        keep = lambda f, ab, x, at: put(f, ab[1] * f[at] + ab[0] * x, at)
        if transposed:
            zeta = keep(zeta, pairs[1], u[cells], at_zeta)
            psi = keep(psi, pairs[0], slope(u, cells) + slope(zeta, at_zeta), at_psi)
        else:
            psi = keep(psi, pairs[0], slope(u, cells), at_psi)
            bent = second(u, axis, SECOND[scheme.order], h, cells)
            zeta = keep(zeta, pairs[1], bent + slope(psi, shift(own, axis, 1)), at_zeta)
        return psi, zeta

    def extend(self, eta: Array) -> Array:
        """η/m on the cells of the layer too, which are like those at the edge."""
        ratio = (eta / self.slowness).transpose(self.scheme.axes)
        return jnp.pad(ratio, self.scheme.absorbing, mode="edge")
