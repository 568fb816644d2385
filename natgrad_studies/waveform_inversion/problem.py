"""The experiment: the true model, the waves recorded over it, and where the inversion starts."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.ndimage import gaussian_filter

from natgrad import InputError, LeastSquares, Problem
from natgrad.interop import Deepwave, Devito
from natgrad.waves import (
    Acoustic,
    Shots,
    Survey,
    TraceWasserstein,
    WaveModel,
    coarsened,
    faulted_layers,
    folded_layers,
    load_velocity,
    salt_body,
    smoothed,
    squared_slowness,
    velocity_of,
)

from .settings import Settings

SHAPE = (306, 120)
SECTIONS = {"folded": folded_layers, "faulted": faulted_layers, "salt": salt_body}
SIGMA, TRUNCATE = 1.5, 3.5  # of the window of structural similarity


class Engine(NamedTuple):
    """A propagator: what makes a model from a survey and a velocity, and where it runs.

    `model(survey, velocity, update=..., memory=...)`; `place` is in words.
    """

    model: Callable[..., Any]
    place: str

    @classmethod
    def of(cls, settings: Settings) -> "Engine":
        """This package, deepwave or devito; an `InputError` if that is not installed."""
        settings.check_packages()
        if settings.engine == "jax":
            found = _choose_devices(settings)
            place = f"{len(found)} × {jax.devices()[0].device_kind}"
            return cls(partial(Acoustic, devices=found), place)
        if settings.engine == "devito":
            return cls(Devito, "devito")
        device = "cuda" if import_module("torch").cuda.is_available() else "cpu"
        return cls(partial(Deepwave, device=device), f"deepwave, {device}")


def _choose_devices(settings: Settings) -> list[Any]:
    """All devices, the cores of a CPU split into parts where JAX has not been used yet."""
    count = settings.devices or os.cpu_count() or 1
    with suppress(RuntimeError):  # JAX is in use: its devices stay as they are
        jax.config.update("jax_num_cpu_devices", count)
    most = count if jax.default_backend() == "cpu" else settings.shots
    return jax.devices()[: min(most, settings.shots)]


@dataclass(frozen=True)
class Experiment:
    """A true model, a start, and the shots recorded over the true model."""

    settings: Settings
    true: np.ndarray
    start: np.ndarray
    shots: Shots
    engine: Engine

    @classmethod
    def of(cls, settings: Settings) -> "Experiment":
        """Simulated with the propagator that inverts: no error of the model, noise if asked for."""
        true = coarsened(_true_velocity(settings), settings.coarsen)
        spacing = settings.spacing * settings.coarsen
        start = smoothed(true, settings.smoothing, keep=settings.known_rows + 1, edges="reflect")
        survey = Survey.line(
            true.shape,
            spacing,
            dt=settings.dt,
            steps=settings.steps,
            shots=settings.shots,
            frequency=settings.frequency,
        )
        engine = Engine.of(settings)
        data = simulate(engine.model(survey, true), squared_slowness(true))
        random = np.random.default_rng(0)
        size = settings.noise * float(np.sqrt(np.mean(data.astype(float) ** 2)))
        data = data + size * random.standard_normal(data.shape) if size else data
        return cls(settings, true, start, Shots(survey, data.astype(np.float32)).scaled(), engine)

    @property
    def spacing(self) -> float:
        """Metres between cells."""
        return self.shots.survey.spacing[0]

    @cached_property
    def theta0(self) -> jax.Array:
        return jnp.asarray(squared_slowness(self.start))

    @cached_property
    def update(self) -> np.ndarray:
        """Where the model may change: not in the rows that are known."""
        weights = np.ones(self.true.shape)
        weights[:, : self.settings.known_rows] = 0.0
        if self.settings.known_rows:
            weights[:, self.settings.known_rows] = 0.5
        return weights

    def problem(self, band: float | None = None, transport: bool = False) -> Problem:
        """The inversion of the data, or of their frequencies below a band's."""
        shots = self.shots if band is None else self.shots.band(band)
        memory = int(self.settings.memory * 2**30)
        model = self.engine.model(shots.survey, self.start, update=self.update, memory=memory)
        grid, data = shots.survey.gather_grid, jnp.asarray(shots.data)
        return Problem(model, TraceWasserstein(data) if transport else LeastSquares(data, grid))

    @cached_property
    def whole(self) -> Problem:
        """The inversion of all the data by least squares."""
        return self.problem()

    @property
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """On θ."""
        model = cast(WaveModel, self.whole.model)
        return model.bounds(self.settings.slowest, self.settings.fastest)

    @cached_property
    def first_loss(self) -> float:
        """f(θ₀) of the whole data."""
        return float(self.whole.value(self.theta0, jnp.asarray(self.start_data)))

    @cached_property
    def start_data(self) -> np.ndarray:
        """The data of the start."""
        return simulate(self.whole.model, self.theta0)

    def predicted(self, velocity: np.ndarray) -> np.ndarray:
        """The data of another model."""
        return simulate(self.whole.model, squared_slowness(velocity))

    def velocity(self, theta: Any) -> np.ndarray:
        """The model that θ stands for, in m/s."""
        m0 = squared_slowness(self.start)
        return velocity_of(m0 + self.update * (np.asarray(theta, float) - m0))

    def similarity(self, velocity: np.ndarray) -> float:
        """SSIM with the true model."""
        return self._compare(velocity / 1000)

    @cached_property
    def _compare(self) -> Callable[[np.ndarray], float]:
        return structural_similarity(self.true / 1000)


def simulate(model: Any, theta: Any) -> np.ndarray:
    """The data of θ, by one program; a model calls several."""
    run = model if model.on_host else eqx.filter_jit(model)
    return np.asarray(run(jnp.asarray(theta)))


def _true_velocity(settings: Settings) -> np.ndarray:
    loaded = None if settings.velocity is None else load_velocity(settings.velocity)
    rows = (SHAPE if loaded is None else loaded.shape)[-1] // settings.coarsen
    if settings.known_rows + 2 >= rows:
        raise InputError("known_rows", f"{settings.known_rows} leave nothing of {rows}", "fewer")
    if loaded is not None:
        return loaded
    known = settings.spacing * settings.coarsen * (settings.known_rows + 1)
    return SECTIONS[settings.section](SHAPE, settings.spacing, water=known)


def structural_similarity(other: np.ndarray, data_range: float = 1.0) -> Callable[..., float]:
    """Mean SSIM of an image with `other`, whose own means and variances are found once.

    (2μ_xμ_y + C₁)(2σ_xy + C₂) / (μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂), C = (0.01, 0.03)²·range².

    The window is a Gaussian of standard deviation 1.5, and borders of a window are left out. The
    paper's start (0.31) comes out for velocities in km/s and a range of 1.

    ```python
    structural_similarity(true / 1000)(velocity / 1000)
    ```

    Reference: Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Process. 13 (2004).
    """
    y, border = np.asarray(other, float), int(TRUNCATE * SIGMA + 0.5)
    first, second = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    mean = lambda x: gaussian_filter(x, SIGMA, truncate=TRUNCATE)
    my = mean(y)
    my2 = my**2
    vy = mean(y * y) - my2

    def compare(image: np.ndarray) -> float:
        x = np.asarray(image, float)
        mx = mean(x)
        mx2 = mx**2
        vx, vxy = mean(x * x) - mx2, mean(x * y) - mx * my
        top = (2 * mx * my + first) * (2 * vxy + second)
        index = top / ((mx2 + my2 + first) * (vx + vy + second))
        inner = index[(slice(border, -border),) * index.ndim]
        return float(np.mean(inner if inner.size else index))

    return compare
