"""The methods: each trains a network from θ on the residuals, until its callback says so."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import natgrad as ng
from natgrad.descent import Progress

from ..methods import minimize
from .case import Theta
from .settings import Settings

Callback = Callable[[Progress], bool]
UNLIMITED = 10**9
PAIRS = 50  # of L-BFGS


@dataclass(frozen=True)
class Task:
    """What a method trains: residuals, where from, and new points if there are to be any."""

    pinn: ng.Collocation
    theta: Theta
    batch: ng.Resampled | None
    settings: Settings
    callback: Callback


Train = Callable[[Task], tuple[Theta, str]]  # θ at the end, and why it ended


def _minimize(task: Task, method: Any, batch: Any = None) -> tuple[Theta, str]:
    stop = ng.Stop(iterations=UNLIMITED, gradient=0.0)
    options = {"stop": stop, "callbacks": [task.callback], "batch": batch, "progress": False}
    result = minimize(task.pinn.problem, task.theta, method, **options)
    return result.theta, str(result.status)


def levenberg_marquardt(task: Task) -> tuple[Theta, str]:
    """The recipe."""
    settings = task.settings
    damping = ng.LevenbergMarquardt(decrease=settings.decrease)
    method = ng.levenberg_marquardt(task.pinn.metric, damping=damping, order=settings.order)
    return _minimize(task, method, task.batch)


def lbfgs(task: Task) -> tuple[Theta, str]:
    """L-BFGS, which needs fixed points."""
    return _minimize(task, ng.LBFGS(PAIRS))


TRAIN: dict[str, Train] = {"LM": levenberg_marquardt, "LBFGS": lbfgs}
