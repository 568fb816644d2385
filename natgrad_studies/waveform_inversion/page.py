"""The report: figures, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path

import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import Curves, Frames, Page, Part, Section, Series, Table

from ..methods import LINES as SHARED_LINES
from ..pages import tabulate
from .run import Run, StudyResult
from .settings import RIVALS

LINES = SHARED_LINES | {
    "L2": (PALETTE["blue"], "-"),
    "L2_five": (PALETTE["blue"], ":"),
}
MARKS = (50, 100, 150, 250, 400, 800)
PAPER = ("H1", "L2", "Hm1", "W2", "GD")  # its methods, the best first


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report."""
    cells = " × ".join(map(str, result.experiment.true.shape))
    names = "; ".join(run.method.name for run in result.runs)
    objective, similarity = _convergence(result)
    return Page(
        title="Full waveform inversion",
        lead=(
            f"A velocity model of {cells} cells is recovered from the waves of "
            f"{result.settings.shots} shots. The methods are compared by the number of wave "
            f"solutions that they take: {names}."
        ),
        sections=[
            Section("In short", [_winner(result), objective, end_table(result), *_short(result)]),
            Section("Models", [_velocities(result)]),
            Section("Similarity to the true model", [similarity, run_table(result)]),
            Section("The experiment", [_experiment(result), _gathers(result)], folded=True),
        ],
        versions={"device": result.experiment.engine.place},
    )


def _winner(result: StudyResult) -> str:
    best = result.best
    near = [run for run in result.runs if run.loss[-1] <= 1.01 * best.loss[-1] and run is not best]
    names = ", ".join(run.method.name for run in near)
    level = f" Level with it, within 1%: {names}." if near else ""
    return (
        f"After {result.settings.max_propagations} propagations {best.method.name} has the "
        f"smallest objective, {best.loss[-1]:.2e} of the start's, with an SSIM of "
        f"{best.similarity[-1]:.3f} (start {result.start_similarity:.3f})."
        f"{level}"
    )


def _short(result: StudyResult) -> list[Part]:
    said: list[Part] = []
    plain = [run for run in map(result.get, PAPER) if run is not None]
    if len(plain) > 1:
        order = sorted(plain, key=lambda run: float(run.loss[-1]))
        names = ", ".join(f"{run.method.name} ({run.loss[-1]:.1e})" for run in order)
        said.append(
            f"Among the paper's methods the order is {names}; in the paper it is "
            f"{', '.join(run.method.name for run in plain)}."
        )
    rivals = [run for run in map(result.get, RIVALS) if run is not None]
    ours = result.get("L2")
    if rivals and ours is not None:
        rival = min(rivals, key=lambda run: float(run.loss[-1]))
        said.append(
            f"The best L-BFGS ({rival.method.name}) ends at {rival.loss[-1]:.2e} and SSIM "
            f"{rival.similarity[-1]:.3f}, the L² natural gradient at {ours.loss[-1]:.2e} and "
            f"{ours.similarity[-1]:.3f}. For a least-squares objective the latter is Gauss–Newton."
        )
    return said


def end_table(result: StudyResult) -> Table:
    """Where every run ended."""
    return tabulate(
        sorted(result.runs, key=lambda run: float(run.loss[-1])),
        {
            "method": lambda run: run.method.name,
            "f/f₀": lambda run: f"{run.loss[-1]:.2e}",
            "SSIM": lambda run: f"{run.similarity[-1]:.3f}",
            "iterations": lambda run: run.iterations,
            "propagations": lambda run: run.total,
        },
        "The objective relative to that of the start, and the structural similarity (SSIM) to the "
        f"true model, {result.start_similarity:.3f} at the start.",
    )


def _experiment(result: StudyResult) -> str:
    settings, survey = result.settings, result.experiment.shots.survey
    return (
        f"m u_tt − Δu = s with a perfectly matched layer, spacing {survey.spacing[0]:g} m, "
        f"{survey.steps} steps of {survey.dt * 1000:g} ms, a Ricker wavelet of "
        f"{settings.frequency:g} Hz at {survey.shots} places, {len(survey.receivers)} receivers, "
        f"unknown m = 1/c² within bounds, the top {settings.known_rows} rows known. The data were "
        "made by the same propagator that inverts them"
        + (f", with noise of {settings.noise:.0%} added." if settings.noise else ", without noise.")
    )


def _convergence(result: StudyResult) -> tuple[Curves, Curves]:
    """Objective and similarity of every run."""
    costs = (
        "a gradient costs two propagations, a natural gradient two more for each step of conjugate "
        "gradients, and a trial step one."
    )
    return (
        Curves(
            [_series(run, run.loss) for run in result.runs],
            "objective over the start's",
            f"The objective; {costs}",
        ),
        Curves(
            [_series(run, run.similarity) for run in result.runs],
            "SSIM",
            "Structural similarity to the true model (velocities in km/s, range 1, Gaussian window "
            "of 1.5 cells).",
            log=False,
        ),
    )


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
        "The velocity from the start to the end of each run, beside the true one: figure 5 of the "
        "paper.",
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
    budget, workers = result.settings.max_propagations, result.workers
    shared = f", and {workers} methods ran at the same time" if workers > 1 else ""
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
        "f/f₀ and SSIM of the last iterate within the given number of propagations (one wave "
        "solution for all shots, forward, linearised or adjoint), and what each run spent; seconds "
        f"include compiling{shared}. "
        f"The start has an SSIM of {result.start_similarity:.3f}.",
    )


def _gathers(result: StudyResult) -> Frames:
    """One shot: recorded, and what the start and the best model leave unexplained."""
    experiment, best = result.experiment, result.best
    survey = experiment.shots.survey
    shot = survey.shots // 2
    observed = experiment.shots.data[shot]
    panels = {
        "recorded": observed,
        "minus the start's": observed - experiment.start_data[shot],
        f"minus that of {best.method.name}": observed - experiment.predicted(best.velocity)[shot],
    }
    clip = float(np.quantile(np.abs(observed), 0.98))
    length = survey.shape[0] * survey.spacing[0] / 1000
    thin = -(-survey.steps // 400)  # a page has few pixels
    return Frames.of(
        {name: [("", np.asarray(data).T[::thin])] for name, data in panels.items()},
        "The traces of the middle shot, and the residuals of the starting model and of the best "
        "result. Values beyond the colour bar have its last colour.",
        limits=(-clip, clip),
        extent=(0.0, length, survey.steps * survey.dt, 0.0),
        x_label="receiver, km",
        y_label="time, s",
        unit="pressure",
        colours="diverging",
        aspect=0.8,
    )
