"""The report of the demo, and the lines at its end."""

from pathlib import Path

import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import Curves, Frames, Page, Section, Series, Table

from .run import OURS, Bout, StudyResult

LINES = {
    OURS: (PALETTE["blue"], "-"),
    f"{OURS}, Fisher–Rao": (PALETTE["blue"], "-"),
    f"{OURS}, L²": (PALETTE["green"], "-"),
    f"{OURS}, W₂": (PALETTE["purple"], "-"),
    "L-BFGS": (PALETTE["black"], "-"),
    "Adam": (PALETTE["orange"], "-"),
    "gradient descent": (PALETTE["grey"], "--"),  # in dark pages near the colour of L-BFGS
}
ABOUT = {
    "Network": (
        "Δu + u = q on a square, by a network with two hidden layers of 24, at 1024 points. "
        "natgrad is ng.levenberg_marquardt, along curves of third order. Seconds are those of the "
        "CPU, without compiling. Next: natgrad study records."
    ),
    "Waves": (
        "Five shots over layers with faults; the start is the true model, smoothed. natgrad is "
        "ng.NaturalGradient(ng.L2(grid)), with its defaults. A propagation is one solution of the "
        "wave equation for all shots, forward, linearised or adjoint. Next: natgrad study "
        "waveform-inversion --preset reduced."
    ),
    "Density": (
        "A mixture of four Gaussians with free means, widths and weights, fitted by its "
        "Kullback–Leibler divergence. Fisher–Rao is the metric of that loss; L² and W₂ are not. "
        "Next: natgrad compare gaussian-mixture."
    ),
}


def page(result: StudyResult, folder: Path) -> Page:
    """A summary, then a section for each problem."""
    first, *others = result.bouts
    return Page(
        "natgrad in three problems",
        "A network, a velocity model and a density, each fitted by natgrad and by its usual "
        "rivals from the same start under the same budget.",
        [
            Section("In short", [_verdict(result), *summary(result), _curves(first)]),
            Section(first.name, [ABOUT[first.name], _fields(first)]),
            *(
                Section(bout.name, [ABOUT[bout.name], _curves(bout), _fields(bout)])
                for bout in others
            ),
        ],
    )


def _verdict(result: StudyResult) -> str:
    ahead = [bout for bout in result.bouts if bout.final(bout.ours) < bout.final(bout.rival)]
    return f"natgrad ends lower than every rival on {len(ahead)} of {len(result.bouts)} problems."


def summary(result: StudyResult) -> list[Table]:
    """The best of natgrad beside the best of its rivals."""
    rows = [
        (
            f"{bout.name}: {bout.quantity}",
            f"{bout.final(bout.ours):.1e}",
            f"{bout.final(bout.rival):.1e} ({bout.rival})",
        )
        for bout in result.bouts
    ]
    return [Table(("at equal budgets", OURS, "best rival"), rows)]


def _curves(bout: Bout) -> Curves:
    series = [
        Series(name, values, {bout.against: spent}, *LINES[name])
        for name, (spent, values) in bout.reached.items()
    ]
    return Curves(series, bout.quantity, f"{bout.name}: {bout.quantity} against {bout.against}.")


def _fields(bout: Bout) -> Frames:
    turned = lambda field: (
        np.asarray(field).T if bout.against == "propagations" else np.rot90(field)
    )
    runs = {name: [("", turned(field))] for name, field in bout.fields.items()}
    return Frames.of(runs, "At the end, beside the truth.", reference=("truth", turned(bout.truth)))
