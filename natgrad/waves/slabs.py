"""One shot on several devices: each has a slab of the grid, and halos are exchanged in every step.

The grid is cut across the last axis but one of the fields, the longest beside that of the inner
loops. A slab is a `Medium` of its own. Its halo along the cut holds u of the neighbours, and zeros
at the ends of the grid; nothing else of a step reaches across the cut, since the memories of an
axis are differenced along that axis alone, and those of the cut lie in the slabs at the ends. All
slabs run the same program: the inner ones have strips too, with filters that are zero there.

Each device records what its own cells give, and injects into them; traces and images are summed
over the slabs once, at the end.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from ..core.settings import replace_fields
from ..core.sharding import AXIS
from .scheme import Fields, Layer, Medium, Positions, Scheme, Strip

SLABS = "slabs"
LEAST = 2**17  # cells of a slab, lest devices mostly wait for each other; not measured


def count_slabs(mesh: Mesh | None, shots: int, shape: Sequence[int], scheme: Scheme) -> int:
    """How many devices share a shot: as many as have none of their own, if they divide the grid."""
    if mesh is None:
        return 1
    sides = [shape[i] + 2 * scheme.absorbing for i in scheme.axes]
    cells, across = int(np.prod(sides)), sides[-2]
    thinnest = 2 * scheme.strip if scheme.absorbing else scheme.halo
    fits = lambda k: across % k == 0 and across >= k * thinnest and cells >= k * LEAST
    each = range(mesh.size // shots, 1, -1)
    return next((k for k in each if mesh.size % k == 0 and fits(k)), 1)


def spread(medium: Medium, shots: int, mesh: Mesh | None) -> tuple[Medium, Mesh | None]:
    """The medium, to be cut where devices share shots, and the mesh with its groups of devices."""
    count = count_slabs(mesh, shots, medium.slowness.shape, medium.scheme)
    if mesh is None or count == 1 or medium.scheme.boundary:
        return medium, mesh
    scheme = medium.scheme._replace(slab_axis=medium.slowness.ndim - 2)
    groups = Mesh(mesh.devices.reshape(-1, count), (AXIS, SLABS))
    return replace_fields(medium, scheme=scheme), groups


class Slab(Medium):
    """The part of a medium that this device has."""

    def __init__(self, medium: Medium):
        self.slowness, self.scheme = medium.slowness, medium.scheme
        self.weight, lines = self._part(medium.weight), list(medium.layer.lines)
        if lines:
            psi, zeta = lines[self._axis]
            lines[self._axis] = self._part(psi, 1), self._part(zeta, 1)
        self.layer = Layer(tuple(lines))
        n, across = self.weight.shape[self._axis], medium.weight.shape[self._axis]
        own = lambda count, last: (n - count if last else 0, count) if count < across else (0, n)
        self.strips = tuple(
            Strip(axis, *own(count, begin > 0)) if axis == self._axis else Strip(axis, begin, count)
            for axis, begin, count in medium.strips
        )

    @property
    def _axis(self) -> int:
        assert self.scheme.slab_axis is not None
        return self.scheme.slab_axis

    def _part(self, x: Array, axis: int | None = None) -> Array:
        axis = self._axis if axis is None else axis
        width = x.shape[axis] // jax.lax.axis_size(SLABS)
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(SLABS) * width, width, axis)

    def extend(self, eta: Array) -> Array:
        return self._part(super().extend(eta))

    def advance(self, fields: Fields, *given: Any, **options: Any) -> Fields:
        """That of a medium, with u of the neighbours in the halo."""
        u, axis, halo = fields.now.u, 1 + self._axis, self.scheme.halo
        end, count = u.shape[axis] - halo, jax.lax.axis_size(SLABS)
        part = lambda begin: jax.lax.slice_in_dim(u, begin, begin + halo, axis=axis)
        # what no device sends is zero, as u is beyond the grid
        send = lambda x, pairs: jax.lax.ppermute(x, SLABS, pairs)
        low = send(part(end - halo), [(i, i + 1) for i in range(count - 1)])
        high = send(part(halo), [(i + 1, i) for i in range(count - 1)])
        u = jax.lax.dynamic_update_slice_in_dim(u, low, 0, axis)
        u = jax.lax.dynamic_update_slice_in_dim(u, high, end, axis)
        return super().advance(fields._replace(now=fields.now._replace(u=u)), *given, **options)

    def within(self, points: Positions) -> Positions:
        """The points in this slab; those of others get weights of zero."""
        width, halo = self.weight.shape[self._axis], self.scheme.halo
        along = points.cells[..., self._axis] - jax.lax.axis_index(SLABS) * width
        mine = (along >= halo) & (along < halo + width)
        along = jnp.clip(along, halo, halo + width - 1)
        cells = points.cells.at[..., self._axis].set(along)
        return Positions(cells, jnp.where(mine, points.weights, 0))
