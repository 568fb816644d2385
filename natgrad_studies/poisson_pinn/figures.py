"""Figures: the solution and its error, losses by iterations and by seconds, mini-batches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import ScalarFormatter

from natgrad.plot import METRIC_LINES, PALETTE, save

from .equation import fine_points, solution
from .results import StudyResult
from .runs import Run

LINES = {
    **METRIC_LINES,
    "GD": (PALETTE["grey"], "-"),
    "LBFGS": (PALETTE["black"], "--"),
    "Adam": (PALETTE["black"], ":"),
    "GN": (PALETTE["purple"], ":"),
    "LM": (PALETTE["purple"], "--"),
    "LM3": (PALETTE["purple"], "-"),
}
MOST_POINTS = 2000  # of a curve: cheap iterations are many, and a figure has few pixels


def draw(result: StudyResult, folder: Path) -> dict[str, Path]:
    """All figures by name."""
    drawn = {
        "fields": _fields(result, folder / "fields.png"),
        "convergence": _convergence(result, folder / "convergence.png"),
    }
    if result.batched:
        drawn["batches"] = _batches(result, folder / "batches.png")
    return drawn


def _fields(result: StudyResult, path: Path) -> Path:
    """The true solution, what the best run has learned, and the difference."""
    best = result.best
    truth, found = solution(fine_points()), result.pinn.fine(best.theta)
    figure, axes = plt.subplots(1, 3, figsize=(11.4, 3.5))
    style = {"vmin": truth.min(), "vmax": truth.max(), "cmap": "viridis"}
    wrong = found - truth
    bound = np.abs(wrong).max()
    panels = (
        (truth, "true solution $u$", style),
        (found, f"learned $\\rho$: {best.method.name}", style),
        (wrong, r"error $\rho - u$", {"vmin": -bound, "vmax": bound, "cmap": "RdBu_r"}),
    )
    for axis, (values, title, style) in zip(axes, panels, strict=True):
        image = axis.imshow(values.T, origin="lower", extent=(-1, 1, -1, 1), **style)
        axis.set_title(title, loc="left", fontsize=9.5)
        axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axis.spines[:].set_visible(False)
        figure.colorbar(image, ax=axis, shrink=0.85, format=_ticks())
    return save(figure, path)


def _ticks() -> ScalarFormatter:
    ticks = ScalarFormatter()
    ticks.set_powerlimits((-2, 3))
    return ticks


def _convergence(result: StudyResult, path: Path) -> Path:
    """Losses of all methods against iterations and against CPU seconds."""
    figure, axes = plt.subplots(1, 2, figsize=(11.4, 5.0), sharey=True)
    runs = list(result.runs.values())
    for axis, of, name in zip(axes, (_iterations, _seconds), ("iterations", "CPU s"), strict=True):
        _curves(axis, runs, of, name)
    axes[0].set(xscale="symlog", xlim=(0, None))
    axes[0].set_ylabel("loss")
    return save(_with_legend(figure, axes[0]), path)


def _batches(result: StudyResult, path: Path) -> Path:
    """The same methods on all points and on mini-batches, against CPU seconds."""
    figure, axis = plt.subplots(figsize=(10.0, 4.4))
    whole = [result.runs[key] for key in result.batched if key in result.runs]
    _curves(axis, whole, _seconds, "CPU s", alpha=0.45)
    _curves(axis, list(result.batched.values()), _seconds, "CPU s", lw=1.7, ls="-.")
    axis.set_ylabel("loss on all points")
    return save(_with_legend(figure, axis), path)


def _iterations(run: Run) -> np.ndarray:
    return np.arange(len(run.losses))


def _seconds(run: Run) -> np.ndarray:
    return run.seconds


def _curves(
    axes: Any, runs: Sequence[Run], of: Callable[[Run], np.ndarray], name: str, **style: Any
) -> None:
    for run in runs:
        colour, dashes = LINES[run.method.key]
        x, kept = of(run), _thinned(len(run.losses))
        look = {"color": colour, "ls": dashes, "lw": 1.4, "label": run.method.name} | style
        axes.plot(x[kept], run.losses[kept], **look)
        if run.ended_by_itself:
            axes.plot(x[-1], run.losses[-1], "x", color=colour, ms=5)
    axes.set(yscale="log", xlabel=name)
    axes.grid(color="#e6e6e6", lw=0.6)


def _thinned(count: int) -> np.ndarray:
    """Indices of a curve: all, or evenly spread in the logarithm, with the first and the last."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.unique(np.round(np.geomspace(1, count, MOST_POINTS)).astype(int)) - 1


def _with_legend(figure: Any, axes: Any) -> Any:
    lines, labels = axes.get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": 7, "frameon": False, "fontsize": 8.5}
    figure.legend(lines, labels, **place)
    return figure
