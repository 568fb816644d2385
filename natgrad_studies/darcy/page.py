"""The report: figures, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path

import numpy as np

from natgrad.plot import PALETTE, save
from natgrad.report import Curves, Figure, Page, Part, Section, Series, Table

from ..methods import LINES as SHARED_LINES
from ..plots import plot_curves
from .figures import draw_fields, draw_posterior, draw_setup
from .run import Run, StudyResult, VariantResult

LINES = SHARED_LINES | {
    "Newton": (PALETTE["purple"], "-"),
    "L2_damped": (PALETTE["blue"], ":"),
    "L2_H1": (PALETTE["blue"], "--"),
    "W2_L2": (PALETTE["vermilion"], "--"),
}
LEVELS = (2.0, 1.2, 1.05)  # misfits over the noise, on the way to the last
ENDS = {"max_propagations": "budget", "no_decrease": "stalled"}
# Table 1 of the paper: forward, backward and linearised propagations per iteration.
PAPER = {"GD": (1, 1, 0), "L2": (1, 1, 1), "Newton": (1, 2, 1)}


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [run_table(variant) for variant in result.variants.values()]


def run_table(variant: VariantResult) -> Table:
    """What every run spent, and what it found."""
    rows = []
    for white in (False, True):
        rival = variant.rival(white)
        for run in variant.with_prior(white):
            ratio = "–" if rival is None or not run.reached else f"{run.total / rival.total:.2f}"
            rows.append(
                (
                    run.method.full_name,
                    "noise" if run.reached else ENDS.get(run.status, run.status),
                    *(str(run.iterations), str(run.total), ratio, str(run.factorisations)),
                    *(f"{run.seconds:.1f}", f"{run.misfit[-1]:.3f}", f"{run.error[-1]:.3f}"),
                )
            )
    return Table(
        ("method", "end", "iter.", "prop.", "ratio", "fact.", "CPU s", "misfit/σ", "error"),
        rows,
        f"Runs from a constant, pressure known {_where(variant)}: iterations, propagations "
        "(forward, linearised and adjoint, all sources at once), their ratio to those of the best "
        "L-BFGS with the same knowledge of the prior, factorisations, CPU seconds without "
        "compiling, the rms misfit over the noise (a run ends at "
        f"{variant.inversion.settings.discrepancy:g}) and ‖m − m*‖/‖m* − m₀‖.",
    )


def _where(variant: VariantResult) -> str:
    side, cells = variant.inversion.grid.shape[0], variant.inversion.settings.cells
    return f"in all {side}² cells" if side == cells else f"in {side}² of {cells}² cells"


def level_table(variant: VariantResult) -> Table:
    """Propagations until the misfit fell to a level."""
    levels = (*LEVELS, variant.inversion.settings.discrepancy)
    rows = [
        (run.method.full_name, *("–" if n is None else str(n) for n in map(run.until, levels)))
        for run in (*variant.with_prior(False), *variant.with_prior(True))
    ]
    return Table(
        ("method", *(f"{level:g} σ" for level in levels)),
        rows,
        f"Propagations until the rms misfit was so many times the noise, pressure known "
        f"{_where(variant)}.",
    )


def propagation_table(variant: VariantResult) -> Table:
    """The paper's table 1 beside the totals of real runs, and what they should be."""
    rows = []
    for key, paper in PAPER.items():
        for run in filter(None, (variant.get(key), variant.get(f"{key}_prior"))):
            rows.append(
                (
                    run.method.full_name,
                    *map(str, paper),
                    *(str(run.iterations), str(run.krylov)),
                    *map(str, (run.forward, run.adjoint, run.linearised)),
                    *map(str, expected(run)),
                )
            )
    return Table(
        (
            *("method", "paper: fwd", "bwd", "lin", "N", "K"),
            *("measured: fwd", "bwd", "lin", "expected: fwd", "bwd", "lin"),
        ),
        rows,
        "Table 1 of the paper, propagations per iteration with one Krylov product, beside the "
        "totals of the runs with N iterations and K Krylov products in all. Expected without "
        "backtracking are N + 1 forward propagations (the start, and one trial a step), N + K "
        "adjoint (a gradient each, and one a product) and K linearised; for gradient descent N, "
        "which the model of its step length costs. A direction with k products therefore costs "
        "2k + 2. What forward propagations there are beyond that is backtracking. The paper's two "
        "backward propagations of Newton's method are those of the gradient and of the product.",
    )


