"""The study: every metric measured on finer and finer grids, and how its times grow."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..keeping import Kept
from ..running import Say, pick
from . import sparse_qr
from .measure import Measurement, Timing, compile_afresh, measure
from .methods import Method, methods
from .settings import Settings

OPERATIONS = ("set_up", "product", "whiten", "direction")


# --- growth ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """t ≈ c kᵉ fitted by least squares in logarithms, over grids of `lower` to `upper` a side."""

    exponent: float
    lower: int
    upper: int


def fit_growth(seconds: Mapping[int, float], fit_from: int) -> Growth | None:
    """The growth of t(n) with k = n² over n ≥ `fit_from`, and over the two largest n at least.

    >>> fit_growth({10: 1.0, 20: 4.0, 40: 16.0}, 20)
    Growth(exponent=1.0, lower=20, upper=40)

    None where fewer than two sizes were measured.
    """
    sizes = sorted(seconds)
    if len(sizes) < 2:
        return None
    chosen = [n for n in sizes if n >= fit_from]
    chosen = sizes[-2:] if len(chosen) < 2 else chosen
    x = np.array([2 * math.log(n) for n in chosen])
    y = np.array([math.log(seconds[n]) for n in chosen])
    x = x - x.mean()
    return Growth(float(np.round(x @ y / (x @ x), 12)), chosen[0], chosen[-1])


def local_exponent(cost: str, lower: int, upper: int) -> float:
    """The exponent that a cost "k", "k log k" or "k^1.25" shows between two sizes.

    >>> round(local_exponent("k log k", 280, 2240), 3)
    1.076
    """
    if cost == "k":
        return 1.0
    if cost == "k log k":
        ratio = math.log(upper) / math.log(lower)
        return 1.0 + math.log(ratio) / (2 * math.log(upper / lower))
    return float(cost.removeprefix("k^"))


# --- results --------------------------------------------------------------------------------------


@dataclass
class MethodCosts:
    """One method: what was measured at which size, and what was left out and why."""

    method: Method
    measured: dict[int, Measurement] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    def seconds(self, operation: str) -> dict[int, float]:
        """CPU seconds of an operation by cells per side."""
        timings = {n: getattr(entry, operation) for n, entry in self.measured.items()}
        return {n: timing.seconds for n, timing in timings.items() if timing is not None}

    def growth(self, operation: str, fit_from: int) -> Growth | None:
        """The exponent of an operation."""
        return fit_growth(self.seconds(operation), fit_from)

    @property
    def largest(self) -> int:
        """The largest grid that was measured."""
        return max(self.measured)


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    methods: list[MethodCosts]
    suitesparse: str | None  # the BLAS under SuiteSparseQR, None where that is not installed

    def __getitem__(self, key: str) -> MethodCosts:
        return next(entry for entry in self.methods if entry.method.key == key)

    def growth(self, entry: MethodCosts, operation: str) -> Growth | None:
        """The exponent of an operation over the range of the settings."""
        return entry.growth(operation, self.settings.fit_from)

    def reference(self, entry: MethodCosts) -> MethodCosts | None:
        """The factorisation that a W₂ direction is compared with: SuiteSparseQR, or SuperLU."""
        keys = ("W2_qr", "W2_sparse")
        if entry.method.scheme == "collocated":
            keys = ("W2_collocated_qr",)
        if entry.method.family != "W₂" or entry.method.metric is None:
            return None
        found = {e.method.key: e for e in self.methods if e.measured and e is not entry}
        return next((found[key] for key in keys if key in found), None)

    def eta_difference(self, entry: MethodCosts) -> tuple[int, float] | None:
        """‖η − η'‖/‖η'‖ against the reference, on the largest grid that both have."""
        other = self.reference(entry)
        common = set(entry.measured) & set(other.measured if other else ())
        if other is None or not common:
            return None
        n = max(common)
        eta, truth = entry.measured[n].eta, other.measured[n].eta
        return n, float(np.linalg.norm(eta - truth) / np.linalg.norm(truth))

    def over_l2(self, entry: MethodCosts) -> dict[int, float]:
        """CPU time of a direction over that of L² on the same grid."""
        plain = next((e for e in self.methods if e.method.key == "L2"), None)
        base = plain.seconds("direction") if plain else {}
        return {n: t / base[n] for n, t in entry.seconds("direction").items() if n in base}

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        methods = {entry.method.key: self._numbers(entry) for entry in self.methods}
        return {"suitesparse_blas": self.suitesparse, "methods": methods}

    def _numbers(self, entry: MethodCosts) -> dict[str, Any]:
        method, difference = entry.method, self.eta_difference(entry)
        reference, against = self.reference(entry), None
        if difference is not None and reference is not None:
            points, relative = difference
            against = {"against": reference.method.key, "points": points, "relative": relative}
        return {
            "name": method.name,
            "changes_with_rho": method.changes,
            "paper": dict(zip(("product", "whiten"), method.paper_costs, strict=True)),
            "growth": {name: self.growth(entry, name) for name in OPERATIONS},
            "eta_difference": against,
            "left_out": entry.left_out,
            "measured": {n: _cell(found) for n, found in entry.measured.items()},
        }


def _cell(found: Measurement) -> dict[str, Any]:
    timings = pick(found, *OPERATIONS)
    return {"cpu_seconds": timings, "eta": found.eta, "elliptic_iterations": found.iterations}


# --- the whole study ------------------------------------------------------------------------------


KEPT = (MethodCosts, Measurement, Timing)


@compile_afresh()
def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished methods; programs that an earlier run has left
    are not used."""
    available = sparse_qr.is_installed()
    chosen = [method for key, method in methods().items() if key in settings.metrics]
    costs = []
    for method in chosen:
        if method.metric is None and not available:
            say(f"{method.name}: left out; {sparse_qr.ADVICE}")
            continue
        if method.remembers and _cpus() < 2:
            say(f"{method.name}: left out; it needs a second CPU")
            continue
        make = partial(measure_costs, method, settings, say)
        costs.append(kept.part(method.key, make, method=method))
    return StudyResult(settings, costs, sparse_qr.blas() if available else None)


def _cpus() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_costs(method: Method, settings: Settings, say: Say) -> MethodCosts:
    """One method at all sizes, the small ones first, as far as time and memory allow."""
    clock, costs = perf_counter(), MethodCosts(method)
    sizes = settings.transport_points if method.family == "W₂" else settings.points
    for n in sorted(set(sizes)):
        reason = _too_much(costs, n, settings)
        found = measure(method, n, settings) if reason is None else None
        if found is not None and not np.all(np.isfinite(found.eta)):
            found, reason = None, "did not converge"
        if found is not None:
            costs.measured[n] = found
        else:
            costs.left_out[n] = str(reason)
    until = f"to {costs.largest}²" if costs.measured else "nothing"
    say(f"{method.name}: {until}, {perf_counter() - clock:.1f} s")
    return costs


def _too_much(costs: MethodCosts, n: int, settings: Settings) -> str | None:
    """Why a size is left out, judged by the one before it; None if it is measured."""
    gigabytes = costs.method.gigabytes(n)
    if gigabytes > settings.max_gigabytes:
        return f"would need about {gigabytes:.2g} GB"
    if not costs.measured:
        return None
    last = costs.largest
    expected = costs.seconds("direction")[last] * (n / last) ** (2 * costs.method.growth)
    return f"would take about {expected:.2g} s" if expected > settings.max_seconds else None
