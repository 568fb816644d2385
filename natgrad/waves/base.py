"""What models of waves share, whoever propagates: θ and its bounds, and what is stored.

`Acoustic` propagates in JAX; `OutsideWaves` is the same model by a propagator outside JAX.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.selection import Selection
from ..core.settings import check_integer
from ..errors import InputError
from ..models.base import Evaluation, Model, Unravel
from ..models.external import HostModel, HostProducts, call_named
from .scheme import Layer, halo
from .survey import Survey, highest_frequency

M_PER_KM = 1000.0
DEFAULT_MEMORY = 2 * 2**30

# A thinned field must sample the highest frequency of the wavelet at least this often a period:
# at 4 the products differ from those of the whole field by the share stated in docs/waves.md.
SAMPLES_A_PERIOD = 4.0


def squared_slowness(velocity: Any) -> Any:
    """m = 1/c² in s²/km², numbers near one: 0.44 for water.

    ```python
    theta0 = ng.waves.squared_slowness(velocity)
    ```
    """
    return (M_PER_KM / _as_array(velocity)) ** 2


def velocity_of(theta: Any) -> Any:
    """c = m^(−1/2) in m/s."""
    return M_PER_KM / _as_array(theta) ** 0.5


def _as_array(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, (np.ndarray, float, int)) else jnp.asarray(x)


class Storage(NamedTuple):
    """Every n-th response, or the fields at the start of every segment of `segment` blocks."""

    every: int
    segment: int | None
    bytes: int


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


def take_shots(selection: Selection) -> Array:
    """The shots of a mini-batch, or `InputError` where it is one of something else."""
    if selection.of != "functions":
        what = "waves cannot be computed at a sample of times and receivers"
        raise InputError("batch", what, "MiniBatch(size, of='functions'): whole shots")
    return selection.rows


class Start(NamedTuple):
    """The squared slowness to start from, the weights of its cells, and what will be stored."""

    slowness: Array
    update: Array
    storage: Storage


def check_start(
    survey: Survey,
    velocity: Any,
    update: Any,
    order: int,
    absorbing: int,
    memory: int,
    stored_every: int | None,
    dtype: Any,
) -> Start:
    """What a model of waves starts from, given its arguments, or `InputError`."""
    width = halo(order)
    check_integer(absorbing, "absorbing", 0, example=20)
    if stored_every is not None:
        check_integer(stored_every, "stored_every", 1)
    velocity = np.asarray(velocity, float)
    survey.check_velocity(velocity, order)
    size = np.dtype(dtype).itemsize
    storage = plan_storage(survey, absorbing, width, size, memory, stored_every)
    weights = np.ones(survey.shape) if update is None else np.asarray(update, float)
    if weights.shape != survey.shape:
        what = f"has shape {weights.shape}, the survey's grid {survey.shape}"
        raise InputError("update", what, "a weight for every cell")
    if not (np.all(weights >= 0) and np.all(weights <= 1) and np.any(weights > 0)):
        raise InputError(
            "update", "is not between 0 and 1, or all zero", "0 in known cells, else 1"
        )
    slowness = jnp.asarray(squared_slowness(velocity), dtype)
    return Start(slowness, jnp.asarray(weights, dtype), storage)


def plan_storage(
    survey: Survey, absorbing: int, halo: int, itemsize: int, memory: int, every: int | None
) -> Storage:
    """The densest storage that fits into `memory` bytes, else checkpoints, else `InputError`.

    n is 1, 2 or a multiple of 3, for which the loop over time is shortest; `every` prescribes it.
    """
    cells = int(np.prod([n + 2 * absorbing for n in survey.shape]))
    field = survey.shots * itemsize * cells
    wanted = _possible_spacings(survey) if every is None else [every]
    for n in wanted:
        if (needed := -(-survey.steps // n) * field) <= memory:
            return Storage(n, None, needed)
    n = wanted[0]
    blocks = -(-survey.steps // n)
    padded = int(np.prod([side + 2 * (absorbing + halo) for side in survey.shape]))
    two_fields = 2 * survey.shots * itemsize * padded
    segments = max(1, round(float(np.sqrt(blocks * field / two_fields))))
    length = -(-blocks // segments)
    needed = -(-blocks // length) * two_fields + length * field
    if needed > memory:
        stored = -(-survey.steps // wanted[-1]) * field
        raise InputError(
            "memory",
            f"{_format_bytes(memory)} hold neither the source field of {survey.shots} shots "
            f"({_format_bytes(stored)} at every {wanted[-1]}. step) "
            f"nor its checkpoints ({_format_bytes(needed)})",
            "more memory, or mini-batches of shots: batch=ng.MiniBatch(size, of='functions')",
        )
    return Storage(n, length, needed)


def _possible_spacings(survey: Survey) -> list[int]:
    """Steps between stored fields that still sample the waves, from dense to thin."""
    period = 1.0 / (highest_frequency(survey.wavelet, survey.dt) * survey.dt)
    longest = int(period / SAMPLES_A_PERIOD)
    return [n for n in range(1, max(2, longest + 1)) if n <= 2 or n % 3 == 0]


def _format_bytes(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**28 else f"{count / 2**20:.3g} MiB"


def make_layer(survey: Survey, order: int, absorbing: int, dtype: Any) -> Layer:
    """The absorbing layer: one of the survey, so that models can differ."""
    typical = 0.5 * survey.fastest_stable(order)
    return Layer.around(survey.shape, absorbing, survey.spacing, typical).astype(dtype)


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
    _order: int = eqx.field(static=True)

    def __init__(self, survey: Survey, start: Start, order: int, propagator: Propagator):
        self.survey, self._order, self.propagator = survey, order, propagator
        self.start, self.update, self.storage = start
        self.shots = jnp.arange(survey.shots)

    @property
    def order(self) -> int:
        return self._order

    def __call__(self, theta: Array) -> Array:
        return self._simulate(theta, keep=False).rho

    def evaluate(self, theta: Array) -> Evaluation:
        return self._simulate(theta, keep=True)

    def _simulate(self, theta: Array, keep: bool) -> Evaluation:
        m, shots = np.array(self.medium(theta)), np.asarray(self.shots)
        traces, kept = call_named(self.propagator.name, self.propagator.simulate, m, shots, keep)
        return Evaluation(jnp.asarray(traces), kept)

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        theta = unravel(flat)
        found = self.evaluate(theta) if known is None else known
        m, waves = np.array(self.medium(theta)), self.propagator
        weights = np.asarray(self.update) / M_PER_KM**2

        def push(eta: Array) -> Array:
            change = (weights * np.asarray(eta).reshape(m.shape)).astype(m.dtype)
            return jnp.asarray(call_named(waves.name, waves.push, m, change, found.kept))

        def pull(xi: Array) -> Array:
            image = call_named(waves.name, waves.pull, m, np.array(xi, m.dtype), found.kept)
            return jnp.asarray((weights * image).ravel(), flat.dtype)

        return HostProducts(found.rho, int(known is None), push, pull)

    def restricted(self, selection: Selection) -> "OutsideWaves":
        """Some of the shots."""
        return eqx.tree_at(lambda model: model.shots, self, self.shots[take_shots(selection)])
