"""A run for the tests of checkpoints to kill: `python killed_run.py PATH KILLS`.

SIGKILL goes to KILLS processes, one after the other, at random moments after a first checkpoint of
theirs; each goes on where the last one was, or begins anew where that one had come to the end.
Prints θ of all that came to it. They are forks of this process, so that nothing is imported twice.
"""

import os
import random
import signal
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


def start(path: Path) -> int:
    """The run in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        print(run(path, pause=0.03), flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)


def killed(child: int, path: Path, draw: random.Random) -> bool:
    """Whether the process was still there to be killed, a while after its first checkpoint."""
    seen = lambda: path.stat().st_mtime_ns if path.exists() else 0
    before = seen()
    while seen() == before:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.005)
    time.sleep(draw.uniform(0.0, 1.0))
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(path: Path, kills: int) -> None:
    draw = random.Random(0)
    ng.cache(path.parent / "programs")  # compiled once for all of them
    while kills:
        if killed(start(path), path, draw):
            kills -= 1
        else:
            path.unlink()
    os.waitpid(start(path), 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
