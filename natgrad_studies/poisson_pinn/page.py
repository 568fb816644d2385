"""The report: figures, tables and what the numbers say. Every number comes from the results."""

from pathlib import Path

import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import Curves, Frames, Page, Part, Section, Series, Table

from ..methods import LINES as SHARED_LINES
from ..pages import tabulate
from .metrics import LEAST
from .problem import fine_points, solution
from .run import SHARES, Run, StudyResult, common_spending, order
from .settings import METRICS

LINES = SHARED_LINES | {
    "Adam": (PALETTE["black"], ":"),
    "GN": (PALETTE["purple"], ":"),
    "LM": (PALETTE["purple"], "--"),
    "LM3": (PALETTE["purple"], "-"),
}
ENDS = {
    "max_seconds": "time",
    "max_iterations": "iterations",
    "no_decrease": "stalled",
    "inadmissible": "not positive",
    "not_finite": "not finite",
    "not_descent": "no descent",
}
RUN_COLUMNS = {
    "method": lambda run: run.method.name,
    "end": lambda run: ENDS.get(run.status, run.status),
    "loss": lambda run: f"{run.final:.2e}",
    "error": lambda run: f"{run.error:.1e}",
    "iter.": lambda run: f"{run.iterations:,}",
    "CPU s": lambda run: f"{run.seconds[-1]:.1f}",
    "s/iter.": lambda run: f"{run.seconds_per_iteration:.4f}",
}


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report."""
    names = "; ".join(run.method.name for run in result.runs.values())
    winner, *more = _short(result)
    return Page(
        title="Poisson's equation by a network",
        lead=(
            f"A network with {result.pinn.parameters:,} parameters learns the solution of "
            "Poisson's equation from its residuals (section 4.2 of the paper). Compared by "
            f"iterations and by seconds: {names}."
        ),
        sections=[
            Section("In short", [winner, _curves(result), run_table(result), *more]),
            Section("The solution", _fields(result)),
            Section("At equal seconds", [time_table(result)]),
            *_order(result),
            *_batches(result),
            Section("The problem", _problem(result), folded=True),
            Section("What each method does", _methods(result), folded=True),
        ],
    )


def _summarise(run: Run) -> str:
    return (
        f"{run.method.name} (loss {run.final:.1e}, error {run.error:.1e}, "
        f"{run.iterations:,} iterations)"
    )


def _short(result: StudyResult) -> list[Part]:
    said = []
    winner = f"In {result.settings.seconds:g} CPU seconds the best is {_summarise(result.best)}."
    best, metric, rival = result.best, result.best_metric, result.best_of(("LBFGS", "Adam"))
    if metric is not None and metric is not best:
        said.append(f"The best of the paper's metrics is {_summarise(metric)}.")
    if rival is not None and rival is not best:
        both = all(key in result.runs for key in ("LBFGS", "Adam"))
        which = "The better of L-BFGS and Adam" if both else "The rival"
        said.append(f"{which} is {_summarise(rival)}.")
    known = [claim for claim in result.claims if claim.by_iterations is not None]
    per_iteration = sum(bool(claim.by_iterations) for claim in known)
    by_seconds = sum(bool(claim.by_seconds) for claim in known)
    verdict = (
        f"Of {len(known)} statements that the paper makes about its metrics, {per_iteration} hold "
        f"here per iteration and {by_seconds} by seconds; they are listed below."
    )
    return [winner, " ".join([*said, *([verdict] if known else [])])]


def _problem(result: StudyResult) -> list[Part]:
    points, s = result.pinn.points, result.settings
    widths = "-".join(map(str, (2, *s.layers, 1)))
    inside = len(result.pinn.residuals.blocks["interior"].points)
    told: list[Part] = [
        "−Δu = φ on [−1, 1]² with u = 3 on the boundary and φ such that "
        "u = sin πx₁ sin πx₂ + sin 3πx₁ sin 3πx₂ + 3. The loss is γ times the mean of |Δρ + φ|² "
        f"over {inside:,} points plus 2 − γ times the mean of |ρ − 3|² over "
        f"{len(points.boundary)} points of the boundary, γ = {s.gamma:g}; ρ is a network of shape "
        f"{widths} with tanh, in double precision.",
        f"The metrics measure the values ρ of the network on {s.points} × {s.points} points. The "
        "loss sees Δρ, of which values on a grid know nothing: the gradient is that of θ, by "
        "differentiating the loss, and only G comes from the metric.",
    ]
    if result.pinn.authors:
        told.append(
            "This is the authors' variant: the network sees the square as [0, 1]², the equation is "
            "asked for on the boundary too, G is the Hessian in SciPy's Newton-CG without "
            "damping, H¹ is I + L with central differences inside and the identity on the boundary "
            "in L, Ḣ¹ is L, H⁻¹ and Ḣ⁻¹ are their inverses, and W₂ is taken on the interior "
            "with ρ as it is."
        )
    return told


def _curves(result: StudyResult) -> Curves:
    ended = [run.method.name for run in result.runs.values() if run.ended_by_itself]
    stalled = f" Found no further step: {', '.join(ended)}." if ended else ""
    return Curves(
        [_series(run, LINES[run.method.key][1]) for run in result.runs.values()],
        "loss",
        f"Loss against iterations and against CPU seconds without compiling.{stalled}",
    )


def _order(result: StudyResult) -> list[Section]:
    runs = {key: run for key, run in result.runs.items() if key in METRICS}
    if len(runs) < 2:
        return []
    iterations = int(common_spending(runs, lambda run: run.iterations))
    seconds = common_spending(runs, lambda run: run.seconds[-1])
    listed = lambda loss: ", ".join(f"{r.method.name} {loss(r):.2e}" for r in order(runs, loss))
    parts: list[Part] = [
        f"After {iterations} iterations, the lowest loss first: "
        f"{listed(lambda run: run.after(iterations))}.",
        f"After {seconds:.1f} CPU seconds: {listed(lambda run: run.within(seconds))}.",
    ]
    claims = claim_table(result)
    return [Section("The paper's order", [*parts, claims] if claims.rows else parts, folded=True)]


def _batches(result: StudyResult) -> list[Section]:
    if not result.batched:
        return []
    whole = [result.runs[key] for key in result.batched if key in result.runs]
    curves = Curves(
        [
            *(_series(run, "-") for run in whole),
            *(_series(run, "-.") for run in result.batched.values()),
        ],
        "loss on all points",
        "Mini-batches (dash-dotted) and the same methods on all points.",
    )
    metrics = [run.method.name for key, run in result.batched.items() if key in METRICS]
    others = [run.method.name for key, run in result.batched.items() if key not in METRICS]
    told = [f"With {result.settings.batch} points in every iteration."]
    if metrics:
        told.append(
            f"Drawn from the grid, both the loss and G being estimates from them: "
            f"{'; '.join(metrics)}."
        )
    if others:
        told.append(f"Redrawn from the whole square and its boundary: {'; '.join(others)}.")
    parts: list[Part] = [
        " ".join([*told, "The losses shown are those on all points, evaluated off the clock."]),
        curves,
        batch_table(result),
    ]
    return [Section("Mini-batches", parts, folded=True)]


def _methods(result: StudyResult) -> list[Part]:
    """What the methods that ran do."""
    s = result.settings
    ran = {*result.runs, *result.batched}
    told: list[Part] = []
    if result.pinn.authors:
        told.append(
            "Metrics on values: SciPy's Newton-CG; the loose tolerance of its conjugate gradients "
            "is the only regularisation. Gradient descent has the identity for G."
        )
    elif ran & {*METRICS}:
        told.append(
            f"Metrics on values: (G + λI)η = −∂f by Cholesky with λ = {s.damping:g} · trace(G)/p, "
            "then backtracking from twice the last step length. minimize starts every search "
            "from one length, so the study drives its iterations itself.",
        )
        if {"dotH1", "dotHm1", "W2"} & ran:
            told.append(
                "Homogeneous metrics and W₂ do not see the mean of a tangent; it is given its "
                "length in L²."
            )
        if {"FR", "W2"} & ran:
            told.append(
                "Fisher–Rao and W₂ use values as they are, neither shifted nor normalised: the "
                "solution lies in [1, 5] and the network starts near 3. On its way it may go "
                f"lower; values below {LEAST:g} count as {LEAST:g}. (If steps to negative values "
                "were refused instead, a run would walk up to the first zero and stay there.)"
            )
    if {"GN", "LM", "LM3"} & ran:
        told.append(
            "Gauss–Newton and Levenberg–Marquardt (LM): the state is the residual, its metric the "
            "Hessian of the loss. Gauss–Newton has a fixed small λ; that of LM follows the line "
            "search. Third order: the step follows a curve along which the residual moves "
            "straight ahead."
        )
    if "LBFGS" in ran:
        told.append(f"L-BFGS keeps {s.memory} pairs (SciPy).")
    if "Adam" in ran:
        told.append(f"Adam takes all points and the rate {s.rate:g}.")
    return told


# --- plots ----------------------------------------------------------------------------------------


def _series(run: Run, dash: str) -> Series:
    x = {"iterations": np.arange(len(run.losses)), "CPU seconds": run.seconds}
    return Series(run.method.name, run.losses, x, LINES[run.method.key][0], dash)


def _fields(result: StudyResult) -> list[Part]:
    """The true solution, what the best run has learned, and the difference."""
    best = result.best
    truth, found = solution(fine_points()), result.pinn.fine(best.theta)
    upright = lambda values: np.asarray(values).T[::-1]
    place = {"extent": (-1.0, 1.0, -1.0, 1.0), "x_label": "x₁", "y_label": "x₂"}
    return [
        Frames.of(
            {"true solution": [("", upright(truth))], best.method.name: [("", upright(found))]},
            "The true solution, and the network after the best run.",
            limits=(float(truth.min()), float(truth.max())),
            unit="u",
            **place,
        ),
        Frames.of(
            {f"error of {best.method.name}": [("", upright(found - truth))]},
            "The network's values minus the true ones.",
            unit="ρ − u",
            colours="diverging",
            **place,
        ),
    ]


# --- tables ---------------------------------------------------------------------------------------


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    return [run_table(result), *([batch_table(result)] if result.batched else [])]


def run_table(result: StudyResult) -> Table:
    """Where every run ended, and what it cost."""
    return tabulate(
        result.runs.values(),
        RUN_COLUMNS,
        f"Runs from the same network with {result.pinn.parameters:,} parameters, loss "
        f"{result.start_loss:.4g} and relative error {result.start_error:.3f} at the start: why "
        "they ended, the lowest loss, the relative L² error there on 101 × 101 points, "
        "iterations, and CPU seconds without compiling.",
    )


def batch_table(result: StudyResult) -> Table:
    """The same for mini-batches."""
    return tabulate(
        result.batched.values(),
        RUN_COLUMNS,
        f"Runs that see {result.settings.batch} points in an iteration; the loss is the lowest one "
        "on all points.",
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
    word = {True: "holds", False: "does not hold", None: "–"}
    return Table(
        ("statement of the paper", "per iteration", "by CPU seconds"),
        [
            (c.text, word[c.by_iterations], word[c.by_seconds])
            for c in result.claims
            if c.by_iterations is not None
        ],
        "The paper's statements about its figure 4, at the last iteration and the last second "
        "that all metrics have reached.",
    )
