"""Stages: another network for what the one before has left, towards machine precision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core.settings import check_instance
from ..descent.methods import Method
from ..descent.minimize import minimize
from ..descent.recipes import levenberg_marquardt
from ..errors import InputError, name_kind
from ..metrics.base import Metric
from ..result import Result
from .collocation import Collocation, Residual

Net = Callable[[Array], Array]
FINEST = 0.25  # of the frequency whose half wave is the distance of the points


class Staged(eqx.Module):
    """u(x) = Σ εₖ netₖ(κₖ x), called at one point."""

    nets: tuple[Net, ...]
    scales: tuple[Array, ...]
    frequencies: tuple[Array, ...]

    def __call__(self, x: Array) -> Array:
        parts = zip(self.nets, self.scales, self.frequencies, strict=True)
        return sum((scale * net(k * x) for net, scale, k in parts), start=jnp.zeros(()))

    def plus(self, net: Net, scale: Array, frequency: Array) -> "Staged":
        """u + ε net(κ·)."""
        return Staged((*self.nets, net), (*self.scales, scale), (*self.frequencies, frequency))


@dataclass(frozen=True)
class Stages:
    """A solution in stages: the field, called at one point, and the result of every stage."""

    field: Staged
    results: tuple[Result, ...]

    def __call__(self, x: Array) -> Array:
        return self.field(x)


def stages(
    pairs: Sequence[tuple[Collocation, Any]],
    *,
    method: Callable[[Metric], Method] = levenberg_marquardt,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Stages:
    """Fit a network, and then others to what it has left, each for the equation as it stands.

    Stage k finds the network in u + ε net(κ x), with the sum u of the former stages held fixed. κ
    follows the frequency of the residual along each axis, from the first block, so that the network
    need not learn it, and ε makes the change of the residuals as large as they are,

        κᵢ = median |∂r/∂xᵢ| / median |r|,      ε = ‖r‖ / ‖∂r/∂ε‖,

    in the norm of the loss; κ is no more than the points can resolve. The later losses are relative
    to what the stages before have left at the same points. θ is a callable of one point, and the
    residuals must use it as such. Later networks should have sines for activations and more points;
    conditions are best built into u, since as blocks they weigh little beside high derivatives.

    ```python
    equation = lambda u, x: ng.laplacian(lambda y: zero_on_edge(y) * u(y), x) + source(x)
    first = ng.Collocation(interior=ng.Residual(equation, box.sobol(1024)))
    second = ng.Collocation(interior=ng.Residual(equation, box.sobol(4096)))
    solution = ng.pinn.stages([(first, tanh_net), (second, sine_net)], stop=ng.Stop(seconds=30))
    solution(x), [result.loss for result in solution.results]
    ```

    `checkpoint` is a folder with a file for each stage; `options` are further ones of `minimize`.

    Reference: Wang and Lai, J. Comput. Phys. 504 (2024).

    Args:
        pairs: For each stage its `Collocation` and its network.
        method: Metric ↦ method, such as a recipe.
        checkpoint: A folder for the checkpoints.
        **options: Further arguments of `minimize`.
    """
    if not pairs:
        raise InputError("pairs", "there are none", "[(pinn, net), (pinn, other)]")
    field, results = Staged((), (), ()), []
    for number, (pinn, given) in enumerate(pairs):
        check_instance("pairs", pinn, Collocation, "[(pinn, net), (pinn, other)]")
        if not callable(given):
            raise InputError("pairs", f"{name_kind(given)} is not callable", "networks")
        net, scale, frequency, loss = cast(Net, given), jnp.ones(()), jnp.ones(()), jnp.ones(())
        if number:
            scale, frequency, loss = _measure(pinn, field, net)
        if not loss > 0:
            break  # nothing is left
        top = {}
        for name, block in pinn.blocks.items():
            function = _Above(block.function, field, scale, frequency)
            top[name] = Residual(function, block.points, block.weight / loss, block.metric)
        whole = Collocation(memory=pinn.memory, **top)
        if checkpoint is not None:
            options["checkpoint"] = Path(checkpoint) / f"stage-{number}.npz"
        results.append(minimize(whole.problem, net, method(whole.metric), **options))
        field = field.plus(results[-1].theta, scale, frequency)
    return Stages(field, tuple(results))


class _Above(eqx.Module):
    """r(u + ε net(κ·), x) as a function of the network; u, ε and κ are data."""

    function: Callable[[Any, Array], Array]
    field: Staged
    scale: Array
    frequency: Array

    def __call__(self, net: Net, x: Array) -> Array:
        return self.function(self.field.plus(net, self.scale, self.frequency), x)


@eqx.filter_jit
def _measure(pinn: Collocation, field: Staged, net: Net) -> tuple[Array, Array, Array]:
    """ε and κ of the next stage, and the loss of the former ones at its points."""
    first = next(iter(pinn.blocks.values()))
    points, function = first.points, lambda x: jnp.ravel(first.function(field, x))
    slopes = jnp.abs(jax.vmap(jax.jacfwd(function))(points)).reshape(-1, points.shape[1])
    found = jnp.median(slopes, axis=0) / jnp.median(jnp.abs(jax.vmap(function)(points)))
    across = jnp.max(points, axis=0) - jnp.min(points, axis=0)
    resolved = FINEST * jnp.pi * len(points) ** (1 / points.shape[1]) / across
    frequency = jnp.minimum(found, resolved)
    residuals = lambda scale: pinn(field.plus(net, scale, frequency))
    before, change = jax.jvp(residuals, (jnp.zeros(()),), (jnp.ones(()),))
    loss = pinn.loss(before)
    return jnp.sqrt(loss / pinn.loss(change)), frequency, loss
