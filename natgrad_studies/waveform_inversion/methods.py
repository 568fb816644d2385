"""The methods that are compared, all with the same start, data, bounds and budget."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from natgrad import (
    CG,
    L2,
    Euclidean,
    HomogeneousSobolev,
    Metric,
    MiniBatch,
    Problem,
    Recycled,
    Result,
    lbfgs,
)
from natgrad.descent import minimize
from natgrad.waves import DataWasserstein, Survey, TraceWasserstein

LONG = 200  # pairs of the methods that keep every step


@dataclass(frozen=True)
class Method:
    """A way to solve the problem: a metric on the data, or L-BFGS with a number of pairs.

    `recycled` is the preconditioner of the conjugate gradients, `krylov` their number of steps
    where it is not the study's.
    """

    key: str
    name: str
    metric: Callable[[Survey], Metric] | None = None
    pairs: int = 10
    recycled: Recycled | None = None
    krylov: int | None = None

    def run(self, problem: Problem, theta0: Any, krylov: int, batch: int, **budget: Any) -> Result:
        """Invert, with what is left to spend; the same arguments resume a run that was cut off.

        A transport misfit brings its own metric.
        """
        if self.metric is None:
            return lbfgs(problem, theta0, memory=self.pairs, tolerance=0.0, **budget)
        own, survey = isinstance(problem.loss, TraceWasserstein), problem.model.survey
        return minimize(
            problem,
            theta0,
            metric=problem.loss.metric() if own else self.metric(survey),
            solver=CG(0.0, self.krylov or krylov, preconditioner=self.recycled),
            tolerance=0.0,
            batch=MiniBatch(batch, of="functions") if batch else None,
            **budget,
        )


def _on_gathers(survey: Survey) -> Metric:
    return L2(survey.gather_grid)


METHODS = {
    method.key: method
    for method in (
        Method("GD", "gradient descent", lambda survey: Euclidean()),
        Method("Hm1", "Ḣ⁻¹", lambda survey: HomogeneousSobolev(survey.gather_grid, -1)),
        Method("W2", "W₂", lambda survey: DataWasserstein(survey.gather_grid)),
        Method("H1", "Ḣ¹ in time", lambda survey: HomogeneousSobolev(survey.trace_grid, 1)),
        Method("L2", "L²", _on_gathers),
        Method("L2_recycled", "L², recycled", _on_gathers, recycled=Recycled()),
        Method("L2_secants", "L², secants", _on_gathers, recycled=Recycled(LONG, True), krylov=1),
        Method("LBFGS", "L-BFGS, 10 pairs"),
        Method("LBFGS_long", f"L-BFGS, {LONG} pairs", pairs=LONG),
    )
}
