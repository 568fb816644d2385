"""One run of a method: its stages, what it found, what it spent; kept on disk on the way."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from natgrad import Progress, Result
from natgrad.descent.progress import label_runs

from .experiment import Experiment
from .methods import Method

FRAMES = 12  # at most so many models of a run are kept for the report


@dataclass(frozen=True)
class Run:
    """The end of a run and its history, one entry per iterate; propagations accumulate.

    `loss` is relative to the start's, and NaN in the stages that minimise something else.
    """

    method: Method
    status: str
    iterations: int
    propagations: np.ndarray
    loss: np.ndarray
    similarity: np.ndarray
    forward: int
    linearised: int
    adjoint: int
    seconds: float
    velocity: np.ndarray
    frames: list[tuple[int, np.ndarray]]  # the velocity after some numbers of propagations

    @property
    def total(self) -> int:
        """All propagations."""
        return self.forward + self.linearised + self.adjoint

    def at(self, propagations: int) -> tuple[float, float] | None:
        """Loss and similarity of the last iterate within so many propagations."""
        within = np.flatnonzero(self.propagations <= propagations)
        if not within.size:
            return None
        return float(self.loss[within[-1]]), float(self.similarity[within[-1]])

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        return {
            "name": self.method.name,
            "status": self.status,
            "iterations": self.iterations,
            "forward": self.forward,
            "linearised": self.linearised,
            "adjoint": self.adjoint,
            "seconds": self.seconds,
            "propagations": self.propagations,
            "loss": self.loss,
            "ssim": self.similarity,
        }


def run(method: Method, experiment: Experiment, folder: Path) -> Run:
    """From the start through the stages to the whole data, resumed where it was interrupted."""
    settings = experiment.settings
    first = [("transport", None, True)] if settings.misfit == "transport" else []
    bands = [(f"band{number}", band, False) for number, band in enumerate(settings.bands, 1)]
    stages = [*first, *bands, (None, None, False)]
    share = settings.max_propagations // len(stages)
    theta, spent = experiment.theta0, 0
    results, rows, frames = [], [], []
    for stage, band, transport in stages:
        name = method.key if stage is None else f"{method.key}-{stage}"
        log = Log(folder / f"{name}.csv", experiment)
        with label_runs(method.name if stage is None else f"{method.name}, {stage}"):
            found = method.run(
                experiment.problem(band, transport),
                theta,
                settings.krylov,
                settings.batch,
                bounds=experiment.bounds,
                max_iterations=10**6,
                max_propagations=settings.max_propagations - spent if stage is None else share,
                callbacks=[log],
                checkpoint=folder / f"{name}.npz",
                snapshots=max(2, FRAMES // len(stages)),
            )
        rows += log.rows(found, theta, spent)
        frames += _frames(found, experiment, spent)
        results.append(found)
        theta, spent = found.theta, spent + _propagations(found)[-1]
    return _told(method, experiment, results, rows, frames)


class Log:
    """Loss and similarity of every iterate, a line in a file each, so that none is lost."""

    def __init__(self, path: Path, experiment: Experiment):
        self.path, self.experiment = path, experiment
        self._known = self._read()

    def __call__(self, progress: Progress) -> None:
        """The callback of a run."""
        seen = self.experiment.similarity(self.experiment.velocity(progress.theta))
        self._known[progress.iteration] = seen
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow((progress.iteration, repr(seen)))

    def rows(self, found: Result, theta0: Any, spent: int) -> list[tuple[float, float, float]]:
        """(propagations, loss, similarity) of every iterate."""
        start = self.experiment.similarity(self.experiment.velocity(theta0))
        losses, total = found.history["loss"], spent + _propagations(found)
        seen = [self._known.get(i, np.nan) if i else start for i in range(len(losses))]
        return list(zip(total.tolist(), losses.tolist(), seen, strict=True))

    def _read(self) -> dict[int, float]:
        if not self.path.exists():
            return {}
        with self.path.open(newline="") as file:
            whole = [row for row in csv.reader(file) if len(row) == 2]  # not one cut off
        return {int(number): float(seen) for number, seen in whole}


def _propagations(found: Result) -> np.ndarray:
    return found.spent("propagations").astype(int)


def _frames(found: Result, experiment: Experiment, spent: int) -> list[tuple[int, np.ndarray]]:
    """The iterates that a stage has kept, by what had been spent until them."""
    total = spent + _propagations(found)
    return [(int(total[i]), experiment.velocity(theta)) for i, theta in found.iterates.items()]


def _told(
    method: Method, experiment: Experiment, results: list[Result], rows: list[Any], frames: Any
) -> Run:
    last = results[-1]
    total, losses, seen = (np.array(column) for column in zip(*rows, strict=True))
    whole = len(losses) - len(last.history["loss"])
    losses[:whole] = np.nan  # of other data
    counts = {
        name: int(sum(found.history[name][-1] for found in results))
        for name in ("forward", "linearised", "adjoint")
    }
    return Run(
        method=method,
        status=str(last.status),
        iterations=sum(found.iterations for found in results),
        propagations=total,
        loss=losses / experiment.first_loss,
        similarity=seen,
        **counts,
        seconds=sum(float(found.history["seconds"][-1]) for found in results),
        velocity=experiment.velocity(last.theta),
        frames=frames,
    )
