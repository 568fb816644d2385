"""A mixture of three Gaussians with means, weights and covariances all free: p = 18."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import numpy as np
from jax import Array

from natgrad import (
    L2,
    Backtracking,
    Damping,
    Euclidean,
    FisherRao,
    Grid,
    HomogeneousSobolev,
    LeastSquares,
    LevenbergMarquardt,
    Metric,
    Mobility,
    ModelStep,
    Problem,
    RelativeDamping,
    Result,
    Sobolev,
    Step,
    Wasserstein,
    load_result,
)
from natgrad.descent import minimize
from natgrad.descent.progress import label_runs

from ..mixtures import Mixture, density

DAMPING = 1e-6  # relative to the mean eigenvalue of G; also settles the common shift of the logits
TOLERANCES = (1e-2, 1e-4, 1e-8)  # fractions of the initial loss


class AllFree(eqx.Module):
    """θ ↦ ρ(θ) on the points of a grid."""

    points: Array

    def __call__(self, mixture: Mixture) -> Array:
        return density(mixture, self.points)


@dataclass(frozen=True)
class Contestant:
    """A metric with its damping and step rule."""

    key: str
    name: str
    label: str
    metric: Metric
    damping: Damping
    step: Step


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


def contestants(grid: Grid) -> list[Contestant]:
    """Nine metrics with one step rule and one damping, and L² with adaptive damping."""
    damping, step = RelativeDamping(DAMPING), ModelStep()
    table = [
        ("GD", "GD", "GD", Euclidean()),
        ("L2", "L²", r"$L^2$", L2(grid)),
        ("FR", "FR", "Fisher–Rao", FisherRao(grid)),
        ("H1", "H¹", r"$H^1$", Sobolev(grid, 1)),
        ("Hm1", "H⁻¹", r"$H^{-1}$", Sobolev(grid, -1)),
        ("dotH1", "Ḣ¹", r"$\dot H^1$", HomogeneousSobolev(grid, 1)),
        ("dotHm1", "Ḣ⁻¹", r"$\dot H^{-1}$", HomogeneousSobolev(grid, -1)),
        ("W2", "W₂", r"$W_2$", Wasserstein(grid)),
        ("mobility", "mobility ρ^½", r"mobility $\rho^{1/2}$", Mobility(grid, 0.25)),
    ]
    same = [
        Contestant(key, name, label, metric, damping, step) for key, name, label, metric in table
    ]
    adaptive = Contestant(
        "L2_LM",
        "L² adaptive",
        r"$L^2$, Levenberg–Marquardt",
        L2(grid),
        LevenbergMarquardt(),
        Backtracking(),
    )
    return [*same, adaptive]


def compile_only(problem: Problem, contestant: Contestant) -> None:
    """Take one step, so that a later run is timed without compilation."""
    _minimize(problem, contestant, 1)


def finished(path: Path | None) -> bool:
    """Whether a run has been kept there."""
    return path is not None and path.exists()


def run(problem: Problem, contestant: Contestant, iterations: int, path: Path | None = None) -> Fit:
    """Minimise from the common start, or take the result that is kept in a file."""
    if path is not None and finished(path):
        result = load_result(path, like=guess())
    else:
        result = _minimize(problem, contestant, iterations)
        if path is not None:
            result.save(path)
    return Fit(contestant, result, np.asarray(problem.model(result.theta)))


def _minimize(problem: Problem, contestant: Contestant, iterations: int) -> Result:
    with label_runs(contestant.name):
        return minimize(
            problem,
            guess(),
            metric=contestant.metric,
            damping=contestant.damping,
            step=contestant.step,
            max_iterations=iterations,
            tolerance=1e-10,
        )


def ranked(fits: Iterable[Fit]) -> list[Fit]:
    """By final loss, best first."""
    return sorted(fits, key=lambda fit: fit.relative[-1])
