"""All shots of a survey: forward, linearised (Born) and adjoint waves by the step of `Medium`.

A change η of m is the same step with the source −(η/m)q, q = u⁺ − 2u + u⁻. The transposed step,
run backwards from the data ξ, gives y = wν for the adjoint state ν and

    Zᵀξ = −Σ q y⁺/(mw),    y⁺ being y at the time of u⁺, before it is stepped to that of u.

So q serves every product at the same m. It is taken at every n-th step and used there with the
weight n, in both directions alike, so that the products stay transposes of each other.

Shots run one after the other on a CPU, where one fits into the cache, and at once on a GPU. What is
kept for the products is q, (blocks, shots, …), or the fields at the start of every segment,
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
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..core.cuda import Launch
from ..core.sharding import AXIS
from ..errors import InputError, warn_once
from . import kernels
from .scheme import Fields, Medium, Positions, Scheme, Storage, locate
from .survey import Survey

# A thinned field must sample the highest frequency of the wavelet at least this often a period:
# at 4 the products differ from those of the whole field by the share stated in docs/waves.md.
SAMPLES_A_PERIOD = 4.0


class Gathers(NamedTuple):
    """How shots are excited, (shots, steps), where they are excited and where recorded."""

    wavelet: Array
    source: Positions
    receivers: Positions

    @classmethod
    def of(cls, survey: Survey, scheme: Scheme, dtype: DTypeLike) -> "Gathers":
        """Those of a survey, on fields with the layer and the halo around the model."""
        count, rim = survey.shots, scheme.absorbing + scheme.halo

        grid = (survey.shape, survey.spacing, rim)
        cells, weights = locate("sources", survey.sources, *grid)
        cells = cells[..., scheme.axes]
        weights = weights / np.prod(survey.spacing)  # s(t)δ(x − xₛ), whatever the grid
        source = Positions(jnp.asarray(cells[:, None]), jnp.asarray(weights[:, None], dtype))
        cells, weights = locate("receivers", survey.receivers, *grid)
        cells = cells[..., scheme.axes]
        each_shot = lambda x: jnp.broadcast_to(x, (count, *np.shape(x)))
        receivers = Positions(each_shot(cells), each_shot(jnp.asarray(weights, dtype)))
        wavelets = np.broadcast_to(survey.wavelet, (count, survey.steps))
        return cls(jnp.asarray(wavelets, dtype), source, receivers)


# The shots are dealt out to the devices of a mesh. Each keeps the source fields of its own shots;
# only the image is summed over them.


def simulate(medium: Medium, shots: Gathers, keep: bool, mesh: Mesh | None) -> tuple[Array, PyTree]:
    """The data of every shot, (shots, receivers, steps), and what is kept for the products."""
    scheme = medium.scheme

    def run(medium: Medium, shots: Gathers) -> tuple[Array, PyTree]:
        weight = medium.weight
        shots = shots._replace(source=shots.source.scale(weight, scheme.halo))

        def group(kept: PyTree, first: Array, shots: Gathers) -> tuple[PyTree, Array]:
            fields, samples = medium.rest(len(shots.wavelet)), scheme.cut(shots.wavelet)
            if keep and scheme.segment is not None:
                kept, data = march_segments(fields, samples, shots, medium, kept, first)
            else:
                _, kept, data = march(fields, samples, shots, medium, kept, first)
            return kept, scheme.join(data)

        def by_kernel(launch: Launch, kept: PyTree, shots: Gathers) -> tuple[PyTree, Array]:
            data, *kept = kernels.forward(launch, medium, *shots)
            return kept[0] if keep else None, data

        mode = "keep" if keep else "forward"
        kernel = choose(by_kernel, mode, medium, shots) if scheme.engine != "xla" else None
        if not keep:
            kept, data = over_groups(group, None, shots, kernel)
        elif scheme.segment is None:
            room = jnp.zeros((scheme.blocks, len(shots.wavelet), *weight.shape), weight.dtype)
            kept, data = over_groups(group, room, shots, kernel)
        else:
            count, fields = scheme.blocks // scheme.segment, medium.rest(len(shots.wavelet))
            state = (fields.before.u, fields.now)
            room = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), state)
            kept, data = over_groups(group, room, shots)
        return data, kept

    kept = P(None, AXIS) if keep else P()
    rho, kept = deal(run, mesh, (P(AXIS), kept), (medium,), (), (shots,))
    return rho[: len(shots.wavelet)], kept


def push(medium: Medium, shots: Gathers, eta: Array, kept: PyTree, mesh: Mesh | None) -> Array:
    """Zη for a perturbation η of m."""
    scheme = medium.scheme

    def run(medium: Medium, eta: Array, kept: PyTree, shots: Gathers) -> Array:
        source = -scheme.every * medium.extend(eta)  # times q

        def group(carry: None, first: Array, shots: Gathers) -> tuple[None, Array]:
            count = len(shots.wavelet)
            if scheme.segment is None:
                q, blocks = partial(read, kept, first, count), jnp.arange(scheme.blocks)
                _, data = scatter(medium.rest(count), q, blocks, source, shots.receivers, medium)
            else:
                data = scatter_again(source, shots, medium)
            return carry, scheme.join(data)

        def by_kernel(launch: Launch, carry: None, shots: Gathers) -> tuple[None, Array]:
            return carry, kernels.born(launch, medium, source, kept, shots.receivers)

        kernel = choose(by_kernel, "born", medium, shots) if scheme.engine != "xla" else None
        return over_groups(group, None, shots, kernel)[1]

    data = deal(run, mesh, P(AXIS), (medium, eta), (kept,), (shots,))
    return data[: len(shots.wavelet)]


def pull(medium: Medium, shots: Gathers, xi: Array, kept: PyTree, mesh: Mesh | None) -> Array:
    """Zᵀξ; what falls into the absorbing layer is folded back onto the cells at the edge."""
    scheme = medium.scheme

    def run(medium: Medium, kept: PyTree, xi: Array, shots: Gathers) -> Array:
        def group(total: Array, first: Array, rows: tuple[Gathers, Array]) -> tuple[Array, None]:
            shots, xi = rows
            samples, start = scheme.cut(xi), (medium.rest(len(xi)), total)
            receivers = shots.receivers.scale(medium.weight, scheme.halo)
            if scheme.segment is None:
                q = partial(read, kept, first, len(xi))
                _, total = image(start, q, samples, receivers, medium)
            else:
                _, total = image_again(start, kept, first, samples, receivers, shots, medium)
            return total, None

        def by_kernel(launch: Launch, total: Array, rows: Any) -> tuple[Array, None]:
            receivers = rows[0].receivers.scale(medium.weight, scheme.halo)
            return total + kernels.adjoint(launch, medium, kept, receivers, rows[1]), None

        kernel = choose(by_kernel, "adjoint", medium, shots) if scheme.engine != "xla" else None
        total, _ = over_groups(group, jnp.zeros_like(medium.weight), (shots, xi), kernel)
        ratio = -scheme.every * total / medium.weight
        part = jax.linear_transpose(medium.extend, medium.slowness)(ratio)[0]
        return part if mesh is None else jax.lax.psum(part, AXIS)

    return deal(run, mesh, P(), (medium,), (kept,), (xi, shots))


def deal(
    run: Callable, mesh: Mesh | None, out: PyTree, whole: tuple, kept: tuple, rows: tuple
) -> Any:
    """`run` on each device with its own rows, and what was kept of them, as specified by `out`.

    Where the devices do not divide the shots, silent ones fill up the last.
    """
    if mesh is None:
        return run(*whole, *kept, *rows)
    fill = lambda x: jnp.pad(x, ((0, -len(x) % mesh.size), *[(0, 0)] * (x.ndim - 1)))
    specs = (*[P()] * len(whole), *[P(None, AXIS)] * len(kept), *[P(AXIS)] * len(rows))
    dealt = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return dealt(*whole, *kept, *jax.tree.map(fill, rows))


def choose(kernel: Callable, mode: str, medium: Medium, shots: Gathers) -> Callable | None:
    """The kernel for these shots, where there is one."""
    found = kernels.find(mode, medium, shots.source, shots.receivers)
    if isinstance(found, str):
        if medium.scheme.engine == "kernels":
            told = f"engine: XLA computes the waves ({mode}), because {found}. Try: engine='auto'."
            warn_once(told, told)
        return None
    return partial(kernel, found)


def over_groups(
    function: Callable, carry: PyTree, rows: PyTree, kernel: Callable | None = None
) -> tuple[PyTree, PyTree]:
    """`carry` through groups of shots, and what they give: one shot each on a CPU, else all.

    A kernel takes the place of `function` on an NVIDIA GPU, for all shots at once.
    """
    count = len(jax.tree.leaves(rows)[0])

    def one_by_one(carry: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        step = lambda carry, xs: function(carry, xs[0], jax.tree.map(lambda x: x[None], xs[1]))
        carry, out = jax.lax.scan(step, carry, (jnp.arange(count), rows))
        return carry, jax.tree.map(lambda x: x[:, 0], out)

    together = lambda carry, rows: function(carry, jnp.zeros((), int), rows)
    ways = {"cpu": one_by_one} if kernel is None else {"cpu": one_by_one, "cuda": kernel}
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

    def block(carry: tuple[Fields, Any], xs: tuple[Array, Array]) -> tuple[Any, Array]:
        (fields, kept), (index, samples) = carry, xs
        fields, now = step(kept, fields, samples[0])
        if kept is not None:
            # the step has left u⁻ in the spare buffer
            before, new, oldest = (wave.u[None][medium.scheme.inside] for wave in fields)
            q = new - 2 * before + oldest
            kept = jax.lax.dynamic_update_slice(kept, q, (index, first, *(0,) * (q.ndim - 2)))
        go = partial(step, kept)
        fields, later = jax.lax.scan(go, fields, samples[1:], unroll=medium.scheme.inner)
        return (fields, kept), jnp.concatenate([now[None], later])

    def step(kept: PyTree, fields: Fields, sample: Array) -> tuple[Fields, Array]:
        seen, force = shots.receivers.read(fields.now.u), (shots.source, sample[:, None])
        return medium.advance(fields, force=force, after=(seen, kept)), seen

    xs = (jnp.arange(len(samples)), samples)
    unroll = medium.scheme.unroll
    (fields, kept), data = jax.lax.scan(block, (fields, kept), xs, unroll=unroll)
    return fields, kept, data


def march_segments(
    fields: Fields, samples: Array, shots: Gathers, medium: Medium, kept: PyTree, first: Array
) -> tuple[PyTree, Array]:
    """The same, segment by segment, with u⁻, u and its memories at the start of each in `kept`."""

    def segment(carry: tuple[Fields, PyTree], xs: Any) -> tuple[tuple[Fields, PyTree], Array]:
        (fields, kept), (number, samples) = carry, xs
        corner = lambda x: (number, first, *(0,) * (x.ndim - 1))
        put = lambda room, x: jax.lax.dynamic_update_slice(room, x[None], corner(x))
        kept = jax.tree.map(put, kept, (fields.before.u, fields.now))
        fields, _, data = march(fields, samples, shots, medium)
        return (fields, kept), data

    samples = medium.scheme.group(samples)
    (_, kept), data = jax.lax.scan(segment, (fields, kept), (jnp.arange(len(samples)), samples))
    return kept, data.reshape(-1, *data.shape[2:])


def read(kept: Array, first: Array, count: int, index: Array) -> Array:
    """The fields of `count` shots at one block, read where they are."""
    corner = (index, first, *(0,) * (kept.ndim - 2))
    return jax.lax.dynamic_slice(kept, corner, (1, count, *kept.shape[2:]))[0]


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
        fields = medium.advance(fields, source * incident(index), after=(now,))
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
    shots = shots._replace(source=shots.source.scale(medium.weight, scheme.halo))
    room = jnp.zeros((1, len(shots.wavelet), *source.shape), source.dtype)

    def both(waves: tuple[Fields, Fields], samples: Array) -> tuple[Any, Array]:
        incident, q, _ = march(waves[0], samples[None], shots, medium, room)
        way = (lambda _: q[0], jnp.zeros(1), source, shots.receivers, medium)
        scattered, data = scatter(waves[1], *way)
        return (incident, scattered), data[0]

    samples = scheme.cut(shots.wavelet)
    return jax.lax.scan(both, (rest, rest), samples, unroll=scheme.unroll)[1]


def image(
    start: tuple[Fields, Array],
    incident: Kept,
    samples: Array,
    receivers: Positions,
    medium: Medium,
) -> tuple[Fields, Array]:
    """The adjoint waves backwards through blocks, and Σ q y⁺ over the blocks and the shots."""
    scheme = medium.scheme

    def block(
        carry: tuple[Fields, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Fields, Array], None]:
        (fields, total), (index, samples) = carry, xs
        fields, _ = jax.lax.scan(step, fields, samples[1:], reverse=True, unroll=scheme.inner)
        total = total + jnp.sum(incident(index) * fields.now.u[scheme.inside], axis=0)
        return (step(fields, samples[0], total)[0], total), None

    def step(fields: Fields, sample: Array, total: Array | None = None) -> tuple[Fields, None]:
        force = (receivers, sample)
        return medium.advance(fields, force=force, transposed=True, after=(total,)), None

    xs = (jnp.arange(len(samples)), samples)
    return jax.lax.scan(block, start, xs, reverse=True, unroll=scheme.unroll)[0]


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
    shots = shots._replace(source=shots.source.scale(medium.weight, scheme.halo))

    def segment(state: tuple[Fields, Array], xs: Any) -> tuple[tuple[Fields, Array], None]:
        number, signal, samples = xs
        before, now = jax.tree.map(lambda x: read(x, first, count, number), kept)
        room = jnp.zeros((scheme.segment, count, *medium.weight.shape), medium.weight.dtype)
        rest = medium.rest(count)
        fields = Fields(rest.before._replace(u=before), now, rest.spare)
        _, q, _ = march(fields, signal, shots, medium, room)
        return image(state, lambda i: q[i], samples, receivers, medium), None

    signal = scheme.group(scheme.cut(shots.wavelet))
    xs = (jnp.arange(len(signal)), signal, scheme.group(samples))
    return jax.lax.scan(segment, start, xs, reverse=True)[0]


def plan_storage(
    survey: Survey,
    absorbing: int,
    halo: int,
    itemsize: int,
    memory: int,
    every: int | None,
    shots: int | None = None,
) -> Storage:
    """What the wavelet's band needs if it fits into `memory` bytes, else checkpoints in any case.

    n is 1 or a multiple of 3, for which the loop over time is shortest, and the largest that
    samples the waves well; `every` prescribes it, and is refused below two samples a period.
    """
    shots = survey.shots if shots is None else shots
    cells = int(np.prod([n + 2 * absorbing for n in survey.shape]))
    field = shots * itemsize * cells
    period = 1.0 / (survey.highest_frequency * survey.dt)
    longest = int(period / SAMPLES_A_PERIOD)
    if every is not None and every > max(1, longest):
        advice = f"stored_every={max(1, longest)}, or None"
        if 2 * every * survey.dt * survey.middle_frequency > 1:
            what = f"{every} steps are more than half a period of the wavelet"
            raise InputError("stored_every", what, advice)
        what = (
            f"{every} is {period / every:.2g} times in the shortest period, so products are rough"
        )
        warn_once(f"stored_every {every} {period:.3g}", f"stored_every: {what}. Try: {advice}.")
    n = every or max(1, longest - longest % 3)
    if (needed := -(-survey.steps // n) * field) <= memory:
        return Storage(n, None, needed)
    blocks = -(-survey.steps // n)
    padded = int(np.prod([side + 2 * (absorbing + halo) for side in survey.shape]))
    two_fields = 2 * shots * itemsize * padded
    segments = max(1, round(float(np.sqrt(blocks * field / two_fields))))
    length = -(-blocks // segments)
    needed = -(-blocks // length) * two_fields + length * field
    return Storage(n, length, needed)


def refuse_storage(storage: Storage, memory: int, shots: int) -> None:
    """Raise `InputError` where the products need more than `memory` bytes."""
    if storage.bytes > memory:
        advice = f"memory={storage.bytes:_}, or fewer cells or steps"
        if shots > 1:
            advice += ", or mini-batches of shots: batch=ng.MiniBatch(size, of='functions')"
        what = f"{_format_bytes(memory)} hold neither the source field of {shots} shots nor its "
        raise InputError("memory", what + f"checkpoints ({_format_bytes(storage.bytes)})", advice)


def _format_bytes(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{count / 2**20:.3g} MiB"
