"""The same direction on the CPU and on an accelerator, for every metric and solver.

    python benchmarks/bench_devices.py

Prints ‖η_device − η_cpu‖ / ‖η_cpu‖ for a problem of full rank and for one whose parameters are
redundant, where the direction is the one of minimum norm. Without an accelerator it has
nothing to compare, and says so.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from tables import show_table

import natgrad as ng

SOLVERS = (ng.Cholesky(), ng.QR(), ng.PivotedQR(), ng.SVD(), ng.Kernel())


def problem(grid: ng.Grid, redundant: bool) -> tuple[ng.Problem, jax.Array]:
    """Three bumps with free centres; `redundant` gives every parameter twice."""

    def model(theta):
        theta = theta[:6] + theta[6:] if redundant else theta
        centres = theta.reshape(3, 2)
        distance = ((grid.points[..., None, :] - centres) ** 2).sum(-1)
        return 0.1 + jnp.exp(-distance / 0.08).sum(-1)

    start = jnp.array([0.3, 0.3, 0.7, 0.4, 0.5, 0.8])
    target = 0.1 + jnp.exp(-((grid.points - 0.5) ** 2).sum(-1) / 0.08) * 3.0
    theta = jnp.concatenate([start / 2, start / 2]) if redundant else start
    return ng.Problem(model, ng.LeastSquares(target, grid)), theta


def main() -> None:
    """Print the table."""
    jax.config.update("jax_enable_x64", True)
    accelerator, cpu = jax.devices()[0], jax.devices("cpu")[0]
    if accelerator.platform == "cpu":
        print("no accelerator here: nothing to compare")
        return
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (32, 32))
    metrics = {
        "L2": ng.L2(grid),
        "Sobolev(1)": ng.Sobolev(grid, 1),
        "HomogeneousSobolev(-1)": ng.HomogeneousSobolev(grid, -1),
        "FisherRao": ng.FisherRao(grid),
        "Wasserstein": ng.Wasserstein(grid),
        "Wasserstein + 0.1 L2": ng.Wasserstein(grid) + 0.1 * ng.L2(grid),
    }
    columns = ["metric", "p", "rank", *(solver.name for solver in SOLVERS)]
    rows = list(differences(grid, metrics, accelerator, cpu))
    show_table("differences", columns, rows, f"{accelerator.device_kind} against its host")
    largest = max(max(row[3:]) for row in rows)
    show_table("largest", ["largest difference"], [[largest]])


def differences(grid, metrics, accelerator, cpu) -> Iterator[list]:
    """Relative differences of the directions by metric, a column for each solver."""
    for redundant in (False, True):
        for name, metric in metrics.items():
            cells, ranks = [], set()
            for solver in SOLVERS:
                etas = []
                for device in (accelerator, cpu):
                    with jax.default_device(device):
                        found = ng.natural_gradient(
                            *problem(grid, redundant), metric=metric, solver=solver
                        )
                        ranks.add(found.info.rank)
                        etas.append(jax.device_get(found.eta))
                difference = jnp.linalg.norm(etas[0] - etas[1]) / jnp.linalg.norm(etas[1])
                cells.append(float(difference))
            yield [name, 12 if redundant else 6, ", ".join(map(str, sorted(ranks))), *cells]


if __name__ == "__main__":
    main()
