"""The page of a run, from its `Result`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..problem import Problem
from ..result import AXES, Info, Result
from .curves import Curves, Series
from .iterates import iterate_plots, look
from .page import Page, Part, Section, Table

COLUMNS = {"loss": "loss", "gradient_norm": "gradient norm", "step": "step length"}
INFO = ("solver", "rank", "condition", "damping", "status", "iterations", "residual", "reachable")


def result_page(result: Result, name: str, problem: Problem | None = None) -> Page:
    """What a run found: its end, its curves, and its iterates where they were kept and fit.

    With a problem of two parameters the path is drawn over the level sets of its loss.
    """
    sections = [
        Section("In short", [f"{result}.", _end_table({name: result})]),
        Section("Convergence", convergence({name: result})),
    ]
    iterates = iterate_plots({name: result}, problem)
    if iterates:
        sections.append(Section("Iterates", iterates))
    if result.info is not None:
        sections.append(Section("The last direction", [_info_table(result.info)]))
    lead = f"A run of {result.iterations} iterations that ended with the loss {result.loss:.6g}."
    return Page(name, lead, sections)


def _end_table(results: Mapping[str, Result]) -> Table:
    rows = []
    for name, result in results.items():
        spent = {key: values[-1] for key, values in _abscissae(result).items()}
        cells = (f"{result.loss:.6g}", str(result.iterations))
        used = (f"{spent['seconds']:.3g}", f"{spent['propagations']:.0f}")
        rows.append((name, str(result.status), *cells, *used))
    return Table(("run", "status", "loss", "iterations", "seconds", "propagations"), rows)


def _info_table(info: Info) -> Table:
    values = {name: getattr(info, name) for name in INFO} | dict(info.metric)
    rows = [(name, _told(value)) for name, value in values.items() if not _unknown(value)]
    return Table(("", "value"), rows)


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _told(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _abscissae(result: Result) -> dict[str, np.ndarray]:
    return {name: result.spent(name) for name in AXES}


def convergence(results: Mapping[str, Result]) -> list[Part]:
    """Curves of the loss, the gradient norm and the steps."""
    parts: list[Part] = []
    for column, label in COLUMNS.items():
        series = [
            Series(name, result.history[column], _abscissae(result), *look(number))
            for number, (name, result) in enumerate(results.items())
            if np.isfinite(result.history[column]).any()
        ]
        if series:
            parts.append(Curves(series, label, f"The {label} of every iterate."))
    return parts
