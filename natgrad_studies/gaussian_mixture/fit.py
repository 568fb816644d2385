"""A mixture of three Gaussians with means, weights and covariances all free: p = 18."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import numpy as np
from jax import Array

from natgrad import Grid, LeastSquares, Problem, Result, Stop, load_result

from ..methods import minimize
from ..mixtures import Mixture, density
from .methods import Contestant

TOLERANCES = (1e-2, 1e-4, 1e-8)  # fractions of the initial loss


class AllFree(eqx.Module):
    """θ ↦ ρ(θ) on the points of a grid."""

    points: Array

    def __call__(self, mixture: Mixture) -> Array:
        return density(mixture, self.points)


@dataclass(frozen=True)
class Fit:
    """One run and the fitted density."""

    contestant: Contestant
    result: Result
    state: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Loss over initial loss, per iterate."""
        losses = np.asarray(self.result.history["loss"])
        return losses / losses[0]

    @property
    def seconds(self) -> np.ndarray:
        """Seconds at each iterate, compilation excluded."""
        return np.asarray(self.result.history["seconds"])

    @property
    def propagations(self) -> np.ndarray:
        """Evaluations of the model and of its derivatives until each iterate."""
        return self.result.spent("propagations")

    def first_below(self, fraction: float) -> int | None:
        """The first iterate whose relative loss is at most `fraction`."""
        below = self.relative <= fraction
        return int(np.argmax(below)) if below.any() else None

    def numbers(self) -> dict[str, object]:
        """What the results file holds of the run."""
        mixture = self.result.theta
        firsts = {f"{tolerance:g}": self.first_below(tolerance) for tolerance in TOLERANCES}
        return {
            "name": self.contestant.name,
            "status": str(self.result.status),
            "iterations": self.result.iterations,
            "loss": self.result.loss,
            "relative_loss": self.relative[-1],
            "iterations_to": firsts,
            "seconds_to": {
                key: None if first is None else self.seconds[first] for key, first in firsts.items()
            },
            "seconds": self.seconds[-1],
            "history": {"loss": self.result.history["loss"], "seconds": self.seconds},
            "weights": mixture.weights,
            "means": mixture.means,
            "covariances": mixture.covariances,
        }


def truth() -> Mixture:
    """The attainable target."""
    return Mixture.of(
        [0.45, 0.30, 0.25],
        [[-1.6, -1.0], [1.7, -1.3], [0.3, 1.7]],
        [[[0.9, 0.4], [0.4, 0.6]], [[0.5, -0.2], [-0.2, 0.7]], [[0.8, 0.0], [0.0, 0.35]]],
    )


def guess() -> Mixture:
    """The start: equal weights, unit covariances, means off by about one standard deviation."""
    identity = np.eye(2)
    return Mixture.of(
        [1.0, 1.0, 1.0], [[-0.8, -1.6], [1.0, -0.4], [-0.6, 1.0]], [identity, identity, identity]
    )


def fit_grid(points: int) -> Grid:
    """Cells on [−5, 5]²."""
    return Grid((-5.0, -5.0), (5.0, 5.0), (points, points))


def fit_problem(grid: Grid) -> Problem:
    """Least squares against the attainable target."""
    model = AllFree(grid.points)
    return Problem(model, LeastSquares(model(truth()), grid))


def run_fit(problem: Problem, contestant: Contestant, iterations: int) -> Result:
    """Minimise from the common start; one iteration compiles what a later run is timed without."""
    stop = Stop(iterations=iterations, gradient=1e-10)
    return minimize(problem, guess(), contestant.method, name=contestant.name, stop=stop)


def keep_fit(
    problem: Problem, contestant: Contestant, iterations: int, path: Path | None = None
) -> Fit:
    """The fit whose result is kept in a file, else run and then kept."""
    if path is not None and path.exists():
        result = load_result(path, like=guess())
    else:
        result = run_fit(problem, contestant, iterations)
        if path is not None:
            result.save(path)
    return Fit(contestant, result, np.asarray(problem.model(result.theta)))


def rank(fits: Iterable[Fit]) -> list[Fit]:
    """By final loss, best first."""
    return sorted(fits, key=lambda fit: fit.relative[-1])
