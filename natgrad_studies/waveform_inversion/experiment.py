"""The experiment: the true model, the waves recorded over it, and where the inversion starts."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from natgrad import LeastSquares, Problem
from natgrad.errors import InputError
from natgrad.waves import (
    Shots,
    Survey,
    TraceWasserstein,
    coarsened,
    faulted_layers,
    folded_layers,
    load_velocity,
    salt_body,
    smoothed,
    squared_slowness,
    velocity_of,
)

from .engines import Engine
from .settings import Settings
from .similarity import structural_similarity

SHAPE = (306, 120)
SECTIONS = {"folded": folded_layers, "faulted": faulted_layers, "salt": salt_body}


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
        true = coarsened(_true(settings), settings.coarsen)
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
        data = np.asarray(engine.model(survey, true)(squared_slowness(true)))
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
        return self.whole.model.bounds(self.settings.slowest, self.settings.fastest)

    @cached_property
    def first_loss(self) -> float:
        """f(θ₀) of the whole data."""
        return float(self.whole.value(self.theta0, self.whole.model(self.theta0)))

    def predicted(self, velocity: np.ndarray) -> np.ndarray:
        """The data of another model."""
        return np.asarray(self.whole.model(jnp.asarray(squared_slowness(velocity))))

    def velocity(self, theta: Any) -> np.ndarray:
        """The model that θ stands for, in m/s."""
        m0 = squared_slowness(self.start)
        return velocity_of(m0 + self.update * (np.asarray(theta, float) - m0))

    def similarity(self, velocity: np.ndarray) -> float:
        """SSIM with the true model."""
        return structural_similarity(velocity / 1000, self.true / 1000)


def _true(settings: Settings) -> np.ndarray:
    loaded = None if settings.velocity is None else load_velocity(settings.velocity)
    rows = (SHAPE if loaded is None else loaded.shape)[-1] // settings.coarsen
    if settings.known_rows + 2 >= rows:
        raise InputError("known_rows", f"{settings.known_rows} leave nothing of {rows}", "fewer")
    if loaded is not None:
        return loaded
    known = settings.spacing * settings.coarsen * (settings.known_rows + 1)
    return SECTIONS[settings.section](SHAPE, settings.spacing, water=known)
