"""Three problems, each by natgrad and by its rivals under one budget."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.descent import Progress
from natgrad.waves import (
    Acoustic,
    Shots,
    Survey,
    coarsened,
    faulted_layers,
    smoothed,
    squared_slowness,
    velocity_of,
)

from ..keeping import Kept
from ..methods import minimize, one_by_one
from ..poisson_pinn.descents import adam
from ..running import Say
from .settings import Settings

OURS = "natgrad"


@dataclass(frozen=True)
class Bout:
    """One problem: what each method had reached by when, and the fields at the end.

    The names of natgrad's methods begin with "natgrad". `reached` has (spent, value), the first in
    the unit of the budget, `against`.
    """

    name: str
    quantity: str
    against: str
    reached: dict[str, tuple[np.ndarray, np.ndarray]]
    fields: dict[str, np.ndarray]
    truth: np.ndarray
    seconds: float  # of all methods, with compiling

    def final(self, method: str) -> float:
        """The value at the end."""
        return float(self.reached[method][1][-1])

    @property
    def ours(self) -> str:
        """The best of natgrad's methods."""
        return min((name for name in self.reached if name.startswith(OURS)), key=self.final)

    @property
    def rival(self) -> str:
        """The best of the others."""
        return min((name for name in self.reached if not name.startswith(OURS)), key=self.final)

    @property
    def verdict(self) -> str:
        """Who reached what, in a line."""
        return (
            f"{self.name}, {self.quantity}: {self.ours} {self.final(self.ours):.1e}, best rival "
            f"({self.rival}) {self.final(self.rival):.1e}, in {self.seconds:.0f} s"
        )

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        methods = {
            name: {self.against: spent, "values": values}
            for name, (spent, values) in self.reached.items()
        }
        return {"quantity": self.quantity, "seconds": self.seconds, "methods": methods}


# --- a network ------------------------------------------------------------------------------------

Layers = list[tuple[Array, Array]]


