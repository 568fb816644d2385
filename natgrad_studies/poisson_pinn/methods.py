"""The methods that are compared, all from the same network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from natgrad import Backtracking, LevenbergMarquardt, Progress, Resampled, Status, lbfgs, recipe
from natgrad.descent import minimize

from .adam import adam
from .batches import resampled, value_batch
from .doubling import doubling_descent
from .newton_cg import newton_cg
from .pinn import Pinn
from .settings import METRICS

Callback = Callable[[Progress], bool]
NAMES = {
    **{"GD": "gradient descent", "L2": "L²", "FR": "Fisher–Rao", "H1": "H¹", "dotH1": "Ḣ¹"},
    **{"Hm1": "H⁻¹", "dotHm1": "Ḣ⁻¹", "W2": "W₂", "LBFGS": "L-BFGS", "Adam": "Adam"},
    **{"GN": "Gauss–Newton", "LM": "LM, straight", "LM3": "LM, third order"},
}
RESIDUAL_SETTINGS = {
    "GN": recipe("gauss-newton"),
    "LM": {"damping": LevenbergMarquardt(), "step": Backtracking()},
    "LM3": recipe("levenberg-marquardt"),
}
CHEAP = ("GD", "LBFGS", "Adam")


@dataclass(frozen=True)
class Method:
    """A way to train; `run(pinn, callback, max_iterations)` does it and says why it ended.

    `whole` says that the losses its callback sees are those of all points, `cheap` that its
    iterations are, so that only the time bounds them.
    """

    key: str
    name: str
    run: Callable[[Pinn, Callback, int], Status]
    whole: bool = True
    cheap: bool = False


def methods(pinn: Pinn) -> list[Method]:
    """Those of the settings, on all points."""
    return [
        Method(key, NAMES[key], _run(key, pinn.authors), cheap=key in CHEAP)
        for key in pinn.settings.methods
    ]


def batched_methods(pinn: Pinn) -> list[Method]:
    """Those of the settings that see a part of the points in every iteration."""
    runs = {"L2": _values_batched, "FR": _values_batched, "LM3": _residuals_batched}
    return [
        Method(key, f"{NAMES[key]}, batches", _keyed(runs[key], key), whole=False)
        for key in pinn.settings.batched
    ]


def _run(key: str, authors: bool) -> Callable[[Pinn, Callback, int], Status]:
    if key in METRICS:
        return _keyed(_authors_values if authors else _values, key)
    return {"LBFGS": _quasi_newton, "Adam": _adam}.get(key, _keyed(_residuals, key))


def _keyed(run: Any, key: str) -> Callable[[Pinn, Callback, int], Status]:
    return lambda pinn, callback, most: run(key, pinn, callback, most)


def _values(key: str, pinn: Pinn, callback: Callback, most: int) -> Status:
    """Damped natural gradients in a metric on the values of the network."""
    return doubling_descent(
        pinn.values_problem(key),
        pinn.start,
        pinn.metrics[key],
        0.0 if key == "GD" else pinn.settings.damping,
        max_iterations=most,
        callback=callback,
    )


def _authors_values(key: str, pinn: Pinn, callback: Callback, most: int) -> Status:
    problem, metric = pinn.values_problem(key), pinn.metrics[key]
    return newton_cg(problem, pinn.start, metric, max_iterations=most, callback=callback)


def _values_batched(key: str, pinn: Pinn, callback: Callback, most: int) -> Status:
    return doubling_descent(
        pinn.values_problem(key),
        pinn.start,
        pinn.metrics[key],
        pinn.settings.batch_damping,
        max_iterations=most,
        callback=callback,
        batch=value_batch(pinn),
    )


def _residuals(
    key: str, pinn: Pinn, callback: Callback, most: int, batch: Resampled | None = None
) -> Status:
    """Gauss–Newton: natural gradients whose state is the residual."""
    found = minimize(
        pinn.residuals.problem,
        pinn.start,
        metric=pinn.residuals.metric,
        tolerance=0.0,
        max_iterations=most,
        callbacks=[callback],
        batch=batch,
        **RESIDUAL_SETTINGS[key],
    )
    return found.status


def _residuals_batched(key: str, pinn: Pinn, callback: Callback, most: int) -> Status:
    return _residuals(key, pinn, callback, most, resampled(pinn))


def _quasi_newton(pinn: Pinn, callback: Callback, most: int) -> Status:
    found = lbfgs(
        pinn.values_problem("L2"),
        pinn.start,
        memory=pinn.settings.memory,
        tolerance=0.0,
        max_iterations=most,
        callbacks=[callback],
    )
    return found.status


def _adam(pinn: Pinn, callback: Callback, most: int) -> Status:
    rate = pinn.settings.rate
    return adam(pinn.objective, pinn.start, rate=rate, max_iterations=most, callback=callback)
