"""Collocation points drawn anew in every iteration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jax import Array

from .collocation import Collocation, WeightedSquares
from .errors import InputError
from .metrics.base import Metric
from .problems import Problem
from .settings import whole

PyTree = Any


class Resampled(eqx.Module):
    """New points for the blocks of a `Collocation`, every `period` iterations.

    `draw(key)` returns a dict with the points of the blocks that move, in the same number each
    time; the others stay. Points drawn from a fixed set make it a mini-batch.

    ```python
    draw = lambda key: {"interior": jax.random.uniform(key, (256, 2))}
    ng.minimize(pinn.problem, net, metric=pinn.metric, batch=ng.Resampled(draw), momentum=0.9)
    ```

    The key depends on `seed` and on the iteration alone. Losses and gradients of the history are
    those at the points of the iteration, and the tests of `minimize` are those of mini-batches;
    `result.loss` is that at the points of the problem itself.
    """

    draw: Callable[[Array], Mapping[str, Array]]
    period: int = eqx.field(static=True, default=1)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if not callable(self.draw):
            raise InputError("draw", f"is a {type(self.draw).__name__}", "a function of a key")
        whole(self.period, "period", 1)
        whole(self.seed, "seed", 0)

    def sampler(self, problem: Problem, metric: Metric, state: PyTree) -> "Draws":
        """The draws for this problem; checks the first of them."""
        model = problem.model
        if not isinstance(model, Collocation):
            what = f"a {type(model).__name__} has no collocation points to draw"
            raise InputError("batch", what, "MiniBatch(size), or a Collocation")
        own = bool(eqx.tree_equal(metric, model.metric))
        draws = Draws(self, problem, None if own else metric)
        moved = draws(0)[0].model
        for name, block in model.blocks.items():
            shape, wanted = moved.blocks[name].points.shape, block.points.shape
            if shape[1:] != wanted[1:]:
                what = f"the points of {name} have shape {shape}, those of the problem {wanted}"
                raise InputError("draw", what, f"(n, {wanted[1]}) points")
            if block.weight.ndim and shape != wanted:
                what = f"{name} has one weight for each of its {wanted[0]} points"
                raise InputError("draw", what, "as many points, or a single weight")
        return draws


@dataclass(frozen=True)
class Draws:
    """iteration ↦ the problem and the metric at its points; `metric` None for the model's own."""

    batch: Resampled
    problem: Problem
    metric: Metric | None

    def __call__(self, iteration: int) -> tuple[Problem, Metric]:
        key = jax.random.key(self.batch.seed)
        points = self.batch.draw(jax.random.fold_in(key, iteration // self.batch.period))
        if not isinstance(points, Mapping):
            raise InputError("draw", f"returns a {type(points).__name__}", "a dict of points")
        model = self.problem.model.at(points)
        own = isinstance(self.problem.loss, WeightedSquares)
        loss = model.loss if own else self.problem.loss
        problem = Problem(model, loss, regulariser=self.problem.regulariser)
        return problem, model.metric if self.metric is None else self.metric