def start_network(sizes: tuple[int, ...] = (2, 24, 24, 1)) -> Layers:
    """Weights of a small network."""
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    return [
        (jax.random.normal(key, (n, m)) / jnp.sqrt(m), jnp.zeros(n))
        for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def u(theta: Layers, x: Array) -> Array:
    """The network at a point; zero on the boundary of [−1, 1]²."""
    y = x
    for weights, bias in theta[:-1]:
        y = jnp.tanh(weights @ y + bias)
    weights, bias = theta[-1]
    return ng.pinn.vanishing(x, (-1.0, -1.0), (1.0, 1.0)) * (weights @ y + bias)[0]


def exact(x: Array) -> Array:
    """The solution."""
    return jnp.sin(jnp.pi * x[0]) * jnp.sin(4 * jnp.pi * x[1])


def helmholtz(theta: Layers, x: Array) -> Array:
    """The residual of Δu + u = q at a point."""
    at = partial(u, theta)
    return ng.laplacian(at, x) + at(x) - (1 - 17 * jnp.pi**2) * exact(x)


@dataclass
class Marks:
    """A callback that keeps θ at intervals, and ends the run when its CPU seconds are spent."""

    limit: float
    begun: float = field(default_factory=process_time)
    kept: list[tuple[float, Layers]] = field(default_factory=list)

    def __call__(self, progress: Progress) -> bool:
        spent = process_time() - self.begun
        if spent >= self.limit or not self.kept or spent > 1.05 * self.kept[-1][0] + 0.02:
            self.kept.append((spent, progress.theta))
        return spent >= self.limit


def fit_network(settings: Settings, say: Say) -> Bout:
    """Helmholtz's equation by a network, at equal CPU seconds after compiling."""
    box = ng.pinn.Box((-1.0, -1.0), (1.0, 1.0))
    pinn = ng.Collocation(interior=ng.Residual(helmholtz, box.sobol(1024)))
    start, axis = start_network(), jnp.linspace(-1.0, 1.0, 61)
    points = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    truth = np.asarray(jax.vmap(exact)(points)).reshape(61, 61)
    values = jax.jit(lambda theta: jax.vmap(partial(u, theta))(points).reshape(61, 61))

    def run(name: str, method: Any, most: int, marks: Callable[[Progress], bool]) -> None:
        if method is None:
            objective = lambda theta: pinn.loss(pinn(theta))
            adam(objective, start, rate=3e-3, max_iterations=most, callback=marks)
        else:
            stop = ng.Stop(iterations=most, gradient=0.0)
            minimize(pinn.problem, start, method, name=name, stop=stop, callbacks=[marks])

    methods = {
        OURS: ng.levenberg_marquardt(pinn.metric),
        "L-BFGS": ng.LBFGS(50),
        "Adam": None,
    }
    clock, reached, fields = perf_counter(), {}, {}
    for name, method in one_by_one(list(methods.items())):
        run(name, method, 2, lambda progress: False)  # compiles
        marks = Marks(settings.seconds)
        run(name, method, 10**9, marks)
        found = [np.asarray(values(theta)) for _, theta in marks.kept]
        errors = np.array([np.linalg.norm(f - truth) for f in found]) / np.linalg.norm(truth)
        reached[name] = (np.array([spent for spent, _ in marks.kept]), errors)
        fields[name] = found[-1]
        say(f"network, {name}: error {errors[-1]:.1e} after {reached[name][0][-1]:.0f} s")
    return Bout(
        *("Network", "relative error", "CPU seconds"),
        *(reached, fields, truth, perf_counter() - clock),
    )


# --- waves ----------------------------------------------------------------------------------------


def invert_waves(settings: Settings, say: Say) -> Bout:
    """A velocity model with faults from the waves of five shots, at equal propagations."""
    true = coarsened(faulted_layers((306, 120), 25.0, water=450.0), 3)
    start = smoothed(true, 4.0, keep=6, edges="reflect")
    survey = Survey.line(true.shape, 75.0, dt=0.0075, steps=500, shots=5, frequency=1.5)
    data = np.asarray(Acoustic(survey, true)(squared_slowness(true)))
    shots = Shots(survey, data).scaled()
    sea = np.ones(true.shape)
    sea[:, :6] = 0.0
    model = Acoustic(shots.survey, start, update=sea)
    problem = ng.Problem(model, ng.LeastSquares(jnp.asarray(shots.data), survey.gather_grid))
    theta0 = jnp.asarray(squared_slowness(start))
    velocity = lambda theta: np.asarray(
        velocity_of(np.asarray(theta0) + sea * (np.asarray(theta) - np.asarray(theta0)))
    )
    methods = {
        OURS: ng.NaturalGradient(ng.L2(survey.gather_grid)),
        "L-BFGS": ng.LBFGS(10),
        "gradient descent": ng.GradientDescent(),
    }
    clock, reached = perf_counter(), {}
    fields = {"start": start}
    for name, method in one_by_one(list(methods.items())):
        result = minimize(
            *(problem, theta0, method),
            name=name,
            stop=ng.Stop(propagations=settings.propagations),
            bounds=model.bounds(1000.0, 6000.0),
        )
        losses = result.history["loss"]
        reached[name] = (result.spent("propagations"), losses / losses[0])
        fields[name] = velocity(result.theta)
        say(f"waves, {name}: misfit {losses[-1] / losses[0]:.1e} of the start's")
    return Bout(
        *("Waves", "misfit over the start's", "propagations"),
        *(reached, fields, true, perf_counter() - clock),
    )


# --- a density ------------------------------------------------------------------------------------


def mixture(theta: dict[str, Array], points: Array) -> Array:
    """Gaussians in the plane with free means, widths and weights."""
    width = jnp.exp(theta["log_width"])
    squares = ((points[..., None, :] - theta["mean"]) ** 2).sum(-1) / width**2
    bumps = jnp.exp(-0.5 * squares) / (2 * jnp.pi * width**2)
    return bumps @ jax.nn.softmax(theta["logits"]) + 1e-6


def ring(radius: float, turned: float) -> Array:
    """Four points on a circle."""
    angles = turned + jnp.pi / 2 * jnp.arange(4)
    return radius * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def fit_density(settings: Settings, say: Say) -> Bout:
    """A mixture fitted by its divergence, in three metrics, at equal iterations."""
    grid = ng.Grid((-5.0, -5.0), (5.0, 5.0), (40, 40))
    truth = {
        "mean": ring(2.0, 0.0),
        "log_width": jnp.log(jnp.array([1.0, 0.4, 0.4, 0.4])),
        "logits": jnp.log(jnp.arange(1.0, 5.0)),
    }
    start = {"mean": ring(1.0, 0.4), "log_width": jnp.zeros(4), "logits": jnp.zeros(4)}
    density = partial(mixture, points=grid.points)
    target = density(truth)
    problem = ng.Problem(density, ng.KullbackLeibler(target, grid))
    natural = partial(ng.NaturalGradient, damping=ng.LevenbergMarquardt())
    methods = {
        f"{OURS}, Fisher–Rao": natural(ng.FisherRao(grid)),
        f"{OURS}, L²": natural(ng.L2(grid)),
        f"{OURS}, W₂": natural(ng.Wasserstein(grid)),
        "L-BFGS": ng.LBFGS(10),
        "gradient descent": ng.GradientDescent(),
    }
    clock, reached = perf_counter(), {}
    fields = {"start": np.asarray(density(start))}
    for name, method in one_by_one(list(methods.items())):
        stop = ng.Stop(iterations=settings.iterations)
        result = minimize(problem, start, method, name=name, stop=stop)
        reached[name] = (result.spent("iterations"), np.maximum(result.history["loss"], 1e-16))
        fields[name] = np.asarray(density(result.theta))
        say(f"density, {name}: divergence {result.loss:.1e}, {result.iterations} iterations")
    return Bout(
        *("Density", "divergence from the target", "iterations"),
        *(reached, fields, np.asarray(target), perf_counter() - clock),
    )


# --- all of it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyResult:
    """Everything that the page draws on."""

    settings: Settings
    bouts: list[Bout]

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {bout.name: bout.numbers() for bout in self.bouts}


KEPT = (Bout,)
BOUTS = {"network": fit_network, "waves": invert_waves, "density": fit_density}


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All three, those that are finished from their files."""
    bouts = []
    for name, run in BOUTS.items():
        bouts.append(kept.part(name, partial(run, settings, say)))
        say(bouts[-1].verdict)
    return StudyResult(settings, bouts)
