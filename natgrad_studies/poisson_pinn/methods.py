"""The methods that are compared, all from the same network."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import natgrad as ng

from .. import methods as shared
from ..methods import Comparable, Recipe, gradient_descent, minimize
from .descents import Callback, Doubling, adam, newton_cg
from .problem import Pinn, resample, value_batch
from .settings import METRICS, Settings

NAMES = shared.NAMES | {
    **{"Adam": "Adam", "GN": "Gauss–Newton", "LM": "LM, straight", "LM3": "LM, third order"},
}
RESIDUAL_RECIPES = {
    "GN": ng.gauss_newton,
    "LM": partial(ng.NaturalGradient, damping=ng.LevenbergMarquardt(), step=ng.Backtracking()),
    "LM3": ng.levenberg_marquardt,
}
CHEAP = ("GD", "LBFGS", "Adam")


@dataclass(frozen=True)
class Method:
    """A way to train; `batched` if it sees a part of the points in every iteration."""

    key: str
    batched: bool = False

    @property
    def name(self) -> str:
        """For tables and curves."""
        return f"{NAMES[self.key]}, batches" if self.batched else NAMES[self.key]

    @property
    def cheap(self) -> bool:
        """Whether its iterations are, so that only the time bounds them."""
        return self.key in CHEAP

    def run(self, pinn: Pinn, callback: Callback, most: int) -> ng.Status:
        """Train from θ₀, and say why it ended."""
        ends: dict[str, Any] = {"max_iterations": most, "callback": callback}
        if self.key == "Adam":
            return adam(pinn.objective, pinn.start, rate=pinn.settings.rate, **ends)
        if self.key in METRICS:
            return self._run_on_values(pinn, ends)
        stop = ng.Stop(iterations=most, gradient=0.0)
        if self.key == "LBFGS":
            problem, method = pinn.values_problem("L2"), ng.LBFGS(pinn.settings.memory)
        else:
            problem = pinn.residuals.problem
            method = RESIDUAL_RECIPES[self.key](pinn.residuals.metric)
        batch = resample(pinn) if self.batched else None
        options = {"stop": stop, "callbacks": [callback], "batch": batch}
        return minimize(problem, pinn.start, method, **options).status

    def _run_on_values(self, pinn: Pinn, ends: dict[str, Any]) -> ng.Status:
        """Natural gradients in a metric on the values of the network, ours or the authors'."""
        problem, metric = pinn.values_problem(self.key), pinn.metrics[self.key]
        if pinn.authors:
            return newton_cg(problem, pinn.start, metric, **ends)
        damping = pinn.settings.batch_damping if self.batched else pinn.settings.damping
        if metric is None:
            method = ng.GradientDescent(step=Doubling())
        else:
            method = ng.NaturalGradient(metric, damping=damping, step=Doubling())
        options = {
            "stop": ng.Stop(iterations=ends["max_iterations"], gradient=0.0),
            "callbacks": [ends["callback"]],
            "batch": value_batch(pinn) if self.batched else None,
        }
        return minimize(problem, pinn.start, method, **options).status


def comparable(settings: Settings) -> Comparable:
    """Metrics on the values of the network, and Gauss–Newton on the residuals (GN, LM3)."""
    pinn = Pinn(settings)
    same: dict[str, Any] = {"damping": ng.LevenbergMarquardt(), "step": ng.Backtracking()}
    recipes: dict[str, Recipe] = {}
    for key in METRICS:
        metric = pinn.metrics[key]
        make = gradient_descent if metric is None else partial(ng.NaturalGradient, metric)
        recipes[key] = partial(make, **same)
    for key in ("GN", "LM3"):
        recipes[key] = partial(RESIDUAL_RECIPES[key], pinn.residuals.metric)
    return Comparable(
        pinn.values_problem("L2"),
        pinn.start,
        recipes,
        ng.Stop(seconds=settings.seconds, gradient=0.0),
        problems={key: pinn.values_problem(key) for key in METRICS}
        | dict.fromkeys(("GN", "LM3"), pinn.residuals.problem),
    )
