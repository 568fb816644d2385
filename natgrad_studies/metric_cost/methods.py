"""The metrics of the study: how each is computed, and what the paper says of its cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from natgrad import L2, Elliptic, FisherRao, Grid, HomogeneousSobolev, Metric, Sobolev, Wasserstein
from natgrad.metrics.elliptic.sparse_direct import available_backend

from ..appendix_b import CollocatedTransport
from ..one_mean import cell_grid, paper_grid

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


def _transport(elliptic: Elliptic) -> Callable[[Grid], Metric]:
    return lambda grid: Wasserstein(grid, elliptic=elliptic)


def _fill(per_cell: float) -> Callable[[int], float]:
    """Entries of a sparse factor on a square grid: a multiple of k log₂ k."""
    return lambda k: per_cell * k * math.log2(k)


def methods() -> dict[str, Method]:
    """Every method of the study by its key, in the order of the tables."""
    host = {"superlu": "SuperLU", "cholmod": "CHOLMOD"}[available_backend()]
    positive, negative = "Hˢ, s > 0", "Hˢ, s < 0"
    table = (
        Method("L2", "L²", r"$L^2$", "L²", L2),
        Method("FR", "Fisher–Rao", "Fisher–Rao", "Fisher–Rao", FisherRao),
        Method("H1", "H¹", r"$H^1$", positive, lambda g: Sobolev(g, 1)),
        Method("dotH1", "Ḣ¹", r"$\dot H^1$", positive, lambda g: HomogeneousSobolev(g, 1)),
        Method("Hm1", "H⁻¹", r"$H^{-1}$", negative, lambda g: Sobolev(g, -1)),
        Method("dotHm1", "Ḣ⁻¹", r"$\dot H^{-1}$", negative, lambda g: HomogeneousSobolev(g, -1)),
        Method(
            "W2",
            "W₂ multigrid",
            r"$W_2$ multigrid",
            "W₂",
            _transport(Elliptic("multigrid")),
            doubles=lambda k: 100.0 * k,
        ),
        Method(
            "W2_mixed",
            "W₂ mixed",
            r"$W_2$ multigrid, mixed",
            "W₂",
            _transport(Elliptic("multigrid", precision="mixed")),
            doubles=lambda k: 80.0 * k,
        ),
        Method(
            "W2_single",
            "W₂ single",
            r"$W_2$ multigrid, single",
            "W₂",
            _transport(Elliptic("multigrid", precision="single")),
            doubles=lambda k: 60.0 * k,
        ),
        Method(
            "W2_sparse",
            f"W₂ {host}",
            rf"$W_2$ {host}",
            "W₂",
            _transport(Elliptic("sparse")),
            growth=1.3,
            doubles=_fill(8.0),
            remembers=True,
        ),
        Method(
            "W2_collocated",
            "collocated W₂",
            r"collocated $W_2$, block QR",
            "W₂",
            CollocatedTransport,
            growth=2.0,
            doubles=lambda k: 6.0 * k**1.5,
            scheme="collocated",
        ),
        Method(
            "W2_qr",
            "W₂ SPQR",
            r"$W_2$ SuiteSparseQR",
            "W₂",
            None,
            growth=1.25,
            doubles=_fill(10.0),
        ),
        Method(
            "W2_collocated_qr",
            "collocated SPQR",
            r"collocated $W_2$, SuiteSparseQR",
            "W₂",
            None,
            growth=1.25,
            doubles=_fill(10.0),
            scheme="collocated",
        ),
    )
    return {method.key: method for method in table}
