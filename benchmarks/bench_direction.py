"""Time of one natural gradient direction: by grid, parameters, metric and solver, stage by stage.

    python benchmarks/bench_direction.py [--sides 70 140 280] [--full]

The model is a sum of p Gaussian bumps with free heights, so Z is dense and smooth. Stages: Z (the
Jacobian), L (set-up of the metric at ρ), Y = LZ, prepare (what does not depend on λ) and solve.
Each is compiled and timed alone, best of a few runs; shares are of their sum. The Gram matrix has
kp² flops as a symmetric product; its rate stands beside the peak of a square matrix product
measured in the same run. Without --full, combinations over 2e11 flops in the solver are left out.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from tables import best, show_table

import natgrad as ng
from natgrad.core.dense import gram

PARAMETERS = (2, 20, 200, 1331)
LIMIT = 2e11
MANY = 200  # parameters up to which other solvers than Cholesky are timed, in L²


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


def stage_times(n: int, p: int, metric_name: str, solvers: Sequence[ng.solvers.Solver]):
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


def stages(sides: list[int], names: list[str], limit: float, top: float) -> Iterator[list]:
    """A row for each grid, p, metric and solver: milliseconds, the share of each stage, the Gram
    matrix's rate."""
    for n in sides:
        for p in PARAMETERS:
            for name in names:
                if n * n * (2 if name == "Wasserstein" else 1) * p**2 > limit:
                    continue
                several = name == "L2" and p <= MANY
                solvers = SOLVERS if several else SOLVERS[:1]
                rows, rate = stage_times(n, p, name, solvers)
                for solver, times in rows:
                    total = sum(times.values())
                    shares = [t / total for t in times.values()]
                    yield [f"{n}²", p, name, solver, 1e3 * total, *shares, rate / 1e9, rate / top]


def main() -> None:
    """Print the table, and the totals of `Cholesky` by metric."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sides", type=int, nargs="+", default=[70, 140, 280])
    parser.add_argument("--full", action="store_true", help="also what takes long")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    top, names = peak(), list(metrics(ng.Grid((0.0, 0.0), (1.0, 1.0), (2, 2))))
    columns = ["grid", "p", "metric", "solver", "ms", "Z", "L", "Y", "prepare", "solve"]
    rows = list(stages(arguments.sides, names, np.inf if arguments.full else LIMIT, top))
    title = f"Milliseconds, shares of the stages; a matrix product has {top / 1e9:.0f} Gflop/s"
    show_table("stages", [*columns, "Gram Gflop/s", "of the peak"], rows, title)
    total = {tuple(row[:3]): row[4] for row in rows if row[3] == "Cholesky"}
    found = [
        [grid, p, *(total.get((grid, p, name)) for name in names)]
        for grid, p in dict.fromkeys((row[0], row[1]) for row in rows)
    ]
    title = "Milliseconds of a direction with Cholesky"
    show_table("cholesky", ["grid", "p", *names], found, title)


if __name__ == "__main__":
    main()
