"""The wave equation on a grid, and the step in time that forward, Born and adjoint waves share.

    m (∂t + σ)² u − Δu − √m σ′ u = s,    σ the damping of an absorbing layer, σ′ its slope outwards.

With a = exp(−σ dt), w = a dt²/m and e = w√m σ′/2, the leapfrog scheme for exp(σt)u is

    u⁺ = 2(a + e)u − a²u⁻ + w(Ku + s),

K being the differenced Laplacian: stable for every σ where it is without the layer.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..errors import InputError

Shape = tuple[int, ...]
Spacing = tuple[float, ...]

# Second derivatives of order 2q: the centre, then the neighbours at distance 1 … q.
SECOND = {
    4: (-5 / 2, 4 / 3, -1 / 12),
    8: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}
BUFFERS = 3

# Chosen by benchmarks/bench_absorbing.py: among 20 cells the smallest reflection on average, over
# velocities of 0.5 to 1.5 times the nominal one and angles of 0 to 60 degrees.
POWER = 3.0
STRENGTH = 6.0


def halo(order: int) -> int:
    """How many cells the stencil reaches beyond its centre."""
    if order not in SECOND:
        raise InputError("order", f"{order!r} is not implemented", "order=4 or order=8")
    return order // 2


def laplacian(u: Array, spacing: Spacing, order: int) -> Array:
    """Δu on the cells inside the halo of u, along its last axes, by slices that XLA fuses.

    ```python
    laplacian(jnp.pad(u, 2), (10.0, 10.0), 4)        # as many cells as u
    ```

    Cost: 2d(order) + 1 reads that come from the cache, one write.
    """
    weights, d = SECOND[order], len(spacing)
    width = len(weights) - 1

    def shift(axis: int, by: int) -> Array:
        starts = [width + by * (i == axis) for i in range(d)]
        sides = [n - 2 * width for n in u.shape[-d:]]
        return u[(..., *(slice(a, a + n) for a, n in zip(starts, sides, strict=True)))]

    centre = sum(weights[0] / h**2 for h in spacing)
    total = jnp.asarray(centre, u.dtype) * shift(0, 0)
    for axis, h in enumerate(spacing):
        for distance, weight in enumerate(weights[1:], start=1):
            pair = shift(axis, distance) + shift(axis, -distance)
            total = total + jnp.asarray(weight / h**2, u.dtype) * pair
    return total


class Layer(NamedTuple):
    """The absorbing layer: σ in 1/s and its slope outwards in 1/(m s), on the padded grid.

    Damping alone reflects waves where it grows; the term with σ′ undoes that. For a wave that
    leaves at a right angle the equation is (∂t + σ − c∂x)(∂t + σ + c∂x)u = 0, since m does not
    change across the layer: the second factor is the leaving wave, damped and never reflected. At
    an angle ϑ the share 1 − cos ϑ remains of what the damping would reflect without the term.

    Waves cannot grow: −∂²x + (σ/c)² − (σ/c)′ = (−∂x + σ/c)(∂x + σ/c) is not negative. On the grid
    the same holds with σ′ as the difference to the cell before, for layers of any thickness.
    """

    damping: Array
    slope: Array

    @classmethod
    def around(
        cls, shape: Shape, cells: int, spacing: Spacing, velocity: float, dtype: DTypeLike = float
    ) -> "Layer":
        """Zero in the model, σ_max (s/S)^POWER in a layer of thickness S; those of axes add up.

        σ_max = STRENGTH · (POWER + 1) · c/(2S): a wave of velocity c that crosses the layer and
        comes back has lost a factor exp(−STRENGTH) in amplitude.
        """
        damping = slope = np.zeros(tuple(n + 2 * cells for n in shape))
        for axis, (n, h) in enumerate(zip(shape, spacing, strict=True)):
            if cells == 0:
                break
            index = np.arange(n + 2 * cells)
            depth = np.maximum(cells - index, index - (n + cells - 1)).clip(0)
            largest = STRENGTH * (POWER + 1) * velocity / (2 * cells * h)
            profile = lambda depth, largest=largest: largest * (depth / cells) ** POWER
            line = [1] * len(shape)
            line[axis] = -1
            damping = damping + profile(depth).reshape(line)
            slope = slope + ((profile(depth) - profile((depth - 1).clip(0))) / h).reshape(line)
        return cls(jnp.asarray(damping, dtype), jnp.asarray(slope, dtype))


class Storage(NamedTuple):
    """Every n-th response, or the fields at the start of every segment of `segment` blocks."""

    every: int
    segment: int | None
    bytes: int


class Scheme(NamedTuple):
    """The numbers of a discretisation, and how much of the source field is kept.

    Time is cut into `blocks` of `every` steps, and the response of the medium is taken at the start
    of each. `segment` blocks lie between two checkpoints; where it is None, the response itself is
    stored. A loop has `unroll` blocks in its body, so that the rotating buffers of a field return
    to their places. `halo` is how many cells the stencil reaches beyond its centre.
    """

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

    @classmethod
    def of(
        cls, spacing: Spacing, dt: float, steps: int, order: int, absorbing: int, storage: Storage
    ) -> "Scheme":
        """With as many blocks as fill up whole segments."""
        every, segment, _ = storage
        group, unroll = segment or 1, 1 if every % BUFFERS == 0 else BUFFERS
        blocks = -(-steps // (every * group)) * group
        given = (spacing, dt, steps, order, absorbing, every, segment)
        return cls(*given, halo(order), blocks, unroll)

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


class Fields(NamedTuple):
    """u⁻ and u, (shots, …) with a halo of zeros, and the buffer that the next field is written to.

    Three buffers in rotation: the step writes the inside of one and leaves its halo, so XLA
    updates it in place, in one pass, and sources are scattered into it without a copy.
    """

    before: Array
    now: Array
    spare: Array


class Medium(eqx.Module):
    """What waves run through: 2(a + e), a², w and e of the step, on the cells inside the halo."""

    slowness: Array  # m, on the cells of the model
    twice: Array
    back: Array
    weight: Array
    matching: Array
    scheme: Scheme = eqx.field(static=True)

    def __init__(self, m: Array, layer: Layer, scheme: Scheme):
        """That for a squared slowness m on the model's cells, in s²/m²."""
        extended = jnp.pad(m, scheme.absorbing, mode="edge")
        a = jnp.exp(-scheme.dt * layer.damping).astype(m.dtype)
        self.weight = a * scheme.dt**2 / extended
        self.matching = 0.5 * self.weight * jnp.sqrt(extended) * layer.slope.astype(m.dtype)
        self.twice, self.back = 2 * (a + self.matching), a * a
        self.slowness, self.scheme = m, scheme

    def rest(self, shots: int) -> Fields:
        """Fields of zeros, to start from."""
        zero = jnp.pad(jnp.zeros_like(self.weight), self.scheme.halo)
        zero = jnp.broadcast_to(zero, (shots, *zero.shape))
        return Fields(zero, zero, zero)

    def advance(
        self,
        fields: Fields,
        source: Array | None = None,
        force: tuple[Positions, Array] | None = None,
    ) -> Fields:
        """2(a + e)u − a²u⁻ + wKu, with a source on the cells inside and a force at some points."""
        inside, width = self.scheme.inside, self.scheme.halo
        new = self.twice * fields.now[inside] - self.back * fields.before[inside]
        new = new + self.weight * laplacian(fields.now, self.scheme.spacing, self.scheme.order)
        new = new if source is None else new + source
        corner = (0, *(width,) * len(self.scheme.spacing))
        written = jax.lax.dynamic_update_slice(fields.spare, new, corner)
        now = jax.lax.optimization_barrier(written)
        if force is not None:
            points, values = force
            now = points.add(now, values)
        return Fields(fields.now, now, fields.before)

    def response(self, fields: Fields) -> Array:
        """wKu + eu: what a change of m acts on, without the source."""
        stiffness = laplacian(fields.now, self.scheme.spacing, self.scheme.order)
        return self.weight * stiffness + self.matching * fields.now[self.scheme.inside]

    def extend(self, eta: Array) -> Array:
        """η/m on the cells of the layer too, which are like those at the edge."""
        return jnp.pad(eta / self.slowness, self.scheme.absorbing, mode="edge")
