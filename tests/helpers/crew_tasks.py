"""Tasks for the processes of a crew, by name; `python crew_tasks.py` has a crew that waits forever.

The latter prints the numbers of its processes.
"""

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import natgrad as ng
from natgrad.descent import Progress
from natgrad_studies.methods import minimize
from natgrad_studies.processes import Crew


class Unsendable(Exception):
    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")


def begin(_: int, folder: Path | None = None) -> Callable[[str], Any]:
    """What does a task, of this name."""
    if folder is not None and not folder.exists():
        raise ng.InputError("folder", "is not there", "another")

    def do(task: str) -> Any:
        if task == "refuse":
            raise ng.InputError("shots", "are none", "1")
        if task == "raise":
            raise Unsendable(1, 2)
        if task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if task.startswith("see "):
            return os.environ.get(task.removeprefix("see "))
        if task == "sleep":
            time.sleep(3600)
        return descend(10**6 if task == "endless" else 3, folder)

    return do


def descend(to: int, folder: Path | None) -> tuple[int, int, float]:
    """A run that takes its time; the number of the process, iterations and loss."""

    def pause(progress: Progress) -> None:
        time.sleep(0.02)
        if folder is not None and progress.iteration == 3:
            (folder / "three").touch()

    problem = ng.Problem(lambda theta: theta, ng.LeastSquares(jnp.ones(2)))
    found = minimize(
        *(problem, jnp.zeros(2), ng.GradientDescent(step=ng.FixedStep(1e-3))),
        name="descent",
        stop=ng.Stop(iterations=to, gradient=0.0),
        callbacks=[pause],
        checkpoint=None if folder is None else folder / "run.npz",
    )
    warnings.warn("digits are few", RuntimeWarning, stacklevel=1)
    return os.getpid(), found.iterations, found.loss


if __name__ == "__main__":
    with Crew(begin) as crew:
        crew.resize(2)
        print(*(worker.process.pid for worker in crew._workers), flush=True)
        crew.wait([crew.submit(crew.do, "sleep")])
