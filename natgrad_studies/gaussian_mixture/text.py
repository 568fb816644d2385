"""The report: captions and what the numbers say. Every number comes from the results."""

import dataclasses
from pathlib import Path

from natgrad.report import Figure, Page, Part, Section, Table, versions

from . import plots
from .fit import DAMPING, ranked
from .landscape import ESCAPES, REACHES, UNDECIDED
from .results import StudyResult
from .tables import basin_table, fit_table, path_table, step_table

TITLE = "Natural gradients for a Gaussian mixture"


def page(result: StudyResult, drawn: dict[str, Path]) -> Page:
    """The whole report."""
    return Page(
        title=TITLE,
        lead=(
            "Which metric on the density leads gradient descent where? The experiment of section "
            "4.1 of the paper with eight metrics, its Wasserstein metric compared with a corrected "
            "discretisation, and a mixture with all parameters free."
        ),
        sections=[
            _short(result),
            _landscape(result),
            _paths(result, drawn),
            _steps(result),
            _models(drawn),
            _transport(result, drawn),
            _basins(result, drawn),
            _fit(result, drawn),
        ],
        settings={
            field.name: getattr(result.settings, field.name)
            for field in dataclasses.fields(result.settings)
        },
        versions=versions(),
    )


def _short(result: StudyResult) -> Section:
    land, t = result.landscape, result.transport
    w = land.weight
    reach = [e.method.name for e in result.methods if e.path.outcome == REACHES]
    best = ranked(result.fits)[0]
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


def _paths(result: StudyResult, drawn: dict[str, Path]) -> Section:
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
                drawn["paths"],
                "The paper's figure 2: level sets of f over μ, unit vectors along the descent "
                "direction of each method, and its path from (5, 3) (red; square: start, star: "
                "global minimum, dotted: Ω).",
                "Nine panels with level sets, arrows and paths",
            ),
            plots.paths(result),
            path_table(result),
            plots.losses(result),
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


def _models(drawn: dict[str, Path]) -> Section:
    return Section(
        "Local quadratic models",
        [
            "Each method minimises q(h) = ∂f·h + hᵀGh/2τ, with its own G. The level sets of q are "
            "ellipses about the next iterate.",
            Figure(
                drawn["quadratic_models"],
                "The paper's figure 3: level sets of q at the first three iterates (blue, orange, "
                "green; dot: iterate, cross: minimiser of q), over those of f. The outer ellipse "
                "passes through the iterate. For the paper's W₂ scheme they are so thin in x that "
                "they look like segments; the staggered scheme has ordinary ellipses.",
                "Ellipses of the local models of four methods",
            ),
        ],
    )


def _transport(result: StudyResult, drawn: dict[str, Path]) -> Section:
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
            drawn["transport"],
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


def _basins(result: StudyResult, drawn: dict[str, Path]) -> Section:
    gd, honest = result["GD"].basins.outcome, result["W2_staggered"].basins.outcome
    both = (gd != UNDECIDED) & (honest != UNDECIDED)
    same = int((gd == honest)[both].sum())
    return Section(
        "Basins of attraction",
        [
            "The same runs from a grid of starts. Where a step is short for its metric, some "
            "starts are undecided when the iterations end; this says nothing about their fate.",
            Figure(
                drawn["basins"],
                "Fate of each start with the paper's steps, over the level sets of f.",
                "Maps of the starts that reach the minimum and of those that escape",
            ),
            basin_table(result),
            f"The corrected W₂ and gradient descent agree on {same} of the {int(both.sum())} "
            "starts that both decide. On this problem the choice of metric changes the speed and "
            "the path, but hardly the basin.",
        ],
    )


def _fit(result: StudyResult, drawn: dict[str, Path]) -> Section:
    best = ranked(result.fits)[0]
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
            plots.fit_losses(result.fits),
            Figure(
                drawn["fit_densities"],
                "Target, start and final densities (blue), with the target's level sets in red.",
                "Densities of target, start and fits",
            ),
            f"The best final loss is that of {best.contestant.name}. For a least-squares loss with "
            "an attainable target, Gauss–Newton's quadratic convergence is expected; the other "
            "metrics converge linearly, at rates set by how well G resembles the Hessian.",
        ],
    )
