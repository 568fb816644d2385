"""The tables of the report and of the terminal."""

from natgrad.report import Table

from .results import StudyResult
from .runs import SHARES, Run

ENDS = {
    "max_seconds": "time",
    "max_iterations": "iterations",
    "no_decrease": "stalled",
    "inadmissible": "not positive",
    "not_finite": "not finite",
    "not_descent": "no descent",
}


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [run_table(result), *([batch_table(result)] if result.batched else [])]


def run_table(result: StudyResult) -> Table:
    """Where every run ended, and what it cost."""
    return Table(
        ("method", "end", "loss", "error", "iter.", "CPU s", "s/iter."),
        [_row(run) for run in result.runs.values()],
        f"Runs from the same network with {result.pinn.parameters:,} parameters, loss "
        f"{result.start_loss:.4g} and relative error {result.start_error:.3f} at the start: why "
        "they ended, the lowest loss, the relative L² error there on 101 × 101 points, "
        "iterations, and CPU seconds without compiling.",
    )


def batch_table(result: StudyResult) -> Table:
    """The same for mini-batches."""
    return Table(
        ("method", "end", "loss", "error", "iter.", "CPU s", "s/iter."),
        [_row(run) for run in result.batched.values()],
        f"Runs that see {result.settings.batch} points in an iteration; the loss is the lowest one "
        "on all points.",
    )


def _row(run: Run) -> tuple[str, ...]:
    return (
        *(run.method.name, ENDS.get(run.status, run.status)),
        *(f"{run.final:.2e}", f"{run.error:.1e}", f"{run.iterations:,}"),
        *(f"{run.seconds[-1]:.1f}", f"{run.seconds_per_iteration:.4f}"),
    )


def time_table(result: StudyResult) -> Table:
    """Loss and error at equal seconds."""
    rows = [
        (run.method.name, *(f"{loss:.1e} / {error:.1e}" for loss, error in run.marks))
        for run in (*result.runs.values(), *result.batched.values())
    ]
    return Table(
        ("method", *(f"{share * result.settings.seconds:g} s" for share in SHARES)),
        rows,
        "The lowest loss, and the relative error there, after so many CPU seconds.",
    )


def claim_table(result: StudyResult) -> Table:
    """What the paper says, held against these runs."""
    word = {True: "holds", False: "does not hold", None: "not run"}
    return Table(
        ("statement of the paper", "per iteration", "by CPU seconds"),
        [(c.text, word[c.by_iterations], word[c.by_seconds]) for c in result.claims],
        "The paper's statements about its figure 4, at the last iteration and the last second "
        "that all metrics have reached.",
    )
