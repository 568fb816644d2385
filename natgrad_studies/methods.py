"""What the studies compare: metrics by key with their names and lines, and how a method is run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import natgrad as ng
from natgrad.descent import Method, label_runs
from natgrad.plot import METRIC_LINES, PALETTE

METRICS: dict[str, Callable[[ng.Grid], ng.metrics.Metric]] = {
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
    **METRIC_LINES,
    "GD": (PALETTE["grey"], "-"),
    "LBFGS": (PALETTE["black"], "--"),
    "LBFGS_long": (PALETTE["black"], "-"),
}


Entry = TypeVar("Entry")
_place: ContextVar[str] = ContextVar("natgrad_studies_place", default="")

# Makes a method; settings such as `solver` replace its own.
Recipe = Callable[..., Method]


def gradient_descent(solver: ng.solvers.Solver | None = None, **settings: Any) -> Method:
    """`ng.GradientDescent` as a recipe: there is no system for a solver."""
    return ng.GradientDescent(**settings)


def minimize(
    problem: ng.Problem, theta0: Any, method: Method, *, name: str = "", **options: Any
) -> ng.Result:
    """`ng.minimize`, shown under this name."""
    with label(name) if name else nullcontext():
        return ng.minimize(problem, theta0, method, **options)


def label(name: str) -> AbstractContextManager[None]:
    """Show the runs inside under this name, with their place: "L², 1 of 5: compiling"."""
    return label_runs(name + _place.get())


def one_by_one(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries; `label` numbers the runs that are made meanwhile."""
    for number, entry in enumerate(entries, 1):
        _place.set(f", {number} of {len(entries)}")
        yield entry
    _place.set("")


@dataclass(frozen=True)
class Comparable:
    """What a study offers for comparison: one problem, and recipes by the keys of its metrics.

    Some recipes have a problem of their own, among `problems`. `stop` is what the study has the
    runs spend and reach where nothing else is asked for; `options` are those of `ng.compare`.
    """

    problem: ng.Problem
    theta0: Any
    recipes: Mapping[str, Recipe]
    stop: ng.Stop
    problems: Mapping[str, ng.Problem] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def entries(self, keys: Iterable[str], solvers: Mapping[str, Any]) -> dict[str, Any]:
        """Problem and method for each key and each solver; without any, the recipe's own."""
        chosen = solvers or {"": None}
        return {
            f"{key}, {label}" if label else key: (
                self.problems.get(key, self.problem),
                self.recipes[key]() if solver is None else self.recipes[key](solver=solver),
            )
            for key in keys
            for label, solver in chosen.items()
        }
