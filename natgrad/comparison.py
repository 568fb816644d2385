"""Several methods on one problem, held side by side: who is ahead after so much work."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from .core.outcomes import BUDGETS
from .descent.lbfgs import lbfgs as run_lbfgs
from .descent.minimize import minimize
from .descent.progress import label_runs
from .descent.stop import Budget
from .errors import InputError
from .metrics.base import Metric
from .problem import Problem
from .result import AXES, Result
from .solvers import Solver

SHARES = (0.25, 0.5, 1.0)
LEVEL = 1e-6  # losses this close to the lowest are the same
ROUNDING = 1e-14  # and so are those within this of it, relative to the first loss


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def text(self) -> str:
        """The table for a terminal: the first column to the left, the others to the right."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = lambda row: [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        printed = ["  ".join((row[0].ljust(widths[0]), *padded(row))).rstrip() for row in lines]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([*filter(None, [self.caption]), printed[0], rule, *printed[1:]])


@dataclass(frozen=True)
class Comparison:
    """The results of several methods from one start under one budget.

    `failures` says in a line why a method could not run. `print(comparison)` shows the tables.
    """

    results: Mapping[str, Result]
    budget: Budget
    failures: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = field(default=None, repr=False)
    loss_target: float | None = None

    def lowest(self, name: str, against: str = "iterations", spent: float = np.inf) -> float:
        """The lowest loss of a method within so much."""
        result = self.results[name]
        within = result.history["loss"][result.spent(against) <= spent]
        return float(np.fmin.reduce(within, initial=np.inf))

    def extent(self, against: str) -> float:
        """How far all methods can be compared: the budget, or else what every run has spent.

        A run that ended by itself before the others stays where it is for the rest.
        """
        limit = getattr(self.budget, against, None)
        if limit is not None:
            return float(limit)
        ends = {name: float(result.spent(against)[-1]) for name, result in self.results.items()}
        cut_off = [ends[name] for name in ends if self.results[name].status in BUDGETS]
        return min(cut_off) if cut_off else max(ends.values())

    def winner(self, against: str = "iterations", at: float | None = None) -> str:
        """The method with the lowest loss within `at`, or as far as all can be compared.

        Of methods that reach the same loss, or the target, the first to get there.

        ```python
        comparison.winner("seconds", at=10.0)
        ```
        """
        at = self.extent(against) if at is None else at
        first = max(float(result.history["loss"][0]) for result in self.results.values())
        lowest = min(self.lowest(name, against, at) for name in self.results)
        bar = lowest + max(LEVEL * abs(lowest), ROUNDING * abs(first))
        bar = bar if self.loss_target is None else max(bar, self.loss_target)
        return min(self.results, key=lambda name: self._reached(name, against, bar))

    def _reached(self, name: str, against: str, bar: float) -> float:
        result = self.results[name]
        below = np.flatnonzero(result.history["loss"] <= bar)
        return float(result.spent(against)[below[0]]) if below.size else np.inf

    @property
    def leaders(self) -> dict[str, str]:
        """The winner by iterations, by propagations and by seconds, in the end."""
        return {axis: self.winner(axis) for axis in AXES}

    @property
    def limited(self) -> str:
        """What the budget limits, the first of iterations, propagations and seconds."""
        return next((name for name in AXES if getattr(self.budget, name) is not None), AXES[0])

    def table(self) -> Table:
        """Losses at shares of the budget, how each run ended, and what it spent."""
        against, extent = self.limited, self.extent(self.limited)
        rows = [
            (
                name,
                *(f"{self.lowest(name, against, share * extent):.6g}" for share in SHARES),
                str(result.status),
                *(f"{float(result.spent(axis)[-1]):.4g}" for axis in AXES),
            )
            for name, result in self.results.items()
        ]
        blank = ("–",) * (len(SHARES) + len(AXES))
        rows += [(name, *blank[:3], "could not run", *blank[3:]) for name in self.failures]
        return Table(
            ("method", *(f"at {share * extent:.4g}" for share in SHARES), "status", *AXES),
            rows,
            f"The lowest loss within so many {against}, why each run ended, and what it spent; "
            "seconds without compiling.",
        )

    def winners(self) -> Table:
        """The winner for every kind of budget, at shares of what all can be compared by."""
        rows = []
        for against in AXES:
            extent = self.extent(against)
            amounts = [share * extent for share in SHARES]
            rows.append((against, *(f"{self.winner(against, a)} ({a:.3g})" for a in amounts)))
        return Table(
            ("budget", *(f"{share:.0%}" for share in SHARES)),
            rows,
            "The winner at a quarter, half and all of each budget, with the amount: the method "
            "with the lowest loss; of equals, or of those at the target, the first to get there.",
        )

    def plot(self, against: str | None = None, ax: Any = None) -> Any:
        """The losses against iterations, propagations or seconds; returns matplotlib axes."""
        from . import plot

        return plot.history(self.results, against=against or self.limited, ax=ax)

    def report(self, path: str | Path) -> Path:
        """One HTML page with tables and interactive plots, which needs nothing but itself."""
        from .report import comparison_page

        return comparison_page(self).write(Path(path))

    def __str__(self) -> str:
        failed = [f"{name} could not run: {why}" for name, why in self.failures.items()]
        return "\n\n".join([self.table().text(), self.winners().text(), *failed])


UNLIMITED = 10**9
BASELINE = "L-BFGS"
BUDGET_ARGUMENTS = ("max_iterations", "max_propagations", "max_seconds", "checkpoint")


