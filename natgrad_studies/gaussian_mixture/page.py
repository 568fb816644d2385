"""The report: plots, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path

import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import (
    Curves,
    Frames,
    Landscape,
    Page,
    Part,
    Paths,
    Section,
    Series,
    Table,
    Track,
)

from ..methods import LINES as SHARED_LINES
from ..mixtures import LOWER, START, UPPER
from ..pages import tabulate
from . import figures
from .fit import TOLERANCES, Fit, fit_grid, fit_problem, guess, rank, truth
from .landscape import ESCAPES, FATES, OUTCOMES, REACHES, UNDECIDED
from .methods import DAMPING
from .run import StudyResult

FLOOR = 1e-16  # relative losses below this are rounding error
LINES = SHARED_LINES | {
    "GD": (PALETTE["black"], "-"),
    "L2_LM": (PALETTE["blue"], "--"),
    "W2_staggered": (PALETTE["purple"], "--"),
    "mobility": (PALETTE["purple"], "--"),
}


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report, its figures drawn into the folder."""
    return Page(
        title="Natural gradients for a Gaussian mixture",
        lead=(
            "Which metric on the density leads gradient descent where? The experiment of section "
            "4.1 of the paper with eight metrics, its Wasserstein metric compared with a corrected "
            "discretisation, and a mixture with all parameters free."
        ),
        sections=[
            _short(result),
            _paths(result, folder),
            _fit(result),
            _landscape(result),
            _steps(result),
            _models(result),
            _transport(result),
            _basins(result),
        ],
    )


def _short(result: StudyResult) -> Section:
    land, t = result.landscape, result.transport
    w = land.weight
    reach = [e.method.name for e in result.methods if e.path.outcome == REACHES]
    best = rank(result.fits)[0]
    first = best.first_below(1e-8)
    speed = "" if first is None else f", whose loss falls by 1e−8 in {first} steps"
    return Section(
        "In short",
        [
            f"With all 18 parameters of a mixture free, the best method is "
            f"{best.contestant.name}{speed}.",
            _fit_plot(result.fits),
            fit_table(result),
            f"With two parameters free, the loss has one finite minimum, "
            f"f = {land.minimum_loss / w:.6f} at "
            f"({land.minimum[0]:.6f}, {land.minimum[1]:.6f}), and a plateau at "
            f"f = {land.plateau_loss / w:.6f} far away. From (5, 3), with the steps of the paper, "
            f"the minimum is reached by: {', '.join(reach) or 'none'}.",
            f"In the paper's scheme W₂ measures G_xx(5, 3) = {t.collocated[0, 0]:.3g}, where the "
            f"Wasserstein metric cannot exceed {float(t.feasible_bound):.3f}. With a consistent "
            f"scheme G_xx = {t.staggered[0, 0]:.4f}, and W₂ from (5, 3) "
            f"{FATES[result['W2_staggered'].path.outcome]}.",
        ],
    )


def _landscape(result: StudyResult) -> Section:
    land = result.landscape
    w = land.weight
    kinds = [point["type"] for point in land.critical]
    rows = [
        (point["type"], f"({point['mu'][0]:.4f}, {point['mu'][1]:.4f})", f"{point['f']:.6f}")
        for point in land.critical
    ]
    others = kinds.count("minimum") - 1
    return Section(
        "The landscape",
        [
            "The target is 0.3 N((1, 3), 0.6 I) + 0.7 N((3, 2), 0.6 I) on Ω = [−2.75, 7.25]². Only "
            "the mean μ of the lighter component of 0.2 N(μ, 0.6 I) + 0.8 N((4, 3), 0.6 I) is "
            "free; the weights and the other mean are fixed at wrong values. Losses are quoted as "
            f"plain sums over the grid, the paper's convention; multiply by w = {w:.6g} for "
            "integrals.",
            f"The global minimum is at ({land.minimum[0]:.6f}, {land.minimum[1]:.6f}) with "
            f"f = {land.minimum_loss / w:.6f}. Newton's method finds "
            f"{'no other finite minimum' if others == 0 else f'{others} other minima'} in Ω. What "
            "competes with the global minimum is the plateau: as μ leaves Ω its component no "
            f"longer matters and f tends to {land.plateau_loss / w:.6f}. What looks like "
            "convergence to a local minimum is a path that leaves Ω.",
            "A decreasing path is trapped once f falls below the lowest saddle: either in the bowl "
            "around the minimum, or outside it, where f only decreases towards the plateau. The "
            "outcomes below use this, with a safety margin.",
            Table(("kind", "μ", "f"), rows, "Critical points in Ω."),
        ],
        folded=True,
    )


