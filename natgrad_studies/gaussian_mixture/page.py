"""The report: plots, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path

import numpy as np

from natgrad.plot import PALETTE, save
from natgrad.report import (
    Curves,
    Figure,
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
from ..mixtures import START
from ..plots import plot_curves
from . import figures
from .fit import TOLERANCES, Fit, rank
from .landscape import ESCAPES, OUTCOMES, REACHES, UNDECIDED
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
            _landscape(result),
            _paths(result, folder),
            _steps(result),
            _models(result, folder),
            _transport(result, folder),
            _basins(result, folder),
            _fit(result, folder),
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
            f"The loss has one finite minimum, f = {land.minimum_loss / w:.6f} at "
            f"({land.minimum[0]:.6f}, {land.minimum[1]:.6f}), and a plateau at "
            f"f = {land.plateau_loss / w:.6f} far away. From (5, 3), with the steps of the paper, "
            f"the minimum is reached by: {', '.join(reach) or 'none'}.",
            f"In the paper's scheme W₂ measures G_xx(5, 3) = {t.collocated[0, 0]:.3g}, where the "
            f"Wasserstein metric cannot exceed {float(t.feasible_bound):.3f}. With a consistent "
            f"scheme G_xx = {t.staggered[0, 0]:.4f}, and W₂ from (5, 3) "
            f"{_verb(result['W2_staggered'].path.outcome)}.",
            f"With all 18 parameters of a mixture free, the best method is "
            f"{best.contestant.name}{speed}.",
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
    )


def _paths(result: StudyResult, folder: Path) -> Section:
    reach = [e.method.name for e in result.methods if e.path.outcome == REACHES]
    return Section(
        "Eight metrics from (5, 3)",
        [
            "The discretisation is the paper's: interior nodes, central differences with zero "
            "values outside (its appendix B.1), and its step sizes. One conversion is needed: our "
            "loss is an integral, so gradient descent's step 0.3 becomes 0.3/w. Natural gradient "
            "directions do not depend on w.",
            f"From (5, 3) these reach the global minimum: {', '.join(reach) or 'none'}. The last "
            "panel is the corrected Wasserstein metric discussed below.",
            Figure(
                figures.draw_paths(result, folder / "paths.png"),
                "The paper's figure 2: level sets of f over μ, unit vectors along the descent "
                "direction of each method, and its path from (5, 3) (red; square: start, star: "
                "global minimum, dotted: Ω).",
                "Nine panels with level sets, arrows and paths",
            ),
            _path_plot(result),
            path_table(result),
            _loss_plot(result, folder / "losses.png"),
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
    return Section("How long a step?", parts)


def _models(result: StudyResult, folder: Path) -> Section:
    return Section(
        "Local quadratic models",
        [
            "Each method minimises q(h) = ∂f·h + hᵀGh/2τ, with its own G. The level sets of q are "
            "ellipses about the next iterate.",
            Figure(
                figures.draw_quadratic_models(result, folder / "quadratic_models.png"),
                "The paper's figure 3: level sets of q at the first three iterates (blue, orange, "
                "green; dot: iterate, cross: minimiser of q), over those of f. The outer ellipse "
                "passes through the iterate. For the paper's W₂ scheme they are so thin in x that "
                "they look like segments; the staggered scheme has ordinary ellipses.",
                "Ellipses of the local models of four methods",
            ),
        ],
    )


def _transport(result: StudyResult, folder: Path) -> Section:
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
        f"{_verb(paper.outcome)} from (5, 3); with a consistent scheme it {_verb(fixed.outcome)}. "
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
        Figure(
            figures.draw_transport(result, folder / "transport.png"),
            "Left: paths of W₂ from (5, 3) with both schemes, and gradient descent for comparison. "
            "Middle: the paper's G_xx(5, 3), split by the parity of the node's indices (counted "
            "from one); the bound is on their sum. Right: the corrected G(5, 3) under refinement.",
            "Paths, parity split and refinement of the two Wasserstein schemes",
        ),
    ]
    if result.floored is not None:
        parts.append(
            "A second piece of evidence: keep the density above "
            f"{result.settings.floor:g} of its maximum inside the paper's B, and leave all else as "
            f"it is. Then G_xx(5, 3) = {result.floored.matrix[0, 0]:.4f}, and within "
            f"{result.floored.path.iterations} iterations the path "
            f"{_verb(result.floored.path.outcome)}."
        )
    return Section("Two discretisations of W₂", parts)


def _verb(outcome: int) -> str:
    return {
        REACHES: "reaches the global minimum",
        ESCAPES: "escapes to the plateau",
        UNDECIDED: "is undecided",
    }[outcome]


def _basins(result: StudyResult, folder: Path) -> Section:
    gd, honest = result["GD"].basins.outcome, result["W2_staggered"].basins.outcome
    both = (gd != UNDECIDED) & (honest != UNDECIDED)
    same = int((gd == honest)[both].sum())
    return Section(
        "Basins of attraction",
        [
            "The same runs from a grid of starts. Where a step is short for its metric, some "
            "starts are undecided when the iterations end; this says nothing about their fate.",
            Figure(
                figures.draw_basins(result, folder / "basins.png"),
                "Fate of each start with the paper's steps, over the level sets of f.",
                "Maps of the starts that reach the minimum and of those that escape",
            ),
            basin_table(result),
            f"The corrected W₂ and gradient descent agree on {same} of the {int(both.sum())} "
            "starts that both decide. On this problem the choice of metric changes the speed and "
            "the path, but hardly the basin.",
        ],
    )


def _fit(result: StudyResult, folder: Path) -> Section:
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
            fit_table(result),
            _fit_plot(result.fits, folder / "fit_losses.png"),
            Figure(
                figures.draw_densities(result.fits, folder / "fit_densities.png"),
                "Target, start and final densities (blue), with the target's level sets in red.",
                "Densities of target, start and fits",
            ),
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


def _loss_plot(result: StudyResult, path: Path) -> Curves:
    """f of every method from the paper's start; drawn into a file too."""
    land = result.landscape
    losses = [(entry.method, entry.path.losses / land.weight) for entry in result.methods]
    levels = {"plateau": land.plateau_loss, "global minimum": land.minimum_loss}
    curves = Curves(
        [
            Series(method.name, loss, {"iterations": np.arange(len(loss))}, *LINES[method.key])
            for method, loss in losses
        ],
        "f, as a plain sum",
        "Loss against iterations from (5, 3).",
        log=False,
        levels={name: level / land.weight for name, level in levels.items()},
    )
    save(plot_curves([[(curves, "iterations")]], (8.6, 4.6))[0], path)
    return curves


def _fit_plot(fits: list[Fit], path: Path) -> Curves:
    """The losses of the fit with all parameters free; drawn into a file too."""
    series = []
    for fit in fits:
        spent = {"iterations": np.arange(len(fit.relative)), "seconds": fit.seconds}
        x, y = spent | {"propagations": fit.propagations}, np.maximum(fit.relative, FLOOR)
        series.append(Series(fit.contestant.name, y, x, *LINES[fit.contestant.key]))
    curves = Curves(
        series,
        "loss / initial loss",
        "Loss against iterations, against seconds on this machine without compiling, and against "
        "evaluations of the model and of its derivatives.",
    )
    panels = [[(curves, "iterations"), (curves, "seconds")]]
    save(plot_curves(panels, (10.5, 4.6))[0], path)
    return curves


# --- tables ---------------------------------------------------------------------------------------


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
    for entry in rank(result.fits):
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
