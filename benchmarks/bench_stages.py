"""Poisson's equation by networks in stages: the relative L² error after each, and its seconds.

    python benchmarks/bench_stages.py [--widths 24 32 32] [--counts 1024 4096 4096]
    python benchmarks/bench_stages.py --widths 12 16 --counts 300 800 --iterations 80   # one core

−Δu = f on [0, 1]² for u = sin πx sin πy, with u = 0 on the boundary built in; networks with two
hidden layers, of tanh in the first stage and of sines later. Errors are at 101 × 101 points;
seconds are with compilation.
"""

import argparse
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from tables import show_table

import natgrad as ng

BOX = ng.pinn.Box((0.0, 0.0), (1.0, 1.0))


def exact(x: Array) -> Array:
    return jnp.prod(jnp.sin(jnp.pi * x))


def solution(u, x: Array) -> Array:
    return ng.pinn.vanishing(x, BOX.lower, BOX.upper) * u(x)


def equation(u, x: Array) -> Array:
    return ng.laplacian(lambda y: solution(u, y), x) + 2 * jnp.pi**2 * exact(x)


@eqx.filter_jit
def error(u) -> Array:
    """Relative, in L²."""
    points = BOX.grid(101, 101)
    values, truth = jax.vmap(lambda x: solution(u, x))(points), jax.vmap(exact)(points)
    return jnp.linalg.norm(values - truth) / jnp.linalg.norm(truth)


def run(widths: list[int], counts: list[int], iterations: int, seed: int) -> Iterator[list]:
    """A row for each stage."""
    pairs = []
    for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
        key = jax.random.fold_in(jax.random.key(seed), stage)
        activation = jnp.sin if stage else jnp.tanh
        net = eqx.nn.MLP(2, "scalar", width, 2, activation, key=key)
        points = BOX.sobol(count, seed=stage)
        pairs.append((ng.Collocation(interior=ng.Residual(equation, points)), net))
    found = ng.pinn.stages(pairs, stop=ng.Stop(iterations=iterations, gradient=1e-15))
    parts = (found.field.nets, found.field.scales, found.field.frequencies)
    for stage, result in enumerate(found.results):
        missed = error(ng.pinn.Staged(*(part[: stage + 1] for part in parts)))
        seconds = float(result.history["seconds"][-1])
        yield [seed, stage + 1, float(missed), result.loss, result.iterations, seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[24, 32, 32])
    parser.add_argument("--counts", type=int, nargs="+", default=[1024, 4096, 4096])
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    columns = ["seed", "stage", "relative error", "loss", "iterations", "seconds"]
    settings = (given.widths, given.counts, given.iterations)
    rows = (row for seed in given.seeds for row in run(*settings, seed))
    show_table("stages", columns, rows, "Errors after each stage; seconds with compilation")


if __name__ == "__main__":
    main()