def _paths(result: StudyResult, folder: Path) -> Section:
    figure = figures.draw_paths(result, folder / "paths.png")
    reach = [e.method.name for e in result.methods if e.path.outcome == REACHES]
    return Section(
        "Eight metrics from (5, 3)",
        [
            "The discretisation is the paper's: interior nodes, central differences with zero "
            "values outside (its appendix B.1), and its step sizes. One conversion is needed: our "
            "loss is an integral, so gradient descent's step 0.3 becomes 0.3/w. Natural gradient "
            "directions do not depend on w.",
            f"From (5, 3) these reach the global minimum: {', '.join(reach) or 'none'}. W₂ "
            "staggered is the corrected Wasserstein metric discussed below. The paper's figure 2, "
            f"with the descent directions of every method, is the file figures/{figure.name}.",
            _path_plot(result),
            _loss_plot(result),
            path_table(result),
        ],
    )


def _steps(result: StudyResult) -> Section:
    unbounded = [e.method.name for e in result.methods if not e.steps["from_start"].bounded]
    above = [
        f"{e.method.name} ({e.method.paper_step:g} against "
        f"{e.local_limit * e.method.paper_step / e.method.step:.3g})"
        for e in result.methods
        if e.method.step > e.local_limit
    ]
    parts: list[Part] = [
        "The paper takes for each method the largest step with which the loss decays "
        "monotonically. We searched for it: upward by factors of 1.6 until a step fails, then by "
        "bisection.",
        step_table(result),
    ]
    if unbounded:
        parts.append(
            f"From (5, 3) there is no largest step for {', '.join(unbounded)}: a long enough first "
            "step lands on the plateau, which is lower than the start, and nothing moves "
            "afterwards. The criterion says something only where the path stays in the bowl, as "
            "from (4.5, 2); there the answer is close to the local limit at the minimum."
        )
    if above:
        parts.append(
            f"The paper's step exceeds that limit for {', '.join(above)}: with it the method "
            "cannot settle at the global minimum."
        )
    return Section("How long a step?", parts, folded=True)


def _models(result: StudyResult) -> Section:
    return Section(
        "Local quadratic models",
        [
            "Each method minimises q(h) = ∂f·h + hᵀGh/2τ, with its own G. The level sets of q are "
            "ellipses about the next iterate.",
            _model_plot(result),
        ],
        folded=True,
    )


