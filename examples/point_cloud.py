"""A generative network fitted to a ring: natural gradients on its samples, beside Adam.

    x = T_θ(z), z normal in the plane,   f = the energy distance between the samples and the data

The state is the array of samples, and no density is known. The metric may charge every motion of
the samples, E|v|² ("points"), or only what changes their density, W₂; ε E|v|² may be added to it.

    python examples/point_cloud.py
    python examples/point_cloud.py --samples 1000 --width 64 --iterations 60

It writes `point_cloud.png` and prints a table. Seconds are those of runs after a first one that
compiles; gradient descent and Adam take `CHEAP` times as many iterations.

Cost: for N samples in d dimensions and p parameters O(Nd p) numbers in Z, min(Nd, p)² in a solve.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad.plot import PALETTE, figure_style, save

DAMPING = 1e-3
RATE = 1e-1  # of Adam: the best of 1e-1, 3e-2, 1e-2 and 1e-3
CHEAP = 10
STYLES = {
    "points": ("E|v|²", PALETTE["blue"], "-"),
    "w2+points": ("W₂ + ½ E|v|²", PALETTE["green"], "-."),
    "w2": ("W₂", PALETTE["vermilion"], "--"),
    "gradient": ("gradient", PALETTE["grey"], ":"),
    "adam": ("Adam", PALETTE["orange"], "-"),
}


class Generator(eqx.Module):
    """network ↦ its samples, the images of z."""

    z: Array

    def __call__(self, network: eqx.nn.MLP) -> Array:
        return jax.vmap(network)(self.z)


class Run(NamedTuple):
    """Losses and seconds from the start on, and the samples at the end."""

    losses: np.ndarray
    seconds: np.ndarray
    samples: Array


def ring(count: int, seed: int) -> Array:
    """A circle of radius 2, a little blurred."""
    random = np.random.default_rng(seed)
    angle, radius = random.uniform(0, 2 * np.pi, count), random.normal(2.0, 0.15, count)
    return jnp.asarray(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))


def descend(
    problem: ng.Problem, network: eqx.nn.MLP, method: ng.descent.Method, iterations: int
) -> Run:
    """Twice, to leave out the compilation."""
    run = lambda iterations: ng.minimize(
        problem, network, method, stop=ng.Stop(iterations=iterations)
    )
    run(1)
    result = run(iterations)
    history = result.history
    return Run(history["loss"], history["seconds"], problem.model(result.theta))


def adam(problem: ng.Problem, network: eqx.nn.MLP, iterations: int) -> Run:
    """With the usual decay rates 0.9 and 0.999."""
    parameters, static = eqx.partition(network, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(parameters)
    samples = lambda theta: problem.model(eqx.combine(unravel(theta), static))

    @jax.jit
    def iteration(state: tuple[Array, Array, Array], count: Array) -> tuple:
        theta, first, second = state
        loss, slope = jax.value_and_grad(lambda theta: problem.loss(samples(theta)))(theta)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        step = first / (1 - 0.9**count) / (jnp.sqrt(second / (1 - 0.999**count)) + 1e-8)
        return (theta - RATE * step, first, second), loss

    state, losses, seconds = (theta, 0 * theta, 0 * theta), [], []
    jax.block_until_ready(iteration(state, jnp.asarray(1.0)))
    start = time.perf_counter()
    for count in range(1, iterations + 1):
        state, loss = iteration(state, jnp.asarray(float(count)))
        losses.append(float(loss))
        seconds.append(time.perf_counter() - start)
    return Run(np.array(losses), np.array(seconds), samples(state[0]))


def draw(data: Array, start: Array, runs: dict[str, Run], path: Path) -> Path:
    """The loss against iterations and seconds, and the samples at the end."""
    import matplotlib.pyplot as plt

    with figure_style():
        figure = plt.figure(figsize=(10, 6.2))
        top, bottom = figure.subfigures(2, 1, height_ratios=(3.6, 2.6))
        panels = dict(zip(("iteration", "seconds"), top.subplots(1, 2), strict=True))
        for name, run in runs.items():
            label, colour, style = STYLES[name]
            times = {"iteration": np.arange(len(run.losses)), "seconds": run.seconds}
            for unit, axes in panels.items():
                axes.loglog(times[unit] + (unit == "iteration"), run.losses, style, color=colour,
                            label=label)  # fmt: skip
                axes.set(xlabel=unit)
        panels["iteration"].set_title("energy distance")
        panels["seconds"].set_title("the same, without compilation")
        panels["iteration"].legend()
        clouds = {"start": start} | {STYLES[name][0]: run.samples for name, run in runs.items()}
        for axes, (name, cloud) in zip(
            bottom.subplots(1, len(clouds)), clouds.items(), strict=True
        ):
            axes.scatter(*data.T, s=2, color=PALETTE["grey"], alpha=0.4)
            axes.scatter(*cloud.T, s=2, color=PALETTE["blue"])
            axes.spines[:].set_visible(False)
            axes.set(title=name, xlim=(-3, 3), ylim=(-3, 3), xticks=[], yticks=[], aspect="equal")
        return save(figure, path)


def main(
    samples: int = 200,
    width: int = 16,
    iterations: int = 30,
    names: Sequence[str] = tuple(STYLES),
    output: str | Path = ".",
) -> dict[str, Run]:
    """Run, print the table as it grows, draw, and return the runs."""
    jax.config.update("jax_enable_x64", True)
    z, data = jax.random.normal(jax.random.key(1), (samples, 2)), ring(samples, 0)
    key = jax.random.key(0)
    network = eqx.nn.MLP(2, 2, width, 2, activation=jnp.tanh, dtype=z.dtype, key=key)
    problem = ng.Problem(Generator(z), ng.samples.EnergyDistance(data))
    points, transport = (1 / samples) * ng.L2(), ng.samples.Wasserstein()
    metrics = {"points": points, "w2+points": transport + 0.5 * points, "w2": transport}
    methods: dict[str, ng.descent.Method] = {"gradient": ng.GradientDescent()}
    for name, metric in metrics.items():
        methods[name] = ng.NaturalGradient(metric, damping=DAMPING)
    print(f"{samples} samples; {'method':11s}  iterations      loss    s/iteration", flush=True)
    runs = {}
    for name in names:
        if name == "adam":
            runs[name] = adam(problem, network, CHEAP * iterations)
        else:
            count = CHEAP * iterations if name == "gradient" else iterations
            runs[name] = descend(problem, network, methods[name], count)
        losses, seconds, _ = runs[name]
        rate = seconds[-1] / len(losses)
        print(f"{name:>25s} {len(losses) - 1:11d} {losses[-1]:10.3g} {rate:10.3g}", flush=True)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    draw(data, problem.model(network), runs, output / "point_cloud.png")
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--width", type=int, default=16, help="of two hidden layers")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--methods", dest="names", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--output", default=".", help="a folder")
    main(**vars(parser.parse_args()))
