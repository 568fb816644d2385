"""m(∂t + σ)²u − Δu − √m σ′u = s in time: forward, linearised (Born) and adjoint by one step.

With a = exp(−σ dt), w = a dt²/m and e = w√m σ′/2, the leapfrog scheme for exp(σt)u is

    u⁺ = 2(a + e)u − a²u⁻ + w(Ku + s),    q = w(Ku + s) + eu,

K being the differenced Laplacian: stable for every σ where it is without the layer. A perturbation
η of m changes w by −w η/m and 2e by −e η/m, so it is the same step with the source −(η/m)q. The
transpose runs the same step backwards: with y = wν for the adjoint state ν,

    y = 2(a + e)y⁺ − a²y⁺⁺ + wKy⁺ + wRᵀξ,    Zᵀξ = −Σ q y⁺/(mw).

So q serves every product at the same m. It is taken at every n-th step and used there with the
weight n, in both directions alike, so that the products stay transposes of each other. Everything
here is for a group of shots at a time, along the leading axis of the fields.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from .fields import Coefficients, Fields
from .positions import Positions
from .scheme import Scheme
from .stencils import halo

Kept = Callable[[Array], Array]  # from the number of a block to q at its start


def march(
    start: Fields,
    samples: Array,
    force: Positions,
    receivers: Positions,
    c: Coefficients,
    scheme: Scheme,
) -> tuple[Fields, Array]:
    """Blocks of steps from some fields on: the fields at the end, and the data on the way.

    `samples` is (blocks, every, shots) and the data (blocks, every, shots, receivers).
    """

    def block(fields: Fields, samples: Array) -> tuple[Fields, Array]:
        return _recorded_block(fields, samples, force, receivers, c, scheme)

    return jax.lax.scan(block, start, samples, unroll=scheme.unroll)


def march_keeping(
    start: Fields,
    kept: Array,
    first: Array,
    samples: Array,
    force: Positions,
    receivers: Positions,
    c: Coefficients,
    scheme: Scheme,
) -> tuple[Array, Array]:
    """The same, with q at the start of every block written to `kept`, (blocks, shots, …).

    `first` is the number there of this group's first shot. Returns `kept` and the data.
    """

    def block(
        carry: tuple[Fields, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Fields, Array], Array]:
        (fields, kept), (index, samples) = carry, xs
        q = fields.response(c, scheme)[None]
        kept = jax.lax.dynamic_update_slice(kept, q, (index, first, *(0,) * (q.ndim - 2)))
        fields, seen = _recorded_block(fields, samples, force, receivers, c, scheme)
        return (fields, kept), seen

    xs = (jnp.arange(len(samples)), samples)
    (_, kept), data = jax.lax.scan(block, (start, kept), xs, unroll=scheme.unroll)
    return kept, data


def scattered(
    start: Fields,
    incident: Kept,
    blocks: Array,
    ratio: Array,
    receivers: Positions,
    c: Coefficients,
    scheme: Scheme,
    drive: Callable[[Fields], Fields] = lambda fields: fields,
) -> tuple[Fields, Array]:
    """The linearised waves for the relative perturbation η/m: fields at the end, and the data.

    `drive` adds what is missing of the source at the start of every block.
    """
    source = -scheme.every * ratio

    def block(fields: Fields, index: Array) -> tuple[Fields, Array]:
        seen = []
        for i in range(scheme.every):
            seen.append(receivers.read(fields.now))
            fields = fields.advanced(c, scheme, source * incident(index) if i == 0 else None)
            fields = drive(fields) if i == 0 else fields
        return fields, jnp.stack(seen)

    return jax.lax.scan(block, start, blocks, unroll=scheme.unroll)


def imaged(
    start: tuple[Fields, Array],
    incident: Kept,
    samples: Array,
    force: Positions,
    c: Coefficients,
    scheme: Scheme,
) -> tuple[Fields, Array]:
    """The adjoint waves backwards through blocks, and Σ q y⁺ over the blocks and the shots."""

    def block(
        carry: tuple[Fields, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Fields, Array], None]:
        (fields, total), (index, samples) = carry, xs
        for i in reversed(range(scheme.every)):
            if i == 0:
                total = total + jnp.sum(incident(index) * fields.now[scheme.inside], axis=0)
            fields = fields.advanced(c, scheme).driven(force, samples[i])
        return (fields, total), None

    xs = (jnp.arange(len(samples)), samples)
    return jax.lax.scan(block, start, xs, reverse=True, unroll=scheme.unroll)[0]


def with_source(kept: Array, force: Positions, samples: Array, scheme: Scheme) -> Array:
    """wKu + eu, kept at the start of every block, with ws added: q."""
    at = force.shifted(-halo(scheme.order))
    return jax.vmap(at.add)(kept, samples[:, 0, :, None])


def _recorded_block(
    fields: Fields,
    samples: Array,
    force: Positions,
    receivers: Positions,
    c: Coefficients,
    scheme: Scheme,
) -> tuple[Fields, Array]:
    seen = []
    for i in range(scheme.every):
        seen.append(receivers.read(fields.now))
        fields = fields.advanced(c, scheme).driven(force, samples[i][:, None])
    return fields, jnp.stack(seen)
