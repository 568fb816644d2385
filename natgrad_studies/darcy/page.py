"""The report: figures, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path
from typing import Any

import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import Curves, Frames, Page, Part, Section, Series, Table

from ..methods import LINES as SHARED_LINES
from ..pages import tabulate
from .run import Posterior, Run, StudyResult, VariantResult

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


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report."""
    first = next(iter(result.variants.values()))
    misfit, *_ = _convergence(first)
    return Page(
        title="Permeability from pressure",
        lead=(
            f"A log-permeability field with {result.settings.cells**2:,} parameters is recovered "
            "from noisy pressures. The methods are compared by the solutions of the equation that "
            "they need: "
            f"{'; '.join(run.method.full_name for run in first.ordered)}."
        ),
        sections=[
            Section(
                "In short",
                [
                    _winner(first),
                    misfit,
                    reached_table(first),
                    *(_short(variant) for variant in result.variants.values()),
                ],
            ),
            *(_variant(variant) for variant in result.variants.values()),
            *_posteriors(result),
            _problem(result),
            Section("Table 1 of the paper, and real runs", [propagation_table(first)], folded=True),
        ],
    )


def _title(variant: VariantResult) -> str:
    side = variant.inversion.grid.shape[0]
    everywhere = variant.inversion.variant == "everywhere"
    return f"Pressure known {f'in all {side}² cells' if everywhere else f'at {side}² points'}"


def _winner(variant: VariantResult) -> str:
    reached = [run for run in variant.runs if run.reached]
    if not reached:
        return f"{_title(variant)}: no run reaches the noise within its propagations."
    best = min(reached, key=lambda run: run.total)
    told = f"{_title(variant)}: {best.method.full_name} reaches the noise first, after {best.total}"
    knows = best.method.knows_prior
    rival = variant.rival(knows)
    if rival is None or rival is best:
        return f"{told} propagations."
    beside = f"the best L-BFGS {'with' if knows else 'without'} the prior after {rival.total}"
    return f"{told} propagations, {beside}."


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
            f"{s.sources**2} sources that inject one after another: Gaussians of standard "
            f"deviation {s.width:g} and unit mass. Finite volumes on {s.cells}² cells with "
            "harmonic means of the permeability on faces. The parameters are m in every cell. One "
            "propagation is the solution of the equation, of its linearisation or of its adjoint "
            "for all sources; one sparse factorisation for each m serves them all.",
            "The truth is a smooth random field with a channel and two inclusions. Its data come "
            f"from a grid of {2 * s.cells}² cells (data from the grid of the inversion would be an "
            f"inverse crime), with white noise of {100 * s.noise:g}% of their rms. At the "
            f"true m the error of the coarser grid is {model} times the noise. All runs "
            "start from m = 0 and end by the discrepancy principle, when the rms misfit is "
            f"{s.discrepancy:g} times the noise, or after {s.max_propagations} propagations.",
            "The prior says that m is smooth: D = (I − ℓ²Δ)²/γ² is its precision, ℓ = "
            f"{s.correlation:g}, γ such that m has unit deviation. With m = γ(I − ℓ²Δ)⁻¹x and x as "
            "the parameters D is the identity: the iterations then find smooth fields first, and "
            "the stopping rule ends them early. This is the same for all methods, L-BFGS "
            "included. The row “prior as damping” has m as parameters, adds wσ²D to G and "
            "preconditions conjugate gradients by D⁻¹.",
            "Natural gradient directions and Newton's are those of the default: conjugate "
            "gradients as far as they pay, without damping, preconditioned by the pairs of the "
            "run, and the step length of the quadratic model. Long L-BFGS keeps "
            f"{s.pairs} pairs. Sobolev metrics and W₂ measure the pressure on the grid of the "
            "observations, with zero flux at its boundary; the loss is least squares throughout.",
        ],
        folded=True,
    )