def _transport(result: StudyResult) -> Section:
    t = result.transport
    worst = max(t.parity, key=lambda name: t.parity[name])
    bound = f"{float(t.feasible_bound):.6f}"
    rows = [
        ("paper's scheme", f"{t.collocated[0, 0]:.6g}", f"{t.collocated[1, 1]:.6g}"),
        *(
            (f"staggered, {n} cells a side", f"{m[0, 0]:.8f}", f"{m[1, 1]:.8f}")
            for n, m in sorted(t.refinement.items())
        ),
        ("upper bound at (5, 3)", bound, bound),
        ("upper bound for any μ", "0.2", "0.2"),
    ]
    paper, fixed = result["W2"].path, result["W2_staggered"].path
    parts: list[Part] = [
        "With the paper's scheme W₂ "
        f"{FATES[paper.outcome]} from (5, 3); with a consistent scheme it {FATES[fixed.outcome]}. "
        "We checked which of the two is the Wasserstein metric.",
        "Moving μ along e at unit speed can be done by the flux 0.2 N(μ) e. W₂ takes the cheapest "
        "way, so eᵀGe ≤ ∫ (0.2 N(μ))²/ρ dx ≤ 0.2 on the whole plane, for every μ. At (5, 3) the "
        f"integral is {float(t.feasible_bound):.4f}. The paper's scheme gives "
        f"G_xx = {t.collocated[0, 0]:.4g}, which no Wasserstein metric can have. The staggered "
        f"scheme gives {t.staggered[0, 0]:.6f}, respects the bound and converges as the grid is "
        "refined.",
        Table(("scheme", "G_xx(5, 3)", "G_yy(5, 3)"), rows),
        "The cause: central differences on one grid connect a node only with nodes two steps "
        "away, so BBᵀ falls apart into four sublattices by the parity of (i, j); the largest "
        f"coupling between two of them is {t.coupling:.1g} in our computation. Each sublattice is "
        "closed at one end of each axis and open at the other, because values outside are zero. "
        "Moving μ to the right pushes a little mass across the right edge of Ω, but the even "
        "columns are closed there: their share has to leave through another edge. For the "
        "even–even nodes only the left and the bottom edge are open, where the density near μ is "
        "about 1e−13, and the cost of a flux is its square over the density. Almost all of the "
        f"excess sits on one sublattice indeed ({worst}: {t.parity[worst]:.4g}).",
        "With such a G_xx, x is frozen, and the path slides along y until it falls into the bowl. "
        "We therefore read the success of W₂ from (5, 3) as an artefact of this scheme, not as a "
        "property of the Wasserstein metric.",
        Table(
            ("nodes", "G_xx(5, 3)"),
            [(name, f"{share:.4g}") for name, share in t.parity.items()],
            "The paper's G_xx(5, 3), split by the parity of the node's indices (counted from one); "
            "the bound is on their sum.",
        ),
    ]
    if result.floored is not None:
        parts.append(
            "A second piece of evidence: keep the density above "
            f"{result.settings.floor:g} of its maximum inside the paper's B, and leave all else as "
            f"it is. Then G_xx(5, 3) = {result.floored.matrix[0, 0]:.4f}, and within "
            f"{result.floored.path.iterations} iterations the path "
            f"{FATES[result.floored.path.outcome]}."
        )
    return Section("Two discretisations of W₂", parts, folded=True)


def _basins(result: StudyResult) -> Section:
    gd, honest = result["GD"].basins.outcome, result["W2_staggered"].basins.outcome
    both = (gd != UNDECIDED) & (honest != UNDECIDED)
    same = int((gd == honest)[both].sum())
    return Section(
        "Basins of attraction",
        [
            "The same runs from a grid of starts. Where a step is short for its metric, some "
            "starts are undecided when the iterations end; this says nothing about their fate.",
            _basin_plot(result),
            basin_table(result),
            f"The corrected W₂ and gradient descent agree on {same} of the {int(both.sum())} "
            "starts that both decide. On this problem the choice of metric changes the speed and "
            "the path, but hardly the basin.",
        ],
        folded=True,
    )


def _fit(result: StudyResult) -> Section:
    best = rank(result.fits)[0]
    return Section(
        "All parameters free",
        [
            "A harder and more usual task: fit three Gaussians with free means, weights and "
            "covariances to an attainable target. All methods start at the same point and use the "
            "same step rule (the minimiser of the Gauss–Newton model along the direction, then "
            f"halving) and the same damping, {DAMPING:g} of the mean eigenvalue of G. L² is "
            "Gauss–Newton; its adaptive variant uses Levenberg–Marquardt damping with "
            "backtracking.",
            _density_plot(result.fits),
            f"The best final loss is that of {best.contestant.name}. For a least-squares loss with "
            "an attainable target, Gauss–Newton's quadratic convergence is expected; the other "
            "metrics converge linearly, at rates set by how well G resembles the Hessian.",
        ],
    )


