"""The tables of the report and of the terminal."""

from natgrad.report import Table

from .fit import TOLERANCES, ranked
from .landscape import ESCAPES, OUTCOMES, REACHES, UNDECIDED
from .results import StudyResult


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [path_table(result), step_table(result), basin_table(result), fit_table(result)]


def path_table(result: StudyResult) -> Table:
    """Where each method ends from (5, 3)."""
    weight = result.landscape.weight
    rows = []
    for entry in result.methods:
        run = entry.path
        left = "–" if run.first_outside is None else str(run.first_outside)
        rows.append(
            (
                entry.method.name,
                f"{entry.method.paper_step:g}",
                OUTCOMES[run.outcome],
                str(run.iterations),
                left,
                f"{run.path[-1][0]:.2f}, {run.path[-1][1]:.2f}",
                f"{run.losses[-1] / weight:.4f}",
                str(run.rises),
            )
        )
    return Table(
        ("method", "step", "outcome", "steps", "leaves", "last μ", "last f", "rises"),
        rows,
        "Runs from (5, 3) with the paper's step sizes: number of steps taken, the iterate at which "
        "the path leaves Ω (a run ends 1.75 beyond it), f as a plain sum, as in "
        "the paper, and how often it rose.",
    )


def step_table(result: StudyResult) -> Table:
    """The largest monotone steps beside the paper's."""
    rows = []
    for entry in result.methods:
        unit = entry.method.paper_step / entry.method.step
        cells = []
        for found in (entry.steps["from_start"], entry.steps["from_bowl"]):
            sign = "" if found.bounded else "> "
            cells += [f"{sign}{found.step * unit:.3g}", OUTCOMES[found.run.outcome]]
        rows.append(
            (
                entry.method.name,
                f"{entry.method.paper_step:g}",
                *cells,
                f"{entry.local_limit * unit:.3g}",
            )
        )
    return Table(
        ("method", "paper", "from (5, 3)", "which", "from (4.5, 2)", "which", "limit"),
        rows,
        "Largest step with which the loss falls at every iteration, in the paper's units, and "
        "the limit 2/λmax(G⁻¹∇²f) at the global minimum, beyond which no method settles there.",
    )


def basin_table(result: StudyResult) -> Table:
    """Counts of outcomes over the grid of starts."""
    total = result.settings.basin_starts**2
    rows = [
        (
            entry.method.name,
            str(entry.basins.count(REACHES)),
            str(entry.basins.count(ESCAPES)),
            str(entry.basins.count(UNDECIDED)),
            str(int(entry.basins.rose.sum())),
        )
        for entry in result.methods
    ]
    return Table(
        ("method", "reach", "escape", "undecided", "loss rose"),
        rows,
        f"Fates of {total} starts in Ω with the paper's steps, within "
        f"{result.settings.basin_iterations} iterations "
        f"({result.settings.basin_transport_iterations} for W₂, on grids with "
        f"{result.settings.basin_transport_points} points a side), and at how many of them the "
        "loss rose at some iteration.",
    )


def fit_table(result: StudyResult) -> Table:
    """The fit with all parameters free."""
    rows = []
    for entry in ranked(result.fits):
        firsts = [entry.first_below(tolerance) for tolerance in TOLERANCES]
        fine = firsts[1]
        rows.append(
            (
                entry.contestant.name,
                f"{entry.relative[-1]:.1e}",
                str(entry.result.iterations),
                *("–" if first is None else str(first) for first in firsts),
                "–" if fine is None else f"{entry.seconds[fine]:.3f}",
            )
        )
    return Table(
        (
            "method",
            "f/f₀",
            "steps",
            *(f"to {tolerance:.0e}" for tolerance in TOLERANCES),
            f"s to {TOLERANCES[1]:.0e}",
        ),
        rows,
        "Means, weights and covariances of three Gaussians, all free (18 parameters): final over "
        "initial loss, steps taken, and steps and seconds to a given fraction of the initial loss.",
    )
