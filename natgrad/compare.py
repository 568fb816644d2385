"""Several metrics and solvers on one problem, under one budget."""

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .baselines import lbfgs as run_lbfgs
from .budget import Budget
from .comparison import Comparison
from .display import named
from .errors import InputError
from .metrics.base import Metric
from .minimize import minimize
from .problems import Problem
from .result import Result
from .solvers import Solver

PyTree = Any
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
            with named(name):
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
