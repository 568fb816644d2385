"""The methods that are compared, all from the same network."""

from dataclasses import dataclass
from typing import Any

import natgrad as ng

from .. import methods as shared
from ..methods import LBFGS, Comparable, minimize
from .descents import Callback, adam, doubling_descent, newton_cg
from .problem import Pinn, resample, value_batch
from .settings import METRICS, Settings

NAMES = shared.NAMES | {
    **{"Adam": "Adam", "GN": "Gauss–Newton", "LM": "LM, straight", "LM3": "LM, third order"},
}
RESIDUAL_SETTINGS = {
    "GN": ng.recipe("gauss-newton"),
    "LM": {"damping": ng.LevenbergMarquardt(), "step": ng.Backtracking()},
    "LM3": ng.recipe("levenberg-marquardt"),
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
        on_all = {"max_iterations": most, "callbacks": [callback], "tolerance": 0.0}
        if self.key == "LBFGS":
            problem, recipe = pinn.values_problem("L2"), LBFGS(pinn.settings.memory)
        else:
            problem, recipe = pinn.residuals.problem, residual_recipe(self.key, pinn)
        batch: dict[str, Any] = {"batch": resample(pinn)} if self.batched else {}
        return minimize(problem, pinn.start, recipe, **on_all, **batch).status

    def _run_on_values(self, pinn: Pinn, ends: dict[str, Any]) -> ng.Status:
        """Natural gradients in a metric on the values of the network, ours or the authors'."""
        problem, metric = pinn.values_problem(self.key), pinn.metrics[self.key]
        if pinn.authors:
            return newton_cg(problem, pinn.start, None if self.key == "GD" else metric, **ends)
        damping = pinn.settings.batch_damping if self.batched else pinn.settings.damping
        batch = value_batch(pinn) if self.batched else None
        damping = 0.0 if self.key == "GD" else damping
        return doubling_descent(problem, pinn.start, metric, damping, batch=batch, **ends)


def residual_recipe(key: str, pinn: Pinn) -> dict[str, Any]:
    """Gauss–Newton: natural gradients whose state is the residual."""
    return {"metric": pinn.residuals.metric, **RESIDUAL_SETTINGS[key]}


def comparable(settings: Settings) -> Comparable:
    """Metrics on the values of the network, and Gauss–Newton on the residuals (GN, LM3)."""
    pinn = Pinn(settings)
    on_values = {
        key: {"metric": pinn.metrics[key], "problem": pinn.values_problem(key)} for key in METRICS
    }
    on_residuals = {
        key: {"problem": pinn.residuals.problem, **residual_recipe(key, pinn)}
        for key in ("GN", "LM3")
    }
    return Comparable(
        pinn.values_problem("L2"),
        pinn.start,
        on_values | on_residuals,
        ng.Budget(seconds=settings.seconds),
        {"damping": ng.LevenbergMarquardt(), "step": ng.Backtracking(), "tolerance": 0.0},
    )
