"""Settings of the metric cost study; light to import, so that help is quick."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Among, Between, StudySettings

Preset = Literal["demo", "paper"]
METRICS = (
    *("L2", "FR", "H1", "dotH1", "Hm1", "dotHm1"),
    *("W2", "W2_mixed", "W2_single", "W2_sparse", "W2_collocated", "W2_qr", "W2_collocated_qr"),
)


@dataclass(frozen=True)
class Settings(StudySettings):
    """The metric cost study: CPU time of L, (Lᵀ)† and a direction against the size of the grid."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, or the full one."""
    output: Path = Path("results/metric-cost")
    """Folder for results.json and index.html."""
    metrics: Annotated[tuple[str, ...], Among(METRICS)] = (
        "L2",
        "FR",
        "H1",
        "Hm1",
        "W2",
        "W2_sparse",
        "W2_qr",
    )
    """Among L2, FR, H1, dotH1, Hm1, dotHm1, W2, W2_mixed, W2_single, W2_sparse, W2_collocated,
    W2_qr, W2_collocated_qr; the last two need the extra natgrad[suitesparse]."""
    points: tuple[int, ...] = (32, 128, 512)
    """Cells per side of the grids, k = points²; even, or the paper's W₂ matrix is singular."""
    transport_points: tuple[int, ...] = (32, 128)
    """The same for W₂, whose programs take seconds to compile."""
    fit_from: int = 128
    """Growth is fitted over the grids with at least this many cells per side (and at least two)."""
    repeats: Annotated[int, Between(1, 1000)] = 3
    """Calls of which the fastest counts, after the one that compiles."""
    max_seconds: float = 2.0
    """A direction that would take more CPU seconds than this is left out, and the table says so."""
    max_gigabytes: float = 4.0
    """The same for memory."""

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        for name in ("points", "transport_points"):
            sizes = getattr(self, name)
            if not sizes:
                yield name, "are empty", "two sizes or more, such as 64 128"
            if not all(8 <= n <= 8192 for n in sizes):
                yield name, f"is {sizes}", "numbers from 8 to 8192"
            for odd in (n for n in sizes if n % 2):
                yield name, f"{odd} is odd", "even numbers"
        for name in ("max_seconds", "max_gigabytes"):
            if not 0 < getattr(self, name) <= 1e9:
                yield name, f"is {getattr(self, name)}", "a positive number"


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
