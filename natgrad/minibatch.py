"""Mini-batches: natural gradients of a random selection of the state."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
from jax import Array

from .metrics.base import Metric
from .problems import Problem


class MiniBatch(eqx.Module):
    """S: `size` entries of the state, drawn anew in every iteration."""

    size: int = eqx.field(static=True)
    of: Literal["points", "functions"] = eqx.field(static=True, default="points")
    seed: int = eqx.field(static=True, default=0)
    select: Callable[[Array], Problem] | None = eqx.field(static=True, default=None)

    def draw(self, problem: Problem, metric: Metric, iteration: int) -> tuple[Problem, Metric]:
        """The problem and the metric on the selection of this iteration."""
        raise NotImplementedError
