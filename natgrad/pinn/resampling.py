"""Collocation points and weights that change from iteration to iteration."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..batches import Batch, Mappable
from ..core.settings import check_instance, check_integer, check_number
from ..errors import InputError, name_kind
from ..metrics.base import Metric
from ..metrics.combine import Blocks
from ..models.base import Evaluation
from ..problem import Problem
from .collocation import Collocation, Residual
from .weights import Weighting

Follower = Callable[[Any], Metric]
Drawn = Mapping[str, Array | tuple[Array, Array]]


class Resampled(Batch):
    """New points for the blocks of a `Collocation`, every `period` iterations, and new weights.

    `draw(key)` returns a dict with the points of the blocks that move, in the same number each
    time; the others stay. Points drawn from a fixed set make it a mini-batch. The weights of
    `pinn.metric` follow their number, also in what is made of it: multiples, sums, single blocks.

    ```python
    draw = lambda key: {"interior": box.uniform(key, 256)}
    ng.minimize(pinn.problem, net, ng.spring(pinn.metric), batch=ng.Resampled(draw))
    ```

    `draw(key, theta, residual)` sees where the run stands: `residual(name, points)` are the values
    of a block. It may return a pair (points, shares) for a block, with the weight of each point
    relative to the block's own: the inverse of the density that it was drawn with, where the loss
    is to stay unbiased. `ng.pinn.residual_adaptive` makes such a draw.

    `weights` are one or more of `ng.pinn.Causal` and `ng.pinn.Balanced`, which set the weights of
    the points or blocks before every iteration, in turn. The loss, its history and the metric
    follow them.

    ```python
    ng.Resampled(draw, 10, weights=ng.pinn.Causal("interior"))
    ng.Resampled(weights=(ng.pinn.Balanced(), ng.pinn.Causal("interior")))    # at fixed points
    ```

    The key depends on `seed` and on the iteration alone; what depends on θ, or on iterations
    before, is kept in a checkpoint. Losses and gradients of the history are those at the points of
    the iteration, and the tests of `minimize` are those of mini-batches; `result.loss` is that at
    the points of the problem itself, with its own weights.

    Args:
        draw: key ↦ new points; None for points that stay.
        period: Iterations between two draws.
        seed: Seed of the keys.
        weights: Rules for the weights, one or several.
    """

    draw: Callable[..., Drawn] | None = None
    period: int = eqx.field(static=True, default=1)
    seed: int = eqx.field(static=True, default=0)
    weights: Weighting | Sequence[Weighting] = ()

    def __check_init__(self):
        if self.draw is not None and not callable(self.draw):
            raise InputError("draw", f"is {name_kind(self.draw)}", "a function of a key")
        if self._needed not in (0, 1, 3):
            what, advice = f"takes {self._needed} arguments", "(key), or (key, theta, residual)"
            raise InputError("draw", what, advice)
        check_integer(self.period, "period", 1)
        check_integer(self.seed, "seed", 0)
        for rule in self.rules:
            check_instance("weights", rule, Weighting, "ng.pinn.Balanced()")

    @property
    def rules(self) -> Sequence[Weighting]:
        """The weightings, in turn."""
        given: Any = self.weights
        return given if isinstance(given, (list, tuple)) else (given,)

    @property
    def adapts(self) -> bool:
        """Whether `draw` looks at θ."""
        return self._needed == 3

    @property
    def _needed(self) -> int:
        """How many arguments `draw` cannot do without."""
        given = inspect.signature(self.draw).parameters.values() if self.draw else ()
        return sum(p.default is p.empty and p.kind in (0, 1) for p in given)

    def sampler(
        self, problem: Problem, method: Mappable, theta: PyTree, known: Evaluation | None
    ) -> "Draws":
        model = problem.model
        if not isinstance(model, Collocation):
            what = f"{name_kind(model)} has no collocation points to draw"
            raise InputError("batch", what, "MiniBatch(size), or a Collocation")
        if problem.objective is not None:
            what = "an objective of theta has no points to draw"
            raise InputError("batch", what, "a loss on the residuals, such as that of pinn.problem")
        own_loss = _is_same(problem.loss, model.loss)
        if self.rules and not own_loss:
            raise InputError("weights", "the loss is not that of the residuals", "pinn.problem")
        followers: list[Follower] = []

        def prepare(metric: Metric) -> Metric:
            followers.append(_prepare_to_follow(metric, model.metric))
            return metric

        method.map_metric(prepare)
        key = jax.random.key(self.seed)
        draws = Draws(self, problem, method, own_loss, followers, key, self.adapts)
        draws(0, theta)
        return draws


_fold_in = jax.jit(jax.random.fold_in)


def _check_drawn(name: str, block: Residual, drawn: Any) -> None:
    if isinstance(drawn, list) or (isinstance(drawn, tuple) and len(drawn) != 2):
        what = f"returns {name_kind(drawn)} of {len(drawn)} entries for {name}"
        raise InputError("draw", what, "an array of points, or a pair (points, shares)")
    points, shares = drawn if isinstance(drawn, tuple) else (drawn, None)
    shape, wanted = np.shape(points), block.points.shape
    if shares is not None and (np.shape(shares) != shape[:1] or block.weight.ndim):
        what = f"shares of shape {np.shape(shares)} of {name}, whose points have shape {shape}"
        raise InputError("draw", what, "one for each point, and a single weight of the block")
    _check_shape(name, shape, wanted)
    if block.weight.ndim and shape != wanted:
        what = f"draws {shape[0]} points of {name}, which has a weight for each of {wanted[0]}"
        raise InputError("draw", what, "as many points, or a single weight")


def _check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] != wanted[1]:
        what = f"the points of {name} have shape {shape}, those of the problem {wanted}"
        raise InputError("draw", what, f"(n, {wanted[1]}) points")


def _prepare_to_follow(metric: Metric, own: Metric) -> Follower:
    """The model's new metric ↦ this one, with what it has of the model's `own` metric replaced."""
    if _is_same(metric, own):
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


def _is_same(one: Any, other: Any) -> bool:
    """Whether these are equal, compared on the host, which compiles nothing."""
    fetch = lambda x: np.asarray(x) if eqx.is_array(x) else x
    return bool(eqx.tree_equal(jax.tree.map(fetch, one), jax.tree.map(fetch, other)))


class _Points(str):
    """Stands in a problem for the points of the block of this name."""


@dataclass
class Draws:
    """The problem and the method at the points of an iteration; the model's own move with them.

    The memory is what was drawn last, where that depends on θ, and those of the weightings. Where
    nothing but points changes, they are put into what was made for the first of their shapes.
    """

    batch: Resampled
    problem: Problem
    method: Mappable
    own_loss: bool
    followers: list[Follower]
    key: Array
    adapts: bool
    made: tuple[Any, list[Any], Any, Any] = (None, [], None, None)  # shapes, problem, method

    def __call__(
        self, iteration: int, theta: PyTree, memory: PyTree = None
    ) -> tuple[Problem, Any, PyTree]:
        batch, model = self.batch, cast(Collocation, self.problem.model)
        drawn, memories = memory or (None, [None] * len(batch.rules))
        if drawn is None or iteration % batch.period == 0:
            drawn = self.points(iteration, theta)
        given = {name: x[0] if isinstance(x, tuple) else x for name, x in drawn.items()}
        points = {name: jnp.asarray(x) for name, x in given.items()}
        shares = {name: x[1] for name, x in drawn.items() if isinstance(x, tuple)}
        weigh = lambda name: model.blocks[name].weight * shares[name] / len(shares[name])
        plain = not (shares or batch.rules)
        shapes, leaves, structure, method = self.made
        found = {name: (x.shape, x.dtype) for name, x in points.items()} if plain else None
        if plain and found == shapes:
            put = [points[x] if isinstance(x, _Points) else x for x in leaves]
            return structure.unflatten(put), method, (drawn if self.adapts else None, [])
        model = model.at(points, {name: weigh(name) for name in shares})
        after = []
        for rule, before in zip(batch.rules, memories, strict=True):
            weights, carried = rule.weigh(iteration, theta, model, before)
            model = model.at({}, weights)
            after.append(carried)
        loss = model.loss if self.own_loss else self.problem.loss
        problem = Problem(model, loss, regulariser=self.problem.regulariser)
        followers = iter(self.followers)  # one for each metric of the method
        method = self.method.map_metric(lambda _: next(followers)(model.metric))
        if plain:
            where = lambda model: [model.blocks[name].points for name in points]
            marked = eqx.tree_at(where, model, list(map(_Points, points))) if points else model
            whole = Problem(marked, loss, regulariser=self.problem.regulariser)
            self.made = found, *jax.tree.flatten(whole, is_leaf=lambda x: x is loss), method
        return problem, method, (drawn if self.adapts else None, after)

    def points(self, iteration: int, theta: PyTree) -> Drawn:
        """The points of this iteration, from (seed, iteration) and, if it is asked for, θ."""
        if self.batch.draw is None:
            return {}
        blocks = cast(Collocation, self.problem.model).blocks
        key = _fold_in(self.key, iteration // self.batch.period)

        def residual(name: str, points: Array) -> Array:
            if name not in blocks:
                raise InputError("draw", f"there is no block {name!r}", f"one of {list(blocks)}")
            points = jnp.asarray(points)
            _check_shape(name, points.shape, blocks[name].points.shape)
            return _evaluate(blocks[name].function, theta, points)

        drawn = self.batch.draw(key, *((theta, residual) if self.adapts else ()))
        if not isinstance(drawn, Mapping):
            raise InputError("draw", f"returns {name_kind(drawn)}", "a dict of points")
        for name, points in drawn.items():
            if name in blocks:
                _check_drawn(name, blocks[name], points)
        return drawn


def residual_adaptive(
    candidates: Callable[[Array], Mapping[str, Array]],
    count: int,
    *,
    power: float = 1.0,
    floor: float = 1.0,
) -> Callable[[Array, PyTree, Callable[[str, Array], Array]], Drawn]:
    """A draw for `Resampled` with more points where the residual is large.

    Of the N candidates xᵢ of each block `count` are taken, with a density

        qᵢ = (|rᵢ|ᵏ/mean |r|ᵏ + c)/(1 + c),      k = `power`, c = `floor`,

    and the weight of each is divided by qᵢ: the loss stays an unbiased estimate of that of uniform
    points, and no weight grows by more than 1 + 1/c. Candidates are taken at equal distances along
    Σ qᵢ (systematic sampling), so that one of density q is there ⌊nq/N⌋ or ⌈nq/N⌉ times.

    ```python
    candidates = lambda key: {"interior": box.uniform(key, 10_000)}
    ng.Resampled(ng.pinn.residual_adaptive(candidates, 1000), period=10)
    ```

    Cost: one evaluation of the residual at the candidates each time.
    Reference: Wu and others, Comput. Methods Appl. Mech. Eng. 403 (2023), without weights.

    Args:
        candidates: key ↦ candidates for each block.
        count: Number of points that are taken of each block.
        power: k: how strongly large residuals attract points.
        floor: c: the share of uniform points.
    """
    check_integer(count, "count", 1)
    settings = {"power": check_number(power, "power", positive=True)}
    settings |= {"floor": check_number(floor, "floor", positive=True)}

    def draw(key: Array, theta: PyTree, residual: Callable[[str, Array], Array]) -> Drawn:
        first, second = jax.random.split(key)
        given = candidates(first).items()
        return {name: _choose(second, x, residual(name, x), count, **settings) for name, x in given}

    return draw


@eqx.filter_jit
def _choose(
    key: Array, points: Array, values: Array, count: int, power: Array, floor: Array
) -> tuple[Array, Array]:
    size = jnp.linalg.norm(values.reshape(len(points), -1), axis=1) ** power
    relative = jnp.where(jnp.all(size == 0), 1.0, size / jnp.mean(size))
    density = (relative + floor) / (1 + floor)
    places = (jnp.arange(count) + jax.random.uniform(key, dtype=density.dtype)) / count
    taken = jnp.searchsorted(jnp.cumsum(density) / jnp.sum(density), places)
    taken = jnp.minimum(taken, len(points) - 1)
    return points[taken], 1 / density[taken]


@eqx.filter_jit
def _evaluate(function: Callable[[PyTree, Array], Array], theta: PyTree, points: Array) -> Array:
    return jax.vmap(lambda x: function(theta, x))(points)
