"""Recorded waves as a model: squared slowness ↦ traces, with Born and adjoint products."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.selection import Selection
from ..core.sharding import replace_mesh, row_mesh
from ..models.base import Evaluation, Products, Unravel
from .base import DEFAULT_MEMORY, M_PER_KM, Storage, WaveModel, check_start, make_layer, take_shots
from .propagation import Gathers, Simulator
from .scheme import Layer, Scheme
from .survey import Survey


class Acoustic(WaveModel):
    """θ ↦ u at the receivers, for every shot of a survey: m u_tt − Δu = s, m = θ = 1/c² in s²/km².

    Second order in time, `order` 4 or 8 in space, with `absorbing` cells of a layer around the
    model. `velocity`, in m/s, is the starting model, checked against dt and the wavelet.
    `update` is a weight between 0 and 1 for every cell, 0 where the velocity is known:
    m = m₀ + update · (θ − m₀).

    The products need the source field of every shot. It is stored at every n-th step, n the
    smallest that fits into `memory` bytes, or recomputed from checkpoints where none does;
    `stored_every` prescribes n. 1 gives the derivative of the discrete data to rounding. A run
    holds two of these fields, that of θ and that of a trial step. The shots are dealt out to the
    `devices`: `jax.devices()` for all GPUs, or for all cores of a CPU that was split into devices
    before its first use, `jax.config.update("jax_num_cpu_devices", 2)`.

    ```python
    model = ng.waves.Acoustic(survey, start)
    result = ng.minimize(
        ng.Problem(model, ng.LeastSquares(shots.data, survey.gather_grid)),
        ng.waves.squared_slowness(start),
        metric=ng.L2(survey.gather_grid),
        bounds=model.bounds(1400.0, 6000.0),
    )
    ```

    Cost: one propagation for ρ, for Zη and for Zᵀξ each; with checkpoints two for a product.
    """

    any_mesh: ClassVar[bool] = True

    survey: Survey
    layer: Layer
    start: Array
    update: Array
    gathers: Gathers
    scheme: Scheme = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    storage: Storage = eqx.field(static=True)

    def __init__(
        self,
        survey: Survey,
        velocity: Any,
        *,
        update: Any = None,
        order: int = 4,
        absorbing: int = 20,
        memory: int = DEFAULT_MEMORY,
        stored_every: int | None = None,
        devices: Sequence[Any] | None = None,
        dtype: Any = jnp.float32,
    ):
        arguments = (survey, velocity, update, order, absorbing, memory, stored_every, dtype)
        self.start, self.update, self.storage = check_start(*arguments)
        every, segment, _ = self.storage
        self.survey = survey
        self.scheme = Scheme(
            survey.spacing, survey.dt, survey.steps, order, absorbing, every, segment
        )
        self.mesh = row_mesh(devices) if devices is not None and len(devices) > 1 else None
        self.layer = make_layer(survey, order, absorbing, dtype)
        self.gathers = Gathers.of(survey, self.scheme.rim, dtype)

    def __call__(self, theta: Array) -> Array:
        return self._simulate(theta, keep=False)[0]

    def evaluate(self, theta: Array) -> Evaluation:
        return Evaluation(*self._simulate(theta, keep=True))

    def _simulate(self, theta: Array, keep: bool) -> tuple[Array, PyTree]:
        return self.simulator.simulate(self.medium(theta), self.layer, self.gathers, keep)

    @property
    def simulator(self) -> Simulator:
        """The propagations of this scheme on these devices."""
        return Simulator(self.scheme, self.mesh)

    @property
    def order(self) -> int:
        return self.scheme.order

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> "WaveProducts":
        theta = unravel(flat)
        found = self.evaluate(theta) if known is None else known
        made, m = int(known is None), self.medium(theta)
        return WaveProducts(found.rho, made, m, found.kept, self, flat.dtype)

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        products = self.products(unravel, flat, known)
        columns = jax.lax.map(products.push, jnp.eye(flat.size, dtype=flat.dtype))
        return products.rho, columns, Counts(products.evaluations, flat.size, 0)

    def restricted(self, selection: Selection) -> "Acoustic":
        """Some of the shots."""
        rows = take_shots(selection)
        chosen = jax.tree.map(lambda x: x[rows], self.gathers)
        return eqx.tree_at(lambda model: model.gathers, self, chosen)

    def distributed(self, mesh: Mesh) -> "Acoustic":
        """Each device has some of the shots."""
        return replace_mesh(self, mesh)


class WaveProducts(Products):
    """Born and adjoint propagations at one m, with what was kept of its source fields."""

    rho: Array
    evaluations: int = eqx.field(static=True)
    medium: Array
    kept: PyTree
    model: Acoustic
    dtype: Any = eqx.field(static=True)  # of θ

    def push(self, eta: Array) -> Array:
        model, m = self.model, self.medium
        change = model.update * eta.reshape(m.shape).astype(m.dtype) / M_PER_KM**2
        return model.simulator.push(m, model.layer, change, self.kept, model.gathers)

    def pull(self, xi: Array) -> Array:
        model, m = self.model, self.medium
        xi = xi.astype(m.dtype)
        image = model.simulator.pull(m, model.layer, xi, self.kept, model.gathers)
        return (model.update * image / M_PER_KM**2).ravel().astype(self.dtype)
