"""Waves by a propagator outside JAX, in the units and with the conventions of `waves.Acoustic`."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.selection import Selection
from ..models.base import Evaluation
from ..models.external import HostModel, HostProducts, named
from ..waves.base import Start, WaveModel, whole_shots
from ..waves.slowness import M_PER_KM
from ..waves.storage import Storage
from ..waves.survey import Survey


class Propagator(abc.ABC):
    """m u_tt − Δu = s for some shots of a survey, m in s²/m² on its cells; NumPy in and out.

    Traces are (shots, receivers, steps), the field at the start of every step, of a source that is
    divided by the volume of a cell.
    """

    name: str

    @abc.abstractmethod
    def data(self, m: np.ndarray, shots: np.ndarray, keep: bool) -> tuple[np.ndarray, Any]:
        """The traces and, to `keep` it, what the products at the same m need."""

    @abc.abstractmethod
    def linearised(self, m: np.ndarray, change: np.ndarray, kept: Any) -> np.ndarray:
        """The derivative of the traces along a change of m."""

    @abc.abstractmethod
    def image(self, m: np.ndarray, xi: np.ndarray, kept: Any) -> np.ndarray:
        """The transpose of `linearised`."""


class OutsideWaves(WaveModel, HostModel):
    """θ ↦ traces, by a `Propagator`: the same θ, data, bounds and batches as `waves.Acoustic`."""

    survey: Survey
    start: Array
    update: Array
    shots: Array  # the numbers of those in use: a batch is some of them
    storage: Storage = eqx.field(static=True)
    propagator: Propagator = eqx.field(static=True)
    _order: int = eqx.field(static=True)

    def __init__(self, survey: Survey, start: Start, order: int, propagator: Propagator):
        self.survey, self._order, self.propagator = survey, order, propagator
        self.start, self.update, self.storage = start
        self.shots = jnp.arange(survey.shots)

    @property
    def order(self) -> int:
        return self._order

    def __call__(self, theta: Array) -> Array:
        return self._simulated(theta, keep=False).rho

    def evaluate(self, theta: Array) -> Evaluation:
        return self._simulated(theta, keep=True)

    def _simulated(self, theta: Array, keep: bool) -> Evaluation:
        m, shots = np.array(self.medium(theta)), np.asarray(self.shots)
        traces, kept = named(self.propagator.name, self.propagator.data, m, shots, keep)
        return Evaluation(jnp.asarray(traces), kept)

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        theta = unravel(flat)
        found = self.evaluate(theta) if known is None else known
        m, waves = np.array(self.medium(theta)), self.propagator
        weights = np.asarray(self.update) / M_PER_KM**2

        def push(eta: Array) -> Array:
            change = (weights * np.asarray(eta).reshape(m.shape)).astype(m.dtype)
            return jnp.asarray(named(waves.name, waves.linearised, m, change, found.kept))

        def pull(xi: Array) -> Array:
            image = named(waves.name, waves.image, m, np.array(xi, m.dtype), found.kept)
            return jnp.asarray((weights * image).ravel(), flat.dtype)

        return HostProducts(found.rho, int(known is None), push, pull)

    def restricted(self, selection: Selection) -> "OutsideWaves":
        """Some of the shots."""
        rows = whole_shots(selection)
        return eqx.tree_at(lambda model: model.shots, self, self.shots[rows])
