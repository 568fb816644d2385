"""The methods compared on the paper's problem (section 4.1), and in the fit of a whole mixture."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax.numpy as jnp
from jax import Array

import natgrad as ng

from .. import methods as shared
from ..appendix_b import CollocatedSobolev, CollocatedTransport
from ..methods import LABELS, METRICS, Comparable, Recipe
from ..mixtures import BOWL_START, cell_grid, paper_grid, problem_on
from .settings import FIT_METHODS, Settings

DAMPING = 1e-6  # relative to the mean eigenvalue of G; also settles the common shift of the logits
NAMES = shared.NAMES | {"GD": "GD", "FR": "FR", "mobility": "mobility ρ^½", "L2_LM": "L² adaptive"}
STEPS = {  # those of the paper
    **{"GD": 0.3, "L2": 0.04, "FR": 0.8, "H1": 0.2, "Hm1": 0.2},
    **{"W2": 3.0, "dotH1": 0.2, "dotHm1": 0.2},
}
SCHEMES: dict[str, Callable[[ng.Grid], ng.metrics.Metric | None]] = {  # the paper's appendix B.1
    "GD": lambda grid: None,
    "L2": ng.L2,
    "FR": ng.FisherRao,
    "H1": lambda grid: CollocatedSobolev(grid, 1),
    "Hm1": lambda grid: CollocatedSobolev(grid, -1),
    "W2": CollocatedTransport,
    "dotH1": lambda grid: CollocatedSobolev(grid, 1, homogeneous=True),
    "dotHm1": lambda grid: CollocatedSobolev(grid, -1, homogeneous=True),
}


@dataclass(frozen=True)
class Method:
    """A metric on a grid, None for gradient descent, and the step that the paper quotes for it."""

    key: str
    name: str
    label: str
    grid: ng.Grid
    make: Callable[[ng.Grid], ng.metrics.Metric | None]
    paper_step: float

    @cached_property
    def metric(self) -> ng.metrics.Metric | None:
        """The metric on the grid."""
        return self.make(self.grid)

    @cached_property
    def descent(self) -> ng.descent.Method:
        """The method whose directions are followed."""
        metric = self.metric
        return ng.GradientDescent() if metric is None else ng.NaturalGradient(metric)

    def information(self, mu: Any) -> Array:
        """G at μ; the identity for gradient descent."""
        if self.metric is None:
            return jnp.eye(2)
        return ng.information_matrix(self.problem, jnp.asarray(mu), metric=self.metric)

    @cached_property
    def problem(self) -> ng.Problem:
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
        return replace(self, grid=ng.Grid(old.lower, old.upper, (points, points), old.boundary))


def paper_methods(points: int) -> list[Method]:
    """Gradient descent and the seven metrics, discretised as in the paper's appendix B.1."""
    labels, grid = LABELS | {"W2": r"$W_2$, paper's scheme"}, paper_grid(points)
    return [
        Method(key, NAMES[key], labels[key], grid, make, STEPS[key])
        for key, make in SCHEMES.items()
    ]


def corrected_wasserstein(points: int) -> Method:
    """W₂ by staggered finite volumes with zero flux, with the paper's step."""
    names = ("W2_staggered", "W₂ staggered", r"$W_2$, staggered")
    return Method(*names, cell_grid(points), ng.Wasserstein, STEPS["W2"])


def floored_wasserstein(points: int, floor: float) -> Method:
    """The paper's W₂ with its density kept above a fraction of its maximum."""
    names = ("W2_floor", f"W₂ floor {floor:g}", rf"$W_2$, paper's scheme, floor {floor:g}")
    make = lambda grid: CollocatedTransport(grid, floor=floor)
    return Method(*names, paper_grid(points), make, STEPS["W2"])


def comparable(settings: Settings) -> Comparable:
    """One free mean from (4.5, 2), in the bowl of the global minimum, on cells with zero flux."""
    grid = cell_grid(settings.points)
    recipes: dict[str, Recipe] = {"GD": shared.gradient_descent}
    recipes |= {key: partial(ng.NaturalGradient, make(grid)) for key, make in METRICS.items()}
    stop = ng.Stop(iterations=50)
    return Comparable(problem_on(grid), jnp.array(BOWL_START), recipes, stop)


# --- the fit of a whole mixture ------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """A method, by its key."""

    key: str
    method: ng.descent.Method

    @property
    def name(self) -> str:
        """For tables."""
        return NAMES[self.key]

    @property
    def label(self) -> str:
        """For figures."""
        own = {"mobility": r"mobility $\rho^{1/2}$", "L2_LM": r"$L^2$, Levenberg–Marquardt"}
        return (LABELS | own)[self.key]


def contestants(grid: ng.Grid) -> list[Contestant]:
    """Nine metrics with one step rule and one damping, and L² with adaptive damping."""
    metrics = {"mobility": ng.Mobility(grid, 0.25)}
    metrics |= {key: make(grid) for key, make in METRICS.items()}
    methods: dict[str, ng.descent.Method] = {
        key: ng.NaturalGradient(metric, damping=DAMPING) for key, metric in metrics.items()
    }
    methods["GD"] = ng.GradientDescent(damping=DAMPING)
    methods["L2_LM"] = ng.NaturalGradient(
        ng.L2(grid), damping=ng.LevenbergMarquardt(), step=ng.Backtracking()
    )
    return [Contestant(key, methods[key]) for key in FIT_METHODS]
