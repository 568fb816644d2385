"""Natural gradients in training loops of equinox and flax, by optax, beside Adam.

A network u(θ, x) is fitted to a function of two variables by mini-batches. Both optimisers are
chains of optax with the same schedule (warm-up, then a cosine), the same decay of the weights and
the same batches; what differs is the first link:

    optax.chain(ng.interop.scale_by_natural_gradient(...), decay, rate)
    optax.chain(optax.scale_by_adam(), decay, rate)

    python examples/training_loops.py

prints the error of each and draws `training_loops.png`. Each optimiser has the best of three rates,
and Adam ten times as many steps. flax has to be installed for its lines; it is no dependency of
natgrad.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import natgrad as ng
from natgrad.plot import PALETTE, figure_style, save

WIDTH, BATCH, DECAY, CHECKS = 16, 256, 1e-6, 40
RATES = {"natural gradient": (1.0, 0.3, 0.1), "Adam": (0.3, 0.1, 0.03)}
LONGER = {"natural gradient": 1, "Adam": 10}  # steps of Adam are cheap
LINES = {
    ("equinox", "natural gradient"): (PALETTE["blue"], "-"),
    ("flax", "natural gradient"): (PALETTE["sky"], "--"),
    ("equinox", "Adam"): (PALETTE["vermilion"], "-"),
    ("flax", "Adam"): (PALETTE["orange"], "--"),
}
Network = tuple[Any, Callable[[Any, Array], Array]]  # θ, and u(θ, x) at one point x of shape (2,)


class Run(NamedTuple):
    """The relative L² error at some steps, the seconds until each, and the rate that was taken."""

    steps: np.ndarray
    errors: np.ndarray
    seconds: np.ndarray
    rate: float


def equinox_network(key: Array) -> Network:
    """The arrays of the module are θ; the rest is put back where it is called."""
    net = eqx.nn.MLP(2, "scalar", WIDTH, depth=2, activation=jnp.tanh, key=key)
    theta, rest = eqx.partition(net, eqx.is_inexact_array)
    return theta, lambda theta, x: eqx.combine(theta, rest)(x)


def flax_network(key: Array) -> Network:
    """θ is what `init` returns, and `apply` calls the network."""
    import flax.linen as nn

    dense = functools.partial(nn.Dense, param_dtype=float)
    net = nn.Sequential([dense(WIDTH), nn.tanh, dense(WIDTH), nn.tanh, dense(1)])
    return net.init(key, jnp.zeros(2)), lambda theta, x: net.apply(theta, x)[0]


NETWORKS = {"equinox": equinox_network, "flax": flax_network}


def target(x: Array) -> Array:
    return jnp.sin(5 * x[..., 0]) * jnp.cos(4 * x[..., 1]) + 0.5 * jnp.tanh(8 * (x[..., 1] - 0.5))


def optimisers(u: Callable[[Any, Array], Array], rate: float, steps: int) -> dict[str, Any]:
    """Two chains that differ in their first link."""
    first = {
        "natural gradient": ng.interop.scale_by_natural_gradient(
            ng.Pointwise(u, jnp.zeros((1, 2))),  # the points come with each batch
            metric=(1 / BATCH) * ng.L2(),
            damping=ng.AbsoluteDamping(1e-3),
        ),
        "Adam": optax.scale_by_adam(),
    }
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps, 1e-3 * rate)
    rest = optax.add_decayed_weights(DECAY), optax.scale_by_learning_rate(schedule)
    return {name: optax.chain(link, *rest) for name, link in first.items()}


def train(network: Network, name: str, rate: float, steps: int) -> Run:
    """One run, timed without compilation; the number of steps is a multiple of `CHECKS`."""
    theta, u = network
    optimiser = optimisers(u, rate, steps)[name]
    values = jax.vmap(u, in_axes=(None, 0))
    loss = lambda theta, x: 0.5 * jnp.mean((values(theta, x) - target(x)) ** 2)

    def step(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], None]:
        theta, state = carry
        x = jax.random.uniform(key, (BATCH, 2))
        gradient = jax.grad(loss)(theta, x)
        updates, state = optimiser.update(gradient, state, theta, batch=x)
        return (optax.apply_updates(theta, updates), state), None

    @jax.jit
    def error(theta: Any) -> Array:
        x = (jnp.stack(jnp.meshgrid(*[jnp.arange(40)] * 2), -1).reshape(-1, 2) + 0.5) / 40
        return jnp.linalg.norm(values(theta, x) - target(x)) / jnp.linalg.norm(target(x))

    several = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[0])
    keys = jax.random.split(jax.random.key(1), (CHECKS, steps // CHECKS))
    carry = theta, optimiser.init(theta)
    jax.block_until_ready(several(carry, keys[0]))
    errors, seconds = [float(error(theta))], [0.0]
    for some in keys:
        tick = time.perf_counter()
        carry = jax.block_until_ready(several(carry, some))
        seconds.append(seconds[-1] + time.perf_counter() - tick)
        errors.append(float(error(carry[0])))
    checks = steps // CHECKS * np.arange(CHECKS + 1)
    return Run(checks, np.array(errors), np.array(seconds), rate)


def draw(runs: dict[tuple[str, str], Run], path: Path) -> Path:
    """The errors against steps and against seconds."""
    import matplotlib.pyplot as plt

    with figure_style():
        figure, (by_steps, by_seconds) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
        for who, run in runs.items():
            colour, dash = LINES[who]
            label = f"{who[1]}, {who[0]}"
            by_steps.loglog(run.steps[1:], run.errors[1:], dash, color=colour, label=label)
            by_seconds.loglog(run.seconds[1:], run.errors[1:], dash, color=colour)
        by_steps.set(xlabel="steps", ylabel="relative L² error")
        by_seconds.set(xlabel="seconds, without compilation")
        figure.legend(loc="outside upper center", ncols=len(runs), frameon=False)
        return save(figure, path)


def main(
    steps: int = 400, rates: dict[str, tuple[float, ...]] = RATES, output: str | Path = "."
) -> dict[tuple[str, str], Run]:
    """Train with every library that is installed, print and draw; the run with the best rate."""
    jax.config.update("jax_enable_x64", True)
    runs = {}
    for library, make in NETWORKS.items():
        try:
            network = make(jax.random.key(0))
        except ModuleNotFoundError as missing:
            print(f"{library:8} {missing.name} is not installed")
            continue
        for name, tried in rates.items():
            found = [train(network, name, rate, LONGER[name] * steps) for rate in tried]
            best = min(found, key=lambda run: run.errors[-1])
            runs[library, name] = best
            each = 1e3 * best.seconds[-1] / best.steps[-1]
            print(
                f"{library:8} {name:17} rate {best.rate:<6g} relative error {best.errors[-1]:.1e}"
                f" after {best.steps[-1]} steps of {each:.2f} ms",
                flush=True,
            )
    Path(output).mkdir(parents=True, exist_ok=True)
    draw(runs, Path(output) / "training_loops.png")
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--output", default=".", help="a folder")
    main(**vars(parser.parse_args()))
