"""All shots of a survey: forward, linearised (Born) and adjoint waves by the step of `Medium`.

With q = w(Ku + s) + eu, a perturbation η of m changes w by −w η/m and 2e by −e η/m, so it is the
same step with the source −(η/m)q. The transpose runs the same step backwards: with y = wν for the
adjoint state ν,

    y = 2(a + e)y⁺ − a²y⁺⁺ + wKy⁺ + wRᵀξ,    Zᵀξ = −Σ q y⁺/(mw).

So q serves every product at the same m. It is taken at every n-th step and used there with the
weight n, in both directions alike, so that the products stay transposes of each other.

Shots run one after the other on a CPU, where one fits into the cache, and at once on a GPU. What is
kept for the products is q, (blocks, shots, …), or u⁻ and u at the start of every segment,
(segments, shots, …). It is read and written where it lies: a copy would cost more than a step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from ..core.sharding import AXIS
from .scheme import Fields, Layer, Medium, Positions, Scheme, halo, locate
from .survey import Survey


class Gathers(NamedTuple):
    """How shots are excited, (shots, steps), where they are excited and where recorded."""

    wavelet: Array
    source: Positions
    receivers: Positions

    @classmethod
    def of(cls, survey: Survey, rim: int, dtype: Any) -> "Gathers":
        """Those of a survey on arrays with `rim` more cells around the model."""
        count = survey.shots
        place = lambda name, points: locate(name, points, survey.shape, survey.spacing, rim)
        cells, weights = place("sources", survey.sources)
        weights = weights / np.prod(survey.spacing)  # s(t)δ(x − xₛ), whatever the grid
        source = Positions(jnp.asarray(cells[:, None]), jnp.asarray(weights[:, None], dtype))
        cells, weights = place("receivers", survey.receivers)
        each_shot = lambda x: jnp.broadcast_to(x, (count, *np.shape(x)))
        receivers = Positions(each_shot(cells), each_shot(jnp.asarray(weights, dtype)))
        wavelets = np.broadcast_to(survey.wavelet, (count, survey.steps))
        return cls(jnp.asarray(wavelets, dtype), source, receivers)


class Simulator:
    """The three propagations of a scheme, with the shots dealt out to the devices of a mesh.

    Each device keeps the source fields of its own shots; only the image is summed over them. If
    the devices do not divide the shots, silent shots fill up the last ones.
    """

    def __init__(self, scheme: Scheme, mesh: Mesh | None):
        self.scheme, self.mesh = scheme, mesh

    def simulate(self, m: Array, layer: Layer, shots: Gathers, keep: bool) -> tuple[Array, PyTree]:
        """The data of every shot, (shots, receivers, steps), and what is kept for the products."""
        run = partial(_simulate, scheme=self.scheme, keep=keep)
        kept = P(None, AXIS) if keep else P()
        rho, kept = self._deal(run, (P(AXIS), kept), (m, layer), (), (shots,))
        return rho[: len(shots.wavelet)], kept

    def push(self, m: Array, layer: Layer, eta: Array, kept: PyTree, shots: Gathers) -> Array:
        """Zη for a perturbation η of m."""
        run = partial(_push, scheme=self.scheme)
        data = self._deal(run, P(AXIS), (m, layer, eta), (kept,), (shots,))
        return data[: len(shots.wavelet)]

    def pull(self, m: Array, layer: Layer, xi: Array, kept: PyTree, shots: Gathers) -> Array:
        """Zᵀξ."""

        def run(m: Array, layer: Layer, kept: PyTree, xi: Array, shots: Gathers) -> Array:
            part = _pull(m, layer, kept, xi, shots, self.scheme)
            return part if self.mesh is None else jax.lax.psum(part, AXIS)

        return self._deal(run, P(), (m, layer), (kept,), (xi, shots))

    def _deal(self, run: Callable, out: PyTree, whole: tuple, kept: tuple, rows: tuple) -> Any:
        if self.mesh is None:
            return run(*whole, *kept, *rows)
        count = self.mesh.size
        fill = lambda x: jnp.pad(x, ((0, -len(x) % count), *[(0, 0)] * (x.ndim - 1)))
        specs = (
            *[P()] * len(whole),
            *[P(None, AXIS)] * len(kept),
            *[P(AXIS)] * len(rows),
        )
        dealt = jax.shard_map(run, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return dealt(*whole, *kept, *jax.tree.map(fill, rows))


def _simulate(
    m: Array, layer: Layer, shots: Gathers, scheme: Scheme, keep: bool
) -> tuple[Array, PyTree]:
    medium = Medium.of(m, layer, scheme)

    def group(kept: PyTree, first: Array, shots: Gathers) -> tuple[PyTree, Array]:
        force, samples = medium.weigh(shots.source), scheme.cut(shots.wavelet)
        start, way = medium.rest(len(shots.wavelet)), (force, shots.receivers, medium)
        if kept is None:
            _, data = march(start, samples, *way)
        elif scheme.segment is None:
            kept, data = march_keeping(start, kept, first, samples, *way)
        else:
            kept, data = march_checkpointing(start, kept, first, scheme.group(samples), *way)
        return kept, scheme.join(data)

    kept = _make_room(len(shots.wavelet), medium) if keep else None
    kept, data = _over_groups(group, kept, shots)
    if keep and scheme.segment is None:
        kept = add_source(kept, medium.weigh(shots.source), scheme.cut(shots.wavelet), scheme)
    return data, kept


def _push(
    m: Array, layer: Layer, eta: Array, kept: PyTree, shots: Gathers, scheme: Scheme
) -> Array:
    medium, ratio = Medium.of(m, layer, scheme), extend_ratio(eta, m, scheme)

    def group(carry: PyTree, first: Array, shots: Gathers) -> tuple[PyTree, Array]:
        count = len(shots.wavelet)
        start = medium.rest(count)
        if scheme.segment is None:
            q, blocks = _Stored(kept, first, count), jnp.arange(scheme.blocks)
            _, data = scatter(start, q, blocks, ratio, shots.receivers, medium)
            return carry, scheme.join(data)
        force = medium.weigh(shots.source)
        changed = force.scale(jnp.pad(-scheme.every * ratio, halo(scheme.order)))

        def both(fields: tuple[Fields, Fields], samples: Array) -> tuple[Any, Array]:
            incident, waves = fields
            q = medium.response(incident)  # the source is scattered into the field, not into q
            incident, _ = march(incident, samples[None], force, shots.receivers, medium)
            waves, data = scatter(
                *(waves, lambda _: q, jnp.zeros(1), ratio, shots.receivers, medium),
                drive=lambda waves: waves.drive(changed, samples[0][:, None]),
            )
            return (incident, waves), data[0]

        samples = scheme.cut(shots.wavelet)
        _, data = jax.lax.scan(both, (start, start), samples, unroll=scheme.unroll)
        return carry, scheme.join(data)

    return _over_groups(group, None, shots)[1]


def _pull(m: Array, layer: Layer, kept: PyTree, xi: Array, shots: Gathers, scheme: Scheme) -> Array:
    """What falls into the absorbing layer is folded back onto the cells at the edge."""
    medium = Medium.of(m, layer, scheme)

    def group(total: Array, first: Array, rows: tuple[Gathers, Array]) -> tuple[Array, None]:
        shots, xi = rows
        count, samples = len(xi), scheme.cut(xi)
        receivers, start = medium.weigh(shots.receivers), (medium.rest(count), total)
        if scheme.segment is None:
            _, total = image(start, _Stored(kept, first, count), samples, receivers, medium)
            return total, None
        force = medium.weigh(shots.source)

        def segment(state: tuple[Fields, Array], xs: Any) -> tuple[tuple[Fields, Array], None]:
            number, signal, samples = xs
            again = Fields.from_checkpoint(*(_Stored(x, first, count)(number) for x in kept))
            room = jnp.zeros((scheme.segment, count, *medium.weight.shape), medium.weight.dtype)
            way = (force, shots.receivers, medium)
            q, _ = march_keeping(again, room, jnp.zeros((), int), signal, *way)
            q = add_source(q, force, signal, scheme)
            return image(state, lambda i: q[i], samples, receivers, medium), None

        signal = scheme.group(scheme.cut(shots.wavelet))
        xs = (jnp.arange(len(signal)), signal, scheme.group(samples))
        (_, total), _ = jax.lax.scan(segment, start, xs, reverse=True)
        return total, None

    total, _ = _over_groups(group, jnp.zeros_like(medium.weight), (shots, xi))
    return fold_ratio(-scheme.every * total / medium.weight, m, scheme)


def extend_ratio(eta: Array, m: Array, scheme: Scheme) -> Array:
    """η/m on the padded cells."""
    return jnp.pad(eta / m, scheme.absorbing, mode="edge")


def fold_ratio(image: Array, m: Array, scheme: Scheme) -> Array:
    """The transpose of `extend_ratio` in η."""
    return jax.linear_transpose(lambda eta: extend_ratio(eta, m, scheme), m)(image)[0]


def _over_groups(function: Callable, carry: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
    """`carry` through groups of shots, and what they give: one shot each on a CPU, else all."""
    count = len(jax.tree.leaves(rows)[0])

    def one_by_one(carry: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        step = lambda carry, xs: function(carry, xs[0], jax.tree.map(lambda x: x[None], xs[1]))
        carry, out = jax.lax.scan(step, carry, (jnp.arange(count), rows))
        return carry, jax.tree.map(lambda x: x[:, 0], out)

    together = lambda carry, rows: function(carry, jnp.zeros((), int), rows)
    return jax.lax.platform_dependent(carry, rows, cpu=one_by_one, default=together)


def _make_room(shots: int, medium: Medium) -> PyTree:
    """Zeros to write q into, or the fields at checkpoints."""
    scheme, like = medium.scheme, medium.weight
    if scheme.segment is None:
        return jnp.zeros((scheme.blocks, shots, *like.shape), like.dtype)
    field = medium.rest(shots).now
    room = jnp.zeros((scheme.blocks // scheme.segment, *field.shape), field.dtype)
    return room, room


class _Stored(NamedTuple):
    """Fields of a group of shots at one block, read where they are."""

    kept: Array
    first: Array
    count: int

    def __call__(self, index: Array) -> Array:
        corner = (index, self.first, *(0,) * (self.kept.ndim - 2))
        sizes = (1, self.count, *self.kept.shape[2:])
        return jax.lax.dynamic_slice(self.kept, corner, sizes)[0]


# From here on: a group of shots at a time, along the leading axis of the fields, block by block.


def march(
    start: Fields, samples: Array, force: Positions, receivers: Positions, medium: Medium
) -> tuple[Fields, Array]:
    """Blocks of steps from some fields on: the fields at the end, and the data on the way.

    `samples` is (blocks, every, shots) and the data (blocks, every, shots, receivers).
    """
    block = lambda fields, samples: _march_block(fields, samples, force, receivers, medium)
    return jax.lax.scan(block, start, samples, unroll=medium.scheme.unroll)


def march_keeping(
    start: Fields,
    kept: Array,
    first: Array,
    samples: Array,
    force: Positions,
    receivers: Positions,
    medium: Medium,
) -> tuple[Array, Array]:
    """The same, with q at the start of every block written to `kept`, (blocks, shots, …).

    `first` is the number there of this group's first shot. Returns `kept` and the data.
    """

    def block(
        carry: tuple[Fields, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Fields, Array], Array]:
        (fields, kept), (index, samples) = carry, xs
        q = medium.response(fields)[None]
        kept = jax.lax.dynamic_update_slice(kept, q, (index, first, *(0,) * (q.ndim - 2)))
        fields, seen = _march_block(fields, samples, force, receivers, medium)
        return (fields, kept), seen

    xs = (jnp.arange(len(samples)), samples)
    (_, kept), data = jax.lax.scan(block, (start, kept), xs, unroll=medium.scheme.unroll)
    return kept, data


def march_checkpointing(
    start: Fields,
    kept: PyTree,
    first: Array,
    samples: Array,
    force: Positions,
    receivers: Positions,
    medium: Medium,
) -> tuple[PyTree, Array]:
    """The same, segment by segment, with u⁻ and u at the start of each written to `kept`."""

    def segment(carry: tuple[Fields, PyTree], xs: Any) -> tuple[tuple[Fields, PyTree], Array]:
        (fields, kept), (number, samples) = carry, xs
        corner = (number, first, *(0,) * (fields.now.ndim - 1))
        put = lambda room, x: jax.lax.dynamic_update_slice(room, x[None], corner)
        kept = (put(kept[0], fields.before), put(kept[1], fields.now))
        fields, data = march(fields, samples, force, receivers, medium)
        return (fields, kept), data

    xs = (jnp.arange(len(samples)), samples)
    (_, kept), data = jax.lax.scan(segment, (start, kept), xs)
    return kept, data.reshape(-1, *data.shape[2:])


def _march_block(
    fields: Fields, samples: Array, force: Positions, receivers: Positions, medium: Medium
) -> tuple[Fields, Array]:
    seen = []
    for i in range(medium.scheme.every):
        seen.append(receivers.read(fields.now))
        fields = medium.advance(fields).drive(force, samples[i][:, None])
    return fields, jnp.stack(seen)


def add_source(kept: Array, force: Positions, samples: Array, scheme: Scheme) -> Array:
    """wKu + eu, kept at the start of every block, with ws added: q."""
    at = force.shift(-halo(scheme.order))
    return jax.vmap(at.add)(kept, samples[:, 0, :, None])


Kept = Callable[[Array], Array]  # from the number of a block to q at its start


def scatter(
    start: Fields,
    incident: Kept,
    blocks: Array,
    ratio: Array,
    receivers: Positions,
    medium: Medium,
    drive: Callable[[Fields], Fields] = lambda fields: fields,
) -> tuple[Fields, Array]:
    """The linearised waves for the relative perturbation η/m: fields at the end, and the data.

    `drive` adds what is missing of the source at the start of every block.
    """
    every = medium.scheme.every
    source = -every * ratio

    def block(fields: Fields, index: Array) -> tuple[Fields, Array]:
        seen = []
        for i in range(every):
            seen.append(receivers.read(fields.now))
            fields = medium.advance(fields, source * incident(index) if i == 0 else None)
            fields = drive(fields) if i == 0 else fields
        return fields, jnp.stack(seen)

    return jax.lax.scan(block, start, blocks, unroll=medium.scheme.unroll)


def image(
    start: tuple[Fields, Array],
    incident: Kept,
    samples: Array,
    force: Positions,
    medium: Medium,
) -> tuple[Fields, Array]:
    """The adjoint waves backwards through blocks, and Σ q y⁺ over the blocks and the shots."""
    scheme = medium.scheme

    def block(
        carry: tuple[Fields, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Fields, Array], None]:
        (fields, total), (index, samples) = carry, xs
        for i in reversed(range(scheme.every)):
            if i == 0:
                total = total + jnp.sum(incident(index) * fields.now[scheme.inside], axis=0)
            fields = medium.advance(fields).drive(force, samples[i])
        return (fields, total), None

    xs = (jnp.arange(len(samples)), samples)
    return jax.lax.scan(block, start, xs, reverse=True, unroll=scheme.unroll)[0]
