"""The report: captions and what the numbers say. Every number comes from the results."""

import dataclasses
from pathlib import Path

from natgrad.report import Figure, Page, Section, versions

from .plots import convergence, velocities
from .results import StudyResult
from .settings import RIVALS
from .tables import run_table

PLAIN = ("GD", "Hm1", "W2", "H1", "L2")  # those of the paper


def page(result: StudyResult, drawn: dict[str, Path]) -> Page:
    """The whole report."""
    settings, experiment = result.settings, result.experiment
    cells = " × ".join(map(str, experiment.true.shape))
    return Page(
        title="Full waveform inversion",
        lead=(
            f"A velocity model of {cells} cells is recovered from the waves of {settings.shots} "
            "shots, by gradient descent, natural gradients in several metrics of the data and "
            "L-BFGS, and compared by the wave equations solved."
        ),
        sections=[
            Section("In short", _short(result)),
            Section("The experiment", [_experiment(result), _gathers(drawn)]),
            Section("Models", [_models(drawn), velocities(result)]),
            Section("Convergence", [*convergence(result), run_table(result)]),
        ],
        settings={
            field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)
        },
        versions=versions() | {"device": result.device},
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
    ours = [run for run in map(result.get, ("L2_recycled", "L2_secants")) if run is not None]
    if rivals and ours:
        rival, best = (min(runs, key=lambda run: float(run.loss[-1])) for runs in (rivals, ours))
        said.append(
            f"The best L-BFGS ({rival.method.name}) ends at {rival.loss[-1]:.2e} and SSIM "
            f"{rival.similarity[-1]:.3f}, the best natural gradient with recycled pairs "
            f"({best.method.name}) at {best.loss[-1]:.2e} and {best.similarity[-1]:.3f}."
        )
    return said


def _experiment(result: StudyResult) -> str:
    settings, survey = result.settings, result.experiment.shots.survey
    return (
        f"m u_tt − Δu = s with a layer that absorbs, spacing {survey.spacing[0]:g} m, "
        f"{survey.steps} steps of {survey.dt * 1000:g} ms, a Ricker wavelet of "
        f"{settings.frequency:g} Hz at {survey.shots} places, {len(survey.receivers)} receivers, "
        f"unknown m = 1/c² within bounds, the top {settings.known_rows} rows known. The data were "
        "made by the propagator that inverts them"
        + (f", with noise of {settings.noise:.0%} added." if settings.noise else ", without noise.")
    )


def _gathers(drawn: dict[str, Path]) -> Figure:
    return Figure(
        drawn["gathers"],
        "The traces of the shot in the middle, what of them the starting model does not explain, "
        "and what is left in the end, all with the same grey scale.",
        "seismic gathers: recorded, and two residuals",
    )


def _models(drawn: dict[str, Path]) -> Figure:
    return Figure(
        drawn["models"],
        "True, initial and recovered velocities with their structural similarity to the true one "
        "(velocities in km/s, range 1, Gaussian window of 1.5 cells): figure 5 of the paper.",
        "velocity models side by side",
    )
