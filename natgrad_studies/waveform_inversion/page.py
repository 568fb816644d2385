"""The report: figures, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from natgrad.plot import PALETTE, save
from natgrad.report import Curves, Figure, Frames, Page, Section, Series, Table

from ..methods import LINES as SHARED_LINES
from ..pages import axes_grid, plot_curves
from .run import Run, StudyResult
from .settings import RIVALS

LINES = SHARED_LINES | {
    "L2": (PALETTE["blue"], "-"),
    "L2_five": (PALETTE["blue"], ":"),
}
COLUMNS = 3
MARKS = (50, 100, 150, 250, 400, 800)
PLAIN = ("GD", "Hm1", "W2", "H1", "L2")  # those of the paper


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report, its figures drawn into the folder."""
    cells = " × ".join(map(str, result.experiment.true.shape))
    return Page(
        title="Full waveform inversion",
        lead=(
            f"A velocity model of {cells} cells is recovered from the waves of "
            f"{result.settings.shots} shots, by gradient descent, natural gradients in several "
            "metrics of the data and L-BFGS, and compared by the wave equations solved."
        ),
        sections=[
            Section("In short", _short(result)),
            Section("The experiment", [_experiment(result), _gathers(result, folder)]),
            Section("Models", [_models(result, folder), _velocities(result)]),
            Section("Convergence", [*_convergence(result, folder), run_table(result)]),
        ],
        versions={"device": result.experiment.engine.place},
    )


def _short(result: StudyResult) -> list[str]:
    best = result.best
    said = [
        f"After {result.settings.max_propagations} propagations {best.method.name} has the "
        f"smallest objective, {best.loss[-1]:.2e} of the start's, with an SSIM of "
        f"{best.similarity[-1]:.3f} (start {result.start_similarity:.3f})."
    ]
    plain = [run for run in result.runs if run.method.key in PLAIN]
    if len(plain) > 1:
        order = sorted(plain, key=lambda run: float(run.loss[-1]))
        names = ", ".join(f"{run.method.name} ({run.loss[-1]:.1e})" for run in order)
        said.append(
            f"Among the paper's methods the order is {names}. The paper reports Ḣ¹, L², Ḣ⁻¹, W₂, "
            "gradient descent. For a least-squares objective the L² natural gradient is "
            "Gauss–Newton."
        )
    rivals = [run for run in map(result.get, RIVALS) if run is not None]
    ours = result.get("L2")
    if rivals and ours is not None:
        rival = min(rivals, key=lambda run: float(run.loss[-1]))
        said.append(
            f"The best L-BFGS ({rival.method.name}) ends at {rival.loss[-1]:.2e} and SSIM "
            f"{rival.similarity[-1]:.3f}, the L² natural gradient at {ours.loss[-1]:.2e} and "
            f"{ours.similarity[-1]:.3f}."
        )
    return said


def _experiment(result: StudyResult) -> str:
    settings, survey = result.settings, result.experiment.shots.survey
    return (
        f"m u_tt − Δu = s with a perfectly matched layer, spacing {survey.spacing[0]:g} m, "
        f"{survey.steps} steps of {survey.dt * 1000:g} ms, a Ricker wavelet of "
        f"{settings.frequency:g} Hz at {survey.shots} places, {len(survey.receivers)} receivers, "
        f"unknown m = 1/c² within bounds, the top {settings.known_rows} rows known. The data were "
        "made by the propagator that inverts them"
        + (f", with noise of {settings.noise:.0%} added." if settings.noise else ", without noise.")
    )


def _convergence(result: StudyResult, folder: Path) -> list[Curves]:
    """Objective and similarity of every run; drawn into a file too."""
    costs = (
        "a gradient costs two propagations, a natural gradient two more for each step of conjugate "
        "gradients, a step one."
    )
    curves = [
        Curves(
            [_series(run, run.loss) for run in result.runs],
            "objective over the start's",
            f"The objective; {costs}",
        ),
        Curves(
            [_series(run, run.similarity) for run in result.runs],
            "SSIM",
            "Structural similarity to the true model.",
            log=False,
        ),
    ]
    figure, _ = plot_curves([[(drawn, "propagations")] for drawn in curves], (7.0, 8.0))
    save(figure, folder / "convergence.png")
    return curves


