"""The report: captions and what the numbers say. Every number comes from the results."""

import dataclasses
from pathlib import Path

from natgrad.report import Figure, Page, Part, Section, versions

from .claims import common_iterations, common_seconds, order
from .metrics import LEAST
from .plots import batches, convergence
from .results import StudyResult
from .runs import Run
from .settings import METRICS
from .tables import batch_table, claim_table, run_table, time_table

TITLE = "Poisson's equation by a network"


def page(result: StudyResult, drawn: dict[str, Path]) -> Page:
    """The whole report."""
    settings = result.settings
    return Page(
        title=TITLE,
        lead=(
            f"A network with {result.pinn.parameters:,} parameters learns the solution of "
            "Poisson's equation from its residuals (section 4.2 of the paper): natural gradients "
            "in metrics on the network's values, Gauss–Newton on the residuals, L-BFGS and Adam, "
            "by iterations and by seconds."
        ),
        sections=[
            Section("In short", _short(result)),
            Section("The problem", _problem(result)),
            Section("Convergence", _convergence(result, drawn)),
            Section("The paper's order", _order(result)),
            *_batches(result),
            Section("What each method does", _methods(result)),
        ],
        settings={
            field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)
        },
        versions=versions(),
    )


def _ended(run: Run) -> str:
    return (
        f"{run.method.name} (loss {run.final:.1e}, error {run.error:.1e}, "
        f"{run.iterations:,} iterations)"
    )


def _short(result: StudyResult) -> list[Part]:
    said = [f"In {result.settings.seconds:g} CPU seconds the best method is {_ended(result.best)}."]
    best, metric, rival = result.best, result.best_metric, result.best_of(("LBFGS", "Adam"))
    if metric is not None and metric is not best:
        said.append(f"The best of the paper's metrics is {_ended(metric)}.")
    if rival is not None and rival is not best:
        both = all(key in result.runs for key in ("LBFGS", "Adam"))
        which = "The better of L-BFGS and Adam" if both else "The rival"
        said.append(f"{which} is {_ended(rival)}.")
    return [" ".join(said), *_verdict(result)]


def _verdict(result: StudyResult) -> list[Part]:
    """The paper's statements in a sentence."""
    known = [claim for claim in result.claims if claim.by_iterations is not None]
    if not known:
        return []
    per_iteration = sum(bool(claim.by_iterations) for claim in known)
    by_seconds = sum(bool(claim.by_seconds) for claim in known)
    return [
        f"Of {len(known)} statements that the paper makes about its metrics, {per_iteration} hold "
        f"here per iteration and {by_seconds} by seconds; they are listed below."
    ]


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


def _convergence(result: StudyResult, drawn: dict[str, Path]) -> list[Part]:
    return [
        convergence(result),
        Figure(
            drawn["convergence"],
            "Loss against iterations and against CPU seconds without compiling. A cross marks a "
            "run that found no further step.",
            "Loss curves of all methods",
        ),
        run_table(result),
        time_table(result),
        Figure(
            drawn["fields"],
            "The true solution, the network after the best run, and its error.",
            "Maps of the true solution, the learned one and the error",
        ),
    ]


def _order(result: StudyResult) -> list[Part]:
    runs = {key: run for key, run in result.runs.items() if key in METRICS}
    if len(runs) < 2:
        return ["Fewer than two of the paper's metrics were run."]
    iterations, seconds = common_iterations(runs), common_seconds(runs)
    listed = lambda loss: ", ".join(f"{r.method.name} {loss(r):.2e}" for r in order(runs, loss))
    return [
        f"After {iterations} iterations, the lowest loss first: "
        f"{listed(lambda run: run.after(iterations))}.",
        f"After {seconds:.1f} CPU seconds: {listed(lambda run: run.within(seconds))}.",
        claim_table(result),
    ]


def _batches(result: StudyResult) -> list[Section]:
    if not result.batched:
        return []
    parts: list[Part] = [
        f"With {result.settings.batch} points in every iteration. L² and Fisher–Rao draw them from "
        "the grid, and both the loss and G are estimates from them; Levenberg–Marquardt draws new "
        "points from the whole square and its boundary. The losses shown are those on all points, "
        "evaluated off the clock.",
        batches(result),
        batch_table(result),
    ]
    return [Section("Mini-batches", parts)]


def _methods(result: StudyResult) -> list[Part]:
    s = result.settings
    told: list[Part] = []
    if result.pinn.authors:
        told.append(
            "Metrics on values: SciPy's Newton-CG; the loose tolerance of its conjugate gradients "
            "is the only regularisation. Gradient descent has the identity for G."
        )
    else:
        told += [
            f"Metrics on values: (G + λI)η = −∂f by Cholesky with λ = {s.damping:g} · trace(G)/p, "
            "then backtracking from twice the last step length. minimize starts every search "
            "from one length, so the study drives its iterations itself.",
            "Ḣ¹, Ḣ⁻¹ and W₂ do not see the mean of a tangent; it is given its length in L². "
            "Values are used as they are, neither shifted nor normalised: the solution lies in "
            "[1, 5] and the network starts near 3. On its way it may go lower; values below "
            f"{LEAST:g} count as {LEAST:g} in Fisher–Rao and W₂. (If steps to negative values were "
            "refused instead, a run would walk up to the first zero and stay there.)",
        ]
    told.append(
        "Gauss–Newton and Levenberg–Marquardt (LM): the state is the residual, its metric the "
        "Hessian of the loss. Gauss–Newton has a fixed small λ; that of LM follows the line "
        "search. Third order: the step follows a curve along which the residual moves "
        "straight ahead."
    )
    told.append(
        f"L-BFGS keeps {s.memory} pairs (SciPy). Adam takes all points and the rate {s.rate:g}."
    )
    return told
