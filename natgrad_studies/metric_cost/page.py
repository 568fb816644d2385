"""The report: tables, plots and what the numbers say. Every number comes from the results."""

from pathlib import Path

from natgrad.plot import PALETTE
from natgrad.report import Curves, Page, Part, Section, Series, Table

from ..methods import LINES as SHARED_LINES
from ..pages import tabulate
from .run import OPERATIONS, MethodCosts, StudyResult, local_exponent
from .sparse_qr import ADVICE

TIMES = ("metric", "grid", "set-up", "L", "(Lᵀ)†", "η", "η/L²", "compile")
TITLES = {
    "direction": "One direction with p = 2: the right half of the paper's figure 1.",
    "set_up": "The set-up of L at a new ρ, where L depends on ρ.",
    "product": "v ↦ Lv, once L is set up: the left half of the paper's figure 1.",
    "whiten": "v ↦ (Lᵀ)†v.",
}
LINES = SHARED_LINES | {
    "W2_mixed": (PALETTE["vermilion"], "-."),
    "W2_single": (PALETTE["vermilion"], "--"),
    "W2_sparse": (PALETTE["purple"], "-"),
    "W2_collocated": (PALETTE["grey"], "--"),
    "W2_qr": (PALETTE["black"], "-"),
    "W2_collocated_qr": (PALETTE["grey"], "-"),
}


def page(result: StudyResult, folder: Path) -> Page:
    """The whole report."""
    return Page(
        title="What a metric costs",
        lead=(
            "Table 2 and figure 1 of the paper (section 3.4): how the cost of v ↦ Lv, of "
            "v ↦ (Lᵀ)†v and of a whole natural gradient direction grows with the number of cells "
            "k, for each metric."
        ),
        sections=[
            _short(result),
            _complexity(result),
            *_direction(result),
            *_transport(result),
            Section("All times", [all_times_table(result)], folded=True),
            _measurements(result),
        ],
    )


def _short(result: StudyResult) -> Section:
    parts: list[Part] = []
    for entry in result.methods:
        ratios, growth = result.over_l2(entry), result.growth(entry, "direction")
        if entry.method.key != "W2" or growth is None:
            continue
        n = max(entry.measured)
        ratio = f", {ratios[n]:.2g} times that of L²" if n in ratios else ""
        counts = sorted({found.iterations or 0 for found in entry.measured.values()})
        spread = f"between {counts[0]} and {counts[-1]}" if len(counts) > 1 else counts[0]
        parts.append(
            f"A W₂ direction by multigrid takes {entry.seconds('direction')[n]:.2g} CPU seconds at "
            f"k = {n}²{ratio}. Its time grows like k^{growth.exponent:.2f} between {growth.lower}² "
            f"and {growth.upper}² cells; the paper's factorisation, in its own measurements, like "
            f"k^1.25. The number of iterations is {spread} at every size."
        )
    fixed = [entry.method.name for entry in result.methods if not entry.method.changes]
    changing = [entry.method.name for entry in result.methods if entry.method.changes]
    parts.append(
        f"L stays the same from iteration to iteration for {', '.join(fixed) or 'none'}; it "
        f"changes with ρ for {', '.join(changing) or 'none'}."
    )
    winner, *more = parts
    return Section("In short", [winner, *_times(result, "direction"), time_table(result), *more])


def _measurements(result: StudyResult) -> Section:
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
        folded=True,
    )


def _complexity(result: StudyResult) -> Section:
    plots = _times(result, "product", "whiten")
    return Section("Table 2: growth of L and (Lᵀ)†", [complexity_table(result), *plots])


def _direction(result: StudyResult) -> list[Section]:
    parts = _times(result, "set_up")
    missing = [
        f"{entry.method.name} at "
        + ", ".join(f"{n}² ({reason})" for n, reason in sorted(entry.left_out.items()))
        for entry in result.methods
        if entry.left_out
    ]
    if missing:
        limits = f"{result.settings.max_seconds:g} s or {result.settings.max_gigabytes:g} GB"
        parts.append(
            "Left out, because a direction does not converge or, judging by the size before, "
            f"would pass {limits}: {'; '.join(missing)}."
        )
    return [Section("The set-up in a direction", parts)] if parts else []


def _transport(result: StudyResult) -> list[Section]:
    if not any(key.startswith("W2") for key in result.settings.metrics):
        return []
    solved = [entry for entry in result.methods if entry.method.by_multigrid and entry.measured]
    sizes = sorted({n for entry in solved for n in entry.measured})
    counts = {
        f"{n}²": lambda entry, n=n: entry.measured[n].iterations if n in entry.measured else None
        for n in sizes
    }
    told = "Iterations of multigrid-preconditioned conjugate gradients in a direction, by the size."
    parts: list[Part] = []
    if solved:
        parts.append(tabulate(solved, {"metric": lambda e: e.method.name} | counts, told))
    ratios = [(e, result.over_l2(e)) for e in result.methods if e.method.key != "L2"]
    series = [_series(entry, found) for entry, found in ratios if found]
    if series:
        told = "CPU time of a direction over that of L² on the same grid."
        parts.append(Curves(series, "η/L²", told, log_x=True, levels={"L²": 1.0}))
    accuracy = accuracy_table(result)
    if accuracy.rows:
        parts.append(accuracy)
    parts += _suitesparse(result)
    return [Section("W₂ beside the paper's sparse QR", parts)] if parts else []


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


