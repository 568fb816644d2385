"""The methods that are compared, all with the same start, data, bounds and budget."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import natgrad as ng
from natgrad.waves import DataWasserstein, Survey

from ..methods import Comparable, Recipe, gradient_descent
from .problem import Experiment
from .settings import Settings

LONG = 200  # pairs of the methods that keep every step


@dataclass(frozen=True)
class Method:
    """A way to solve the problem: a metric on the data, or L-BFGS with a number of pairs.

    `recycled` is the preconditioner of the conjugate gradients, `krylov` their number of steps
    where it is not the study's.
    """

    key: str
    name: str
    metric: Callable[[Survey], ng.metrics.Metric] | None = None
    pairs: int = 10
    recycled: ng.solvers.Recycled | None = None
    krylov: int | None = None

    def recipe(self, survey: Survey, krylov: int, own: ng.metrics.Metric | None = None) -> Recipe:
        """The metric, or `own`, that of a transport misfit, and a few conjugate gradients."""
        if self.key == "GD":
            return gradient_descent
        if self.metric is None:
            return partial(ng.LBFGS, self.pairs)
        solver = ng.CG(0.0, self.krylov or krylov, preconditioner=self.recycled)
        return partial(ng.NaturalGradient, own or self.metric(survey), solver=solver)


def _on_gathers(survey: Survey) -> ng.metrics.Metric:
    return ng.L2(survey.gather_grid)


METHODS = {
    method.key: method
    for method in (
        Method("GD", "gradient descent"),
        Method("Hm1", "Ḣ⁻¹", lambda survey: ng.HomogeneousSobolev(survey.gather_grid, -1)),
        Method("W2", "W₂", lambda survey: DataWasserstein(survey.gather_grid)),
        Method("H1", "Ḣ¹ in time", lambda survey: ng.HomogeneousSobolev(survey.trace_grid, 1)),
        Method("L2", "L²", _on_gathers),
        Method("L2_recycled", "L², recycled", _on_gathers, recycled=ng.solvers.Recycled()),
        Method(
            *("L2_secants", "L², secants", _on_gathers),
            recycled=ng.solvers.Recycled(LONG, True),
            krylov=1,
        ),
        Method("LBFGS", "L-BFGS, 10 pairs"),
        Method("LBFGS_long", f"L-BFGS, {LONG} pairs", pairs=LONG),
    )
}


def comparable(settings: Settings) -> Comparable:
    """The inversion of all data by least squares, a few conjugate gradients in each iteration."""
    experiment = Experiment.of(settings)
    survey = experiment.shots.survey
    return Comparable(
        experiment.whole,
        experiment.theta0,
        {
            key: method.recipe(survey, settings.krylov)
            for key, method in METHODS.items()
            if not key.startswith("LBFGS")
        },
        ng.Stop(propagations=settings.max_propagations, gradient=0.0),
        options={"bounds": experiment.bounds, "snapshots": 12},
    )
