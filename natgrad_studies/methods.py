"""What the studies compare: metrics by key with their names and lines, and how a method is run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import natgrad as ng
from natgrad.descent.progress import named
from natgrad.report.palette import PALETTE

METRICS: dict[str, Callable[[ng.Grid], ng.Metric]] = {
    "L2": ng.L2,
    "FR": ng.FisherRao,
    "H1": lambda grid: ng.Sobolev(grid, 1),
    "Hm1": lambda grid: ng.Sobolev(grid, -1),
    "dotH1": lambda grid: ng.HomogeneousSobolev(grid, 1),
    "dotHm1": lambda grid: ng.HomogeneousSobolev(grid, -1),
    "W2": ng.Wasserstein,
}
NAMES = {
    **{"GD": "gradient descent", "L2": "L²", "FR": "Fisher–Rao", "H1": "H¹", "Hm1": "H⁻¹"},
    **{"dotH1": "Ḣ¹", "dotHm1": "Ḣ⁻¹", "W2": "W₂", "LBFGS": "L-BFGS"},
}
LABELS = {  # the same for matplotlib, which sets formulae
    **{"GD": "GD", "L2": r"$L^2$", "FR": "Fisher–Rao", "H1": r"$H^1$", "Hm1": r"$H^{-1}$"},
    **{"dotH1": r"$\dot H^1$", "dotHm1": r"$\dot H^{-1}$", "W2": r"$W_2$"},
}
LINES = {  # a colour and a dash for each method, the same in every study
    "L2": (PALETTE["blue"], "-"),
    "FR": (PALETTE["green"], "-"),
    "H1": (PALETTE["orange"], "-"),
    "dotH1": (PALETTE["orange"], "--"),
    "Hm1": (PALETTE["sky"], "-"),
    "dotHm1": (PALETTE["sky"], "--"),
    "W2": (PALETTE["vermilion"], "-"),
    "GD": (PALETTE["grey"], "-"),
    "LBFGS": (PALETTE["black"], "--"),
    "LBFGS_long": (PALETTE["black"], "-"),
}


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS with so many pairs, in the place of the settings of a descent."""

    pairs: int = 10


# What makes an iteration: the metric, solver, damping, step, ... of `ng.minimize`, or L-BFGS.
Recipe = Mapping[str, Any] | LBFGS


def minimize(
    problem: ng.Problem, theta0: Any, recipe: Recipe, *, name: str = "", **options: Any
) -> ng.Result:
    """`ng.minimize`, or `ng.lbfgs`, with what they have in common: budgets, bounds, callbacks.

    The run is shown under its name.
    """
    with named(name):
        if isinstance(recipe, LBFGS):
            return ng.lbfgs(problem, theta0, memory=recipe.pairs, **options)
        return ng.minimize(problem, theta0, **recipe, **options)


@dataclass(frozen=True)
class Comparable:
    """What a study offers for comparison: one problem, and recipes with its metrics by key.

    A recipe may have a `problem` of its own; `settings` are those of all. `budget` is what the
    study has the runs spend where nothing else is asked for.
    """

    problem: ng.Problem
    theta0: Any
    metrics: Mapping[str, Any]
    budget: ng.Budget
    settings: Mapping[str, Any] = field(default_factory=dict)
