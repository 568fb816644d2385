"""The report: captions and what the numbers say. Every number comes from the results."""

import dataclasses
from pathlib import Path

from natgrad.report import Figure, Page, Part, Section, versions

from .plots import convergence
from .results import StudyResult, VariantResult
from .tables import level_table, propagation_table, run_table

TITLE = "Permeability from pressure"


def page(result: StudyResult, drawn: dict[str, Path]) -> Page:
    """The whole report."""
    settings = result.settings
    first = next(iter(result.variants.values()))
    return Page(
        title=TITLE,
        lead=(
            f"A log-permeability field with {settings.cells**2:,} parameters is recovered from "
            "pressures with noise, by natural gradients in several metrics and by L-BFGS, and "
            "what each of them costs in solutions of the equation."
        ),
        sections=[
            Section("In short", [_short(variant) for variant in result.variants.values()]),
            _problem(result),
            *(_variant(name, variant, drawn) for name, variant in result.variants.items()),
            Section("Table 1 of the paper, and real runs", [propagation_table(first)]),
            *_posteriors(result, drawn),
        ],
        settings={
            field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)
        },
        versions=versions(),
    )


def _title(variant: VariantResult) -> str:
    side = variant.inversion.grid.shape[0]
    if variant.inversion.variant == "wells":
        return f"Pressure known at {side}² points"
    return f"Pressure known in all {side}² cells"


def _short(variant: VariantResult) -> str:
    """The two questions: fewer propagations than L-BFGS, and a better field with the prior?"""
    said = [f"{_title(variant)}."]
    for white, where in ((False, "Without the prior"), (True, "In the prior's coordinates")):
        best, rival = variant.best(white), variant.rival(white)
        if best is None or rival is None:
            continue
        said.append(
            f"{where} the best natural gradient ({best.method.name}) is at the noise after "
            f"{best.total} propagations and {best.factorisations} factorisations "
            f"({best.seconds:.1f} CPU s), the best L-BFGS ({rival.method.name}) after "
            f"{rival.total} and {rival.factorisations} ({rival.seconds:.1f} CPU s): "
            f"{best.total / rival.total:.2f} times the propagations and "
            f"{best.factorisations / rival.factorisations:.2f} times the factorisations. Errors of "
            f"m: {best.error[-1]:.3f} and {rival.error[-1]:.3f}."
        )
        short = variant.get("LBFGS_prior" if white else "LBFGS")
        if short is not None and short is not rival and short.reached:
            said.append(f"L-BFGS with its usual 10 pairs needs {short.total} propagations.")
    return " ".join(said)


def _problem(result: StudyResult) -> Section:
    s = result.settings
    model = ", ".join(
        f"{variant.inversion.data.model_error:.2f} ({name})"
        for name, variant in result.variants.items()
    )
    return Section(
        "The problem",
        [
            "−∇·(e^m ∇u) = q on the unit square, u = 0 on its boundary, for "
            f"{s.sources**2} sources that inject in turn: Gaussians of standard deviation "
            f"{s.width:g}, of unit mass. Finite volumes on {s.cells}² cells with harmonic means of "
            "the permeability on faces. The parameters are m in every cell. One propagation is "
            "the solution of the equation, of its linearisation or of its adjoint for all sources; "
            "one sparse factorisation for each m serves them all.",
            "The truth is a smooth random field with a channel and two inclusions. Its data come "
            f"from a grid of {2 * s.cells}² cells (data from the grid of the inversion would be an "
            f"inverse crime), with white noise of {100 * s.noise:g}% of their rms. What the "
            f"coarser grid gets wrong of them at the true m is {model} times the noise. All runs "
            "start from m = 0 and end by the discrepancy principle, when the rms misfit is "
            f"{s.discrepancy:g} times the noise, or after {s.max_propagations} propagations.",
            "The prior says that m is smooth: D = (I − ℓ²Δ)²/γ² is its precision, ℓ = "
            f"{s.correlation:g}, γ such that m has unit deviation. With m = γ(I − ℓ²Δ)⁻¹x and x as "
            "the parameters D is the identity: the iterations then meet smooth fields first, and "
            "the stopping rule does the rest. It is the same for all methods, L-BFGS "
            "included. The row “prior as damping” has m as parameters, adds wσ²D to G and "
            "preconditions conjugate gradients by D⁻¹.",
            f"Natural gradient directions take {s.krylov} conjugate gradient steps without "
            f"damping, preconditioned by the last {s.pairs} pairs of the run; the step length is "
            "that of the quadratic model. Long L-BFGS keeps as many pairs. Sobolev metrics and W₂ "
            "measure the pressure on the grid of the observations, with zero flux at its boundary; "
            "the loss is least squares throughout.",
        ],
    )


def _variant(name: str, variant: VariantResult, drawn: dict[str, Path]) -> Section:
    return Section(
        _title(variant),
        [
            Figure(
                drawn[f"{name}_setup"],
                "The field to be found with sources (circles) and, if they are few, the points "
                "where the pressure is known (dots); the data of one source; their noise.",
                "Truth, data and noise",
            ),
            run_table(variant),
            *convergence(variant),
            level_table(variant),
            Figure(
                drawn[f"{name}_fields"],
                "The field at the end of every run, on one scale; runs without the prior first. "
                "A misfit is given where a run did not reach the noise.",
                "Reconstructed fields of all methods",
            ),
            _metrics(variant),
        ],
    )


def _metrics(variant: VariantResult) -> str:
    slow = [r.method.name for r in variant.runs if r.method.white and not r.reached]
    told = (
        "The loss is least squares, and its Gauss–Newton matrix is the G of L²: a step in "
        "another metric A corrects the residual by A⁻¹ times it. H¹ leaves its fine scales for "
        "later, H⁻¹ attacks them first, which here are noise. W₂ by itself does not see changes of "
        "a pressure's mass, which make up a large part of the first residual; with a part of L² "
        "beside it, it does."
    )
    if not slow:
        return told
    budget = variant.inversion.settings.max_propagations
    return f"{told} Not at the noise after {budget} propagations: {', '.join(slow)}."


def _posteriors(result: StudyResult, drawn: dict[str, Path]) -> list[Section]:
    parts: list[Part] = []
    for name, variant in result.variants.items():
        found = variant.posterior
        if found is None:
            continue
        parts += [
            f"{_title(variant)}: {len(found.values)} eigenpairs of G against D, at the end of the "
            f"L² run in the prior's coordinates, for {found.propagations} propagations. The "
            f"largest eigenvalue left out is about {found.beyond:.2g}: directions beyond keep "
            "their prior variance, so the deviations shown are upper bounds. On average over "
            f"the cells the deviation falls from {found.prior_deviation.mean():.2f} to "
            f"{found.deviation.mean():.2f}; the error is below twice the deviation in "
            f"{100 * found.coverage:.0f}% of them.",
            Figure(
                drawn[f"{name}_posterior"],
                "Standard deviation of m before and after the data, the actual error, the "
                "eigenvalues of G relative to the prior, fields that the data determine well, and "
                "a field that is as likely as the reconstruction.",
                "Prior and posterior deviation, error, spectrum, eigenvectors and a sample",
            ),
        ]
    return [Section("What the data leave open", parts)] if parts else []
