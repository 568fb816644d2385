"""Poisson's equation in five dimensions: fixed points against points drawn anew, by four methods.

    −Δu = π² Σ cos πxᵢ on [0, 1]⁵,   u = Σ cos πxᵢ on the boundary

The network 5-64-64-48-48-1 has p = 10,065 parameters for k = 3,500 residuals: directions are found
in the kernel form, η = −Yᵀ(YYᵀ + λI)⁻¹ b, from a k × k matrix, which `ng.Auto` chooses by itself.

    python examples/poisson_5d.py --interior 300 --boundary 60 --hidden 24 24 --iterations 100
    python examples/poisson_5d.py --seconds 60             # on an accelerator

Each writes `poisson_5d.png`, errors against seconds, and prints a table. The published error of
SPRING for this problem is 2.6e-7 in 7000 s on an RTX 6000, of ENGD-Woodbury 6.8e-7
(arXiv:2505.12149), absolute: ‖u‖ is √(d/2) = 1.6.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.plot import PALETTE, figure_style, save

VARIANTS = {
    "fixed": (ng.levenberg_marquardt, None),
    "drawn": (ng.levenberg_marquardt, 1),
    "every 10th": (ng.levenberg_marquardt, 10),
    "spring": (ng.spring, 1),
    "nystrom": (ng.nystrom, 1),
}
Layers = list[tuple[Array, Array]]


class Errors(NamedTuple):
    """Over a run: seconds without compilation, the absolute error √mean|û − u|², the relative."""

    seconds: np.ndarray
    absolute: np.ndarray
    relative: np.ndarray
    iterations: int
    status: str


def network(widths: Sequence[int], key: Array) -> Layers:
    """Weights and biases uniform in ±1/√(inputs of the layer)."""
    layers = []
    for a, b in itertools.pairwise(widths):
        key, one, two = jax.random.split(key, 3)
        draw = lambda key, shape, a=a: jax.random.uniform(key, shape, float, -1, 1) / jnp.sqrt(a)
        layers.append((draw(one, (a, b)), draw(two, (b,))))
    return layers


def u(layers: Layers, x: Array) -> Array:
    for weights, bias in layers[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = layers[-1]
    return (x @ weights + bias)[0]


def solution(x: Array) -> Array:
    return jnp.sum(jnp.cos(jnp.pi * x), axis=-1)


def equation(layers: Layers, x: Array) -> Array:
    return ng.laplacian(lambda y: u(layers, y), x) + jnp.pi**2 * solution(x)


def condition(layers: Layers, x: Array) -> Array:
    return u(layers, x) - solution(x)


def draw_points(
    dimension: int, interior: int, boundary: int
) -> Callable[[Array], dict[str, Array]]:
    """key ↦ points inside the cube, and points on its faces."""

    def draw(key: Array) -> dict[str, Array]:
        inner, outer, axis, side = jax.random.split(key, 4)
        points = jax.random.uniform(outer, (boundary, dimension))
        axis = jax.random.randint(axis, (boundary,), 0, dimension)
        ends = jax.random.bernoulli(side, 0.5, (boundary,)).astype(float)
        edge = points.at[jnp.arange(boundary), axis].set(ends)
        return {"interior": jax.random.uniform(inner, (interior, dimension)), "boundary": edge}

    return jax.jit(draw)


def run(
    variant: str, draw: Callable, start: Layers, test: Array, iterations: int, seconds: float | None
) -> Errors:
    """One variant from the start, errors measured as it goes on a clock that stops meanwhile."""
    recipe, period = VARIANTS[variant]
    points = draw(jax.random.key(1))
    pinn = ng.Collocation(
        interior=ng.Residual(equation, points["interior"]),
        boundary=ng.Residual(condition, points["boundary"]),
    )
    batch = None if period is None else ng.Resampled(draw, period)
    values, exact = jax.jit(jax.vmap(u, (None, 0))), solution(test)
    missed = lambda layers: float(jnp.sqrt(jnp.mean((values(layers, test) - exact) ** 2)))
    clock, rows = time.perf_counter(), [(0.0, missed(start))]

    def measure(progress: ng.result.Progress) -> bool:
        nonlocal clock
        now = time.perf_counter()
        clock = now if progress.iteration == 1 else clock  # the first iteration compiles
        rows.append((now - clock, missed(progress.theta)))
        clock += time.perf_counter() - now
        return seconds is not None and rows[-1][0] > seconds

    method, stop = recipe(pinn.metric), ng.Stop(iterations=iterations, gradient=0.0)
    result = ng.minimize(pinn.problem, start, method, stop=stop, batch=batch, callbacks=[measure])
    times, absolute = np.array(rows).T
    scale = float(jnp.sqrt(jnp.mean(exact**2)))
    return Errors(times, absolute, absolute / scale, result.iterations, result.status)


def draw_figure(found: dict[str, Errors], path: Path) -> Path:
    import matplotlib.pyplot as plt

    colours = ("blue", "sky", "green", "orange", "vermilion")
    with figure_style():
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
        for (name, errors), colour in zip(found.items(), colours, strict=False):
            for ax, x in zip(axes, (errors.seconds, np.arange(len(errors.seconds))), strict=True):
                ax.semilogy(x, errors.relative, color=PALETTE[colour], label=name)
        axes[0].set(xlabel="seconds", ylabel="relative L² error", title="−Δu = π² Σ cos πxᵢ")
        axes[1].set(xlabel="iteration")
        axes[1].legend()
        return save(figure, path)


def main(
    dimension: int = 5,
    hidden: Sequence[int] = (64, 64, 48, 48),
    interior: int = 3000,
    boundary: int = 500,
    iterations: int = 10_000,
    seconds: float | None = None,
    variants: Sequence[str] = tuple(VARIANTS),
    seed: int = 0,
    output: str | Path = ".",
) -> dict[str, Errors]:
    """Run the variants, print the table as it grows, draw, and return the errors."""
    jax.config.update("jax_enable_x64", True)
    start = network((dimension, *hidden, 1), jax.random.key(seed))
    test = jax.random.uniform(jax.random.key(2), (10_000, dimension))
    draw = draw_points(dimension, interior, boundary)
    p = sum(leaf.size for leaf in jax.tree.leaves(start))
    print(f"{jax.devices()[0].device_kind}: d = {dimension}, p = {p:,}, k = {interior + boundary}")
    print(f"{'variant':<11} {'its':>5} {'seconds':>8} {'s/it':>7} {'absolute':>9} {'relative':>9}")
    found: dict[str, Any] = {}
    for name in variants:
        errors = found[name] = run(name, draw, start, test, iterations, seconds)
        taken = errors.seconds[-1]
        print(
            f"{name:<11} {errors.iterations:5d} {taken:8.1f} {taken / errors.iterations:7.3f}"
            f" {errors.absolute[-1]:9.1e} {errors.relative[-1]:9.1e} {errors.status}",
            flush=True,
        )
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    draw_figure(found, output / "poisson_5d.png")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dimension", type=int, default=5)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64, 48, 48])
    parser.add_argument("--interior", type=int, default=3000)
    parser.add_argument("--boundary", type=int, default=500)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, help="for each variant, compilation not counted")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default=".", help="a folder")
    main(**vars(parser.parse_args()))
