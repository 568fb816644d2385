"""Several methods on one problem side by side: which is ahead after the same work."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from .core.outcomes import BUDGETS
from .core.settings import check_instance
from .descent.methods import Method
from .descent.minimize import Callback, minimize
from .descent.progress import label_runs, show_busy
from .descent.run import HeldOut
from .descent.stop import Stop
from .devices import Devices
from .errors import InputError, name_kind, refuse_unknown
from .models.base import evaluate
from .problem import Problem
from .result import AXES, Result

SHARES = (0.25, 0.5, 1.0)
LEVEL = 0.01  # losses this close to the lowest are as good
ROUNDING = 1e-14  # and so are those within this of it, relative to the first loss
SAME_SECONDS = 1.1  # as much time, measured on a machine that does other things too
QUICK = 0.1  # seconds for an evaluation of a model outside JAX that may be made once more


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
    stop: Stop
    failures: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = field(default=None, repr=False)
    compiling: bool = False  # whether it is part of the seconds of some runs

    def lowest(self, name: str, against: str = "iterations", spent: float = np.inf) -> float:
        """The lowest loss of a method within so much."""
        result = self.results[name]
        within = result.history["loss"][result.spent(against) <= spent]
        return float(np.fmin.reduce(within, initial=np.inf))

    def extent(self, against: str) -> float:
        """How far all methods can be compared: the budget, or else what every run has spent.

        A run that ended by itself before the others stays where it is for the rest.
        """
        limit = getattr(self.stop, against, None)
        if limit is not None:
            return float(limit)
        ends = {name: float(result.spent(against)[-1]) for name, result in self.results.items()}
        cut_off = [ends[name] for name in ends if self.results[name].status in BUDGETS]
        return min(cut_off) if cut_off else max(ends.values())

    def winner(self, against: str = "iterations", at: float | None = None) -> str:
        """The method with the lowest loss within `at`, or as far as all can be compared.

        Of methods whose losses are within 1% of the lowest, or reach the target, the first to get
        there.

        ```python
        comparison.winner("seconds", at=10.0)
        ```
        """
        spent = self._spent_until_level(against, self.extent(against) if at is None else at)
        return min(spent, key=spent.__getitem__)

    def _spent_until_level(self, against: str, at: float) -> dict[str, float]:
        """What those methods that are level with the best within `at` had spent by then."""
        first = max(float(result.history["loss"][0]) for result in self.results.values())
        lowest = min(self.lowest(name, against, at) for name in self.results)
        eps = max(_find_eps(result.theta) for result in self.results.values())
        # a loss below zero is a difference of larger numbers
        rounding = max(ROUNDING, 100 * eps**2) if lowest >= 0 else 100 * eps
        bar = lowest + max(LEVEL * abs(lowest), rounding * abs(first))
        bar = bar if self.stop.loss is None else max(bar, self.stop.loss)
        found = {}
        for name, result in self.results.items():
            below = result.spent(against)[result.history["loss"] <= bar]
            if below.size and below[0] <= at:
                found[name] = float(below[0])
        return found or dict.fromkeys(self.results, np.inf)

    @property
    def leaders(self) -> dict[str, list[str]]:
        """Who is ahead by each kind of budget in the end: one method, or several at one cost."""
        return {axis: self._lead(axis) for axis in AXES}

    def _lead(self, against: str) -> list[str]:
        spent = self._spent_until_level(against, self.extent(against))
        most = min(spent.values()) * (SAME_SECONDS if against == "seconds" else 1)
        return [name for name in spent if spent[name] <= most]

    @property
    def limited(self) -> str:
        """What the budget limits, the first of iterations, propagations and seconds."""
        return next((name for name in AXES if getattr(self.stop, name) is not None), AXES[0])

    def _amounts(self, against: str) -> list[float]:
        """Shares of what all can be compared by, whole ones but for seconds."""
        amounts = [share * self.extent(against) for share in SHARES]
        return amounts if against == "seconds" else [int(amount) for amount in amounts]

    def table(self) -> Table:
        """Losses at shares of the budget, how each run ended, and what it spent."""
        against, amounts = self.limited, self._amounts(self.limited)
        rows = [
            (
                name,
                *(f"{self.lowest(name, against, amount):.6g}" for amount in amounts),
                str(result.status),
                *(f"{float(result.spent(axis)[-1]):.4g}" for axis in AXES),
            )
            for name, result in self.results.items()
        ]
        blank = ("–",) * (len(SHARES) + len(AXES))
        rows += [(name, *blank[:3], "could not run", *blank[3:]) for name in self.failures]
        return Table(
            ("method", *(f"at {_write(amount)}" for amount in amounts), "status", *AXES),
            rows,
            f"The lowest loss within so many {against}, why each run ended, and what it spent; "
            f"seconds {'with' if self.compiling else 'without'} compiling.",
        )

    def winners(self) -> Table:
        """The winner for every kind of budget, at shares of what all can be compared by."""
        rows = []
        for against in AXES:
            amounts = self._amounts(against)
            rows.append((against, *(f"{self.winner(against, a)} ({_write(a)})" for a in amounts)))
        return Table(
            ("budget", *(f"{share:.0%}" for share in SHARES)),
            rows,
            "Best method at 25%, 50% and 100% of each budget, or of what all can be compared by "
            "(in parentheses). Of losses within 1% of each other, the first to get there.",
        )

    def plot(self, against: str | None = None, ax: Any = None) -> Any:
        """The losses against iterations, propagations or seconds; returns matplotlib axes."""
        from . import plot

        return plot.history(self.results, against=against or self.limited, ax=ax)

    def report(self, path: str | Path) -> Path:
        """A self-contained HTML page with tables and interactive plots."""
        from .report import comparison_page

        return comparison_page(self).write(Path(path))

    def verdict(self) -> str:
        """Who is ahead in the end by each kind of budget, and why, in a sentence or two."""
        by: dict[str, list[str]] = {}
        for axis, names in self.leaders.items():
            who = f"{_list(names)} {'is ahead' if len(names) == 1 else 'are level'}"
            compiling = " with compiling" if axis == "seconds" and self.compiling else ""
            by.setdefault(who, []).append(axis + compiling)
        said = f"In the end {'; '.join(f'{who} by {_list(axes)}' for who, axes in by.items())}."
        level = list(self._spent_until_level(self.limited, self.extent(self.limited)))
        if len(level) == 1:
            return said
        target = self.stop.loss
        met = target is not None and all(self.lowest(name) <= target for name in level)
        why = "reach the target" if met else "end level (losses within 1%, or rounding)"
        return f"{said} {_list(level)} {why}; what counts is who got there first."

    def __str__(self) -> str:
        failed = [f"{name} could not run: {why}" for name, why in self.failures.items()]
        return "\n\n".join([self.table().text(), self.winners().text(), self.verdict(), *failed])


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


Entry = Method | tuple[Problem, Method]


def compare(
    problem: Problem,
    theta0: PyTree,
    methods: Mapping[str, Entry],
    *,
    stop: Stop = Stop(),
    bounds: tuple[PyTree, PyTree] | None = None,
    held_out: Problem | HeldOut | None = None,
    folder: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    snapshots: int | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
    **unknown: Never,
) -> Comparison:
    """Minimise from θ₀ by every method under one budget, and see which wins.

    ```python
    methods = {
        "W₂": ng.NaturalGradient(ng.Wasserstein(grid)),
        "L²": ng.NaturalGradient(ng.L2(grid)),
        "L-BFGS": ng.LBFGS(10),
    }
    found = ng.compare(problem, theta0, methods, stop=ng.Stop(seconds=5))
    print(found)
    found.winner("seconds"), found.results["W₂"].theta, found.report("comparison.html")
    ```

    Every method makes one iteration before its run, which compiles it, unless the model is outside
    JAX and takes longer than 0.1 s; seconds then include compiling.

    A method that cannot run, such as Fisher–Rao where the state is negative, is listed among the
    `failures`; if none can, the reason of the first is raised. After Ctrl-C the comparison until
    then is `error.natgrad_comparison`.

    Args:
        problem: What is minimised.
        theta0: The starting point of every run.
        methods: By name a method, or a pair (problem, method) with a problem of the same loss whose
            state the method measures.
        stop: The budget of each run.
        bounds: As in `minimize`.
        held_out: As in `minimize`.
        folder: Where every run keeps its checkpoint: the same call resumes there after an
            interruption.
        callbacks: As in `minimize`.
        snapshots: As in `minimize`.
        progress: As in `minimize`.
        mesh: As in `minimize`.
    """
    if unknown:
        refuse_unknown(unknown, compare)
    entries = _check_entries(problem, methods)
    check_instance("stop", stop, Stop, "ng.Stop(iterations=10)")
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else callbacks
    plain = lambda name: re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")  # for file systems
    settings = {"bounds": bounds, "held_out": held_out, "snapshots": snapshots, "mesh": mesh}
    results: dict[str, Result] = {}
    failures: dict[str, Exception] = {}
    compiling = False
    for number, (name, (own, method)) in enumerate(entries.items(), 1):
        place = None if folder is None else Path(folder) / f"{number:02}-{plain(name)}.npz"
        label = f"{name}, {number} of {len(entries)}"
        try:
            resumes = place is not None and place.exists()
            slow = own.model.on_host and _time_evaluation(own, theta0) > QUICK
            compiling |= slow
            if not (slow or resumes):
                once = replace(stop, iterations=1, propagations=None, seconds=None)
                shown = progress if Devices.over(mesh).leads else False
                with show_busy(f"{label}: compiling", shown):
                    minimize(own, theta0, method, stop=once, progress=False, **settings)
            watched = {"callbacks": callbacks, "checkpoint": place, "progress": progress}
            with label_runs(label):
                results[name] = minimize(own, theta0, method, stop=stop, **watched, **settings)
        except Exception as error:
            failures[name] = error
        except KeyboardInterrupt as error:
            if hasattr(error, "natgrad_result"):
                results[name] = error.natgrad_result  # pyright: ignore
            reasons = _explain(failures)
            found = Comparison(results, stop, reasons, problem, compiling)
            error.natgrad_comparison = found  # pyright: ignore
            raise
    if not results:
        raise next(iter(failures.values()))
    return Comparison(results, stop, _explain(failures), problem, compiling)


def _explain(failures: Mapping[str, Exception]) -> dict[str, str]:
    known = lambda error: isinstance(error, InputError)
    explain = lambda error: str(error) if known(error) else f"{type(error).__name__}: {error}"
    return {name: explain(error) for name, error in failures.items()}


def _time_evaluation(problem: Problem, theta: PyTree) -> float:
    """Seconds of an evaluation, the second one if the first, which may compile, was not quick."""
    seconds = np.inf
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(evaluate(problem.model, theta).rho)
        seconds = min(seconds, time.perf_counter() - began)
        if seconds <= QUICK:
            break
    return seconds


def _write(amount: float) -> str:
    return str(amount) if isinstance(amount, int) else f"{amount:.3g}"


def _find_eps(theta: PyTree) -> float:
    """Of the coarsest precision among the parameters."""
    leaves = filter(eqx.is_inexact_array, jax.tree.leaves(theta))
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in leaves)


def _check_entries(problem: Problem, methods: Any) -> dict[str, tuple[Problem, Method]]:
    """Every entry as a pair."""
    advice = "{'L²': ng.NaturalGradient(ng.L2(grid)), 'L-BFGS': ng.LBFGS(10)}"
    if not isinstance(methods, Mapping) or not methods:
        what = "are empty" if isinstance(methods, Mapping) else f"are {name_kind(methods)}"
        raise InputError("methods", what, advice)
    found = {}
    for name, entry in methods.items():
        pair = entry if isinstance(entry, tuple) else (problem, entry)
        fits = len(pair) == 2 and isinstance(pair[0], Problem) and isinstance(pair[1], Method)
        if not fits:
            what = f"{name!r} is neither a method nor a pair (problem, method)"
            raise InputError("methods", what, advice)
        found[str(name)] = pair
    if len(found) < len(methods):
        raise InputError("methods", "have the same name twice", "a name for each")
    return found