def _velocities(result: StudyResult) -> Frames:
    """The model of every run on its way, beside the true one."""
    experiment = result.experiment
    width, depth = np.array(experiment.true.shape) * experiment.spacing / 1000
    upright = lambda velocity: velocity.T / 1000
    return Frames.of(
        {
            run.method.name: [
                (f"{spent} propagations", upright(velocity)) for spent, velocity in run.frames
            ]
            for run in result.runs
        },
        "The velocity on the way from the start, beside the true one.",
        reference=("true", upright(experiment.true)),
        limits=(experiment.true.min() / 1000, experiment.true.max() / 1000),
        extent=(0.0, float(width), float(depth), 0.0),
        unit="velocity, km/s",
        x_label="distance, km",
        y_label="depth, km",
    )


def _series(run: Run, values: np.ndarray) -> Series:
    x = {"propagations": run.propagations, "iterates": np.arange(len(values))}
    return Series(run.method.name, values, x, *LINES[run.method.key])


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [run_table(result)]


def run_table(result: StudyResult) -> Table:
    """Loss and similarity of every run at some numbers of propagations."""
    budget = result.settings.max_propagations
    marks = [mark for mark in MARKS if mark < budget] + [budget]
    rows = []
    for run in result.runs:
        cells = []
        for mark in marks:
            found = run.at(mark)
            cells.append("–" if found is None else f"{found[0]:.2e} / {found[1]:.3f}")
        ends = (str(run.iterations), str(run.total), f"{run.seconds:.1f}")
        rows.append((run.method.name, *cells, *ends))
    return Table(
        ("method", *(f"at {mark}" for mark in marks), "iterations", "propagations", "seconds"),
        rows,
        "f/f₀ and SSIM of the last iterate within so many propagations (one wave solution over all "
        "shots, forward, linearised or adjoint), and what each run spent; seconds with compiling. "
        f"The start has an SSIM of {result.start_similarity:.3f}.",
    )


def _models(result: StudyResult, folder: Path) -> Figure:
    """The paper's figure 5: true, initial and recovered velocities, with their SSIM."""
    experiment = result.experiment
    shown: list[tuple[str, np.ndarray, float | None]] = [("true", experiment.true, None)]
    shown.append(("start", experiment.start, result.start_similarity))
    shown += [(r.method.name, r.velocity, float(r.similarity[-1])) for r in result.runs]
    sides = np.array(experiment.true.shape) * experiment.spacing / 1000
    figure, axes = axes_grid(len(shown), COLUMNS, (3.8, 3.0 * sides[1] / sides[0] + 0.6))
    limits = {"vmin": experiment.true.min() / 1000, "vmax": experiment.true.max() / 1000}
    style = limits | {"extent": (0, sides[0], sides[1], 0), "cmap": "viridis", "aspect": "equal"}
    image: Any = None
    for axis, (name, velocity, seen) in zip(axes, shown, strict=True):
        image = axis.imshow(velocity.T / 1000, **style)
        axis.set_title(name if seen is None else f"{name}, SSIM {seen:.3f}", loc="left")
    figure.supxlabel("distance, km", fontsize=10)
    figure.supylabel("depth, km", fontsize=10)
    figure.colorbar(image, ax=axes, label="velocity, km/s", shrink=0.7)
    return Figure(
        save(figure, folder / "models.png"),
        "True, initial and recovered velocities with their structural similarity to the true one "
        "(velocities in km/s, range 1, Gaussian window of 1.5 cells): figure 5 of the paper.",
        "velocity models side by side",
    )


def _gathers(result: StudyResult, folder: Path) -> Figure:
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
    return Figure(
        save(figure, folder / "gathers.png"),
        "The traces of the shot in the middle, what of them the starting model does not explain, "
        "and what is left in the end, all with the same grey scale.",
        "seismic gathers: recorded, and two residuals",
    )
