"""The metrics of the study: how each is computed, and what the paper says of its cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from natgrad import Grid, Wasserstein
from natgrad.metrics import Elliptic, Metric

from ..appendix_b import CollocatedTransport
from ..methods import LABELS, METRICS, NAMES
from ..mixtures import cell_grid, paper_grid

Family = str  # a column of the paper's table 2

# Table 2: the costs of v ↦ Lv and of v ↦ (Lᵀ)†v, and whether L changes from iteration to iteration.
PAPER_COSTS: dict[Family, tuple[str, str]] = {
    "L²": ("k", "k"),
    "Fisher–Rao": ("k", "k"),
    "Hˢ, s > 0": ("k", "k log k"),
    "Hˢ, s < 0": ("k log k", "k"),
    "W₂": ("k^1.25", "k"),
}
CHANGES_WITH_RHO = ("Fisher–Rao", "W₂")


@dataclass(frozen=True)
class Method:
    """A metric and the way it is computed.

    `metric` makes it on a grid; it is None for the factorisations outside natgrad
    (`sparse_qr.py`), whose `scheme` is given in its place. `growth` and `doubles` say beforehand,
    roughly, how time grows with k and how many numbers are held at a time, so that what would
    take too long or not fit can be left out.
    """

    key: str
    name: str
    label: str
    family: Family
    metric: Callable[[Grid], Metric] | None
    growth: float = 1.1
    doubles: Callable[[int], float] = lambda k: 30.0 * k
    scheme: str = "staggered"
    remembers: bool = False  # whether its factorisation happens at the first product

    @property
    def changes(self) -> bool:
        """Whether L depends on ρ, and so changes from iteration to iteration."""
        return self.family in CHANGES_WITH_RHO

    @property
    def by_multigrid(self) -> bool:
        """Whether W₂'s equation is solved by multigrid."""
        return self.key in ("W2", "W2_mixed", "W2_single")

    @property
    def paper_costs(self) -> tuple[str, str]:
        """The paper's costs of L and of (Lᵀ)†."""
        return PAPER_COSTS[self.family]

    def grid(self, points: int) -> Grid:
        """Cells that fill Ω; the paper's interior nodes for its own scheme."""
        return paper_grid(points) if self.scheme == "collocated" else cell_grid(points)

    def gigabytes(self, points: int) -> float:
        """About how much memory a direction needs."""
        return 8e-9 * self.doubles(points**2)


def _multigrid(key: str, precision: Literal["double", "mixed", "single"], doubles: float) -> Method:
    """W₂ by multigrid."""
    named = "multigrid" if precision == "double" else precision
    label = r"$W_2$ multigrid" + ("" if precision == "double" else f", {precision}")
    elliptic = Elliptic("multigrid", precision=precision)
    metric = lambda grid: Wasserstein(grid, elliptic=elliptic)
    return Method(key, f"W₂ {named}", label, "W₂", metric, doubles=lambda k: doubles * k)


def _by_qr(key: str, name: str, label: str, scheme: str) -> Method:
    """W₂ by the paper's factorisation, outside natgrad."""
    return Method(key, name, label, "W₂", None, 1.25, _fill(10.0), scheme)


def _fill(per_cell: float) -> Callable[[int], float]:
    """Entries of a sparse factor on a square grid: a multiple of k log₂ k."""
    return lambda k: per_cell * k * math.log2(k)


def methods() -> dict[str, Method]:
    """Every method of the study by its key, in the order of the tables."""
    host = "CHOLMOD" if find_spec("sksparse") else "SuperLU"
    positive, negative = "Hˢ, s > 0", "Hˢ, s < 0"
    families = {"L2": "L²", "FR": "Fisher–Rao", "H1": positive, "dotH1": positive}
    families |= {"Hm1": negative, "dotHm1": negative}
    table = (
        *(Method(key, NAMES[key], LABELS[key], families[key], METRICS[key]) for key in families),
        _multigrid("W2", "double", 100.0),
        _multigrid("W2_mixed", "mixed", 80.0),
        _multigrid("W2_single", "single", 60.0),
        Method(
            *("W2_sparse", f"W₂ {host}", rf"$W_2$ {host}", "W₂"),
            lambda grid: Wasserstein(grid, elliptic=Elliptic("sparse")),
            growth=1.3,
            doubles=_fill(8.0),
            remembers=True,
        ),
        Method(
            *("W2_collocated", "collocated W₂", r"collocated $W_2$, block QR", "W₂"),
            CollocatedTransport,
            growth=2.0,
            doubles=lambda k: 6.0 * k**1.5,
            scheme="collocated",
        ),
        _by_qr("W2_qr", "W₂ SPQR", r"$W_2$ SuiteSparseQR", "staggered"),
        _by_qr(
            "W2_collocated_qr", "collocated SPQR", r"collocated $W_2$, SuiteSparseQR", "collocated"
        ),
    )
    return {method.key: method for method in table}
