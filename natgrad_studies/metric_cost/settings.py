"""Settings of the metric cost study; light to import, so that help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from natgrad.errors import InputError

from ..suggestions import check_names

Preset = Literal["demo", "paper"]
METRICS = (
    *("L2", "FR", "H1", "dotH1", "Hm1", "dotHm1"),
    *("W2", "W2_mixed", "W2_single", "W2_sparse", "W2_collocated", "W2_qr", "W2_collocated_qr"),
)


@dataclass(frozen=True)
class Settings:
    """The metric cost study: CPU time of L, (Lᵀ)† and a direction against the size of the grid."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, or the full one."""
    output: Path = Path("results/metric-cost")
    """Folder for results.json, figures and index.html."""
    metrics: tuple[str, ...] = ("L2", "FR", "H1", "Hm1", "W2", "W2_sparse", "W2_qr")
    """Among L2, FR, H1, dotH1, Hm1, dotHm1, W2, W2_mixed, W2_single, W2_sparse, W2_collocated,
    W2_qr, W2_collocated_qr; the last two need the extra natgrad[suitesparse]."""
    points: tuple[int, ...] = (32, 128, 512)
    """Cells per side of the grids, k = points²; even, or the paper's W₂ matrix is singular."""
    transport_points: tuple[int, ...] = (32, 128)
    """The same for W₂, whose programs take seconds to compile."""
    fit_from: int = 128
    """Growth is fitted over the grids with at least this many cells per side (and at least two)."""
    repeats: int = 3
    """Calls of which the fastest counts, after the one that compiles."""
    max_seconds: float = 2.0
    """A direction that would take more CPU seconds than this is left out, and the table says so."""
    max_gigabytes: float = 4.0
    """The same for memory."""

    def check(self) -> None:
        """Raise `InputError` for a value the study cannot run with."""
        check_names("metrics", self.metrics, METRICS)
        if not self.metrics:
            raise InputError("metrics", "are empty", "some of " + ", ".join(METRICS))
        for name in ("points", "transport_points"):
            sizes = getattr(self, name)
            if not sizes:
                raise InputError(name, "are empty", "two sizes or more, such as 64 128")
            if not all(8 <= n <= 8192 for n in sizes):
                raise InputError(name, f"is {sizes}", "numbers from 8 to 8192")
            odd = [n for n in sizes if n % 2]
            if odd:
                raise InputError(name, f"{odd[0]} is odd", "even numbers")
        if not 1 <= self.repeats <= 1000:
            raise InputError("repeats", f"is {self.repeats}", "a number from 1 to 1000")
        for name in ("max_seconds", "max_gigabytes"):
            if not 0 < getattr(self, name) <= 1e9:
                raise InputError(name, f"is {getattr(self, name)}", "a positive number")


PAPER_POINTS = (70, 140, 280, 560, 1120, 2240)

PRESETS: dict[Preset, Settings] = {
    "demo": Settings(),
    "paper": Settings(
        preset="paper",
        metrics=METRICS,
        points=PAPER_POINTS,
        transport_points=PAPER_POINTS,
        fit_from=280,
        repeats=5,
        max_seconds=10.0,
        max_gigabytes=8.0,
    ),
}
