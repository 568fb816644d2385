"""What models of waves share, whoever propagates: θ, its bounds and the cells it may change."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.selection import Selection
from ..errors import InputError
from ..models.base import Evaluation, Model
from .absorbing import Layer
from .slowness import M_PER_KM, squared_slowness, velocity_of
from .stencils import halo
from .storage import Storage, plan_storage
from .survey import Survey

DEFAULT_MEMORY = 2 * 2**30


class WaveModel(Model):
    """θ ↦ traces (shots, receivers, steps), θ = 1/c² in s²/km² on the survey's grid."""

    survey: eqx.AbstractVar[Survey]
    start: eqx.AbstractVar[Array]  # the squared slowness of the starting model
    update: eqx.AbstractVar[Array]  # how far each cell follows θ, from 0 to 1
    storage: eqx.AbstractVar[Storage]  # what is kept for the products

    @property
    @abc.abstractmethod
    def order(self) -> int:
        """That of the differences in space."""

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
        self.survey.check_stable(highest, self.order)
        flat = lambda velocity: jnp.full(self.survey.shape, squared_slowness(float(velocity)))
        return flat(highest), flat(lowest)

    def check(self, theta: PyTree, known: Evaluation) -> None:
        medium = self.medium(theta) * M_PER_KM**2
        self.survey.check_velocity(np.asarray(velocity_of(medium), float), self.order)

    @property
    def solves(self) -> bool:
        return True


class Start(NamedTuple):
    """The squared slowness to start from, the weights of its cells, and what will be stored."""

    slowness: Array
    update: Array
    storage: Storage

    @classmethod
    def checked(
        cls,
        survey: Survey,
        velocity: Any,
        update: Any,
        order: int,
        absorbing: int,
        memory: int,
        stored_every: int | None,
        dtype: Any,
    ) -> "Start":
        """That of a model's arguments, or `InputError`."""
        width = halo(order)
        if int(absorbing) != absorbing or absorbing < 0:
            raise InputError("absorbing", f"{absorbing!r} is no number of cells", "absorbing=20")
        if stored_every is not None and (int(stored_every) != stored_every or stored_every < 1):
            raise InputError("stored_every", f"{stored_every!r} is not positive", "None, or 1")
        velocity = np.asarray(velocity, float)
        survey.check_velocity(velocity, order)
        size = np.dtype(dtype).itemsize
        storage = plan_storage(survey, absorbing, width, size, memory, stored_every)
        weights = jnp.asarray(_weights(update, survey), dtype)
        return cls(jnp.asarray(squared_slowness(velocity), dtype), weights, storage)


def layer_around(survey: Survey, order: int, absorbing: int, dtype: Any) -> Layer:
    """The absorbing layer: one of the survey, so that models can differ."""
    typical = 0.5 * survey.fastest_stable(order)
    return Layer.around(survey.shape, absorbing, survey.spacing, typical).astype(dtype)


def whole_shots(selection: Selection) -> Array:
    """The shots of a mini-batch, or `InputError` where it is one of something else."""
    if selection.of != "functions":
        what = "waves cannot be computed at a sample of times and receivers"
        raise InputError("batch", what, "MiniBatch(size, of='functions'): whole shots")
    return selection.rows


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
