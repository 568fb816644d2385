"""The same model as `Acoustic` by a propagator outside JAX."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.selection import Selection
from ..models.base import Evaluation, Unravel
from ..models.external import HostModel, HostProducts, call_named
from .acoustic import M_PER_KM, Start, WaveModel, take_shots
from .scheme import Storage
from .survey import Survey


class Propagator(abc.ABC):
    """m u_tt − Δu = s for some shots of a survey, m in s²/m² on its cells; NumPy in and out.

    Traces are (shots, receivers, steps), the field at the start of every step, of a source that is
    divided by the volume of a cell.
    """

    name: str

    @abc.abstractmethod
    def simulate(self, m: np.ndarray, shots: np.ndarray, keep: bool) -> tuple[np.ndarray, Any]:
        """The traces and, to `keep` it, what the products at the same m need."""

    @abc.abstractmethod
    def push(self, m: np.ndarray, change: np.ndarray, kept: Any) -> np.ndarray:
        """The derivative of the traces along a change of m."""

    @abc.abstractmethod
    def pull(self, m: np.ndarray, xi: np.ndarray, kept: Any) -> np.ndarray:
        """The transpose of `push`."""


class OutsideWaves(WaveModel, HostModel):
    """θ ↦ traces, by a `Propagator`: the same θ, data, bounds and batches as `waves.Acoustic`."""

    survey: Survey
    start: Array
    update: Array
    shots: Array  # the numbers of those in use: a batch is some of them
    storage: Storage = eqx.field(static=True)
    propagator: Propagator = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __init__(self, survey: Survey, start: Start, propagator: Propagator):
        self.survey, self.propagator = survey, propagator
        self.start, self.update = start.slowness, start.update
        self.storage, self.order = start.storage, start.order
        self.shots = jnp.arange(survey.shots)

    def __call__(self, theta: Array) -> Array:
        return self._simulate(theta, keep=False).rho

    def evaluate(self, theta: Array) -> Evaluation:
        return self._simulate(theta, keep=True)

    def _simulate(self, theta: Array, keep: bool) -> Evaluation:
        m, shots = np.array(self.slowness(theta)), np.asarray(self.shots)
        traces, kept = call_named(self.propagator.name, self.propagator.simulate, m, shots, keep)
        return Evaluation(jnp.array(traces), kept)

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        theta = unravel(flat)
        found = self.evaluate(theta) if known is None else known
        m, waves = np.array(self.slowness(theta)), self.propagator
        weights = np.asarray(self.update) / M_PER_KM**2

        def push(eta: Array) -> Array:
            change = (weights * np.asarray(eta).reshape(m.shape)).astype(m.dtype)
            return jnp.array(call_named(waves.name, waves.push, m, change, found.kept))

        def pull(xi: Array) -> Array:
            image = call_named(waves.name, waves.pull, m, np.array(xi, m.dtype), found.kept)
            return jnp.array((weights * image).ravel(), flat.dtype)

        return HostProducts(found.rho, int(known is None), push, pull)

    def restricted(self, selection: Selection) -> "OutsideWaves":
        """Some of the shots."""
        return eqx.tree_at(lambda model: model.shots, self, self.shots[take_shots(selection)])
