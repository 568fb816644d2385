"""Time of an iteration: a training loop of optax with natural gradients, beside `ng.minimize`.

    python benchmarks/bench_optax.py

The same directions and the same fixed step by three loops: `ng.minimize`, a chain of optax in a
compiled step that Python calls, and the same in one compiled scan; then the direction by itself.
Milliseconds of an iteration after compilation, best of several runs. The problems: a sum of
Gaussians with free centres (p = 4, where everything but the loop is cheap), and a network at points
(p > k, the kernel form).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from tables import best, show_table

import natgrad as ng

ITERATIONS = 20
RATE = 0.1
DAMPING = 0.1


def bumps() -> tuple[ng.Problem, Any, ng.metrics.Metric]:
    """Two Gaussians on 64 × 64 cells, in Fisher–Rao."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (64, 64))

    def model(theta: jax.Array) -> jax.Array:
        squares = lambda c: ((grid.points - c) ** 2).sum(-1)
        return 0.1 + jnp.exp(-squares(theta[:2]) / 0.1) + jnp.exp(-squares(theta[2:]) / 0.1)

    target = model(jnp.array([0.3, 0.4, 0.7, 0.6]))
    theta = jnp.array([0.35, 0.3, 0.6, 0.7])
    return ng.Problem(model, ng.LeastSquares(target, grid)), theta, ng.FisherRao(grid)


def network() -> tuple[ng.Problem, Any, ng.metrics.Metric]:
    """A network with 2 × 32 neurons at 400 points, in L²."""
    net = eqx.nn.MLP(2, "scalar", 32, 2, activation=jnp.tanh, key=jax.random.key(0))
    theta, static = eqx.partition(net, eqx.is_inexact_array)
    points = jax.random.uniform(jax.random.key(1), (400, 2))
    model = ng.Pointwise(lambda theta, x: eqx.combine(theta, static)(x), points)
    target = jnp.sin(4 * points[:, 0]) * points[:, 1]
    return ng.Problem(model, ng.LeastSquares(target)), theta, ng.L2()


def loops(
    problem: ng.Problem, theta: Any, metric: ng.metrics.Metric
) -> dict[str, Callable[[], Any]]:
    """Each runs all iterations and returns the last θ."""
    value = lambda t: problem.value(t, problem.model(t))
    optimiser = optax.chain(
        ng.interop.scale_by_natural_gradient(problem.model, metric=metric, damping=DAMPING),
        optax.scale(-RATE),
    )

    def step(carry: Any, _: None) -> Any:
        theta, state = carry
        updates, state = optimiser.update(jax.grad(value)(theta), state, theta)
        return (optax.apply_updates(theta, updates), state), None

    compiled = jax.jit(lambda carry: step(carry, None)[0])
    scanned = jax.jit(lambda carry: jax.lax.scan(step, carry, None, ITERATIONS)[0])

    def called() -> Any:
        carry = theta, optimiser.init(theta)
        for _ in range(ITERATIONS):
            carry = compiled(carry)
        return carry[0]

    def minimised() -> Any:
        method = ng.NaturalGradient(metric, damping=DAMPING, step=ng.FixedStep(RATE))
        stop = ng.Stop(iterations=ITERATIONS, gradient=0.0)
        result = ng.minimize(problem, theta, method, stop=stop)
        assert result.iterations == ITERATIONS, result
        return result.theta

    direction = lambda: ng.natural_gradient(problem, theta, metric=metric, damping=DAMPING).eta
    return {
        "ng.minimize": minimised,
        "optax, compiled step": called,
        "optax, compiled scan": lambda: scanned((theta, optimiser.init(theta)))[0],
        "ng.natural_gradient": lambda: [direction() for _ in range(ITERATIONS)][-1],
    }


def main() -> None:
    """Print the table."""
    jax.config.update("jax_enable_x64", True)
    found = {make: loops(*make()) for make in (bumps, network)}
    rows = (
        [loop, *(1e3 * best(runs[loop], least=5) / ITERATIONS for runs in found.values())]
        for loop in found[bumps]
    )
    show_table("loops", ["loop", "bumps, ms", "network, ms"], rows, "Milliseconds an iteration")


if __name__ == "__main__":
    main()
