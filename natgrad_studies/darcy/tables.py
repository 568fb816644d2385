"""The tables of the report and of the terminal."""

from natgrad.report import Table

from .results import StudyResult, VariantResult
from .runs import Run

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
    side = variant.inversion.grid.shape[0]
    if variant.inversion.variant == "everywhere":
        return f"in all {side}² cells"
    return f"in {side}² of {variant.inversion.settings.cells}² cells"


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