def compare(
    problem: Problem,
    theta0: PyTree,
    *,
    metrics: Mapping[str, Metric | Mapping[str, Any]] | Sequence[Metric],
    solvers: Solver | Mapping[str, Solver] | None = None,
    budget: Budget = Budget(iterations=100),
    lbfgs: bool = True,
    folder: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Minimise from θ₀ in every metric, by every solver, and by L-BFGS, and see who wins.

    ```python
    found = ng.compare(
        problem, theta0, metrics={"L²": ng.L2(grid), "W₂": ng.Wasserstein(grid)},
        budget=ng.Budget(iterations=50),
    )
    print(found)
    found.winner("seconds"), found.results["W₂"].theta, found.report("comparison.html")
    ```

    Each metric is run by `minimize` with the same `settings` (damping, step, bounds, ...). Instead
    of a metric there may be a dict with a `metric` and settings of its own, such as its step, or a
    `problem` with the same loss whose state it measures. Every method makes one iteration before
    its run, which compiles, unless the model is outside JAX. In a `folder` every run keeps its
    checkpoint: the same call goes on there after an interruption.

    A method that cannot run, such as Fisher–Rao where the state is negative, is listed among the
    `failures`; if none can, the reason of the first is raised.
    """
    entrants = _entrants(metrics, solvers, settings)
    if not isinstance(budget, Budget):
        raise InputError("budget", f"is a {type(budget).__name__}", "ng.Budget(iterations=100)")
    if lbfgs:
        accepted = set(inspect.signature(run_lbfgs).parameters)
        entrants[BASELINE] = {k: v for k, v in settings.items() if k in accepted}
    kept = _places(entrants, folder)
    results: dict[str, Result] = {}
    failures: dict[str, Exception] = {}
    for name, entrant in entrants.items():
        try:
            with label_runs(name):
                results[name] = _run(problem, theta0, entrant, budget, kept[name])
        except Exception as error:
            failures[name] = error
    if not results:
        raise next(iter(failures.values()))
    reasons = {name: _reason(error) for name, error in failures.items()}
    return Comparison(results, budget, reasons, problem, settings.get("loss_target"))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def _run(
    problem: Problem, theta0: PyTree, entrant: dict[str, Any], budget: Budget, kept: Path | None
) -> Result:
    descend = minimize if "metric" in entrant else run_lbfgs
    problem = entrant.get("problem", problem)
    entrant = {name: value for name, value in entrant.items() if name != "problem"}
    resumes = kept is not None and kept.exists()
    if not (problem.model.on_host or resumes):
        quietly = entrant | {"callbacks": (), "progress": False}
        descend(problem, theta0, max_iterations=1, **quietly)
    return descend(
        problem,
        theta0,
        max_iterations=UNLIMITED if budget.iterations is None else budget.iterations,
        max_propagations=budget.propagations,
        max_seconds=budget.seconds,
        checkpoint=kept,
        **entrant,
    )


def _entrants(metrics: Any, solvers: Any, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What `minimize` is called with, by name."""
    for name in BUDGET_ARGUMENTS:
        if name in settings:
            advice = (
                "folder='runs'" if name == "checkpoint" else f"budget=ng.Budget({name[4:]}=...)"
            )
            raise InputError(name, "is not an argument of compare", advice)
    found = {}
    for name, metric in _by_name(metrics).items():
        own = dict(metric) if isinstance(metric, Mapping) else {"metric": metric}
        if not isinstance(own.get("metric"), Metric):
            what = f"{name!r} is no metric"
            raise InputError("metrics", what, "{'L²': ng.L2(grid), 'W₂': ng.Wasserstein(grid)}")
        for label, solver in _solvers(solvers).items():
            if solver is not None and "solver" in own:
                what = f"{name!r} has a solver of its own"
                raise InputError("solvers", what, "solvers=None, or metrics without a solver")
            chosen = {} if solver is None else {"solver": solver}
            found[f"{name}, {label}" if label else name] = settings | chosen | own
    if not found:
        raise InputError("metrics", "are empty", "{'L²': ng.L2(grid)}")
    return found


def _by_name(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        return {str(name): metric for name, metric in metrics.items()}
    if isinstance(metrics, (str, Metric)) or not isinstance(metrics, Sequence):
        advice = "{'L²': ng.L2(grid)} or [ng.L2(grid)]"
        raise InputError("metrics", f"are a {type(metrics).__name__}", advice)
    named = {_label(metric): metric for metric in metrics}
    if len(named) < len(metrics):
        raise InputError("metrics", "have the same name twice", "a dict that names them")
    return named


def _label(metric: Any) -> str:
    """The class, and the order or exponent that tells metrics of one class apart."""
    number = getattr(metric, "s", getattr(metric, "exponent", None))
    plain = type(metric).__name__
    return plain if number is None or plain == "Wasserstein" else f"{plain} {number:g}"


def _solvers(solvers: Any) -> dict[str, Solver | None]:
    if solvers is None or isinstance(solvers, Solver):
        return {"": solvers}
    listed = solvers if isinstance(solvers, Mapping) else {}
    if not listed or not all(isinstance(solver, Solver) for solver in listed.values()):
        raise InputError("solvers", "are no solvers", "{'QR': ng.QR(), 'CG': ng.CG()}")
    return dict(listed)


def _places(entrants: Mapping[str, Any], folder: str | Path | None) -> dict[str, Path | None]:
    """Where each run is kept: its name without what file systems do not like."""
    if folder is None:
        return dict.fromkeys(entrants)
    return {
        name: Path(folder) / f"{number:02}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.npz"
        for number, name in enumerate(entrants, 1)
    }
