"""The report: captions and what the numbers say. Every number comes from the results."""

import dataclasses
from pathlib import Path

from natgrad.report import Figure, Page, Part, Section, versions

from .plots import times
from .results import MethodCosts, StudyResult
from .sparse_qr import ADVICE
from .tables import accuracy_table, all_times_table, complexity_table, left_out, time_table

TITLE = "What a metric costs"


def page(result: StudyResult, drawn: dict[str, Path]) -> Page:
    """The whole report."""
    return Page(
        title=TITLE,
        lead=(
            "Table 2 and figure 1 of the paper (section 3.4): how the cost of v ↦ Lv, of "
            "v ↦ (Lᵀ)†v and of a whole natural gradient direction grows with the number of cells "
            "k, for each metric."
        ),
        sections=[
            _short(result),
            _measured(result),
            _complexity(result, drawn),
            _direction(result, drawn),
            *_transport(result, drawn),
            _everything(result),
        ],
        settings={
            field.name: getattr(result.settings, field.name)
            for field in dataclasses.fields(result.settings)
        },
        versions=versions(),
    )


def _short(result: StudyResult) -> Section:
    parts = []
    for entry in result.methods:
        ratios, growth = result.over_l2(entry), result.growth(entry, "direction")
        if entry.method.key != "W2" or growth is None:
            continue
        n = max(entry.measured)
        ratio = f", {ratios[n]:.2g} times that of L²" if n in ratios else ""
        counts = sorted({found.iterations or 0 for found in entry.measured.values()})
        parts.append(
            f"A W₂ direction by multigrid takes {entry.seconds('direction')[n]:.2g} CPU seconds at "
            f"k = {n}²{ratio}. Its time grows like k^{growth.exponent:.2f} between {growth.lower}² "
            f"and {growth.upper}² cells; the paper's factorisation, in its own measurements, like "
            f"k^1.25. The number of iterations is {_between(counts)} at every size."
        )
    parts.append(_fixed(result))
    return Section("In short", parts)


