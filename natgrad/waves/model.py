"""Recorded waves as a model: squared slowness ↦ data, with Born and adjoint products."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..counts import Counts
from ..errors import InputError
from ..models.base import Evaluation, Model
from ..models.products import Products
from ..selection import Selection
from .absorbing import damping_profile
from .positions import Positions, locate
from .scheme import Scheme
from .simulation import adjoint_image, linearised_data, simulate
from .survey import Survey
from .wavelets import highest_frequency

PyTree = Any
DEFAULT_MEMORY = 4 * 2**30


class Acoustic(Model):
    """m ↦ u at the receivers for every shot of a survey, m u_tt − Δu = s, m = 1/c² in s²/m².

    Second order in time, `order` 4 or 8 in space, `absorbing` cells of damping on every side.
    The source field is stored at every n-th step, n the smallest that fits into `memory` bytes,
    and serves all products at the same m.

    ```python
    model = ng.waves.Acoustic(survey, velocity)        # any velocity of the kind, for the checks
    data = model(1 / velocity**2)
    ```

    Cost: one propagation for ρ, for Zη and for Zᵀξ each.
    """

    survey: Survey
    sigma: Array
    wavelets: Array
    sources: Positions
    receivers: Positions
    scheme: Scheme = eqx.field(static=True)

    def __init__(
        self,
        survey: Survey,
        velocity: Array,
        *,
        order: int = 4,
        absorbing: int = 20,
        memory: int = DEFAULT_MEMORY,
        dtype: Any = jnp.float32,
    ):
        velocity = np.asarray(velocity, float)
        survey.check_velocity(velocity, order)
        self.survey = survey
        every = stored_every(survey, absorbing, memory, np.dtype(dtype).itemsize)
        scheme = Scheme(survey.spacing, survey.dt, survey.steps, order, absorbing, every)
        self.scheme = scheme
        profile = damping_profile(survey.shape, absorbing, survey.spacing, float(velocity.max()))
        self.sigma = jnp.asarray(profile, dtype)
        wavelets = np.broadcast_to(survey.wavelet, (survey.shots, survey.steps))
        self.wavelets = jnp.asarray(wavelets, dtype)
        place = lambda name, points: locate(name, points, survey.shape, survey.spacing, scheme.rim)
        shots = place("sources", survey.sources)
        self.sources = Positions(shots.cells[:, None], shots.weights[:, None])
        self.receivers = place("receivers", survey.receivers)

    def __call__(self, theta: Array) -> Array:
        return self._simulated(theta, store=False)[0]

    def evaluate(self, theta: Array) -> Evaluation:
        return Evaluation(*self._simulated(theta, store=True))

    def _simulated(self, theta: Array, store: bool) -> tuple[Array, Array | None]:
        m = theta.astype(self.sigma.dtype)
        return simulate(
            m, self.sigma, self.wavelets, self.sources, self.receivers, self.scheme, store
        )

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> "WaveProducts":
        theta = unravel(flat)
        found = self.evaluate(theta) if known is None else known
        return WaveProducts(found.rho, int(known is None), theta, found.kept, self)

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
        shots = (self.wavelets, self.sources)
        chosen = jax.tree.map(lambda x: x[selection.rows], shots)
        return eqx.tree_at(lambda model: (model.wavelets, model.sources), self, chosen)

    @property
    def solves(self) -> bool:
        return True


class WaveProducts(Products):
    """Born and adjoint propagations at one m, with its stored fields."""

    rho: Array
    evaluations: int = eqx.field(static=True)
    theta: Array
    stored: Array
    model: Acoustic

    def push(self, eta: Array) -> Array:
        m = self.theta.astype(self.rho.dtype)
        change = eta.reshape(m.shape).astype(m.dtype)
        model = self.model
        return linearised_data(m, model.sigma, change, self.stored, model.receivers, model.scheme)

    def pull(self, xi: Array) -> Array:
        m = self.theta.astype(self.rho.dtype)
        model = self.model
        image = adjoint_image(
            m, model.sigma, xi.astype(m.dtype), self.stored, model.receivers, model.scheme
        )
        return image.ravel().astype(self.theta.dtype)


def stored_every(survey: Survey, absorbing: int, memory: int, itemsize: int) -> int:
    """The smallest number of steps between stored fields that fits into the memory.

    At most as many as sample the wavelet's highest frequency four times a period.
    """
    cells = int(np.prod([n + 2 * absorbing for n in survey.shape]))
    needed = survey.shots * survey.steps * cells * itemsize
    every = max(1, -(-needed // memory))
    period = 1.0 / (highest_frequency(survey.wavelet, survey.dt) * survey.dt)
    largest = max(1, int(period / 4))
    if every > largest:
        smallest = needed / largest / 2**30
        what = (
            f"the stored fields take {needed / 2**30:.2g} GiB, or {smallest:.2g} GiB when thinned"
        )
        raise InputError("memory", what, "more memory, fewer shots at a time, or checkpoints")
    return every
