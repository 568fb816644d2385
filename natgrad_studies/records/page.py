"""The report: tables beside published figures, errors over seconds, solutions."""

from pathlib import Path
from typing import Any

import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import Curves, Frames, Page, Part, Section, Series, Table

from ..pages import tabulate
from .case import Reference
from .published import PUBLISHED
from .run import Run, StudyResult

COLOURS = {
    "LM": PALETTE["purple"],
    "LBFGS": PALETTE["black"],
    "Adam": PALETTE["orange"],
    "Muon": PALETTE["sky"],
    "SOAP": PALETTE["yellow"],
    "SSBroyden": PALETTE["green"],
    "optimistix": PALETTE["vermilion"],
    "JAX-NG": PALETTE["blue"],
    "rla-pinns": PALETTE["grey"],
}
DASHES = ("-", "--", ":", "-.")
SHARES = (1 / 6, 1 / 3, 2 / 3)  # of the seconds: where errors are compared, and at the end
MOST_COMPONENTS = 3  # of a solution whose maps are drawn
RUN_COLUMNS = {
    "method": lambda run: run.method,
    "seed": lambda run: run.seed,
    "error": lambda run: f"{run.error:.1e}",
    "lowest": lambda run: f"{run.lowest:.1e}",
    "loss": lambda run: f"{run.losses[-1]:.1e}",
    "seconds": lambda run: f"{run.seconds[-1]:.1f}",
    "compiling": lambda run: f"{run.compiling:.1f}",
    "iterations": lambda run: f"{run.iterations:,}",
    "end": lambda run: run.status,
}


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report."""
    devices = ", ".join(sorted({run.device for run in result.runs}))
    return Page(
        title="The record book",
        lead=(
            "Standard problems for physics-informed networks, solved by the same methods with the "
            "same settings from several seeds, beside published results. Errors are relative, in "
            "L², against our own references; seconds include compilation. Run on: " + devices + "."
        ),
        sections=[
            Section("In short", [record_table(result)]),
            *(_section(result, key) for key in result.cases),
        ],
    )


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [record_table(result)]


def record_table(result: StudyResult) -> Table:
    """A row for each problem and method."""
    pairs = [(key, m) for key in result.cases for m in result.settings.methods]
    found = [(key, runs) for key, m in pairs if (runs := result.of(key, m))]
    middle = lambda values: f"{np.median(list(values)):.1e}"
    columns: dict[str, Any] = {
        "problem": lambda entry: result.cases[entry[0]].title,
        "method": lambda entry: entry[1][0].method,
        "error": lambda entry: middle(run.error for run in entry[1]),
        "worst": lambda entry: f"{max(run.error for run in entry[1]):.1e}",
        "lowest": lambda entry: middle(run.lowest for run in entry[1]),
        "seconds": lambda entry: f"{np.median([run.seconds[-1] for run in entry[1]]):.0f}",
        "compiling": lambda entry: f"{np.median([run.compiling for run in entry[1]]):.0f}",
        "seeds": lambda entry: len(entry[1]),
        "best published": lambda entry: next(map(str, PUBLISHED.get(entry[0], ())), None),
    }
    return tabulate(
        found,
        columns,
        "Over the seeds: the median and the worst error at the end, the median of the lowest error "
        "during the run (which a user could not know), the seconds with compilation and those of "
        "compilation alone.",
    )


def _section(result: StudyResult, key: str) -> Section:
    case, runs = result.cases[key], [run for run in result.runs if run.problem == key]
    sizes = ", ".join(f"{block.count:,} {name}" for name, block in case.blocks.items())
    hidden = "-".join(map(str, case.hidden))
    parts: list[Part] = [
        f"{case.equation}. A network with hidden layers {hidden} and tanh, p = "
        f"{runs[0].parameters:,}, in double precision; points: {sizes}"
        + (f", in {case.legs} time windows." if case.windows else "."),
    ]
    if key in PUBLISHED:
        parts.append("Published: " + "; ".join(map(str, PUBLISHED[key])) + ".")
    parts += [
        _curves(runs, key),
        tabulate(runs, RUN_COLUMNS, "Every run: errors at the end and the lowest on the way."),
        _time_table(result, key),
        *_maps(result.references[key], min(runs, key=lambda run: run.error)),
    ]
    return Section(case.title, parts)


def _time_table(result: StudyResult, key: str) -> Table:
    """The median error at equal seconds."""
    seconds = [share * result.settings.seconds * result.cases[key].share for share in SHARES]
    middle = lambda runs, limit: np.median([run.within(limit) for run in runs])
    rows = [
        (method, *(f"{middle(runs, limit):.1e}" for limit in (*seconds, np.inf)))
        for method in result.settings.methods
        if (runs := result.of(key, method))
    ]
    return Table(
        ("method", *(f"{limit:.3g} s" for limit in seconds), "end"),
        rows,
        "The median over the seeds of the error after the given seconds, compilation included.",
    )


def _curves(runs: list[Run], key: str) -> Curves:
    """The error against seconds, one curve a run."""
    seeds = sorted({run.seed for run in runs})
    name = lambda run: f"{run.method}, seed {run.seed}" if len(seeds) > 1 else run.method
    series = [
        Series(
            name(run),
            run.errors,
            {"seconds": run.seconds},
            COLOURS[run.method],
            DASHES[seeds.index(run.seed) % len(DASHES)],
        )
        for run in runs
    ]
    levels = {str(figure.by): figure.error for figure in PUBLISHED.get(key, ())[:1]}
    caption = "The error against seconds, compilation included."
    return Curves(series, "error", caption, levels=levels)


def _maps(reference: Reference, run: Run) -> list[Part]:
    """The solution, what the best run found and the difference, where there are two dimensions."""
    if reference.points.ndim != 3:
        return []
    truth, found = (
        values if values.ndim == 3 else values[..., None]
        for values in (reference.values, run.values)
    )
    low, high = reference.points[0, 0], reference.points[-1, -1]
    extent = tuple(float(end) for end in (low[0], high[0], low[1], high[1]))
    upright = lambda values: [("", np.asarray(values).T[::-1])]
    name = f"{run.method}, seed {run.seed}"
    parts: list[Part] = []
    for component in range(min(truth.shape[-1], MOST_COMPONENTS)):
        true, learned = truth[..., component], found[..., component]
        parts += [
            Frames.of(
                {"reference": upright(true), name: upright(learned)},
                f"The reference, and the run with the smallest error, {run.error:.1e}.",
                limits=(float(true.min()), float(true.max())),
                extent=extent,
                aspect=1.0,
            ),
            Frames.of(
                {"difference": upright(learned - true)},
                "The run minus the reference.",
                extent=extent,
                aspect=1.0,
                colours="diverging",
            ),
        ]
    return parts
