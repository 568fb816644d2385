"""Collocation points drawn anew in every iteration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..batches import Batch, Mappable
from ..core.settings import check_integer
from ..errors import InputError
from ..metrics.base import Metric
from ..metrics.combine import Blocks
from ..models.base import Evaluation
from ..problem import Problem
from .collocation import Collocation, Residual

Follower = Callable[[Any], Metric]


class Resampled(Batch):
    """New points for the blocks of a `Collocation`, every `period` iterations.

    `draw(key)` returns a dict with the points of the blocks that move, in the same number each
    time; the others stay. Points drawn from a fixed set make it a mini-batch. The weights of
    `pinn.metric` follow their number, also in what is made of it: multiples, sums, single blocks.

    ```python
    draw = lambda key: {"interior": jax.random.uniform(key, (256, 2))}
    ng.minimize(pinn.problem, net, ng.spring(pinn.metric), batch=ng.Resampled(draw))
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
        check_integer(self.period, "period", 1)
        check_integer(self.seed, "seed", 0)

    def sampler(
        self, problem: Problem, method: Mappable, theta: PyTree, known: Evaluation | None
    ) -> "Draws":
        model = problem.model
        if not isinstance(model, Collocation):
            what = f"a {type(model).__name__} has no collocation points to draw"
            raise InputError("batch", what, "MiniBatch(size), or a Collocation")
        if problem.objective is not None:
            what = "an objective of theta has no points to draw"
            raise InputError("batch", what, "a loss on the residuals, such as that of pinn.problem")
        followers: list[Follower] = []

        def prepare(metric: Metric) -> Metric:
            followers.append(_prepare_to_follow(metric, model.metric))
            return metric

        method.map_metric(prepare)
        draws = Draws(
            self,
            problem,
            followers=followers,
            own_loss=bool(eqx.tree_equal(problem.loss, model.loss)),
            method=method,
        )
        for name, points in draws.points(0).items():
            if name in model.blocks:
                _check_points(name, model.blocks[name], points)
        draws(0)
        return draws


def _check_points(name: str, block: Residual, points: Any) -> None:
    shape, wanted = np.shape(points), block.points.shape
    if len(shape) != 2 or shape[1] != wanted[1]:
        what = f"the points of {name} have shape {shape}, those of the problem {wanted}"
        raise InputError("draw", what, f"(n, {wanted[1]}) points")
    if block.weight.ndim and shape != wanted:
        what = f"draws {shape[0]} points of {name}, which has a weight for each of {wanted[0]}"
        raise InputError("draw", what, "as many points, or a single weight")


def _prepare_to_follow(metric: Metric, own: Metric) -> Follower:
    """The model's new metric ↦ this one, with what it has of the model's `own` metric replaced."""
    if eqx.tree_equal(metric, own):
        return lambda new: new
    parts = metric.metrics if isinstance(metric, Blocks) else {}
    if isinstance(own, Blocks) and parts.keys() == own.metrics.keys():
        found = {key: _prepare_to_follow(parts[key], own.metrics[key]) for key in parts}
        replace = lambda new: {key: found[key](new.metrics[key]) for key in parts}
        return lambda new: eqx.tree_at(lambda blocks: blocks.metrics, metric, replace(new))
    inner = lambda x: isinstance(x, Metric) and x is not metric
    leaves, structure = jax.tree.flatten(metric, is_leaf=inner)
    followers = [_prepare_to_follow(x, own) if inner(x) else lambda new, x=x: x for x in leaves]
    return lambda new: structure.unflatten([follow(new) for follow in followers])


@dataclass(frozen=True)
class Draws:
    """iteration ↦ the problem and the method at its points; the model's own move with them."""

    batch: Resampled
    problem: Problem
    method: Mappable
    own_loss: bool
    followers: list[Follower]

    def __call__(self, iteration: int) -> tuple[Problem, Any]:
        model = cast(Collocation, self.problem.model).at(self.points(iteration))
        loss = model.loss if self.own_loss else self.problem.loss
        problem = Problem(model, loss, regulariser=self.problem.regulariser)
        followers = iter(self.followers)  # one for each metric of the method
        return problem, self.method.map_metric(lambda _: next(followers)(model.metric))

    def points(self, iteration: int) -> Mapping[str, Array]:
        """The points of this iteration, from (seed, iteration) alone."""
        key = jax.random.key(self.batch.seed)
        points = self.batch.draw(jax.random.fold_in(key, iteration // self.batch.period))
        if not isinstance(points, Mapping):
            raise InputError("draw", f"returns a {type(points).__name__}", "a dict of points")
        return points
