"""Recorded waves as a model: squared slowness ↦ traces, with Born and adjoint products."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from ..counts import Counts
from ..errors import InputError
from ..meshes import with_mesh
from ..models.base import Evaluation, Model
from ..models.products import Products
from ..selection import Selection
from .absorbing import Layer
from .devices import Simulator, shot_mesh
from .positions import Positions, locate
from .scheme import Scheme
from .simulation import Gathers
from .slowness import M_PER_KM, squared_slowness, velocity_of
from .stencils import halo
from .storage import plan_storage
from .survey import Survey

PyTree = Any
DEFAULT_MEMORY = 2 * 2**30


class Acoustic(Model):
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

    survey: Survey
    layer: Layer
    start: Array
    update: Array
    gathers: Gathers
    scheme: Scheme = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    stored_bytes: int = eqx.field(static=True)

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
        halo(order)
        if int(absorbing) != absorbing or absorbing < 0:
            raise InputError("absorbing", f"{absorbing!r} is no number of cells", "absorbing=20")
        if stored_every is not None and (int(stored_every) != stored_every or stored_every < 1):
            raise InputError("stored_every", f"{stored_every!r} is not positive", "None, or 1")
        velocity = np.asarray(velocity, float)
        survey.check_velocity(velocity, order)
        kept = plan_storage(
            survey, absorbing, halo(order), np.dtype(dtype).itemsize, memory, stored_every
        )
        self.survey = survey
        self.scheme = Scheme(
            survey.spacing, survey.dt, survey.steps, order, absorbing, kept.every, kept.segment
        )
        self.mesh, self.stored_bytes = shot_mesh(devices), kept.bytes
        typical = 0.5 * survey.fastest_stable(order)  # of the survey, so that models can differ
        layer = Layer.around(survey.shape, absorbing, survey.spacing, typical)
        self.layer = layer.astype(dtype)
        self.start = jnp.asarray(squared_slowness(velocity), dtype)
        self.update = jnp.asarray(_weights(update, survey), dtype)
        self.gathers = _gathers(survey, self.scheme.rim, dtype)

    def __call__(self, theta: Array) -> Array:
        return self._simulated(theta, keep=False)[0]

    def evaluate(self, theta: Array) -> Evaluation:
        return Evaluation(*self._simulated(theta, keep=True))

    def _simulated(self, theta: Array, keep: bool) -> tuple[Array, PyTree]:
        return self.simulator.data(self.medium(theta), self.layer, self.gathers, keep)

    @property
    def simulator(self) -> Simulator:
        """The propagations of this scheme on these devices."""
        return Simulator(self.scheme, self.mesh)

    def medium(self, theta: Array) -> Array:
        """The squared slowness that θ stands for, in s²/m²."""
        if np.shape(theta) != self.survey.shape:
            what = f"has shape {np.shape(theta)}, the survey's grid {self.survey.shape}"
            raise InputError("theta", what, "ng.waves.squared_slowness(velocity)")
        theta = jnp.asarray(theta).astype(self.start.dtype)
        return (self.start + self.update * (theta - self.start)) / M_PER_KM**2

    def bounds(self, lowest: float, highest: float) -> tuple[Array, Array]:
        """Bounds on θ for velocities between these, in m/s; stable ones, or `InputError`."""
        if not 0 < lowest < highest < np.inf:
            raise InputError("lowest", f"{lowest!r} m/s is not below {highest!r}", "(1400, 6000)")
        self.survey.check_stable(highest, self.scheme.order)
        flat = lambda velocity: jnp.full(self.survey.shape, squared_slowness(float(velocity)))
        return flat(highest), flat(lowest)

    def check(self, theta: PyTree, known: Evaluation) -> None:
        medium = self.medium(theta) * M_PER_KM**2
        self.survey.check_velocity(np.asarray(velocity_of(medium), float), self.scheme.order)

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> "WaveProducts":
        theta = unravel(flat)
        found = self.evaluate(theta) if known is None else known
        made, m = int(known is None), self.medium(theta)
        return WaveProducts(found.rho, made, m, found.kept, self, flat.dtype)

    def jacobian(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        products = self.products(unravel, flat, known)
        columns = jax.lax.map(products.push, jnp.eye(flat.size, dtype=flat.dtype))
        return products.rho, columns, Counts(products.evaluations, flat.size, 0)

    def restricted(self, selection: Selection) -> "Acoustic":
        """Some of the shots."""
        if selection.of != "functions":
            what = "waves cannot be computed at a sample of times and receivers"
            raise InputError("batch", what, "MiniBatch(size, of='functions'): whole shots")
        chosen = jax.tree.map(lambda x: x[selection.rows], self.gathers)
        return eqx.tree_at(lambda model: model.gathers, self, chosen)

    def distributed(self, mesh: Mesh) -> "Acoustic":
        """Each device has some of the shots."""
        return with_mesh(self, mesh)

    @property
    def any_mesh(self) -> bool:
        return True

    @property
    def solves(self) -> bool:
        return True


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
        return model.simulator.linearised(m, model.layer, change, self.kept, model.gathers)

    def pull(self, xi: Array) -> Array:
        model, m = self.model, self.medium
        xi = xi.astype(m.dtype)
        image = model.simulator.image(m, model.layer, xi, self.kept, model.gathers)
        return (model.update * image / M_PER_KM**2).ravel().astype(self.dtype)


def _weights(update: Any, survey: Survey) -> np.ndarray:
    weights = np.ones(survey.shape) if update is None else np.asarray(update, float)
    if weights.shape != survey.shape:
        what = f"has shape {weights.shape}, the survey's grid {survey.shape}"
        raise InputError("update", what, "a weight for every cell")
    if not (np.all(weights >= 0) and np.all(weights <= 1) and np.any(weights > 0)):
        raise InputError(
            "update", "is not between 0 and 1, or all zero", "0 in known cells, else 1"
        )
    return weights


def _gathers(survey: Survey, rim: int, dtype: Any) -> Gathers:
    count = survey.shots
    place = lambda name, points: locate(name, points, survey.shape, survey.spacing, rim)
    cells, weights = place("sources", survey.sources)
    weights = weights / np.prod(survey.spacing)  # s(t)δ(x − xₛ), whatever the grid
    source = Positions(jnp.asarray(cells[:, None]), jnp.asarray(weights[:, None], dtype))
    cells, weights = place("receivers", survey.receivers)
    each_shot = lambda x: jnp.broadcast_to(x, (count, *np.shape(x)))
    receivers = Positions(each_shot(cells), each_shot(jnp.asarray(weights, dtype)))
    wavelets = np.broadcast_to(survey.wavelet, (count, survey.steps))
    return Gathers(jnp.asarray(wavelets, dtype), source, receivers)
