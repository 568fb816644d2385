"""The methods compared on the paper's problem (section 4.1)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from natgrad import L2, Euclidean, FisherRao, Grid, Metric, Problem, Wasserstein

from ..appendix_b import CollocatedSobolev, CollocatedTransport
from ..one_mean import cell_grid, paper_grid, problem_on


@dataclass(frozen=True)
class Method:
    """A metric on a grid, and the fixed step that the paper quotes for it."""

    key: str
    name: str
    label: str
    grid: Grid
    make: Callable[[Grid], Metric]
    paper_step: float

    @cached_property
    def metric(self) -> Metric:
        """The metric on the grid."""
        return self.make(self.grid)

    @cached_property
    def problem(self) -> Problem:
        """The paper's problem on the grid."""
        return problem_on(self.grid)

    @property
    def step(self) -> float:
        """What multiplies our direction.

        It differs from the paper's for plain gradient descent only: the paper's loss is a plain
        sum, ours an integral, so its τ becomes τ/w with w the cell volume. A natural direction does
        not change when the loss and the metric carry the same weight.
        """
        return self.paper_step / (self.grid.cell_volume if self.key == "GD" else 1)

    @property
    def transports(self) -> bool:
        """Whether this is W₂, whose iterations are costly."""
        return self.key.startswith("W2")

    def on(self, points: int) -> "Method":
        """The same on a grid with another number of points per side."""
        old = self.grid
        return replace(self, grid=Grid(old.lower, old.upper, (points, points), old.boundary))


def paper_methods(points: int) -> list[Method]:
    """Gradient descent and the seven metrics, discretised as in the paper's appendix B.1."""
    grid = paper_grid(points)
    sobolev = lambda s, homogeneous=False: lambda grid: CollocatedSobolev(grid, s, homogeneous)
    table = [
        ("GD", "GD", "GD", lambda grid: Euclidean(), 0.3),
        ("L2", "L²", r"$L^2$", L2, 0.04),
        ("FR", "FR", "Fisher–Rao", FisherRao, 0.8),
        ("H1", "H¹", r"$H^1$", sobolev(1), 0.2),
        ("Hm1", "H⁻¹", r"$H^{-1}$", sobolev(-1), 0.2),
        ("W2", "W₂", r"$W_2$, paper's scheme", CollocatedTransport, 3.0),
        ("dotH1", "Ḣ¹", r"$\dot H^1$", sobolev(1, homogeneous=True), 0.2),
        ("dotHm1", "Ḣ⁻¹", r"$\dot H^{-1}$", sobolev(-1, homogeneous=True), 0.2),
    ]
    return [Method(key, name, label, grid, make, step) for key, name, label, make, step in table]


def corrected_wasserstein(points: int) -> Method:
    """W₂ by staggered finite volumes with zero flux, with the paper's step."""
    names = ("W2_staggered", "W₂ staggered", r"$W_2$, staggered")
    return Method(*names, cell_grid(points), Wasserstein, 3.0)


def floored_wasserstein(points: int, floor: float) -> Method:
    """The paper's W₂ with its density kept above a fraction of its maximum."""
    names = ("W2_floor", f"W₂ floor {floor:g}", rf"$W_2$, paper's scheme, floor {floor:g}")
    make = lambda grid: CollocatedTransport(grid, floor=floor)
    return Method(*names, paper_grid(points), make, 3.0)
