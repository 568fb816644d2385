"""The paper's problem, one free mean, for `natgrad compare`."""

import jax.numpy as jnp

from natgrad import L2, Budget, Euclidean, FisherRao, HomogeneousSobolev, Sobolev, Wasserstein

from ..comparable import Comparable
from ..one_mean import BOWL_START, cell_grid, problem_on
from .settings import Settings


def comparable(settings: Settings) -> Comparable:
    """From (4.5, 2), in the bowl of the global minimum, on cells with zero flux."""
    grid = cell_grid(settings.points)
    metrics = {
        "GD": Euclidean(),
        "L2": L2(grid),
        "FR": FisherRao(grid),
        "H1": Sobolev(grid, 1),
        "Hm1": Sobolev(grid, -1),
        "W2": Wasserstein(grid),
        "dotH1": HomogeneousSobolev(grid, 1),
        "dotHm1": HomogeneousSobolev(grid, -1),
    }
    return Comparable(problem_on(grid), jnp.array(BOWL_START), metrics, Budget(iterations=50))