def _variant(variant: VariantResult) -> Section:
    truth = variant.inversion.data.truth
    shown = {"start": np.asarray(variant.inversion.start)}
    shown |= {run.method.full_name: run.field for run in variant.ordered}
    return Section(
        _title(variant),
        [
            _maps(
                shown,
                "The field at the end of every run, on one scale, and the true one; runs without "
                "the prior first.",
                reference=("truth", _upright(truth)),
                limits=(float(truth.min()), float(truth.max())),
                unit="m",
            ),
            run_table(variant),
            *_convergence(variant),
            level_table(variant),
            *_data(variant),
            _metrics(variant),
        ],
    )


def _upright(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).T[::-1]


def _maps(fields: dict[str, np.ndarray], caption: str, **options: Any) -> Frames:
    """Fields on the unit square, x to the right and y upwards."""
    shown = {name: [("", _upright(values))] for name, values in fields.items()}
    return Frames.of(shown, caption, extent=(0.0, 1.0, 0.0, 1.0), **options)


def _data(variant: VariantResult) -> list[Part]:
    """The data of one source, and their noise."""
    data = variant.inversion.data
    middle = len(data.observed) // 2
    noise = (data.observed - data.clean)[middle] / data.noise
    return [
        _maps(
            {"data": data.observed[middle]},
            "The data of the source in the middle.",
            unit="pressure",
        ),
        _maps(
            {"noise": noise},
            "Its noise, in units of σ.",
            colours="diverging",
            limits=(-3.0, 3.0),
            unit="σ",
        ),
    ]


def _convergence(variant: VariantResult) -> list[Curves]:
    """Misfit and error of m, without the prior and with it."""
    level = {"the noise": variant.inversion.settings.discrepancy}
    ends = "the discrepancy principle stops a run at the noise."
    found = []
    for white, where in ((False, "without the prior"), (True, "with the prior")):
        runs = variant.with_prior(white)
        if not runs:
            continue
        misfit = [_series(run, run.misfit) for run in runs]
        error = [_series(run, run.error) for run in runs]
        told = f"Misfit {where}; {ends}"
        found.append(Curves(misfit, "rms misfit over the noise", told, levels=level))
        found.append(Curves(error, "error of m", f"Error of m {where}.", log=False))
    return found


def _series(run: Run, values: np.ndarray) -> Series:
    x = {"propagations": run.propagations, "iterations": np.arange(len(values))}
    return Series(run.method.name, values, x, *LINES[run.method.entrant])


def _metrics(variant: VariantResult) -> str:
    slow = [r.method.name for r in variant.runs if r.method.white and not r.reached]
    told = (
        "The loss is least squares, and its Gauss–Newton matrix is the G of L²: a step in "
        "another metric A corrects the residual r by A⁻¹r. H¹ corrects the fine scales of the "
        "residual last, H⁻¹ corrects them first, and here they are noise. W₂ by itself cannot see "
        "changes of a pressure's mass, which make up a large part of the first residual; the sum "
        "of W₂ and L² can."
    )
    if not slow:
        return told
    budget = variant.inversion.settings.max_propagations
    return f"{told} These do not reach the noise within {budget} propagations: {', '.join(slow)}."


def _posteriors(result: StudyResult) -> list[Section]:
    parts: list[Part] = []
    for variant in result.variants.values():
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
            *_posterior_plots(found),
        ]
    return [Section("What the data leave open", parts, folded=True)] if parts else []


def _posterior_plots(found: Posterior) -> list[Part]:
    """Deviations before and after the data, the error, the spectrum, eigenvectors and a sample."""
    before, after = found.prior_deviation, found.deviation
    vectors = {
        f"eigenvector {i + 1}, μ = {found.values[i]:.2g}": vector / np.abs(vector).max()
        for i, vector in found.vectors.items()
    }
    ranks = {"eigenpair": np.arange(1, 1 + len(found.values))}
    spectrum = Series(
        "eigenvalues of G relative to the prior", found.values, ranks, PALETTE["blue"]
    )
    return [
        _maps(
            {"prior": before, "posterior": after, "|m − m*|": np.abs(found.error)},
            "Standard deviation of m before and after the data, and the actual error.",
            limits=(0.0, float(before.max())),
        ),
        Curves(
            [spectrum],
            "μ",
            "Above 1 the data say more than the prior.",
            log_x=True,
            levels={"data and prior alike": 1.0},
        ),
        _maps(
            vectors, "Fields that the data determine well, largest value 1.", colours="diverging"
        ),
        _maps(
            {"a sample of m": found.sample}, "A field as likely as the reconstruction.", unit="m"
        ),
    ]


