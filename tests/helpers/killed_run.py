"""A run for the tests of checkpoints to kill: `python killed_run.py PATH`; prints θ in the end."""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import natgrad as ng

jax.config.update("jax_enable_x64", True)
GRID = ng.Grid((-1.0, -1.0), (1.0, 1.0), (24, 24))


def bump(theta):
    return jnp.exp(-((GRID.points - theta[:2]) ** 2).sum(-1) / (0.1 + theta[2] ** 2))


def run(path: Path | None, pause: float = 0.0) -> str:
    """θ, digit by digit, and the number of iterations."""
    result = ng.minimize(
        ng.Problem(bump, ng.LeastSquares(bump(jnp.array([-0.2, 0.1, 0.4])), GRID)),
        jnp.array([0.5, 0.3, 0.6]),
        ng.NaturalGradient(
            ng.L2(GRID),
            solver=ng.CG(tolerance=0.0, max_iterations=2),
            damping=ng.LevenbergMarquardt(initial=1.0),
            step=ng.Backtracking(initial=0.02),
        ),
        stop=ng.Stop(gradient=0.0, iterations=60),
        callbacks=[lambda progress: time.sleep(pause)],
        checkpoint=path and ng.Checkpoint(path, seconds=0.0),
    )
    return f"{[float(x).hex() for x in result.theta]} {result.iterations}"


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), pause=0.03))
