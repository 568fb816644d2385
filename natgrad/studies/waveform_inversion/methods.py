"""The methods that are compared, all with the same start, data, bounds and budget."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import (
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
    minimize,
)
from ...waves import DataWasserstein, Survey

PAIRS = 20


@dataclass(frozen=True)
class Method:
    """A way to solve the problem: a metric on the data, or L-BFGS."""

    key: str
    name: str
    metric: Callable[[Survey], Metric] | None
    recycles: bool = False

    def run(self, problem: Problem, theta0: Any, krylov: int, batch: int, **budget: Any) -> Result:
        """Invert, with what is left to spend; the same arguments resume a run that was cut off."""
        if self.metric is None:
            return lbfgs(problem, theta0, memory=PAIRS, tolerance=0.0, **budget)
        preconditioner = Recycled(PAIRS) if self.recycles else None
        return minimize(
            problem,
            theta0,
            metric=self.metric(problem.model.survey),
            solver=CG(0.0, krylov, preconditioner=preconditioner),
            tolerance=0.0,
            batch=MiniBatch(batch, of="functions") if batch else None,
            **budget,
        )


METHODS = {
    method.key: method
    for method in (
        Method("GD", "gradient descent", lambda survey: Euclidean()),
        Method("Hm1", "Ḣ⁻¹", lambda survey: HomogeneousSobolev(survey.gather_grid, -1)),
        Method("W2", "W₂", lambda survey: DataWasserstein(survey.gather_grid)),
        Method("H1", "Ḣ¹ in time", lambda survey: HomogeneousSobolev(survey.trace_grid, 1)),
        Method("L2", "L²", lambda survey: L2(survey.gather_grid)),
        Method("LBFGS", "L-BFGS", None),
        Method("L2_recycled", "L², recycled", lambda survey: L2(survey.gather_grid), True),
    )
}
