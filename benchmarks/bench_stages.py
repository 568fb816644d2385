"""Poisson's equation by networks in stages: the relative L² error after each, and its seconds.

    python benchmarks/bench_stages.py [--widths 24 32 32] [--counts 1024 4096 4096]
    python benchmarks/bench_stages.py --widths 12 16 --counts 300 800 --iterations 80   # one core

−Δu = f on [0, 1]² for u = sin πx sin πy, with u = 0 on the boundary built in; networks with two
hidden layers, of tanh in the first stage and of sines later. Errors are at 101 × 101 points;
seconds are with compilation.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

import natgrad as ng
from natgrad.report import versions

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[24, 32, 32])
    parser.add_argument("--counts", type=int, nargs="+", default=[1024, 4096, 4096])
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(jax.devices()[0].device_kind, versions())
    pairs = []
    for stage, (width, count) in enumerate(zip(given.widths, given.counts, strict=True)):
        key = jax.random.fold_in(jax.random.key(given.seed), stage)
        activation = jnp.sin if stage else jnp.tanh
        net = eqx.nn.MLP(2, "scalar", width, 2, activation, key=key)
        points = BOX.sobol(count, seed=stage)
        pairs.append((ng.Collocation(interior=ng.Residual(equation, points)), net))
    stop = ng.Stop(iterations=given.iterations, gradient=1e-15)
    found = ng.pinn.stages(pairs, stop=stop)
    print("stage  error    loss     iterations  seconds  κ")
    for stage, result in enumerate(found.results):
        nets, scales, k = (
            part[: stage + 1]
            for part in (found.field.nets, found.field.scales, found.field.frequencies)
        )
        seconds, missed = result.history["seconds"][-1], error(ng.pinn.Staged(nets, scales, k))
        row = f"{stage + 1:<6} {missed:.1e}  {result.loss:.1e}  {result.iterations:<10}"
        print(f"{row}  {seconds:<7.1f}  {k[-1]}  {result.status}")


if __name__ == "__main__":
    main()