# --- plots ----------------------------------------------------------------------------------------


def _path_plot(result: StudyResult) -> Paths:
    """All methods from the paper's start."""
    land = result.landscape
    return Paths(
        [
            Track(
                entry.method.name,
                entry.path.path,
                *LINES[entry.method.key],
                losses=entry.path.losses / land.weight,
            )
            for entry in result.methods
        ],
        "The paths of all methods over the level sets of f; the slider follows them step by step, "
        "with f beside each name.",
        Landscape.of(land.axis, land.axis, land.values / land.weight, figures.LEVELS),
        {"start": START, "global minimum": land.minimum},
        "μ₁",
        "μ₂",
    )


def _loss_plot(result: StudyResult) -> Curves:
    """f of every method from the paper's start."""
    land = result.landscape
    losses = [(entry.method, entry.path.losses / land.weight) for entry in result.methods]
    levels = {"plateau": land.plateau_loss, "global minimum": land.minimum_loss}
    return Curves(
        [
            Series(method.name, loss, {"iterations": np.arange(len(loss))}, *LINES[method.key])
            for method, loss in losses
        ],
        "f, as a plain sum",
        "Loss against iterations from (5, 3).",
        log=False,
        levels={name: level / land.weight for name, level in levels.items()},
    )


def _fit_plot(fits: list[Fit]) -> Curves:
    """The losses of the fit with all parameters free."""
    series = []
    for fit in fits:
        spent = {"iterations": np.arange(len(fit.relative)), "seconds": fit.seconds}
        x, y = spent | {"propagations": fit.propagations}, np.maximum(fit.relative, FLOOR)
        series.append(Series(fit.contestant.name, y, x, *LINES[fit.contestant.key]))
    return Curves(
        series,
        "loss / initial loss",
        "Loss against iterations, against seconds on this machine without compiling, and against "
        "evaluations of the model and of its derivatives.",
    )


def _density_plot(fits: list[Fit]) -> Frames:
    """Start, the density of every fit, the best first, and the target."""
    grid = fit_grid(fits[0].state.shape[0])
    model = fit_problem(grid).model
    upright = lambda state: np.asarray(state).T[::-1]
    shown = {"start": model(guess())} | {fit.contestant.name: fit.state for fit in rank(fits)}
    goal = upright(model(truth()))
    ends = [float(end) for axis in grid.axes for end in (axis[0], axis[-1])]
    return Frames.of(
        {name: [("", upright(state))] for name, state in shown.items()},
        "The densities at the start and at the end of each run, and the target.",
        reference=("target", goal),
        limits=(0.0, float(goal.max())),
        extent=ends,
        unit="density",
        x_label="x₁",
        y_label="x₂",
    )


def _basin_plot(result: StudyResult) -> Frames:
    """The fate of every start, method by method."""
    return Frames.of(
        {
            entry.method.name: [("", entry.basins.outcome.T[::-1].astype(float))]
            for entry in result.methods
        },
        "Fate of each start μ with the paper's steps.",
        limits=(0.0, 2.0),
        extent=(LOWER, UPPER, LOWER, UPPER),
        names={OUTCOMES[code]: float(code) for code in (UNDECIDED, REACHES, ESCAPES)},
        x_label="μ₁",
        y_label="μ₂",
    )