# --- tables --------------------------------------------------------------------------------------


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [run_table(variant) for variant in result.variants.values()]


def run_table(variant: VariantResult) -> Table:
    """What every run spent, and what it found."""
    return tabulate(
        variant.ordered,
        {
            "method": lambda run: run.method.full_name,
            "end": lambda run: "noise" if run.reached else ENDS.get(run.status, run.status),
            "iter.": lambda run: run.iterations,
            "prop.": lambda run: run.total,
            "ratio": variant.ratio,
            "fact.": lambda run: run.factorisations,
            "CPU s": lambda run: f"{run.seconds:.1f}",
            "misfit/σ": lambda run: f"{run.misfit[-1]:.3f}",
            "error": lambda run: f"{run.error[-1]:.3f}",
        },
        f"Runs from a constant, pressure known {_where(variant)}: iterations, propagations "
        "(forward, linearised and adjoint, all sources at once), their ratio to those of the best "
        "L-BFGS with the same knowledge of the prior, factorisations, CPU seconds without "
        "compiling, the rms misfit over the noise (a run ends at "
        f"{variant.inversion.settings.discrepancy:g}) and ‖m − m*‖/‖m* − m₀‖.",
    )


def reached_table(variant: VariantResult) -> Table:
    """What every run spent, the least first."""
    runs = sorted(variant.ordered, key=lambda run: (not run.reached, run.total))
    return tabulate(
        runs,
        {
            "method": lambda run: run.method.full_name,
            "end": lambda run: "noise" if run.reached else ENDS.get(run.status, run.status),
            "propagations": lambda run: run.total,
            "error of m": lambda run: f"{run.error[-1]:.3f}",
        },
        f"Runs from a constant, pressure known {_where(variant)}.",
    )


def _where(variant: VariantResult) -> str:
    side, cells = variant.inversion.grid.shape[0], variant.inversion.settings.cells
    return f"in all {side}² cells" if side == cells else f"in {side}² of {cells}² cells"


def level_table(variant: VariantResult) -> Table:
    """Propagations until the misfit fell to a level."""
    levels = (*LEVELS, variant.inversion.settings.discrepancy)
    reached = {f"{level:g} σ": lambda run, level=level: run.until(level) for level in levels}
    return tabulate(
        variant.ordered,
        {"method": lambda run: run.method.full_name} | reached,
        f"Propagations until the rms misfit was so many times the noise, pressure known "
        f"{_where(variant)}.",
    )


def propagation_table(variant: VariantResult) -> Table:
    """The paper's table 1 beside the totals of real runs, and what they should be."""
    rows = []
    for key, paper in PAPER.items():
        for run in filter(None, (variant.get(key), variant.get(f"{key}_prior"))):
            measured = (run.forward, run.adjoint, run.linearised)
            counts = (*paper, run.iterations, run.krylov, *measured, *expected(run))
            rows.append((run.method.full_name, *map(str, counts)))
    return Table(
        (
            *("method", "paper: fwd", "bwd", "lin", "N", "K"),
            *("measured: fwd", "bwd", "lin", "expected: fwd", "bwd", "lin"),
        ),
        rows,
        "Table 1 of the paper, propagations per iteration with one Krylov product, beside the "
        "totals of the runs with N iterations and K Krylov products in all. Expected without "
        "backtracking are N + 1 forward propagations (the start, and one trial a step), N + K "
        "adjoint (a gradient each, one a product, and a gradient more where the budget ends a run "
        "between a gradient and its step) and K linearised; for gradient descent N, which the "
        "model of its step length costs. A direction with k products therefore costs "
        "2k + 2. What forward propagations there are beyond that is backtracking. The paper's two "
        "backward propagations of Newton's method are those of the gradient and of the product.",
    )


def expected(run: Run) -> tuple[int, int, int]:
    """Forward, adjoint and linearised propagations of a run without backtracking."""
    linearised = run.iterations if run.method.entrant == "GD" else run.krylov
    return run.iterations + 1, run.gradients + run.krylov, linearised
