"""The methods that are compared, all with the same start, data and stopping rule."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import natgrad as ng

from .. import methods as shared
from ..methods import Comparable, Recipe, minimize
from .problem import Inversion
from .settings import ENTRANTS, PRIOR, Settings

METRICS: dict[str, Callable[[ng.Grid], ng.metrics.Metric]] = {
    **{key: shared.METRICS[key] for key in ("L2", "H1", "dotH1", "Hm1", "dotHm1", "W2")},
    "L2_H1": lambda grid: ng.L2(grid) + 0.02**2 * ng.HomogeneousSobolev(grid, 1),
    "W2_L2": lambda grid: ng.Wasserstein(grid) + 10.0 * ng.L2(grid),
}
NAMES = shared.NAMES | {
    **{"LBFGS": "L-BFGS, 10 pairs", "LBFGS_long": "L-BFGS, long", "Newton": "Newton"},
    **{"L2_H1": "L² + ℓ²Ḣ¹", "W2_L2": "W₂ + L²", "L2_damped": "L², prior as damping"},
}


@dataclass(frozen=True)
class Method:
    """A way to solve the problem; `_prior` at the end of a key means the prior's coordinates."""

    key: str

    @property
    def white(self) -> bool:
        """Whether the parameters are the prior's coordinates."""
        return self.key.endswith(PRIOR)

    @property
    def knows_prior(self) -> bool:
        """Whether the prior is part of it, as coordinates or as damping."""
        return self.white or self.key == "L2_damped"

    @property
    def entrant(self) -> str:
        """The method without its coordinates."""
        return self.key.removesuffix(PRIOR)

    @property
    def name(self) -> str:
        """The name without its coordinates."""
        return NAMES[self.entrant]

    @property
    def full_name(self) -> str:
        """The name with its coordinates."""
        return f"{self.name}, prior" if self.white else self.name

    def field(self, inversion: Inversion, theta: Any) -> np.ndarray:
        """m at these parameters."""
        return inversion.field(theta) if self.white else np.asarray(theta)

    def recipe(self, inversion: Inversion) -> Recipe:
        """L-BFGS, gradient descent, or natural gradients and Newton's method by default."""
        settings, grid = inversion.settings, inversion.grid
        if self.entrant.startswith("LBFGS"):
            return partial(ng.LBFGS, settings.pairs if self.entrant == "LBFGS_long" else 10)
        if self.entrant == "GD":
            return shared.gradient_descent
        if self.key == "L2_damped":
            return _damp_by_prior(inversion)
        if self.entrant == "Newton":
            return ng.Newton
        return partial(ng.NaturalGradient, METRICS[self.entrant](grid))

    def run(self, inversion: Inversion, **options: Any) -> ng.Result:
        """Minimise from the start; the options are those of `minimize`."""
        problem = inversion.white_problem if self.white else inversion.problem
        return minimize(problem, inversion.start, self.recipe(inversion)(), **options)


def _damp_by_prior(inversion: Inversion) -> Recipe:
    """The prior's precision D as damping, wσ² D, and its covariance as preconditioner.

    wσ² is the weight of D relative to G in the posterior. Preconditioned conjugate gradients are
    the same as in the prior's coordinates, but nothing is recycled.
    """
    prior, sigma, grid = inversion.prior, inversion.data.noise, inversion.grid
    return partial(
        ng.NaturalGradient,
        ng.L2(grid),
        solver=ng.CG(preconditioner=prior.covariance()),
        damping=ng.ParameterDamping(prior.precision(), grid.cell_volume * sigma**2),
    )


def comparable(settings: Settings) -> Comparable:
    """The logarithms of the permeability in the first variant; runs end at the noise."""
    inversion = Inversion.of(settings.variants[0], settings)
    return Comparable(
        inversion.problem,
        inversion.start,
        {key: Method(key).recipe(inversion) for key in ENTRANTS if not key.startswith("LBFGS")},
        ng.Stop(
            propagations=settings.max_propagations,
            loss=settings.discrepancy**2 * inversion.noise_loss,
        ),
        options={"snapshots": 12},
    )
