"""Time of one natural gradient direction: by grid, parameters, metric and solver, stage by stage.

    python benchmarks/bench_direction.py [--full]

The model is a sum of p Gaussian bumps with free heights, so Z is dense and smooth. Stages: Z (the
Jacobian), L (set-up of the metric at ρ), Y = LZ, prepare (what does not depend on λ) and solve.
Each is compiled and timed alone, best of a few runs; shares are of their sum. The Gram matrix has
kp² flops as a symmetric product; its rate stands beside the peak of a square matrix product
measured in the same run. Without --full, combinations over 2e11 flops in the solver are left out.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad.core.dense import gram

SIDES = (70, 140, 280)
PARAMETERS = (2, 20, 200, 1331)
LIMIT = 2e11


def metrics(grid: ng.Grid) -> dict[str, ng.metrics.Metric]:
    """The metrics compared."""
    return {
        "L2": ng.L2(grid),
        "FisherRao": ng.FisherRao(grid),
        "Sobolev(1)": ng.Sobolev(grid, 1),
        "Sobolev(-1)": ng.Sobolev(grid, -1),
        "Wasserstein": ng.Wasserstein(grid),
    }


SOLVERS = (ng.Cholesky(), ng.QR(), ng.PivotedQR(), ng.SVD())


def best(function: Callable[[], Any], budget: float = 1.0) -> float:
    """The shortest of the runs that fit into `budget` seconds, after one that compiles."""
    jax.block_until_ready(function())
    times, start = [], time.perf_counter()
    while not times or (time.perf_counter() - start < budget and len(times) < 20):
        tick = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - tick)
    return min(times)


def bumps(grid: ng.Grid, p: int) -> Callable[[jax.Array], jax.Array]:
    """ρ = 1 + Σⱼ θⱼ φⱼ with bumps on a lattice, as the product of two small matrices per axis."""
    side = int(np.ceil(np.sqrt(p)))
    centres = jnp.linspace(0.0, 1.0, side)
    width = 1.0 / side
    one = jnp.exp(-((grid.axes[0][:, None] - centres) ** 2) / (2 * width**2))

    def model(theta: jax.Array) -> jax.Array:
        heights = jnp.zeros(side * side).at[:p].set(theta).reshape(side, side)
        return 1.0 + one @ heights @ one.T

    return model


class Stages(eqx.Module):
    """The stages of `natgrad.direction.linearise`, each as a program of its own."""

    problem: ng.Problem
    metric: ng.metrics.Metric

    def Z(self, theta):
        rho, columns, _ = self.problem.model.jacobian(lambda v: v, theta)
        return rho, columns

    def Y(self, L, columns):
        return jax.vmap(lambda z: ravel_pytree(L(z))[0])(columns).T


def stage_times(n: int, p: int, metric_name: str, solvers: list[ng.solvers.Solver]):
    """Seconds of each stage; the last two for every solver."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (n, n))
    theta = jnp.full(p, 0.1)
    model = bumps(grid, p)
    problem = ng.Problem(model, ng.LeastSquares(jnp.ones(grid.shape), grid))
    metric = metrics(grid)[metric_name]
    stages = Stages(problem, metric)
    jacobian = eqx.filter_jit(stages.Z)
    rho, columns = jacobian(theta)
    times = {"Z": best(lambda: jacobian(theta))}

    # The operator's closures hold the factorisation: time set-up by what one product needs.
    once = eqx.filter_jit(lambda rho, z: metric.factor(rho).mv(z))
    times["L"] = best(lambda: once(rho, rho))
    image = eqx.filter_jit(lambda rho, columns: stages.Y(metric.factor(rho).mv, columns))
    Y = image(rho, columns)
    times["Y"] = max(0.0, best(lambda: image(rho, columns)) - times["L"])
    b = ravel_pytree(metric.whiten(rho, rho))[0]
    r, damping = jnp.zeros(p), jnp.asarray(1e-8) * jnp.sum(Y**2) / p
    rows = []
    for solver in solvers:
        prepare = eqx.filter_jit(solver.prepare)
        prepared = prepare(Y, b, r)
        solve = eqx.filter_jit(solver.solve)
        rows.append(
            (
                solver.name,
                times
                | {
                    "prepare": best(lambda prepare=prepare: prepare(Y, b, r)),
                    "solve": best(lambda solve=solve, prepared=prepared: solve(prepared, damping)),
                },
            )
        )
        del prepared
    product = jax.jit(gram)
    return rows, Y.shape[0] * p**2 / best(lambda: product(Y))


def peak() -> float:
    """Flops per second of a square matrix product in double precision."""
    A = jnp.ones((2000, 2000))
    square = jax.jit(lambda A: A @ A)
    return 2 * 2000**3 / best(lambda: square(A), 2.0)


def main() -> None:
    """Print the table."""
    jax.config.update("jax_enable_x64", True)
    limit = np.inf if "--full" in sys.argv else LIMIT
    device, top = jax.devices()[0], peak()
    print(f"{device.device_kind or device.platform}, matrix product peak {top / 1e9:.0f} GFLOP/s\n")
    print("  n²      p  metric       solver      total ms   Z %  L %  Y %  prep %  solve %   Gram")
    for n in SIDES:
        for p in PARAMETERS:
            for name in metrics(ng.Grid((0.0, 0.0), (1.0, 1.0), (2, 2))):
                flops = n * n * (2 if name == "Wasserstein" else 1) * p**2
                if flops > limit:
                    print(f"{n:4}² {p:5}  {name:12} left out: {flops:.1e} flops (see --full)")
                    continue
                solvers = [s for s in SOLVERS if s.name == "Cholesky" or name == "L2"]
                rows, rate = stage_times(n, p, name, solvers)
                for solver, times in rows:
                    total = sum(times.values())
                    share = [100 * t / total for t in times.values()]
                    print(
                        f"{n:4}² {p:5}  {name:12} {solver:10} {1e3 * total:9.2f} "
                        f"{share[0]:5.0f}{share[1]:5.0f}{share[2]:5.0f}{share[3]:7.0f}{share[4]:8.0f}"
                        f"  {rate / 1e9:6.1f} GFLOP/s ({100 * rate / top:.0f}% of peak)",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
