"""Figures: the set-up, convergence against propagations, reconstructions, the posterior."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from natgrad.plot import METRIC_LINES, PALETTE, save

from .maps import draw_fields, draw_posterior, draw_setup
from .results import StudyResult, VariantResult
from .runs import Run

LINES = {
    **METRIC_LINES,
    "GD": (PALETTE["grey"], "-"),
    "LBFGS": (PALETTE["black"], "--"),
    "LBFGS_long": (PALETTE["black"], "-"),
    "Newton": (PALETTE["purple"], "-"),
    "L2_damped": (PALETTE["blue"], ":"),
    "L2_H1": (PALETTE["blue"], "--"),
    "W2_L2": (PALETTE["vermilion"], "--"),
}


def draw(result: StudyResult, folder: Path) -> dict[str, Path]:
    """All figures by name, those of a variant with its name in front."""
    drawn = {}
    for name, variant in result.variants.items():
        drawn[f"{name}_setup"] = draw_setup(variant, folder / f"{name}_setup.png")
        drawn[f"{name}_convergence"] = _convergence(variant, folder / f"{name}_convergence.png")
        drawn[f"{name}_fields"] = draw_fields(variant, folder / f"{name}_fields.png")
        if variant.posterior is not None:
            target = folder / f"{name}_posterior.png"
            drawn[f"{name}_posterior"] = draw_posterior(variant.posterior, target)
    return drawn


def _convergence(variant: VariantResult, path: Path) -> Path:
    """Misfit and error against propagations, without the prior and with it."""
    shown = [white for white in (False, True) if variant.with_prior(white)]
    figure, axes = plt.subplots(
        2, len(shown), figsize=(5.6 * len(shown), 7.2), sharex="col", sharey="row", squeeze=False
    )
    for column, white in enumerate(shown):
        runs = variant.with_prior(white)
        upper, lower = axes[:, column]
        upper.set_title("with the prior" if white else "without the prior", loc="left")
        _curves(upper, runs, lambda run: run.misfit)
        upper.set_yscale("log")
        level = variant.inversion.settings.discrepancy
        upper.axhline(level, color=PALETTE["grey"], lw=1.0, ls=(0, (1, 1)))
        text = {"xytext": (0, -11), "textcoords": "offset points", "fontsize": 8.5}
        upper.annotate("the noise", (0.01, level), xycoords=("axes fraction", "data"), **text)
        _curves(lower, runs, lambda run: run.error)
        lower.set(xlabel="propagations", ylim=(0, 1.1))
    axes[0, 0].set_ylabel("rms misfit over the noise")
    axes[1, 0].set_ylabel(r"error of $m$")
    lines = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    lines = {label: line for label, line in lines.items() if not label.startswith("_")}
    place = {"loc": "outside lower center", "ncols": 7, "frameon": False, "fontsize": 8.5}
    figure.legend(lines.values(), lines.keys(), **place)
    return save(figure, path)


def _curves(axes: Any, runs: list[Run], of: Callable[[Run], np.ndarray]) -> None:
    for run in runs:
        colour, dashes = LINES[run.method.entrant]
        values = of(run)
        axes.plot(run.propagations, values, color=colour, ls=dashes, lw=1.4, label=run.method.name)
        if run.reached:
            axes.plot(run.propagations[-1], values[-1], "o", color=colour, ms=4.5)
    axes.grid(color="#e6e6e6", lw=0.6)
