"""The pages of runs: of one `Result`, and of a `Comparison` of several."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..comparison import Comparison, Table
from ..plot import RUN_COLOURS, landscape
from ..problem import Problem
from ..result import AXES, Info, Result, machine, versions
from .page import Page, Part, Section
from .plots import DASHES, Curves, Frames, Landscape, Paths, Series, Track

COLUMNS = {"loss": "loss", "gradient_norm": "gradient norm", "step": "step length"}
INFO = ("solver", "rank", "condition", "damping", "status", "iterations", "residual", "reachable")
MOST_FRAMES = 40
BUDGETS = "At a quarter, half and all of the budget"


def result_page(result: Result, name: str, problem: Problem | None = None) -> Page:
    """How a run ended, its curves, and its iterates if they were kept and can be drawn.

    With a problem of two parameters the path is drawn over the level sets of its loss.
    """
    loss, *others = convergence_plots({name: result})
    numbers, iterates = _end_table({name: result}), iterate_plots({name: result}, problem)
    sections = [Section("In short", [_ending(result), loss, numbers, *iterates])]
    if others:
        sections.append(Section("Gradient and steps", others))
    if result.info is not None:
        sections.append(Section("The last direction", [_info_table(result.info)], folded=True))
    propagations, seconds = (result.spent(axis)[-1] for axis in ("propagations", "seconds"))
    spent = f"{propagations:.0f} propagations, in {seconds:.3g} seconds."
    lead = f"A run of {result.iterations} iterations and {spent}"
    return Page(name, lead, sections, {}, versions(), machine())


def comparison_page(comparison: Comparison) -> Page:
    """Who is ahead, the curves of all runs, and their iterates as in `result_page`."""
    results = comparison.results
    loss, *others = convergence_plots(results)
    iterates = iterate_plots(results, comparison.problem)
    short: list[Part] = [comparison.verdict(), loss, _end_table(results), *iterates]
    short += [f"{name} could not run: {why}" for name, why in comparison.failures.items()]
    budgets = [comparison.winners(), comparison.table()]
    sections = [
        Section("In short", short),
        Section(BUDGETS, budgets, folded=True),
        *([Section("Gradients and steps", others, folded=True)] if others else []),
    ]
    limits = {name: value for name in AXES if (value := getattr(comparison.stop, name))}
    budget = ", ".join(f"{value:g} {name}" for name, value in limits.items())
    lead = f"{', '.join(results)} on one problem from one start" + (
        f", each with at most {budget}." if budget else "."
    )
    return Page("Comparison", lead, sections, {"budget": limits}, versions(), machine())


def _ending(result: Result) -> str:
    warning = "" if result.warning is None else f" Warning: {result.warning}."
    found = f"Loss {result.loss:.6g} after {result.iterations} iterations"
    return f"{found}: {result.status.message}.{warning}"


def _end_table(results: Mapping[str, Result]) -> Table:
    rows = []
    for name, result in results.items():
        spent = {axis: float(result.spent(axis)[-1]) for axis in AXES}
        cells = (
            f"{spent[axis]:.3g}" if axis == "seconds" else f"{spent[axis]:.0f}" for axis in AXES
        )
        rows.append((name, f"{result.loss:.6g}", *cells))
    return Table(("run", "loss", *AXES), rows, "The loss at the end, and what each run spent.")


def _info_table(info: Info) -> Table:
    values = {name: getattr(info, name) for name in INFO} | dict(info.metric)
    rows = [(name, _cell(value)) for name, value in values.items() if not _is_unknown(value)]
    return Table(("", "value"), rows)


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def convergence_plots(results: Mapping[str, Result]) -> list[Part]:
    """Curves of the loss, the gradient norm and the steps."""
    parts: list[Part] = []
    for column, label in COLUMNS.items():
        series = [
            Series(
                name,
                result.history[column],
                {axis: result.spent(axis) for axis in AXES},
                *line_style(number),
            )
            for number, (name, result) in enumerate(results.items())
            if np.isfinite(result.history[column]).any()
        ]
        if series:
            parts.append(Curves(series, label, f"The {label} of every iterate."))
    return parts


def line_style(number: int) -> tuple[str, str]:
    """The colour and dash of a run: seven colours, then the same with the next dash."""
    return RUN_COLOURS[number % len(RUN_COLOURS)], DASHES[number // len(RUN_COLOURS) % len(DASHES)]


def iterate_plots(results: Mapping[str, Result], problem: Problem | None = None) -> list[Part]:
    """Paths over the loss for two parameters, images for a field, nothing for any other θ."""
    arrays = {name: _arrays(result) for name, result in results.items()}
    arrays = {name: kept for name, kept in arrays.items() if kept}
    shapes = {array.shape for kept in arrays.values() for array in kept.values()}
    if len(shapes) != 1:
        return []
    (shape,) = shapes
    if shape == (2,) and any(len(kept) > 1 for kept in arrays.values()):
        return [_paths(results, arrays, problem)]
    if len(shape) == 2 and min(shape) > 1:
        return [Frames.of(_frames(arrays), "θ, its first index downward.")]
    return []


def _paths(
    results: Mapping[str, Result], arrays: dict[str, dict[int, np.ndarray]], problem: Problem | None
) -> Paths:
    tracks = [
        Track(
            name,
            np.stack(list(kept.values())),
            *line_style(number),
            losses=results[name].history["loss"][list(kept)],
            iterations=list(kept),
        )
        for number, (name, kept) in enumerate(arrays.items())
    ]
    if problem is None:
        return Paths(tracks, "The path of θ.")
    around = np.concatenate([np.stack(list(kept.values())) for kept in arrays.values()])
    seen = landscape(problem, results[tracks[0].name].theta, around)
    ground = Landscape.of(seen.x, seen.y, seen.values)
    return Paths(tracks, "The path of θ over the level sets of f.", ground)


def _frames(arrays: dict[str, dict[int, np.ndarray]]) -> dict[str, list[tuple[str, np.ndarray]]]:
    found = {}
    for name, kept in arrays.items():
        every = -(-len(kept) // MOST_FRAMES)
        steps = sorted({*list(kept)[::every], max(kept)})
        found[name] = [(f"iteration {step}", kept[step]) for step in steps]
    return found


def _arrays(result: Result) -> dict[int, np.ndarray]:
    """The iterates as arrays, if θ is one."""
    kept = sorted(result.iterates.items()) or [(result.iterations, result.theta)]
    return {step: np.asarray(theta, float) for step, theta in kept if _is_array(theta)}


def _is_array(theta: Any) -> bool:
    return getattr(getattr(theta, "dtype", None), "kind", "") == "f"