def _model_plot(result: StudyResult) -> Paths:
    """The local models of some methods at their first iterates, as level sets."""
    land = result.landscape
    chosen = [entry for entry in result.methods if len(entry.matrices) > 1]
    tracks = []
    for entry in chosen:
        path = entry.path.path
        rings = [
            figures.ellipse(matrix, path[k], path[k + 1], fraction)
            for k, matrix in enumerate(entry.matrices)
            for fraction in (0.25, 0.5, 1.0)
        ]
        gap = np.full((1, 2), np.nan)
        points = np.concatenate([part for ring in rings for part in (ring, gap)])
        steps = np.repeat(np.arange(len(rings)) // 3, len(rings[0]) + 1)
        iterations = [int(step) for step in steps]
        colour, dash = LINES[entry.method.key]
        tracks.append(Track(entry.method.name, points, colour, dash, iterations=iterations))
    cloud = np.concatenate([track.points for track in tracks])
    x, y, values = figures.close_up(land, np.nanmin(cloud, 0), np.nanmax(cloud, 0))
    return Paths(
        tracks,
        "The paper's figure 3: level sets of q at the first iterates, over those of f. The outer "
        "ellipse of each passes through the iterate. For the paper's W₂ scheme they are so thin in "
        "x that they look like segments; the staggered scheme has ordinary ellipses.",
        Landscape.of(x, y, values),
        {"start": START},
        "μ₁",
        "μ₂",
    )


# --- tables ---------------------------------------------------------------------------------------


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [path_table(result), step_table(result), basin_table(result), fit_table(result)]


def path_table(result: StudyResult) -> Table:
    """Where each method ends from (5, 3)."""
    return tabulate(
        result.methods,
        {
            "method": lambda entry: entry.method.name,
            "step": lambda entry: f"{entry.method.paper_step:g}",
            "outcome": lambda entry: OUTCOMES[entry.path.outcome],
            "steps": lambda entry: entry.path.iterations,
            "leaves": lambda entry: entry.path.first_outside,
            "last μ": lambda entry: "{:.2f}, {:.2f}".format(*entry.path.path[-1]),
            "last f": lambda entry: f"{entry.path.losses[-1] / result.landscape.weight:.4f}",
            "rises": lambda entry: entry.path.rises,
        },
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
        paper, limit = f"{entry.method.paper_step:g}", f"{entry.local_limit * unit:.3g}"
        rows.append((entry.method.name, paper, *cells, limit))
    return Table(
        ("method", "paper", "from (5, 3)", "which", "from (4.5, 2)", "which", "limit"),
        rows,
        "Largest step with which the loss falls at every iteration, in the paper's units, and "
        "the limit 2/λmax(G⁻¹∇²f) at the global minimum, beyond which no method settles there.",
    )


def basin_table(result: StudyResult) -> Table:
    """Counts of outcomes over the grid of starts."""
    settings = result.settings
    return tabulate(
        result.methods,
        {
            "method": lambda entry: entry.method.name,
            "reach": lambda entry: entry.basins.count(REACHES),
            "escape": lambda entry: entry.basins.count(ESCAPES),
            "undecided": lambda entry: entry.basins.count(UNDECIDED),
            "loss rose": lambda entry: int(entry.basins.rose.sum()),
        },
        f"Fates of {settings.basin_starts**2} starts in Ω with the paper's steps, within "
        f"{settings.basin_iterations} iterations ({settings.basin_transport_iterations} for W₂, on "
        f"grids with {settings.basin_transport_points} points a side), and at how many of them the "
        "loss rose at some iteration.",
    )


def fit_table(result: StudyResult) -> Table:
    """The fit with all parameters free."""
    fine = TOLERANCES[1]
    return tabulate(
        rank(result.fits),
        {
            "method": lambda fit: fit.contestant.name,
            "f/f₀": lambda fit: f"{fit.relative[-1]:.1e}",
            "steps": lambda fit: fit.result.iterations,
            **{f"to {t:.0e}": lambda fit, t=t: fit.first_below(t) for t in TOLERANCES},
            f"s to {fine:.0e}": lambda fit: _seconds(fit.seconds_to(fine)),
        },
        "Means, weights and covariances of three Gaussians, all free (18 parameters): final over "
        "initial loss, steps taken, and steps and seconds to a given fraction of the initial loss.",
    )


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
