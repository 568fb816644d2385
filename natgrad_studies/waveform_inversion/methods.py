"""The methods that are compared, all with the same start, data, bounds and budget."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import natgrad as ng
from natgrad.waves import DataWasserstein, Survey

from ..methods import Comparable, Recipe, gradient_descent
from .problem import Experiment
from .settings import Settings

LONG = 200  # pairs of the method that keeps every step
# A direction that is solved too far for its model, whatever comes of it.
FIVE_STEPS = {"solver": ng.CG(0.0, 5, preconditioner=None), "step": ng.Backtracking()}


@dataclass(frozen=True)
class Method:
    """A way to solve the problem: a metric on the data, or L-BFGS with a number of pairs.

    `settings` are those of a natural gradient where they are not the library's own.
    """

    key: str
    name: str
    metric: Callable[[Survey], ng.metrics.Metric] | None = None
    pairs: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:  # functions cannot be sent to other processes
        return _find_method, (self.key,)

    def recipe(self, survey: Survey, own: ng.metrics.Metric | None = None) -> Recipe:
        """The metric, or `own`, that of a transport misfit, and how a step is found."""
        if self.key == "GD":
            return gradient_descent
        if self.metric is None:
            return partial(ng.LBFGS, self.pairs)
        return partial(ng.NaturalGradient, own or self.metric(survey), **self.settings)


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
        Method("L2_five", "L², five steps", _on_gathers, settings=FIVE_STEPS),
        Method("LBFGS", "L-BFGS, 10 pairs"),
        Method("LBFGS_long", f"L-BFGS, {LONG} pairs", pairs=LONG),
    )
}


def _find_method(key: str) -> Method:
    return METHODS[key]


def comparable(settings: Settings) -> Comparable:
    """The inversion of all data by least squares."""
    experiment = Experiment.of(settings)
    survey = experiment.shots.survey
    return Comparable(
        experiment.whole,
        experiment.theta0,
        {
            key: method.recipe(survey)
            for key, method in METHODS.items()
            if not key.startswith("LBFGS")
        },
        ng.Stop(propagations=settings.max_propagations, gradient=0.0),
        options={"bounds": experiment.bounds, "snapshots": 12},
    )
