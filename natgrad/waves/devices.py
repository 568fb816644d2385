"""Shots spread over several devices: the cores of a CPU, or several GPUs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from ..core.sharding import AXIS, row_mesh
from .absorbing import Layer
from .scheme import Scheme
from .simulation import Gathers, adjoint_image, linearised_data, simulate


def shot_mesh(devices: Sequence[Any] | None) -> Mesh | None:
    """The devices in a row; None for one device, or none named."""
    if devices is None or len(devices) < 2:
        return None
    return row_mesh(devices)


class Simulator:
    """The three propagations of a scheme, with the shots dealt out to the devices of a mesh.

    Each device keeps the source fields of its own shots; only the image is summed over them. If
    the devices do not divide the shots, silent shots fill up the last ones.
    """

    def __init__(self, scheme: Scheme, mesh: Mesh | None):
        self.scheme, self.mesh = scheme, mesh

    def data(self, m: Array, layer: Layer, shots: Gathers, keep: bool) -> tuple[Array, PyTree]:
        """The data of every shot, and what is kept for the products."""
        run = partial(simulate, scheme=self.scheme, keep=keep)
        kept = P(None, AXIS) if keep else P()
        rho, kept = self._dealt(run, (P(AXIS), kept), (m, layer), (), (shots,))
        return rho[: len(shots.wavelet)], kept

    def linearised(self, m: Array, layer: Layer, eta: Array, kept: PyTree, shots: Gathers) -> Array:
        """Zη."""
        run = lambda m, layer, eta, kept, shots: linearised_data(
            m, layer, eta, kept, shots, self.scheme
        )
        data = self._dealt(run, P(AXIS), (m, layer, eta), (kept,), (shots,))
        return data[: len(shots.wavelet)]

    def image(self, m: Array, layer: Layer, xi: Array, kept: PyTree, shots: Gathers) -> Array:
        """Zᵀξ."""

        def run(m: Array, layer: Layer, kept: PyTree, xi: Array, shots: Gathers) -> Array:
            part = adjoint_image(m, layer, xi, kept, shots, self.scheme)
            return part if self.mesh is None else jax.lax.psum(part, AXIS)

        return self._dealt(run, P(), (m, layer), (kept,), (xi, shots))

    def _dealt(self, run: Callable, out: PyTree, whole: tuple, kept: tuple, rows: tuple) -> Any:
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
