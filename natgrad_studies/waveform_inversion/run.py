"""The study: every method through its stages, what it found and what it spent."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from natgrad import InputError, MiniBatch, Result, Stop
from natgrad.descent import Progress
from natgrad.report import replace_file
from natgrad.waves import WaveModel

from ..keeping import Kept
from ..methods import minimize, one_by_one
from ..processes import Crew
from ..running import Say, Spending, pick
from .methods import METHODS, Method
from .problem import Experiment
from .settings import SIDE_BY_SIDE, Settings

HELD = 4  # times what a run stores of its waves: at θ, for a trial step, and as much for the rest
# In this order they start on a GPU: the long ones first, so that none of them is left for the end,
# but for two that compile quickly and compute meanwhile.
STARTING_ORDER = ("W2", "LBFGS_long", "LBFGS", "GD", "L2_five", "L2", "H1", "Hm1")
FRAMES = 12  # at most so many models of a run are kept for the report


@dataclass(frozen=True)
class Run(Spending):
    """The end of a run and its history, one entry per iterate; propagations accumulate.

    `loss` is relative to the start's, and NaN in the stages that minimise something else.
    """

    method: Method
    status: str
    iterations: int
    propagations: np.ndarray
    loss: np.ndarray
    similarity: np.ndarray
    seconds: float
    velocity: np.ndarray
    frames: list[tuple[int, np.ndarray]]  # the velocity after some numbers of propagations

    def at(self, propagations: int) -> tuple[float, float] | None:
        """Loss and similarity of the last iterate within so many propagations."""
        within = np.flatnonzero(self.propagations <= propagations)
        if not within.size:
            return None
        return float(self.loss[within[-1]]), float(self.similarity[within[-1]])

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        spent = pick(self, "status", "iterations", "forward", "linearised", "adjoint", "seconds")
        history = pick(self, "propagations", "loss") | {"ssim": self.similarity}
        return {"name": self.method.name} | spent | history


def run_method(method: Method, experiment: Experiment, folder: Path) -> Run:
    """From the start through the stages to the whole data, resumed where it was interrupted.

    The stages, of which only the last has the whole data, share the propagations: each has an equal
    part of what those before it have left. A transport misfit brings its own metric. The losses are
    not yet relative to the start's, which one process finds for all.
    """
    settings = experiment.settings
    first = [("transport", None, True)] if settings.misfit == "transport" else []
    bands = [(f"band{number}", band, False) for number, band in enumerate(settings.bands, 1)]
    stages = [*first, *bands, ("", None, False)]
    theta, spent = experiment.theta0, 0
    results, rows, frames = [], [], []
    for place, (stage, band, transport) in enumerate(stages):
        file = folder / "-".join(filter(None, (method.key, stage)))
        log = Log(file.with_suffix(".csv"), experiment)
        problem = experiment.problem(band, transport)
        own = problem.loss.metric() if transport else None
        descent = method.recipe(experiment.shots.survey, own)()
        batch = {"batch": MiniBatch(settings.batch, of="functions")} if settings.batch else {}
        found = minimize(
            *(problem, theta, descent),
            name=", ".join(filter(None, (method.name, stage))),
            bounds=experiment.bounds,
            stop=Stop(
                iterations=10**6,
                propagations=max(0, settings.max_propagations - spent) // (len(stages) - place),
                gradient=0.0,
            ),
            callbacks=[log],
            checkpoint=file.with_suffix(".npz"),
            snapshots=max(2, FRAMES // len(stages)),
            **batch,
        )
        rows += log.rows(found, theta, spent)
        frames += _frames(found, experiment, spent)
        results.append(found)
        theta, spent = found.theta, spent + _propagations(found)[-1]
    return _describe(method, experiment, results, rows, frames)


class Log:
    """The similarity of every iterate, a line for each in a file that grows.

    The checkpoint follows the callbacks, so that the file has every iterate of it. A last line that
    was cut off, when the process was killed, is of none, and is removed.
    """

    def __init__(self, path: Path, experiment: Experiment):
        self.path, self.experiment = path, experiment
        self._known = self._read()

    def __call__(self, progress: Progress) -> None:
        """The callback of a run."""
        seen = self.experiment.similarity(self.experiment.velocity(progress.theta))
        self._known[progress.iteration] = float(seen)
        with self.path.open("a") as file:
            file.write(f"{progress.iteration},{float(seen)!r}\n")

    def rows(self, found: Result, theta0: Any, spent: int) -> list[tuple[float, float, float]]:
        """(propagations, loss, similarity) of every iterate."""
        start = self.experiment.similarity(self.experiment.velocity(theta0))
        losses, total = found.history["loss"], spent + _propagations(found)
        seen = [self._known.get(i, np.nan) if i else start for i in range(len(losses))]
        return list(zip(total.tolist(), losses.tolist(), seen, strict=True))

    def _read(self) -> dict[int, float]:
        if not self.path.exists():
            return {}
        try:
            whole, _, cut = self.path.read_text().rpartition("\n")
            if cut:
                replace_file(self.path, f"{whole}\n".encode() if whole else b"")
            rows = [line.split(",") for line in whole.splitlines()]
            return {int(iteration): float(seen) for iteration, seen in rows}
        except ValueError as error:
            what = f"{self.path} is damaged ({error})"
            advice = "deleting it: the run goes on, without the similarities until now"
            raise InputError("output", what, advice) from error


def _propagations(found: Result) -> np.ndarray:
    return found.spent("propagations").astype(int)


def _frames(found: Result, experiment: Experiment, spent: int) -> list[tuple[int, np.ndarray]]:
    """The iterates that a stage has kept, by what had been spent until them."""
    total = spent + _propagations(found)
    return [(int(total[i]), experiment.velocity(theta)) for i, theta in found.iterates.items()]


def _describe(
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
        loss=losses,
        similarity=seen,
        **counts,
        seconds=sum(float(found.history["seconds"][-1]) for found in results),
        velocity=experiment.velocity(last.theta),
        frames=frames,
    )


# --- the whole study -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    experiment: Experiment
    runs: list[Run]
    workers: int  # so many ran at the same time

    def get(self, key: str) -> Run | None:
        """The run of a method, if it is among them."""
        return next((run for run in self.runs if run.method.key == key), None)

    @property
    def best(self) -> Run:
        """The run that ended with the smallest loss."""
        return min(self.runs, key=lambda run: float(run.loss[-1]))

    @property
    def start_similarity(self) -> float:
        """SSIM of the start with the true model."""
        return self.experiment.similarity(self.experiment.start)

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {
            "device": self.experiment.engine.place,
            "start_ssim": self.start_similarity,
            "runs": {run.method.key: run.numbers() for run in self.runs},
        }


def side_by_side(experiment: Experiment) -> int:
    """How many methods run at the same time: those asked for, or what a GPU has room for."""
    settings, most = experiment.settings, SIDE_BY_SIDE
    if settings.engine != "jax" or jax.default_backend() == "cpu":
        most = 1
    elif limit := (stats := jax.devices()[0].memory_stats() or {}).get("bytes_limit"):
        held = HELD * cast(WaveModel, experiment.whole.model).storage.bytes
        free = limit - stats.get("pool_bytes", 0)  # all is taken where JAX was in use before
        most = max(1, min(most, int(free // held)))
    return min(settings.workers or most, len(settings.methods))


def begin(_: int, settings: Settings, folder: Path) -> Callable[[str], Run]:
    """In each process of a crew: what runs a method by its key."""
    experiment = Experiment.of(settings)
    return lambda key: run_method(METHODS[key], experiment, folder)


KEPT = ()  # every run has its checkpoint


def compute(settings: Settings, say: Say, kept: Kept) -> StudyResult:
    """All numbers; every run keeps a checkpoint and a log in the folder."""
    folder = kept.folder or Path(settings.output) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    if settings.workers != 1 and len(settings.methods) > 1:
        # before the first use of a GPU, most of whose memory JAX would take for one process
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with Crew(begin, settings, folder) as crew:
        if (likely := settings.processes()) > 1:
            crew.resize(likely)  # before JAX has looked for devices
        experiment = Experiment.of(settings)
        stored = cast(WaveModel, experiment.whole.model).storage
        say(
            f"{' × '.join(map(str, experiment.true.shape))} cells, {settings.shots} shots on "
            f"{experiment.engine.place}, keeping {stored}"
        )
        workers = side_by_side(experiment)
        crew.resize(workers if workers > 1 else 0)

        def run(key: str) -> Run:
            alone = workers == 1
            found = run_method(METHODS[key], experiment, folder) if alone else crew.do(key)
            found = replace(found, loss=found.loss / experiment.first_loss)
            say(
                f"{found.method.name}: {found.total} propagations, f/f₀ {found.loss[-1]:.2e}, "
                f"SSIM {found.similarity[-1]:.3f}, {found.seconds:.1f} s"
            )
            return found

        if workers == 1:
            runs = [run(key) for key in one_by_one(settings.methods)]
            return StudyResult(settings, experiment, runs, workers)
        order = sorted(settings.methods, key=STARTING_ORDER.index)
        begun = {key: crew.submit(run, key) for key in one_by_one(order)}
        _ = experiment.first_loss  # while the others compute
        runs = crew.wait([begun[key] for key in settings.methods])
        return StudyResult(settings, experiment, runs, workers)
