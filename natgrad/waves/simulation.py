"""All shots: one after the other on a CPU, where a shot fits into the cache, at once on a GPU.

What is kept for the products is q, (blocks, shots, …), or u⁻ and u at the start of every segment,
(segments, shots, …). It is read and written where it lies: a copy would cost more than a step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from .absorbing import Layer
from .fields import Coefficients, Fields
from .positions import Positions
from .propagator import imaged, march, march_keeping, scattered, with_source
from .scheme import Scheme
from .stencils import halo


class Gathers(NamedTuple):
    """How shots are excited, (shots, steps), where they are excited and where recorded."""

    wavelet: Array
    source: Positions
    receivers: Positions


def simulate(
    m: Array, layer: Layer, shots: Gathers, scheme: Scheme, keep: bool
) -> tuple[Array, PyTree]:
    """The data of every shot, (shots, receivers, steps), and what is kept for the products."""
    c = Coefficients.of(m, layer, scheme)

    def group(kept: PyTree, first: Array, shots: Gathers) -> tuple[PyTree, Array]:
        force, samples = c.times_weight(shots.source, scheme), scheme.cut(shots.wavelet)
        start = Fields.at_rest(len(shots.wavelet), c, scheme)
        way = (force, shots.receivers, c, scheme)
        if kept is None:
            _, data = march(start, samples, *way)
        elif scheme.segment is None:
            kept, data = march_keeping(start, kept, first, samples, *way)
        else:
            kept, data = _checkpointed(start, kept, first, scheme.segments(samples), way)
        return kept, scheme.joined(data)

    total = len(shots.wavelet)
    kept, data = _over_groups(group, _storage(total, c, scheme) if keep else None, shots)
    if keep and scheme.segment is None:
        force = c.times_weight(shots.source, scheme)
        kept = with_source(kept, force, scheme.cut(shots.wavelet), scheme)
    return data, kept


def linearised_data(
    m: Array, layer: Layer, eta: Array, kept: PyTree, shots: Gathers, scheme: Scheme
) -> Array:
    """Zη for a perturbation η of m."""
    c, ratio = Coefficients.of(m, layer, scheme), relative(eta, m, scheme)

    def group(carry: PyTree, first: Array, shots: Gathers) -> tuple[PyTree, Array]:
        count = len(shots.wavelet)
        start = Fields.at_rest(count, c, scheme)
        if scheme.segment is None:
            q, blocks = _Stored(kept, first, count), jnp.arange(scheme.blocks)
            _, data = scattered(start, q, blocks, ratio, shots.receivers, c, scheme)
            return carry, scheme.joined(data)
        force = c.times_weight(shots.source, scheme)
        changed = force.scaled(jnp.pad(-scheme.every * ratio, halo(scheme.order)))

        def both(fields: tuple[Fields, Fields], samples: Array) -> tuple[Any, Array]:
            incident, waves = fields
            q = incident.response(c, scheme)  # the source is scattered into the field, not into q
            incident, _ = march(incident, samples[None], force, shots.receivers, c, scheme)
            waves, data = scattered(
                *(waves, lambda _: q, jnp.zeros(1), ratio, shots.receivers, c, scheme),
                drive=lambda waves: waves.driven(changed, samples[0][:, None]),
            )
            return (incident, waves), data[0]

        samples = scheme.cut(shots.wavelet)
        _, data = jax.lax.scan(both, (start, start), samples, unroll=scheme.unroll)
        return carry, scheme.joined(data)

    return _over_groups(group, None, shots)[1]


def adjoint_image(
    m: Array, layer: Layer, xi: Array, kept: PyTree, shots: Gathers, scheme: Scheme
) -> Array:
    """Zᵀξ, what falls into the absorbing layer folded back onto the cells at the edge."""
    c = Coefficients.of(m, layer, scheme)

    def group(total: Array, first: Array, rows: tuple[Gathers, Array]) -> tuple[Array, None]:
        shots, xi = rows
        count, samples = len(xi), scheme.cut(xi)
        receivers = c.times_weight(shots.receivers, scheme)
        start = (Fields.at_rest(count, c, scheme), total)
        if scheme.segment is None:
            _, total = imaged(start, _Stored(kept, first, count), samples, receivers, c, scheme)
            return total, None
        force = c.times_weight(shots.source, scheme)

        def segment(state: tuple[Fields, Array], xs: Any) -> tuple[tuple[Fields, Array], None]:
            number, signal, samples = xs
            again = Fields.from_checkpoint(*(_Stored(x, first, count)(number) for x in kept))
            room = jnp.zeros((scheme.segment, count, *c.weight.shape), c.weight.dtype)
            way = (force, shots.receivers, c, scheme)
            q, _ = march_keeping(again, room, jnp.zeros((), int), signal, *way)
            q = with_source(q, force, signal, scheme)
            return imaged(state, lambda i: q[i], samples, receivers, c, scheme), None

        signal = scheme.segments(scheme.cut(shots.wavelet))
        xs = (jnp.arange(len(signal)), signal, scheme.segments(samples))
        (_, total), _ = jax.lax.scan(segment, start, xs, reverse=True)
        return total, None

    total, _ = _over_groups(group, jnp.zeros_like(c.weight), (shots, xi))
    return folded(-scheme.every * total / c.weight, m, scheme)


class _Stored(NamedTuple):
    """Fields of a group of shots at one block, read where they are."""

    kept: Array
    first: Array
    count: int

    def __call__(self, index: Array) -> Array:
        corner = (index, self.first, *(0,) * (self.kept.ndim - 2))
        sizes = (1, self.count, *self.kept.shape[2:])
        return jax.lax.dynamic_slice(self.kept, corner, sizes)[0]


def _checkpointed(
    start: Fields, kept: PyTree, first: Array, samples: Array, way: tuple
) -> tuple[PyTree, Array]:
    """The segments one after the other, with the fields at the start of each."""

    def segment(carry: tuple[Fields, PyTree], xs: Any) -> tuple[tuple[Fields, PyTree], Array]:
        (fields, kept), (number, samples) = carry, xs
        corner = (number, first, *(0,) * (fields.now.ndim - 1))
        put = lambda room, x: jax.lax.dynamic_update_slice(room, x[None], corner)
        kept = (put(kept[0], fields.before), put(kept[1], fields.now))
        fields, data = march(fields, samples, *way)
        return (fields, kept), data

    xs = (jnp.arange(len(samples)), samples)
    (_, kept), data = jax.lax.scan(segment, (start, kept), xs)
    return kept, data.reshape(-1, *data.shape[2:])


def _storage(shots: int, c: Coefficients, scheme: Scheme) -> PyTree:
    if scheme.segment is None:
        return jnp.zeros((scheme.blocks, shots, *c.weight.shape), c.weight.dtype)
    field = Fields.at_rest(shots, c, scheme).now
    room = jnp.zeros((scheme.blocks // scheme.segment, *field.shape), field.dtype)
    return room, room


def _over_groups(function: Callable, carry: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
    """`carry` through groups of shots, and what they give: one shot each on a CPU, else all."""
    count = len(jax.tree.leaves(rows)[0])

    def one_by_one(carry: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        step = lambda carry, xs: function(carry, xs[0], jax.tree.map(lambda x: x[None], xs[1]))
        carry, out = jax.lax.scan(step, carry, (jnp.arange(count), rows))
        return carry, jax.tree.map(lambda x: x[:, 0], out)

    together = lambda carry, rows: function(carry, jnp.zeros((), int), rows)
    return jax.lax.platform_dependent(carry, rows, cpu=one_by_one, default=together)


def relative(eta: Array, m: Array, scheme: Scheme) -> Array:
    """η/m on the padded cells."""
    return jnp.pad(eta / m, scheme.absorbing, mode="edge")


def folded(image: Array, m: Array, scheme: Scheme) -> Array:
    """The transpose of `relative`."""
    return jax.linear_transpose(lambda eta: relative(eta, m, scheme), m)(image)[0]
