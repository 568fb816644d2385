"""All shots of a survey: forward, linearised (Born) and adjoint waves by the step of `Medium`.

A change η of m is the same step with the source −(η/m)q, q = u⁺ − 2u + u⁻. The transposed step,
run backwards from the data ξ, gives y = wν for the adjoint state ν and

    Zᵀξ = −Σ q y⁺/(mw),    y⁺ being y at the time of u⁺, before it is stepped to that of u.

So q serves every product at the same m. It is taken at every n-th step and used there with the
weight n, in both directions alike, so that the products stay transposes of each other.

Shots run one after the other on a CPU, where one fits into the cache, and at once on a GPU. What is
kept for the products (storage.py) has time and shots as its leading axes. It is read and written
where it lies: a copy would cost more than a step.
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
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..core.sharding import AXIS
from ..errors import warn_once
from . import kernels, kernels_cpu
from .scheme import LARGE, Fields, Medium, Positions, Scheme, locate
from .slabs import SLABS, Slab, spread
from .storage import Boundary, make_room, read, to_bfloat16, write
from .survey import Survey

ENGINES = {"gpu": kernels, "cpu": kernels_cpu}  # what computes waves beside XLA, by platform


class Gathers(NamedTuple):
    """How shots are excited, (shots, steps), where they are excited and where recorded."""

    wavelet: Array
    source: Positions
    receivers: Positions

    @classmethod
    def of(cls, survey: Survey, scheme: Scheme, dtype: DTypeLike) -> "Gathers":
        """Those of a survey, on fields with the layer and the halo around the model."""
        count, lead = survey.shots, np.asarray(scheme.lead, np.int32)
        grid = (survey.shape, survey.spacing, scheme.absorbing)
        cells, weights = locate("sources", survey.sources, *grid)
        cells = cells[..., scheme.axes] + lead
        weights = weights / np.prod(survey.spacing)  # s(t)δ(x − xₛ), whatever the grid
        number = lambda x: jnp.asarray(np.asarray(x, dtype), dtype)
        source = Positions(jnp.asarray(cells[:, None]), number(weights[:, None]))
        cells, weights = locate("receivers", survey.receivers, *grid)
        cells = cells[..., scheme.axes] + lead
        each_shot = lambda x: np.broadcast_to(x, (count, *np.shape(x)))
        receivers = Positions(jnp.asarray(each_shot(cells)), number(each_shot(weights)))
        wavelets = np.broadcast_to(survey.wavelet, (count, survey.steps))
        return cls(number(wavelets), source, receivers)


# The shots are dealt out to the devices of a mesh, and slabs of them where there are fewer. Each
# device keeps the source fields of its own; only the image is summed over them, and the data of
# slabs. Compiled by themselves, so that the many programs which use them share one trace of each.


@partial(jax.jit, static_argnames=("keep", "mesh"))
def simulate(medium: Medium, shots: Gathers, keep: bool, mesh: Mesh | None) -> tuple[Array, PyTree]:
    """The data of every shot, (shots, receivers, steps), and what is kept for the products."""
    if mesh is not None:
        medium, mesh = spread(medium, len(shots.wavelet), mesh)
    scheme = medium.scheme

    def run(medium: Medium, shots: Gathers) -> tuple[Array, PyTree]:
        shots = shots._replace(source=shots.source.scale(medium.weight, scheme.lead))

        def group(kept: PyTree, first: Array, shots: Gathers) -> tuple[PyTree, Array]:
            fields, samples = medium.rest(len(shots.wavelet)), scheme.cut(shots.wavelet)
            if keep and scheme.segment is not None:
                kept, data = march_segments(fields, samples, shots, medium, kept, first)
            else:
                fields, kept, data = march(fields, samples, shots, medium, kept, first)
            if isinstance(kept, Boundary):
                kept = kept.put_last(fields, scheme, first)
            return kept, scheme.join(data)

        def by_kernel(own: Any, launch: Any, kept: PyTree, shots: Gathers) -> tuple[PyTree, Array]:
            data, *kept = own.forward(launch, medium, *shots)
            return kept[0] if keep else None, data

        mode = "keep" if keep else "forward"
        kernel = choose(by_kernel, mode, medium, shots) if scheme.engine != "xla" else None
        count, shape = len(shots.wavelet), medium.weight.shape
        if not keep:
            room = None
        elif scheme.boundary or scheme.segment is not None:
            room = make_room(medium, count)
        else:
            large = medium.weight.size > LARGE and jax.default_backend() == "cpu"
            make = kernels_cpu.ask_for_room if large else jnp.zeros
            room = make((scheme.blocks, count, *shape), scheme.stored or medium.weight.dtype)
        kept, data = over_groups(group, room, shots, kernel)
        return data, kept

    found = ("rows", "kept" if keep else "sum")
    rho, kept = deal(run, mesh, found, (medium,), (), (shots,))
    return rho[: len(shots.wavelet)], kept


@partial(jax.jit, static_argnames="mesh")
def push(medium: Medium, shots: Gathers, eta: Array, kept: PyTree, mesh: Mesh | None) -> Array:
    """Zη for a perturbation η of m."""
    if mesh is not None:
        medium, mesh = spread(medium, len(shots.wavelet), mesh)
    scheme = medium.scheme

    def run(medium: Medium, eta: Array, kept: PyTree, shots: Gathers) -> Array:
        source = -scheme.every * medium.extend(eta)  # times q

        def group(carry: None, first: Array, shots: Gathers) -> tuple[None, Array]:
            count = len(shots.wavelet)
            if scheme.boundary or scheme.segment is not None:
                data = scatter_again(source, shots, medium)
            else:
                q, blocks = partial(read, kept, first, count), jnp.arange(scheme.blocks)
                _, data = scatter(medium.rest(count), q, blocks, source, shots.receivers, medium)
            return carry, scheme.join(data)

        def by_kernel(own: Any, launch: Any, carry: None, shots: Gathers) -> tuple[None, Array]:
            return carry, own.born(launch, medium, source, kept, shots.receivers)

        kernel = choose(by_kernel, "born", medium, shots) if scheme.engine != "xla" else None
        return over_groups(group, None, shots, kernel)[1]

    data = deal(run, mesh, "rows", (medium, eta), (kept,), (shots,))
    return data[: len(shots.wavelet)]


@partial(jax.jit, static_argnames="mesh")
def pull(medium: Medium, shots: Gathers, xi: Array, kept: PyTree, mesh: Mesh | None) -> Array:
    """Zᵀξ; what falls into the absorbing layer is folded back onto the cells at the edge."""
    if mesh is not None:
        medium, mesh = spread(medium, len(shots.wavelet), mesh)
    scheme = medium.scheme

    def run(medium: Medium, kept: PyTree, xi: Array, shots: Gathers) -> Array:
        def group(total: Array, first: Array, rows: tuple[Gathers, Array]) -> tuple[Array, None]:
            shots, xi = rows
            samples, start = scheme.cut(xi), (medium.rest(len(xi)), total)
            receivers = shots.receivers.scale(medium.weight, scheme.lead)
            if scheme.boundary:
                recall, last = reconstruct(kept, first, shots, medium)
                _, total = image(start, recall, samples, receivers, medium, last)
            elif scheme.segment is None:
                recall = lambda _, index: (read(kept, first, len(xi), index), None)
                _, total = image(start, recall, samples, receivers, medium)
            else:
                _, total = image_again(start, kept, first, samples, receivers, shots, medium)
            return total, None

        def by_kernel(own: Any, launch: Any, total: Array, rows: Any) -> tuple[Array, None]:
            receivers = rows[0].receivers.scale(medium.weight, scheme.lead)
            return total + own.adjoint(launch, medium, kept, receivers, rows[1]), None

        kernel = choose(by_kernel, "adjoint", medium, shots) if scheme.engine != "xla" else None
        total, _ = over_groups(group, jnp.zeros_like(medium.weight), (shots, xi), kernel)
        part = jax.linear_transpose(medium.extend, medium.slowness)(total)[0]
        part = -scheme.every / scheme.dt**2 * medium.slowness * part  # 1/w is that of the model
        return jax.lax.optimization_barrier(part)  # else on a GPU each of its uses sums anew

    return deal(run, mesh, "sum", (medium,), (kept,), (xi, shots))


def deal(
    run: Callable, mesh: Mesh | None, out: PyTree, whole: tuple, kept: tuple, rows: tuple
) -> Any:
    """`run` on each device with its own rows, and what was kept of them; medium and shots are the
    first and the last argument.

    What it finds, `out`, are rows, something to keep, or a sum over the devices. Where the devices
    do not divide the shots, silent ones fill up the last.
    """
    if mesh is None:
        return run(*whole, *kept, *rows)
    axis, groups = whole[0].scheme.slab_axis, mesh.shape[AXIS]

    def local(medium: Medium, *given: Any) -> Any:
        if axis is not None:
            medium = slab = Slab(medium)
            source, receivers = map(slab.within, given[-1][1:])
            given = (*given[:-1], given[-1]._replace(source=source, receivers=receivers))
        summed = {"rows": (SLABS,) if axis is not None else (), "kept": (), "sum": mesh.axis_names}
        total = lambda kind, x: jax.lax.psum(x, summed[kind]) if summed[kind] else x
        return jax.tree.map(total, out, run(medium, *given))

    fill = lambda x: jnp.pad(x, ((0, -len(x) % groups), *[(0, 0)] * (x.ndim - 1)))
    parts = P(None, AXIS) if axis is None else P(None, AXIS, *[None] * axis, SLABS)
    specs = {"rows": P(AXIS), "kept": parts, "sum": P()}
    given = (*[P()] * len(whole), *[parts] * len(kept), *[P(AXIS)] * len(rows))
    found = jax.tree.map(specs.get, out)
    dealt = jax.shard_map(local, mesh=mesh, in_specs=given, out_specs=found, check_vma=False)
    return dealt(*whole, *kept, *jax.tree.map(fill, rows))


def choose(kernel: Callable, mode: str, medium: Medium, shots: Gathers) -> Callable | None:
    """The kernel for these shots, where there is one: code of ours on the platform of programs."""
    own = ENGINES.get(jax.default_backend(), kernels)
    found = own.find(mode, medium, shots.source, shots.receivers)
    if isinstance(found, str):
        asked = medium.scheme.engine == "kernels"
        if asked or jax.default_backend() == "gpu":  # where kernels are many times faster
            advice = "'auto'" if asked else "'xla', which says nothing"
            told = f"engine: XLA computes the waves, because {found}. Try: engine={advice}."
            warn_once(told, told)
        return None
    return partial(kernel, own, found)


def over_groups(
    function: Callable, carry: PyTree, rows: PyTree, kernel: Callable | None = None
) -> tuple[PyTree, PyTree]:
    """`carry` through groups of shots, and what they give: one shot each on a CPU, else all.

    A kernel takes the place of `function` for all shots at once.
    """
    count = len(jax.tree.leaves(rows)[0])

    def one_by_one(carry: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        step = lambda carry, xs: function(carry, xs[0], jax.tree.map(lambda x: x[None], xs[1]))
        carry, out = jax.lax.scan(step, carry, (jnp.arange(count), rows))
        return carry, jax.tree.map(lambda x: x[:, 0], out)

    together = lambda carry, rows: function(carry, jnp.zeros((), int), rows)
    ways = {"cpu": one_by_one}
    if kernel is not None:
        ways["cpu" if jax.default_backend() == "cpu" else "cuda"] = kernel
    return jax.lax.platform_dependent(carry, rows, default=together, **ways)


# From here on: a group of shots at a time, along the leading axis of the fields, block by block.
# Its first shot has the number `first` in what is kept.


def march(
    fields: Fields,
    samples: Array,
    shots: Gathers,
    medium: Medium,
    kept: PyTree = None,
    first: Array | int = 0,
) -> tuple[Fields, PyTree, Array]:
    """Blocks of steps from some fields on: the fields at the end, and the data on the way.

    `samples` is (blocks, every, shots) and the data (blocks, every, shots, receivers). q of the
    first step of every block is written to `kept`, (blocks, shots, …), where there is room.
    """

    scheme = medium.scheme

    def block(carry: tuple[Fields, Any], xs: tuple[Array, Array, Array]) -> tuple[Any, Array]:
        index, numbers, samples = xs
        (fields, kept), now = step(carry, (numbers[0], samples[0]))
        if kept is not None:
            # the step has left u⁻ in the spare buffer
            before, new, oldest = (wave.u[scheme.inside] for wave in fields)
            q = new - 2 * before + oldest
            if isinstance(kept, Boundary):
                kept = kept.put_frame(q, scheme, index, first)
            else:
                q = q if kept.dtype == q.dtype else to_bfloat16(q)
                corner = (index, first, *(0,) * (q.ndim - 1))
                kept = jax.lax.dynamic_update_slice(kept, q[None], corner)
        later = (numbers[1:], samples[1:])
        carry, later = jax.lax.scan(step, (fields, kept), later, unroll=scheme.inner)
        return carry, jnp.concatenate([now[None], later])

    def step(carry: tuple[Fields, Any], xs: tuple[Array, Array]) -> tuple[Any, Array]:
        (fields, kept), (number, sample) = carry, xs
        seen, force = shots.receivers.read(fields.now.u), (shots.source, sample[:, None])
        if isinstance(kept, Boundary):
            kept = kept.put_strips(fields.now.u, scheme, number, first)
        after = (seen, *jax.tree.leaves(kept))
        return (medium.advance(fields, force=force, after=after), kept), seen

    index = jnp.arange(len(samples))
    numbers = index[:, None] * scheme.every + jnp.arange(scheme.every)
    xs = (index, numbers, samples)
    (fields, kept), data = jax.lax.scan(block, (fields, kept), xs, unroll=scheme.unroll)
    return fields, kept, data


def march_segments(
    fields: Fields, samples: Array, shots: Gathers, medium: Medium, kept: PyTree, first: Array
) -> tuple[PyTree, Array]:
    """The same, segment by segment, with u⁻, u and its memories at the start of each in `kept`."""

    def segment(carry: tuple[Fields, PyTree], xs: Any) -> tuple[tuple[Fields, PyTree], Array]:
        (fields, kept), (number, samples) = carry, xs
        put = lambda room, x: write(room, x, number, first)
        kept = jax.tree.map(put, kept, (fields.before.u, fields.now))
        fields, _, data = march(fields, samples, shots, medium)
        return (fields, kept), data

    samples = medium.scheme.group(samples)
    (_, kept), data = jax.lax.scan(segment, (fields, kept), (jnp.arange(len(samples)), samples))
    return kept, data.reshape(-1, *data.shape[2:])


Kept = Callable[[Array], Array]  # from the number of a block to q at its start


def scatter(
    fields: Fields,
    incident: Kept,
    blocks: Array,
    source: Array,
    receivers: Positions,
    medium: Medium,
) -> tuple[Fields, Array]:
    """The linearised waves for the source −n(η/m), times q: fields at the end, and the data."""

    def block(fields: Fields, index: Array) -> tuple[Fields, Array]:
        now = receivers.read(fields.now.u)
        fields = medium.advance(fields, source * incident(index).astype(source.dtype), after=(now,))
        length, unroll = medium.scheme.every - 1, medium.scheme.inner
        fields, seen = jax.lax.scan(step, fields, None, length=length, unroll=unroll)
        return fields, jnp.concatenate([now[None], seen])

    def step(fields: Fields, _: None) -> tuple[Fields, Array]:
        seen = receivers.read(fields.now.u)
        return medium.advance(fields, after=(seen,)), seen

    return jax.lax.scan(block, fields, blocks, unroll=medium.scheme.unroll)


def scatter_again(source: Array, shots: Gathers, medium: Medium) -> Array:
    """The data of the linearised waves, with the incident ones computed beside them."""
    scheme, rest = medium.scheme, medium.rest(len(shots.wavelet))
    shots = shots._replace(source=shots.source.scale(medium.weight, scheme.lead))
    room = jnp.zeros((1, len(shots.wavelet), *source.shape), source.dtype)

    def both(waves: tuple[Fields, Fields], samples: Array) -> tuple[Any, Array]:
        incident, q, _ = march(waves[0], samples[None], shots, medium, room)
        way = (lambda _: q[0], jnp.zeros(1), source, shots.receivers, medium)
        scattered, data = scatter(waves[1], *way)
        return (incident, scattered), data[0]

    samples = scheme.cut(shots.wavelet)
    return jax.lax.scan(both, (rest, rest), samples, unroll=scheme.unroll)[1]


Recall = Callable[[Any, Array], tuple[Array, Any]]  # from a state and a block to q at its start


def image(
    start: tuple[Fields, Array],
    recall: Recall,
    samples: Array,
    receivers: Positions,
    medium: Medium,
    state: Any = None,
) -> tuple[Fields, Array]:
    """The adjoint waves backwards through blocks, and Σ q y⁺ over the blocks and the shots."""
    scheme = medium.scheme

    def block(carry: tuple[Fields, Array, Any], xs: tuple[Array, Array]) -> tuple[Any, None]:
        (fields, total, state), (index, samples) = carry, xs
        fields, _ = jax.lax.scan(step, fields, samples[1:], reverse=True, unroll=scheme.inner)
        q, state = recall(state, index)
        total = total + jnp.sum(q.astype(total.dtype) * fields.now.u[scheme.inside], axis=0)
        return (step(fields, samples[0], total)[0], total, state), None

    def step(fields: Fields, sample: Array, total: Array | None = None) -> tuple[Fields, None]:
        force = (receivers, sample)
        return medium.advance(fields, force=force, transposed=True, after=(total,)), None

    xs = (jnp.arange(len(samples)), samples)
    carry = (*start, state)
    return jax.lax.scan(block, carry, xs, reverse=True, unroll=scheme.unroll)[0][:2]


def reconstruct(
    kept: Boundary, first: Array, shots: Gathers, medium: Medium
) -> tuple[Recall, Fields]:
    """q from the source waves run backwards in time within their boundary, and the last fields."""
    scheme, count = medium.scheme, len(shots.wavelet)
    source = shots.source.scale(medium.weight, scheme.lead)
    samples = scheme.cut(shots.wavelet)
    inner, fields = kept.begin(medium, first, count)
    beyond = [
        scheme.absorbing + 1 + m - n for m, n in zip(scheme.lead, inner.scheme.lead, strict=True)
    ]
    source = source._replace(cells=source.cells - jnp.asarray(beyond, source.cells.dtype))

    def step(fields: Fields, xs: tuple[Array, Array]) -> tuple[Fields, None]:
        number, sample = xs
        fields = kept.surround(fields, number, first)
        return inner.advance(fields, force=(source, sample[:, None])), None

    def recall(fields: Fields, index: Array) -> tuple[Array, Fields]:
        xs = (index * scheme.every + jnp.arange(scheme.every), samples[index])
        unroll = scheme.every if scheme.inner == scheme.every - 1 else 1
        fields, _ = jax.lax.scan(step, fields, xs, reverse=True, unroll=unroll)
        before, new, oldest = (wave.u[inner.scheme.inside] for wave in fields)
        return kept.join(new - 2 * before + oldest, index, first), fields

    return recall, fields


def image_again(
    start: tuple[Fields, Array],
    kept: PyTree,
    first: Array,
    samples: Array,
    receivers: Positions,
    shots: Gathers,
    medium: Medium,
) -> tuple[Fields, Array]:
    """The same with q computed again, segment by segment, from the fields at checkpoints."""
    scheme, count = medium.scheme, samples.shape[2]
    shots = shots._replace(source=shots.source.scale(medium.weight, scheme.lead))

    def segment(state: tuple[Fields, Array], xs: Any) -> tuple[tuple[Fields, Array], None]:
        number, signal, samples = xs
        before, now = jax.tree.map(lambda x: read(x, first, count, number), kept)
        room = jnp.zeros((scheme.segment, count, *medium.weight.shape), medium.weight.dtype)
        rest = medium.rest(count)
        fields = Fields(rest.before._replace(u=before), now, rest.spare)
        _, q, _ = march(fields, signal, shots, medium, room)
        recall = lambda _, index: (q[index], None)
        return image(state, recall, samples, receivers, medium), None

    signal = scheme.group(scheme.cut(shots.wavelet))
    xs = (jnp.arange(len(signal)), signal, scheme.group(samples))
    return jax.lax.scan(segment, start, xs, reverse=True)[0]
