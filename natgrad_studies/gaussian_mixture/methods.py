"""The methods compared on the paper's problem (section 4.1)."""

from dataclasses import dataclass, replace

from natgrad import (
    L2,
    Euclidean,
    FisherRao,
    Grid,
    HomogeneousSobolev,
    Metric,
    Mobility,
    Problem,
    Sobolev,
    Wasserstein,
)

from ..one_mean import cell_grid, paper_grid, problem_on


@dataclass(frozen=True)
class Method:
    """A metric with its problem, and the fixed step it runs with.

    `step` multiplies our direction, `paper_step` is the number the paper quotes. They differ for
    plain gradient descent only: the paper's loss is a plain sum, ours an integral, so its τ
    becomes τ/w with w the cell volume. A natural direction does not change when the loss and the
    metric carry the same weight.
    """

    key: str
    name: str
    label: str
    metric: Metric
    problem: Problem
    step: float
    paper_step: float

    def on(self, points: int) -> "Method":
        """The same transport metric on a grid with another number of points per side."""
        old = self.metric
        assert isinstance(old, Mobility)
        if old.grid.shape == (points, points):
            return self
        grid = Grid(old.grid.lower, old.grid.upper, (points, points), old.grid.boundary)
        metric = Mobility(grid, old.exponent, old.scheme, old.floor)
        return replace(self, metric=metric, problem=problem_on(grid))


def paper_methods(points: int) -> list[Method]:
    """Gradient descent and the seven metrics, discretised as in the paper's appendix B.1."""
    grid = paper_grid(points)
    problem = problem_on(grid)
    table = [
        ("GD", "GD", "GD", Euclidean(), 0.3),
        ("L2", "L²", r"$L^2$", L2(grid), 0.04),
        ("FR", "FR", "Fisher–Rao", FisherRao(grid), 0.8),
        ("H1", "H¹", r"$H^1$", Sobolev(grid, 1, scheme="collocated"), 0.2),
        ("Hm1", "H⁻¹", r"$H^{-1}$", Sobolev(grid, -1, scheme="collocated"), 0.2),
        ("W2", "W₂", r"$W_2$, paper's scheme", Wasserstein(grid, scheme="collocated"), 3.0),
        ("dotH1", "Ḣ¹", r"$\dot H^1$", HomogeneousSobolev(grid, 1, scheme="collocated"), 0.2),
        ("dotHm1", "Ḣ⁻¹", r"$\dot H^{-1}$", HomogeneousSobolev(grid, -1, scheme="collocated"), 0.2),
    ]
    return [
        Method(
            key, name, label, metric, problem, step / (grid.cell_volume if key == "GD" else 1), step
        )
        for key, name, label, metric, step in table
    ]


def corrected_wasserstein(points: int) -> Method:
    """W₂ by staggered finite volumes with zero flux, with the paper's step."""
    grid = cell_grid(points)
    return Method(
        "W2_staggered",
        "W₂ staggered",
        r"$W_2$, staggered",
        Wasserstein(grid),
        problem_on(grid),
        3.0,
        3.0,
    )


def floored_wasserstein(points: int, floor: float) -> Method:
    """The paper's W₂ with its density kept above a fraction of its maximum."""
    grid = paper_grid(points)
    metric = Wasserstein(grid, scheme="collocated", floor=floor)
    return Method(
        "W2_floor",
        f"W₂ floor {floor:g}",
        rf"$W_2$, paper's scheme, floor {floor:g}",
        metric,
        problem_on(grid),
        3.0,
        3.0,
    )
