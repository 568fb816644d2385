"""What the benchmarks of physics-informed networks share: networks, problems, errors over time."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_studies import clock
from natgrad_studies.poisson_pinn.problem import Pinn, fine_points, solution
from natgrad_studies.poisson_pinn.problem import network as value
from natgrad_studies.poisson_pinn.settings import PRESETS

Layers = Sequence[tuple[Array, Array]]
pi = jnp.pi


def network(widths: Sequence[int], seed: int) -> Layers:
    """Weights and biases uniform in ±1/√(inputs of the layer)."""
    rng = np.random.default_rng(seed)
    draw = lambda inputs, *shape: jnp.asarray(rng.uniform(-1, 1, shape) / np.sqrt(inputs), float)
    return [(draw(a, a, b), draw(a, b)) for a, b in itertools.pairwise(widths)]


def size(layers: Layers) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(layers))


class Case(NamedTuple):
    """A problem, where it starts, and its solution at the points where errors are measured."""

    pinn: ng.Collocation
    start: Layers
    test: Array
    solution: Array

    def error(self) -> Callable[[Layers], float]:
        """θ ↦ the relative L² error."""
        values = jax.jit(lambda layers, x: jax.vmap(value, (None, 0))(layers, x))
        size = jnp.linalg.norm(self.solution)
        found = lambda layers: values(layers, self.test)
        return lambda layers: float(jnp.linalg.norm(found(layers) - self.solution) / size)


def paper(seed: int) -> Case:
    """The paper's −Δu = φ on [−1, 1]², two sine modes about 3, as the study poisson-pinn has it."""
    pinn = Pinn(replace(PRESETS["paper"], seed=seed))
    test = fine_points().reshape(-1, 2)
    return Case(
        pinn.residuals, pinn.start, *(jnp.asarray(x, float) for x in (test, solution(test)))
    )


def _sine_equation(layers: Layers, x: Array) -> Array:
    source = 2 * pi**2 * jnp.prod(jnp.sin(pi * x))
    return ng.laplacian(lambda y: value(layers, y), x) + source


def sine(seed: int, interior: int = 900, boundary: int = 120, memory: int = 2**30) -> Case:
    """−Δu = 2π² sin πx sin πy on [0, 1]², zero outside, at random points; 2-64-64-48-48-1."""
    rng = np.random.default_rng(1000 + seed)
    pinn = ng.Collocation(
        interior=ng.Residual(_sine_equation, rng.uniform(size=(interior, 2))),
        boundary=ng.Residual(value, on_faces(rng, boundary, 2)),
        memory=memory,
    )
    test = jnp.asarray(rng.uniform(size=(9000, 2)))
    solution = jnp.prod(jnp.sin(pi * test), axis=-1)
    return Case(pinn, network((2, 64, 64, 48, 48, 1), seed), test, solution)


def helmholtz(seed: int, interior: int = 6000, boundary: int = 400) -> Case:
    """Δu + u = q on [−1, 1]² with u = sin πx sin 4πy, of sines and cosines; 4-30-30-30-30-1."""
    rng = np.random.default_rng(1000 + seed)
    exact = lambda x: jnp.sin(pi * x[..., 0]) * jnp.sin(4 * pi * x[..., 1])
    u = lambda layers, x: value(layers, jnp.concatenate([jnp.sin(pi * x), jnp.cos(pi * x)]))

    def equation(layers: Layers, x: Array) -> Array:
        at = lambda y: u(layers, y)
        return ng.laplacian(at, x) + at(x) - (1 - 17 * pi**2) * exact(x)

    inside, edge = rng.uniform(-1, 1, (interior, 2)), 2 * on_faces(rng, boundary, 2) - 1
    pinn = ng.Collocation(
        interior=ng.Residual(equation, inside, weight=0.01), boundary=ng.Residual(u, edge)
    )
    test = jnp.asarray(rng.uniform(-1, 1, (9000, 2)), float)
    return Case(pinn, network((4, 30, 30, 30, 30, 1), seed), test, jax.jit(exact)(test))


def on_faces(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Random points on the boundary of the unit cube."""
    points = rng.uniform(size=(count, dimension))
    face = rng.integers(0, dimension, count)
    points[np.arange(count), face] = rng.integers(0, 2, count)
    return points


class Trace(clock.Trace):
    """Errors as a run goes, with the time for that taken off.

    `rows` has the seconds (of CPU, unless `now` is another clock) and the error; the run ends after
    `seconds` of them.
    """

    def __init__(
        self,
        error: Callable[[Any], float],
        seconds: float,
        every: int = 1,
        now: Callable[[], float] = time.process_time,
    ):
        super().__init__(seconds, clock.Clock(now), watch=None)
        self._error, self._every = error, every
        self.rows: list[tuple[float, float]] = []
        self.clock.go()

    def note(self, progress: ng.result.Progress, over: bool) -> float:
        if over or progress.iteration % self._every == 0:
            self.rows.append((self.clock.spent, self._error(progress.theta)))
        return progress.loss

    def reached(self, target: float) -> float:
        """The seconds at the first error that is no larger; NaN where there is none."""
        return next((seconds for seconds, error in self.rows if error <= target), float("nan"))

    def at(self, seconds: float) -> float:
        """The last error measured within these seconds."""
        return next((error for then, error in self.rows[::-1] if then <= seconds), float("nan"))


def timed(run: Callable[..., ng.Result], iterations: int, trace: Trace | None = None) -> float:
    """CPU seconds of a run."""
    start = time.process_time()
    stop = ng.Stop(iterations=iterations, gradient=0.0)
    run(stop=stop, callbacks=[] if trace is None else [trace])
    return time.process_time() - start
