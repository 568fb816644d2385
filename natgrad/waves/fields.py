"""The fields of a simulation and the one step that forward, Born and adjoint share."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .absorbing import Layer
from .positions import Positions
from .scheme import Scheme
from .stencils import halo, laplacian


class Coefficients(NamedTuple):
    """2(a + e), a², w and e of the step, on the cells inside the halo."""

    twice: Array
    back: Array
    weight: Array
    matching: Array

    @classmethod
    def of(cls, m: Array, layer: Layer, scheme: Scheme) -> "Coefficients":
        """Those for a squared slowness m on the model's cells, in s²/m²."""
        extended = jnp.pad(m, scheme.absorbing, mode="edge")
        a = jnp.exp(-scheme.dt * layer.damping).astype(m.dtype)
        weight = a * scheme.dt**2 / extended
        e = 0.5 * weight * jnp.sqrt(extended) * layer.slope.astype(m.dtype)
        return cls(2 * (a + e), a * a, weight, e)

    def times_weight(self, points: Positions, scheme: Scheme) -> Positions:
        """Points that add w times a value to a field."""
        return points.scaled(jnp.pad(self.weight, halo(scheme.order)))


class Fields(NamedTuple):
    """u⁻ and u, (shots, …) with a halo of zeros, and the buffer that the next field is written to.

    Three buffers in rotation: the step writes the inside of one and leaves its halo, so XLA
    updates it in place, in one pass, and sources are scattered into it without a copy.
    """

    before: Array
    now: Array
    spare: Array

    @classmethod
    def at_rest(cls, shots: int, c: Coefficients, scheme: Scheme) -> "Fields":
        zero = jnp.pad(jnp.zeros_like(c.weight), halo(scheme.order))
        zero = jnp.broadcast_to(zero, (shots, *zero.shape))
        return cls(zero, zero, zero)

    @classmethod
    def from_checkpoint(cls, before: Array, now: Array) -> "Fields":
        return cls(before, now, jnp.zeros_like(now))

    def response(self, c: Coefficients, scheme: Scheme) -> Array:
        """wKu + eu: what a change of m acts on, q without the source."""
        return self._stiffness(c, scheme) + c.matching * self.now[scheme.inside]

    def _stiffness(self, c: Coefficients, scheme: Scheme) -> Array:
        return c.weight * laplacian(self.now, scheme.spacing, scheme.order)

    def advanced(self, c: Coefficients, scheme: Scheme, source: Array | None = None) -> "Fields":
        """2(a + e)u − a²u⁻ + wKu, and a source on the cells inside."""
        inside = scheme.inside
        new = c.twice * self.now[inside] - c.back * self.before[inside] + self._stiffness(c, scheme)
        new = new if source is None else new + source
        corner = (0, *(halo(scheme.order),) * len(scheme.spacing))
        written = jax.lax.dynamic_update_slice(self.spare, new, corner)
        return Fields(self.now, jax.lax.optimization_barrier(written), self.before)

    def driven(self, force: Positions, values: Array) -> "Fields":
        """With values added at some points."""
        return self._replace(now=force.add(self.now, values))
