"""m u_tt + mσ u_t − Δu = s in time: forward, linearised (Born) and adjoint by one step.

With d = σ dt/2, a = 1/(1 + d), b = (1 − d)a and w = a dt²/m,

    u⁺ = 2a u − b u⁻ + q,    q = w(Ku + s),

K being the differenced Laplacian. A perturbation η of m is the same step with the source −(η/m)q,
and the transpose runs the same step backwards: with y = wν for the adjoint state ν,

    y = 2a y⁺ − b y⁺⁺ + wKy⁺ + wRᵀξ,    Zᵀξ = −Σ q y⁺ (1 + d)/dt².

So q, stored, serves every product at the same m. It is kept at every n-th step and used there with
the weight n, in both directions alike, so that the products stay transposes of each other.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .positions import Positions
from .stencils import halo, laplacian

PyTree = Any
UNROLL = 4


class Scheme(NamedTuple):
    """What is fixed about a simulation."""

    spacing: tuple[float, ...]
    dt: float
    steps: int
    order: int
    absorbing: int  # cells on every side
    every: int  # steps between stored fields

    @property
    def rim(self) -> int:
        """Cells between the edge of an array and the model: the layer and the halo."""
        return self.absorbing + halo(self.order)


class Coefficients(NamedTuple):
    """2a, b and w of the step, on the cells inside the halo."""

    twice: Array
    back: Array
    weight: Array


def coefficients(m: Array, sigma: Array, scheme: Scheme) -> Coefficients:
    """The step's coefficients for a squared slowness m on the model's cells."""
    extended = jnp.pad(m, scheme.absorbing, mode="edge")
    d = (0.5 * scheme.dt * sigma).astype(m.dtype)
    a = 1.0 / (1.0 + d)
    return Coefficients(2 * a, (1.0 - d) * a, a * scheme.dt**2 / extended)


def _stiffness(u: Array, c: Coefficients, scheme: Scheme) -> Array:
    """wKu."""
    return c.weight * laplacian(u, scheme.spacing, scheme.order)


def _advance(before: Array, now: Array, c: Coefficients, scheme: Scheme) -> Array:
    """2a u − b u⁻ + wKu, with a halo of zeros."""
    width = halo(scheme.order)
    inside = tuple(slice(width, -width) for _ in now.shape)
    new = c.twice * now[inside] - c.back * before[inside] + _stiffness(now, c, scheme)
    return jnp.pad(new, width)


def _inside(c: Coefficients, scheme: Scheme) -> tuple[slice, ...]:
    width = halo(scheme.order)
    return tuple(slice(width, -width) for _ in c.weight.shape)


def _with_halo(field: Array, scheme: Scheme) -> Array:
    return jnp.pad(field, halo(scheme.order))


def _start(c: Coefficients, scheme: Scheme) -> tuple[Array, Array]:
    zero = _with_halo(jnp.zeros_like(c.weight), scheme)
    return zero, zero


def _blocks(xs: Array, scheme: Scheme) -> Array:
    """The steps in blocks of `every`, the last one filled up with zeros."""
    missing = -len(xs) % scheme.every
    filled = jnp.pad(xs, ((0, missing), *[(0, 0)] * (xs.ndim - 1)))
    return filled.reshape(-1, scheme.every, *xs.shape[1:])


def forward(
    c: Coefficients,
    wavelet: Array,
    source: Positions,
    receivers: Positions,
    scheme: Scheme,
    store: bool,
) -> tuple[Array, Array | None]:
    """One shot: u at the receivers at every step, (steps, receivers), and q where it is stored."""
    inside = _inside(c, scheme)
    force = source.scaled(_with_halo(c.weight, scheme))

    def block(state: tuple[Array, Array], samples: Array) -> tuple[tuple[Array, Array], Any]:
        before, now = state
        seen, kept = [], None
        for i in range(scheme.every):
            seen.append(receivers.read(now))
            if store and i == 0:
                spread = _with_halo(_stiffness(now, c, scheme), scheme)
                kept = force.add(spread, samples[i])[inside]
            new = force.add(_advance(before, now, c, scheme), samples[i])
            before, now = now, jax.lax.optimization_barrier(new)
        return (before, now), (jnp.stack(seen), kept)

    unroll = max(1, UNROLL // scheme.every)
    samples = _blocks(wavelet, scheme)
    _, (data, stored) = jax.lax.scan(block, _start(c, scheme), samples, unroll=unroll)
    return data.reshape(-1, data.shape[-1])[: scheme.steps], stored


def born(
    c: Coefficients, ratio: Array, stored: Array, receivers: Positions, scheme: Scheme
) -> Array:
    """The linearised data for the relative perturbation η/m, on the padded cells."""
    source = -scheme.every * ratio

    def block(state: tuple[Array, Array], q: Array) -> tuple[tuple[Array, Array], Array]:
        before, now = state
        seen = []
        for i in range(scheme.every):
            seen.append(receivers.read(now))
            new = _advance(before, now, c, scheme)
            new = new + _with_halo(source * q, scheme) if i == 0 else new
            before, now = now, jax.lax.optimization_barrier(new)
        return (before, now), jnp.stack(seen)

    unroll = max(1, UNROLL // scheme.every)
    _, data = jax.lax.scan(block, _start(c, scheme), stored, unroll=unroll)
    return data.reshape(-1, data.shape[-1])[: scheme.steps]


def adjoint(
    c: Coefficients, xi: Array, stored: Array, receivers: Positions, scheme: Scheme
) -> Array:
    """−Σ q y⁺/w on the padded cells: Zᵀξ for the relative perturbation η/m."""
    inside = _inside(c, scheme)
    force = receivers.scaled(_with_halo(c.weight, scheme))

    def block(
        state: tuple[Array, Array, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array, Array], None]:
        after, now, image = state
        q, samples = xs
        for i in reversed(range(scheme.every)):
            image = image + q * now[inside] if i == 0 else image
            new = force.add(_advance(after, now, c, scheme), samples[i])
            after, now = now, jax.lax.optimization_barrier(new)
        return (after, now, image), None

    start = (*_start(c, scheme), jnp.zeros_like(c.weight))
    unroll = max(1, UNROLL // scheme.every)
    (_, _, image), _ = jax.lax.scan(
        block, start, (stored, _blocks(xi, scheme)), reverse=True, unroll=unroll
    )
    return -scheme.every * image / c.weight