def _between(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"between {counts[0]} and {counts[-1]}"


def _fixed(result: StudyResult) -> str:
    fixed = [entry.method.name for entry in result.methods if not entry.method.changes]
    changing = [entry.method.name for entry in result.methods if entry.method.changes]
    return (
        f"L stays the same from iteration to iteration for {', '.join(fixed) or 'none'}; it "
        f"changes with ρ for {', '.join(changing) or 'none'}."
    )


def _measured(result: StudyResult) -> Section:
    settings = result.settings
    return Section(
        "What is measured",
        [
            "The problem is that of the paper's section 4.1: ρ is a mixture of two Gaussians on "
            "Ω = [−2.75, 7.25]² with p = 2 free parameters, the mean μ of one of them, and the "
            "loss is least squares. Everything is taken at μ = (5, 3), with v = ∂ρ/∂μ₁ for L and "
            "v = ∂f/∂ρ for (Lᵀ)†. The density falls by many orders of magnitude towards the "
            "boundary, and W₂'s equation has that contrast.",
            "Times are CPU seconds of this process, of all its threads together (the paper quotes "
            f"wall-clock time), the fastest of {settings.repeats} calls or more after the one that "
            "compiles. Work by other programs changes them less than wall-clock time, but does "
            "change them. Small grids cost what it takes to start a program, some tenths of a "
            "millisecond; exponents are therefore fitted over the larger ones.",
            "A set-up is what has to be done at a new ρ before L can be applied: a multigrid "
            "hierarchy, a factorisation. A direction is all of it: ρ, its Jacobian, the loss and "
            "its gradient, the set-up, p products with L, G and η by Cholesky. (For W₂ by "
            "multigrid G comes from the potentials and the solver's error enters it squared, so "
            "that a direction is solved to the square root of the tolerance, 1e−12, of a product.)",
            "Two operators differ from the paper's. Hˢ metrics multiply by the square root of the "
            "symbol, after one fast transform, for either sign of s and for both L and (Lᵀ)†; the "
            "paper stacks the identity and difference quotients, which is O(k) in one of the two "
            "and O(k log k) in the other. And W₂ uses staggered finite volumes; its collocated "
            "scheme is measured where the name says so. Multigrid is in double precision "
            "unless the name says mixed (cycles in single precision inside an iteration in double) "
            "or single.",
        ],
    )


def _complexity(result: StudyResult, drawn: dict[str, Path]) -> Section:
    return Section(
        "Table 2: growth of L and (Lᵀ)†",
        [
            complexity_table(result),
            Figure(
                drawn["actions"],
                "The left half of the paper's figure 1: CPU time of v ↦ Lv, once L is set up, and "
                "of v ↦ (Lᵀ)†v, against the number of cells, with fitted exponents.",
                "Log-log plots of the time of L and of its whitening against the number of cells",
            ),
        ],
    )


def _direction(result: StudyResult, drawn: dict[str, Path]) -> Section:
    parts: list[Part] = [
        time_table(result),
        Figure(
            drawn["direction"],
            "The right half of the paper's figure 1: CPU time of one direction with p = 2, and of "
            "the set-up in it where L depends on ρ.",
            "Log-log plots of the time of a direction and of the set-up",
        ),
    ]
    missing = left_out(result)
    if missing:
        limits = f"{result.settings.max_seconds:g} s or {result.settings.max_gigabytes:g} GB"
        parts.append(
            "Left out, because a direction does not converge or, judging by the size before, "
            f"would pass {limits}: {'; '.join(missing)}."
        )
    return Section("Figure 1: one direction", parts)


def _transport(result: StudyResult, drawn: dict[str, Path]) -> list[Section]:
    if not any(key.startswith("W2") for key in result.settings.metrics):
        return []
    parts: list[Part] = []
    if "iterations" in drawn:
        parts.append(
            Figure(
                drawn["iterations"],
                "Left: iterations of multigrid-preconditioned conjugate gradients in a direction, "
                "against the size. Right: CPU time of a direction over that of L² on the same "
                "grid.",
                "Bars of iterations, and curves of cost relative to L²",
            )
        )
    accuracy = accuracy_table(result)
    if accuracy.rows:
        parts.append(accuracy)
    parts += _suitesparse(result)
    return [Section("W₂ beside the paper's sparse QR", parts)]


def _suitesparse(result: StudyResult) -> list[str]:
    wanted = [key for key in result.settings.metrics if key.endswith("_qr")]
    if result.suitesparse is None:
        return [
            "SuiteSparseQR, the factorisation that the paper uses, is not installed here, and its "
            f"row is left out. To have it: {ADVICE}."
        ] * bool(wanted)
    found = [entry for entry in result.methods if entry.method.key in wanted and entry.measured]
    growths = "; ".join(_qr_growth(result, entry) for entry in found)
    return [
        "SuiteSparseQR factorises the sparse Bᵀ on the host. Only its R is kept: forming Q, as the "
        "formula B† = QR⁻ᵀ suggests, takes far longer. R⁻ᵀ is applied by SciPy's triangular "
        "solver, which is slower than SuiteSparse's own, by a small part of the whole. The speed "
        f"of the factorisation is that of the BLAS which it finds, here {result.suitesparse}: "
        "if that is the reference BLAS (libblas) rather than an optimised one, the comparison "
        f"flatters us. {growths}"
    ] * bool(found)


def _qr_growth(result: StudyResult, entry: MethodCosts) -> str:
    growth = result.growth(entry, "set_up")
    if growth is None:
        return f"{entry.method.name} was measured at one size only."
    return (
        f"Its factorisation for {entry.method.name} grows like k^{growth.exponent:.2f} between "
        f"{growth.lower}² and {growth.upper}²; the paper observed k^1.25."
    )


def _everything(result: StudyResult) -> Section:
    return Section("All times", [*times(result), all_times_table(result)])
