"""Figures: models side by side, convergence against propagations, recorded waves."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from natgrad.plot import METRIC_LINES, PALETTE, save

from .results import StudyResult

LINES = {
    "GD": (PALETTE["grey"], "-"),
    "Hm1": METRIC_LINES["Hm1"],
    "W2": METRIC_LINES["W2"],
    "H1": METRIC_LINES["H1"],
    "L2": (PALETTE["blue"], ":"),
    "L2_recycled": (PALETTE["blue"], "--"),
    "L2_secants": METRIC_LINES["L2"],
    "LBFGS": (PALETTE["black"], "--"),
    "LBFGS_long": (PALETTE["black"], "-"),
}
COLUMNS = 3


def draw(result: StudyResult, folder: Path) -> dict[str, Path]:
    """All figures by name."""
    return {
        "models": _models(result, folder / "models.png"),
        "convergence": _convergence(result, folder / "convergence.png"),
        "gathers": _gathers(result, folder / "gathers.png"),
    }


def _models(result: StudyResult, path: Path) -> Path:
    """The paper's figure 5: true, initial and recovered velocities, with their SSIM."""
    experiment = result.experiment
    shown: list[tuple[str, np.ndarray, float | None]] = [("true", experiment.true, None)]
    shown.append(("start", experiment.start, result.start_similarity))
    shown += [(r.method.name, r.velocity, float(r.similarity[-1])) for r in result.runs]
    rows = -(-len(shown) // COLUMNS)
    sides = np.array(experiment.true.shape) * experiment.spacing / 1000
    height = 3.0 * sides[1] / sides[0] + 0.45
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(11.5, rows * height + 0.6), sharex=True, sharey=True, squeeze=False
    )
    lowest, highest = experiment.true.min() / 1000, experiment.true.max() / 1000
    image: Any = None
    for axis, (name, velocity, seen) in zip(axes.flat, shown, strict=False):
        image = axis.imshow(
            velocity.T / 1000,
            extent=(0, sides[0], sides[1], 0),
            vmin=lowest,
            vmax=highest,
            cmap="viridis",
            aspect="equal",
        )
        axis.set_title(name if seen is None else f"{name}, SSIM {seen:.3f}", loc="left")
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis in axes[:, 0]:
        axis.set_ylabel("depth, km")
    for axis in axes[-1]:
        axis.set_xlabel("distance, km")
    figure.colorbar(image, ax=axes, label="velocity, km/s", shrink=0.7)
    return save(figure, path)


def _convergence(result: StudyResult, path: Path) -> Path:
    """Objective and similarity against propagations."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4))
    for run in result.runs:
        colour, dashes = LINES[run.method.key]
        style = {"color": colour, "ls": dashes, "label": run.method.name}
        left.plot(run.propagations, run.loss, **style)
        right.plot(run.propagations, run.similarity, **style)
    left.set(xlabel="propagations", ylabel="objective over the start's", yscale="log")
    right.set(xlabel="propagations", ylabel="SSIM")
    for axis in (left, right):
        axis.grid(color="#e6e6e6", lw=0.6)
    right.legend(frameon=False, loc="lower right")
    return save(figure, path)


def _gathers(result: StudyResult, path: Path) -> Path:
    """One shot: recorded, and what the start and the best model leave unexplained."""
    experiment, best = result.experiment, result.best
    survey = experiment.shots.survey
    shot = survey.shots // 2
    observed = experiment.shots.data[shot]
    panels = {
        "recorded": observed,
        "minus the start's": observed - experiment.predicted(experiment.start)[shot],
        f"minus that of {best.method.name}": observed - experiment.predicted(best.velocity)[shot],
    }
    clip = float(np.quantile(np.abs(observed), 0.98))
    length = survey.shape[0] * survey.spacing[0] / 1000
    extent = (0, length, survey.steps * survey.dt, 0)
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 4.6), sharey=True)
    for axis, (name, data) in zip(axes, panels.items(), strict=True):
        axis.imshow(data.T, extent=extent, vmin=-clip, vmax=clip, cmap="gray", aspect="auto")
        axis.set_title(name, loc="left")
        axis.set_xlabel("receiver, km")
    axes[0].set_ylabel("time, s")
    return save(figure, path)
