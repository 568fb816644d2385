"""The tables of the report and of the terminal."""

from natgrad.report import Table

from .growth import Growth, local_exponent
from .results import OPERATIONS, MethodCosts, StudyResult


def summary(result: StudyResult) -> list[Table]:
    """The tables worth printing in a terminal."""
    tables = [complexity_table(result), time_table(result)]
    accuracy = accuracy_table(result)
    return tables + ([accuracy] if accuracy.rows else [])


def complexity_table(result: StudyResult) -> Table:
    """The paper's table 2, beside measured exponents."""
    rows = []
    for entry in result.methods:
        growths = (result.growth(entry, operation) for operation in OPERATIONS)
        measured = dict(zip(OPERATIONS, map(_exponent, growths), strict=True))
        L, whitened = entry.method.paper_costs
        changes = "yes" if entry.method.changes else "no"
        rows.append(
            (
                entry.method.name,
                changes,
                *(L, measured["product"], whitened, measured["whiten"]),
                *(measured["set_up"], measured["direction"]),
            )
        )
    return Table(
        ("metric", "varies", "paper", "L", "paper", "(Lᵀ)†", "set-up", "η"),
        rows,
        "Table 2 of the paper: does L vary from iteration to iteration, and how do the times of L "
        "and of (Lᵀ)† grow with k? Beside the paper's statement stands the exponent measured here, "
        "then those of the set-up at a new ρ and of a whole direction η. For W₂ the paper counts "
        f"the factorisation with L; here it is the set-up. {_ranges(result)}",
    )


def _exponent(growth: Growth | None) -> str:
    return "–" if growth is None else f"{growth.exponent:.2f}"


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
    rows = [_times(result, entry, entry.largest) for entry in result.methods if entry.measured]
    return Table(
        _TIMES,
        rows,
        "CPU milliseconds on the largest grid of each method, the fastest of several calls; a "
        "direction η over that of L²; and the seconds that compiling all four takes.",
    )


_TIMES = ("metric", "grid", "set-up", "L", "(Lᵀ)†", "η", "η/L²", "compile")


def all_times_table(result: StudyResult) -> Table:
    """CPU times of everything, and what was left out."""
    rows = []
    for entry in result.methods:
        for n in sorted({*entry.measured, *entry.left_out}):
            if n in entry.measured:
                iterations = entry.measured[n].iterations
                told = [] if iterations is None else [f"{iterations} iterations"]
                told += ["L does not converge"] * (entry.measured[n].product is None)
                rows.append((*_times(result, entry, n), ", ".join(told)))
            else:
                blank = ("",) * (len(_TIMES) - 2)
                rows.append((entry.method.name, f"{n}²", *blank, entry.left_out[n]))
    return Table(
        (*_TIMES, "remark"),
        rows,
        "CPU milliseconds of every operation at every size; compiling in seconds.",
    )


def _times(result: StudyResult, entry: MethodCosts, n: int) -> tuple[str, ...]:
    found = entry.measured[n]
    timings = (found.set_up, found.product, found.whiten, found.direction)
    compiled = sum(timing.compilation for timing in timings if timing is not None)
    ratio = result.over_l2(entry).get(n)
    return (
        entry.method.name,
        f"{n}²",
        *("–" if timing is None else _rounded(1e3 * timing.seconds) for timing in timings),
        "–" if ratio is None else _rounded(ratio),
        "–" if entry.method.metric is None else f"{compiled:.1f}",
    )


def _rounded(value: float) -> str:
    """Three digits or so, without an exponent.

    >>> [_rounded(x) for x in (0.0123, 4.567, 45.67, 4567.8)]
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
        ours, theirs = entry.seconds("direction")[n], reference.seconds("direction")[n]
        rows.append(
            (
                entry.method.name,
                reference.method.name,
                f"{n}²",
                f"{difference:.1e}",
                f"{_rounded(theirs / ours)}×",
            )
        )
    return Table(
        ("metric", "against", "grid", "η differs by", "faster by"),
        rows,
        "Directions of W₂ against a factorisation of the same scheme on the largest grid that both "
        "have: ‖η − η'‖/‖η'‖, and the ratio of CPU times of a direction.",
    )


def left_out(result: StudyResult) -> list[str]:
    """One line for each method that was not measured on every grid."""
    return [
        f"{entry.method.name} at "
        + ", ".join(f"{n}² ({reason})" for n, reason in sorted(entry.left_out.items()))
        for entry in result.methods
        if entry.left_out
    ]
