"""The tables of the report and of the terminal."""

from natgrad.report import Table

from .results import StudyResult

MARKS = (50, 100, 150, 250, 400, 800)


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
