"""The methods that are compared, all with the same start, data and stopping rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad import (
    CG,
    L2,
    Euclidean,
    Grid,
    HomogeneousSobolev,
    Metric,
    Newton,
    ParameterDamping,
    Recycled,
    Result,
    Sobolev,
    Wasserstein,
    lbfgs,
)
from natgrad.descent import minimize

from .inversion import Inversion
from .settings import ENTRANTS, PRIOR

METRICS: dict[str, Callable[[Grid], Metric]] = {
    "GD": lambda grid: Euclidean(),
    "Newton": lambda grid: Newton(),
    "L2": L2,
    "L2_H1": lambda grid: L2(grid) + 0.02**2 * HomogeneousSobolev(grid, 1),
    "H1": lambda grid: Sobolev(grid, 1),
    "dotH1": lambda grid: HomogeneousSobolev(grid, 1),
    "Hm1": lambda grid: Sobolev(grid, -1),
    "dotHm1": lambda grid: HomogeneousSobolev(grid, -1),
    "W2": Wasserstein,
    "W2_L2": lambda grid: Wasserstein(grid) + 10.0 * L2(grid),
}
NAMES = {
    **{"GD": "gradient descent", "LBFGS": "L-BFGS, 10 pairs", "LBFGS_long": "L-BFGS, long"},
    **{"Newton": "Newton", "L2": "L²", "L2_H1": "L² + ℓ²Ḣ¹", "H1": "H¹", "dotH1": "Ḣ¹"},
    **{"Hm1": "H⁻¹", "dotHm1": "Ḣ⁻¹", "W2": "W₂", "W2_L2": "W₂ + L²"},
}


@dataclass(frozen=True)
class Method:
    """A way to solve the problem; `run(inversion, callbacks, budget)` does it.

    `white` says that the parameters are the prior's coordinates.
    """

    key: str
    name: str
    white: bool
    run: Callable[[Inversion, list[Any], dict[str, Any]], Result]

    @property
    def entrant(self) -> str:
        """The method without its coordinates."""
        return self.key.removesuffix(PRIOR)

    @property
    def full_name(self) -> str:
        """The name with its coordinates."""
        return f"{self.name}, prior" if self.white else self.name

    def field(self, inversion: Inversion, theta: Any) -> np.ndarray:
        """m at these parameters."""
        return inversion.field(theta) if self.white else np.asarray(theta)


def methods() -> dict[str, Method]:
    """All methods by their keys."""
    entries = [_entrant(key, white) for white in (False, True) for key in ENTRANTS]
    damped = Method("L2_damped", "L², prior as damping", False, _damped)
    return {method.key: method for method in (*entries, damped)}


def _entrant(key: str, white: bool) -> Method:
    run = _quasi_newton(key, white) if key.startswith("LBFGS") else _descent(key, white)
    return Method(key + PRIOR * white, NAMES[key], white, run)


def _problem(inversion: Inversion, white: bool) -> Any:
    return inversion.white_problem if white else inversion.problem


def _quasi_newton(key: str, white: bool):
    def run(inversion: Inversion, callbacks: list[Any], budget: dict[str, Any]) -> Result:
        memory = inversion.settings.pairs if key == "LBFGS_long" else 10
        problem = _problem(inversion, white)
        return lbfgs(problem, inversion.start, memory=memory, callbacks=callbacks, **budget)

    return run


def _descent(key: str, white: bool):
    """Natural gradients by a few conjugate gradients, from the pairs of the iterations before."""

    def run(inversion: Inversion, callbacks: list[Any], budget: dict[str, Any]) -> Result:
        settings = inversion.settings
        return minimize(
            _problem(inversion, white),
            inversion.start,
            metric=METRICS[key](inversion.grid),
            solver=CG(0.0, settings.krylov, preconditioner=Recycled(settings.pairs)),
            callbacks=callbacks,
            **budget,
        )

    return run


def _damped(inversion: Inversion, callbacks: list[Any], budget: dict[str, Any]) -> Result:
    """The prior's precision D as damping, wσ² D, and its covariance as preconditioner.

    wσ² is the strength with which D stands beside G in the posterior. Preconditioned conjugate
    gradients are those in the prior's coordinates, but there is nothing recycled.
    """
    prior, sigma = inversion.prior, inversion.data.noise
    return minimize(
        inversion.problem,
        inversion.start,
        metric=L2(inversion.grid),
        solver=CG(0.0, inversion.settings.krylov, preconditioner=prior.covariance()),
        damping=ParameterDamping(prior.precision(), inversion.grid.cell_volume * sigma**2),
        callbacks=callbacks,
        **budget,
    )
