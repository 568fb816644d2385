"""What the study computes, and the results file made from it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from natgrad.report import versions

from .growth import Growth, fitted
from .measure import Measurement
from .methods import Method
from .settings import Settings

NAME = "metric-cost"
OPERATIONS = ("set_up", "product", "whiten", "direction")


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
        return fitted(self.seconds(operation), fit_from)

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
    seconds: float

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
        found = [e for e in self.methods if e.method.key in keys and e.measured]
        found = [e for e in found if e.method.key != entry.method.key]
        order = {key: position for position, key in enumerate(keys)}
        best = min(found, key=lambda e: order[e.method.key], default=None)
        return best if entry.method.family == "W₂" and entry.method.metric is not None else None

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
        return {
            "study": NAME,
            "settings": self.settings,
            "versions": versions(),
            "seconds": self.seconds,
            "suitesparse_blas": self.suitesparse,
            "methods": {entry.method.key: self._numbers(entry) for entry in self.methods},
        }

    def _numbers(self, entry: MethodCosts) -> dict[str, Any]:
        method, difference = entry.method, self.eta_difference(entry)
        reference = self.reference(entry)
        return {
            "name": method.name,
            "changes_with_rho": method.changes,
            "paper": dict(zip(("product", "whiten"), method.paper_costs, strict=True)),
            "growth": {name: self.growth(entry, name) for name in OPERATIONS},
            "eta_difference": None
            if difference is None or reference is None
            else {
                "against": reference.method.key,
                "points": difference[0],
                "relative": difference[1],
            },
            "left_out": entry.left_out,
            "measured": {n: _cell(found) for n, found in entry.measured.items()},
        }


def _cell(found: Measurement) -> dict[str, Any]:
    timings = {name: getattr(found, name) for name in OPERATIONS}
    return {"cpu_seconds": timings, "eta": found.eta, "elliptic_iterations": found.iterations}
