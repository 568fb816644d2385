"""What is fixed about a simulation: spacing, time steps, order, layer, storage."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from .stencils import halo

BUFFERS = 3


class Scheme(NamedTuple):
    """The numbers of a discretisation, and how much of the source field is kept.

    Time is cut into blocks of `every` steps, with q taken at the start of each. `segment` blocks
    lie between two checkpoints; where it is None, q itself is stored.
    """

    spacing: tuple[float, ...]
    dt: float
    steps: int
    order: int
    absorbing: int
    every: int
    segment: int | None = None

    @property
    def rim(self) -> int:
        """Cells between the edge of an array and the model: the layer and the halo."""
        return self.absorbing + halo(self.order)

    @property
    def inside(self) -> tuple:
        """The cells of a field without its halo, whatever its leading axes."""
        width = halo(self.order)
        return (..., *(slice(width, -width),) * len(self.spacing))

    @property
    def unroll(self) -> int:
        """Blocks in the body of a loop, so that the rotating buffers return to their places."""
        return 1 if self.every % BUFFERS == 0 else BUFFERS

    @property
    def blocks(self) -> int:
        """How many, filled up to whole segments."""
        group = self.segment or 1
        return -(-self.steps // (self.every * group)) * group

    def cut(self, xs: Array) -> Array:
        """Traces (shots, …, steps) as (blocks, every, shots, …), zeros filling up the last."""
        missing = self.blocks * self.every - xs.shape[-1]
        rows = jnp.pad(jnp.moveaxis(xs, -1, 0), ((0, missing), *[(0, 0)] * (xs.ndim - 1)))
        return rows.reshape(self.blocks, self.every, *xs.shape[:-1])

    def joined(self, data: Array) -> Array:
        """Data (blocks, every, shots, receivers) as traces (shots, receivers, steps)."""
        rows = data.reshape(-1, *data.shape[2:])[: self.steps]
        return jnp.moveaxis(rows, 0, -1)

    def segments(self, blocks: Array) -> Array:
        """(blocks, …) as (segments, blocks of one, …)."""
        assert self.segment is not None
        return blocks.reshape(-1, self.segment, *blocks.shape[1:])
