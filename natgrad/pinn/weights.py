"""Weights of points and blocks that change during a run, for `Resampled(weights=...)`."""

import abc
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.settings import Public, check_integer, setting
from ..errors import InputError
from ..parameters import flatten
from .collocation import Collocation

LEAST = 1e-12  # of a causal weight, so that no row of the system is zero
TOGETHER = 64  # gradients of residuals at once


class Weighting(Public, eqx.Module):
    """What the weights of a `Collocation` are, given θ and what was learnt before."""

    @abc.abstractmethod
    def weigh(
        self, iteration: int, theta: PyTree, pinn: Collocation, memory: PyTree
    ) -> tuple[Mapping[str, Array], PyTree]:
        """The new weights of some blocks, and what is carried on and kept in a checkpoint.

        `memory` is None at first. `pinn` has the points of this iteration, and its own weights or
        those of the weightings before.
        """


class Causal(Weighting):
    """Weights that let a block be fitted at later times only once it is fitted at earlier ones.

    The time `axis` is cut into equal slabs over `span`, and the points of slab i are weighted by

        wᵢ = exp(−ε Σ_{j<i} Lⱼ),      Lⱼ = mean |r|² over slab j.

    ε begins as the first of `tolerances` and moves to the next once all wᵢ exceed `threshold`.

    ```python
    ng.Resampled(weights=ng.pinn.Causal("interior", slabs=32, span=(0.0, 1.0)))
    ```

    Cost: one evaluation of the block in every iteration.
    Reference: Wang, Sankaran and Perdikaris, Comput. Methods Appl. Mech. Eng. 421 (2024).

    Args:
        block: Name of the block.
        axis: The coordinate that is time.
        slabs: Number of slabs in time.
        span: First and last time.
        tolerances: The values of ε, smallest first.
        threshold: Smallest weight at which ε moves to the next.
    """

    block: str = eqx.field(static=True)
    axis: int = eqx.field(static=True, default=0)
    slabs: int = eqx.field(static=True, default=20)
    span: tuple[float, float] = (0.0, 1.0)
    tolerances: tuple[float, ...] = (1e-2, 1e-1, 1.0, 1e1, 1e2)
    threshold: Any = setting("threshold", 0.99, positive=True, below=1.0)

    def __check_init__(self):
        check_integer(self.slabs, "slabs", 2, 20)
        check_integer(self.axis, "axis", 0)
        if len(self.span) != 2 or not self.span[0] < self.span[1]:
            raise InputError("span", f"{self.span} is no interval", "(0.0, 1.0)")
        if not len(self.tolerances) or not np.all(np.asarray(self.tolerances) > 0):
            raise InputError("tolerances", f"{self.tolerances} are not positive", "(1e-2, 1.0)")

    def weigh(
        self, iteration: int, theta: PyTree, pinn: Collocation, memory: PyTree
    ) -> tuple[Mapping[str, Array], PyTree]:
        if self.block not in pinn.blocks:
            what = f"there is no block {self.block!r}"
            raise InputError("block", what, f"one of {list(pinn.blocks)}")
        if self.axis >= pinn.blocks[self.block].points.shape[1]:
            raise InputError("axis", f"the points have no axis {self.axis}", "axis=0")
        stage = jnp.zeros((), jnp.int32) if memory is None else memory
        weights, stage = _weigh_causally(self, theta, pinn, stage)
        return {self.block: weights}, stage


@eqx.filter_jit
def _weigh_causally(
    rule: Causal, theta: PyTree, pinn: Collocation, stage: Array
) -> tuple[Array, Array]:
    block = pinn.blocks[rule.block]
    values = jax.vmap(lambda x: block.function(theta, x))(block.points)
    squares = jnp.sum(values.reshape(len(values), -1) ** 2, axis=1)
    begin, end = rule.span
    share = (block.points[:, rule.axis] - begin) / (end - begin)
    slab = jnp.clip(jnp.floor(rule.slabs * share), 0, rule.slabs - 1).astype(int)
    sums = lambda x: jax.ops.segment_sum(x, slab, rule.slabs)
    losses = sums(squares) / jnp.maximum(sums(jnp.ones_like(squares)), 1)
    tolerances = jnp.asarray(rule.tolerances, squares.dtype)
    before = jnp.cumsum(losses) - losses
    factors = jnp.maximum(jnp.exp(-tolerances[stage] * before), LEAST)
    done = jnp.min(factors) > rule.threshold
    after = jnp.minimum(stage + done, len(rule.tolerances) - 1).astype(stage.dtype)
    return block.entries() * factors[slab], after


class Balanced(Weighting):
    """Weights of the blocks that give each the same part of the trace of G.

    With t_b = tr G_b, the sum of wᵢ ‖∂rᵢ/∂θ‖² over its points, the weight of block b is multiplied
    by (mean t)/t_b: no equation is hidden behind another with larger derivatives. That is done in
    the first iteration and `every` so many later, from the problem's own weights.

    ```python
    ng.Resampled(weights=ng.pinn.Balanced())
    ```

    Cost: the rows of Z, never all at once, every time.
    Reference: Wang, Yu and Perdikaris, J. Comput. Phys. 449 (2022): the trace of the blocks of the
    neural tangent kernel.

    Args:
        every: Iterations between two updates.
    """

    every: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        check_integer(self.every, "every", 1, 100)

    def weigh(
        self, iteration: int, theta: PyTree, pinn: Collocation, memory: PyTree
    ) -> tuple[Mapping[str, Array], PyTree]:
        factors = memory
        if factors is None or iteration % self.every == 0:
            factors = _balance(theta, pinn)
        blocks = pinn.blocks.items()
        return {name: factors[name] * block.weight for name, block in blocks}, factors


@eqx.filter_jit
def _balance(theta: PyTree, pinn: Collocation) -> dict[str, Array]:
    flat, unravel = flatten(theta)
    traces = {}
    for name, block in pinn.blocks.items():

        def square(x: Array, function: Any = block.function) -> Array:
            value, pull = jax.vjp(lambda v: function(unravel(v), x), flat)
            units = jnp.eye(value.size, dtype=value.dtype).reshape(-1, *value.shape)
            return jnp.sum(jax.vmap(lambda e: pull(e)[0])(units) ** 2)

        squares = jax.lax.map(square, block.points, batch_size=TOGETHER)
        traces[name] = jnp.sum(block.entries() * squares)
    mean = jnp.mean(jnp.stack([*traces.values()]))
    return {name: jnp.where(t > 0, mean / t, 1.0) for name, t in traces.items()}