def _times(result: StudyResult, *operations: str) -> list[Part]:
    """What each of these operations takes, in every metric."""
    found: list[Part] = []
    for operation in operations:
        times = [(entry, entry.seconds(operation)) for entry in result.methods]
        series = [_series(entry, seconds) for entry, seconds in times if seconds]
        if series:
            found.append(Curves(series, "CPU seconds", TITLES[operation], log_x=True))
    return found


def _series(entry: MethodCosts, values: dict[int, float]) -> Series:
    """Values by the number of cells a side."""
    x = {"cells": [n**2 for n in values], "cells a side": list(values)}
    return Series(entry.method.name, list(values.values()), x, *LINES[entry.method.key])


# --- tables ---------------------------------------------------------------------------------------


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    tables = [complexity_table(result), time_table(result)]
    accuracy = accuracy_table(result)
    return tables + ([accuracy] if accuracy.rows else [])


def complexity_table(result: StudyResult) -> Table:
    """The paper's table 2, beside measured exponents."""
    rows = []
    for entry in result.methods:
        growths = {name: result.growth(entry, name) for name in OPERATIONS}
        e = {name: "–" if g is None else f"{g.exponent:.2f}" for name, g in growths.items()}
        L, whitened = entry.method.paper_costs
        measured = (L, e["product"], whitened, e["whiten"], e["set_up"], e["direction"])
        rows.append((entry.method.name, "yes" if entry.method.changes else "no", *measured))
    return Table(
        ("metric", "varies", "paper", "L", "paper", "(Lᵀ)†", "set-up", "η"),
        rows,
        "Table 2 of the paper: does L vary from iteration to iteration, and how do the times of L "
        "and of (Lᵀ)† grow with k? Beside the paper's statement stands the exponent measured here, "
        "then those of the set-up at a new ρ and of a whole direction η. For W₂ the paper counts "
        f"the factorisation with L; here it is the set-up. {_ranges(result)}",
    )


def _ranges(result: StudyResult) -> str:
    """The grids over which exponents were fitted, and what O(k log k) looks like on them."""
    found: dict[tuple[int, int], list[str]] = {}
    for entry in result.methods:
        growth = result.growth(entry, "direction")
        if growth is not None:
            found.setdefault((growth.lower, growth.upper), []).append(entry.method.name)
    if not found:
        return ""
    common = max(found, key=lambda span: len(found[span]))
    others = [
        f"{', '.join(names)} {lower}² to {upper}²"
        for (lower, upper), names in found.items()
        if (lower, upper) != common
    ]
    lower, upper = common
    return (
        f"Fitted over {lower}² to {upper}² cells, where O(k log k) looks like "
        f"k^{local_exponent('k log k', lower, upper):.2f}"
        + (f" ({'; '.join(others)})." if others else ".")
    )


def time_table(result: StudyResult) -> Table:
    """CPU times on the largest grid of each method."""
    rows = [_time_row(result, entry, entry.largest) for entry in result.methods if entry.measured]
    return Table(
        TIMES,
        rows,
        "CPU milliseconds on the largest grid of each method, the fastest of several calls; a "
        "direction η over that of L²; and the seconds that compiling all four takes.",
    )


def all_times_table(result: StudyResult) -> Table:
    """CPU times of everything, and what was left out."""
    rows = []
    for entry in result.methods:
        for n in sorted({*entry.measured, *entry.left_out}):
            if n in entry.measured:
                iterations = entry.measured[n].iterations
                told = [] if iterations is None else [f"{iterations} iterations"]
                told += ["L does not converge"] * (entry.measured[n].product is None)
                rows.append((*_time_row(result, entry, n), ", ".join(told)))
            else:
                blank = ("",) * (len(TIMES) - 2)
                rows.append((entry.method.name, f"{n}²", *blank, entry.left_out[n]))
    return Table(
        (*TIMES, "remark"),
        rows,
        "CPU milliseconds of every operation at every size; compiling in seconds.",
    )


def _time_row(result: StudyResult, entry: MethodCosts, n: int) -> tuple[str, ...]:
    found = entry.measured[n]
    timings = (found.set_up, found.product, found.whiten, found.direction)
    compiled = sum(timing.compilation for timing in timings if timing is not None)
    ratio = result.over_l2(entry).get(n)
    return (
        entry.method.name,
        f"{n}²",
        *("–" if timing is None else _round(1e3 * timing.seconds) for timing in timings),
        "–" if ratio is None else _round(ratio),
        "–" if entry.method.metric is None else f"{compiled:.1f}",
    )


def _round(value: float) -> str:
    """Three digits or so, without an exponent.

    >>> [_round(x) for x in (0.0123, 4.567, 45.67, 4567.8)]
    ['0.012', '4.57', '45.7', '4568']
    """
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def accuracy_table(result: StudyResult) -> Table:
    """Our W₂ directions against a factorisation of the same scheme; no rows where none ran."""
    rows = []
    for entry in result.methods:
        reference, found = result.reference(entry), result.eta_difference(entry)
        if reference is None or found is None:
            continue
        n, difference = found
        ours, theirs = (e.seconds("direction")[n] for e in (entry, reference))
        names = (entry.method.name, reference.method.name)
        rows.append((*names, f"{n}²", f"{difference:.1e}", f"{_round(theirs / ours)}×"))
    return Table(
        ("metric", "against", "grid", "η differs by", "faster by"),
        rows,
        "Directions of W₂ against a factorisation of the same scheme on the largest grid that both "
        "have: ‖η − η'‖/‖η'‖, and the ratio of CPU times of a direction.",
    )