def expected(run: Run) -> tuple[int, int, int]:
    """Forward, adjoint and linearised propagations of a run without backtracking."""
    linearised = run.iterations if run.method.entrant == "GD" else run.krylov
    return run.iterations + 1, run.iterations + run.krylov, linearised


# --- the report -----------------------------------------------------------------------------------


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report, its figures drawn into the folder."""
    first = next(iter(result.variants.values()))
    return Page(
        title="Permeability from pressure",
        lead=(
            f"A log-permeability field with {result.settings.cells**2:,} parameters is recovered "
            "from pressures with noise, by natural gradients in several metrics and by L-BFGS, and "
            "what each of them costs in solutions of the equation."
        ),
        sections=[
            Section("In short", [_short(variant) for variant in result.variants.values()]),
            _problem(result),
            *(_variant(variant, folder) for variant in result.variants.values()),
            Section("Table 1 of the paper, and real runs", [propagation_table(first)]),
            *_posteriors(result, folder),
        ],
    )


def _title(variant: VariantResult) -> str:
    side = variant.inversion.grid.shape[0]
    everywhere = variant.inversion.variant == "everywhere"
    return f"Pressure known {f'in all {side}² cells' if everywhere else f'at {side}² points'}"


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


def _variant(variant: VariantResult, folder: Path) -> Section:
    name = variant.inversion.variant
    return Section(
        _title(variant),
        [
            Figure(
                draw_setup(variant, folder / f"{name}_setup.png"),
                "The field to be found with sources (circles) and, if they are few, the points "
                "where the pressure is known (dots); the data of one source; their noise.",
                "Truth, data and noise",
            ),
            run_table(variant),
            *_convergence(variant, folder / f"{name}_convergence.png"),
            level_table(variant),
            Figure(
                draw_fields(variant, folder / f"{name}_fields.png"),
                "The field at the end of every run, on one scale; runs without the prior first. "
                "A misfit is given where a run did not reach the noise.",
                "Reconstructed fields of all methods",
            ),
            _metrics(variant),
        ],
    )


def _convergence(variant: VariantResult, path: Path) -> list[Curves]:
    """Misfit and error of m, without the prior and with it; drawn into a file too."""
    level = {"the noise": variant.inversion.settings.discrepancy}
    ends = "the discrepancy principle stops a run at the noise."
    pairs = []
    for white, where in ((False, "without the prior"), (True, "with the prior")):
        runs = variant.with_prior(white)
        misfit = [_series(run, run.misfit) for run in runs]
        error = [_series(run, run.error) for run in runs]
        pair = (
            Curves(misfit, "rms misfit over the noise", f"Misfit {where}; {ends}", levels=level),
            Curves(error, "error of m", f"Error of m {where}.", log=False),
        )
        pairs += [pair] if runs else []
    rows = [[(curves, "propagations") for curves in row] for row in zip(*pairs, strict=True)]
    save(plot_curves(rows, (5.6 * len(pairs), 7.2))[0], path)
    return [curves for pair in pairs for curves in pair]


def _series(run: Run, values: np.ndarray) -> Series:
    x = {"propagations": run.propagations, "iterations": np.arange(len(values))}
    return Series(run.method.name, values, x, *LINES[run.method.entrant])


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


def _posteriors(result: StudyResult, folder: Path) -> list[Section]:
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
                draw_posterior(found, folder / f"{name}_posterior.png"),
                "Standard deviation of m before and after the data, the actual error, the "
                "eigenvalues of G relative to the prior, fields that the data determine well, and "
                "a field that is as likely as the reconstruction.",
                "Prior and posterior deviation, error, spectrum, eigenvectors and a sample",
            ),
        ]
    return [Section("What the data leave open", parts)] if parts else []
