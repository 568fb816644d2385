"""The study: every problem by every method from every seed, errors over seconds."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.descent import Progress, label_runs, show_run
from natgrad.report import ResultFolder, plain, replace_file

from ..clock import CompilingClock, Trace
from ..keeping import Kept
from ..processes import Crew, make_portable
from ..running import Say, pick
from .case import Case, Field, Reference, Theta, relative_error
from .methods import TRAIN, Task
from .problems import CASES
from .rla_pinns import run_rla_pinns
from .settings import Settings

GROWTH, APART = 1.03, 0.02  # errors are taken at seconds that grow by this factor, and this apart


# --- one run --------------------------------------------------------------------------------------


@dataclass
class ErrorTrace(Trace):
    """Errors now and then, of all legs of a run; each ends with its share of the seconds."""

    case: Case
    reference: Reference
    errors: list[float] = field(default_factory=list)
    done: list[np.ndarray] = field(default_factory=list)  # the values in finished windows
    _leg: int = 0
    _loss: float = float("nan")
    _first: float = 0.0  # the seconds of the first iteration, which compiles
    _next: float = 0.0

    def begin(self, leg: int, theta: Theta) -> None:
        """Get ready for a leg, and let the clock run."""
        part = self.case.part(self.reference, leg)
        points = jnp.asarray(part.points.reshape(-1, part.points.shape[-1]))
        shape, many = part.values.shape, self.case.outputs > 1

        def evaluate(theta: Theta) -> Array:
            found = jax.vmap(Field(self.case, theta))(points)
            return (found[:, : shape[-1]] if many else found).reshape(shape)

        self._leg, self._values = leg, jax.jit(evaluate)
        self._values(theta)  # compiled off the clock
        if leg == 0:
            self._write(theta)
        self.clock.go()

    @property
    def limit(self) -> float:
        """When the leg is to end: all have equal time, not counting the run's first iteration."""
        self._first = self._first or self.clock.spent
        return self._first + (self.budget - self._first) * (self._leg + 1) / self.case.legs

    def note(self, progress: Progress, over: bool) -> float:
        self._loss = float(progress.loss)
        if over or self.clock.spent >= self._next:
            self._write(progress.theta)
        return self._loss

    def end(self, theta: Theta) -> None:
        """A leg is over, by the clock or by itself."""
        self.clock.stop()
        self._write(theta)
        if self.case.windows:
            self.done = [self.values(theta)]

    def values(self, theta: Theta) -> np.ndarray:
        """The solution at the points of the reference, in all windows so far."""
        return np.concatenate([*self.done, np.asarray(self._values(theta))])

    def _write(self, theta: Theta) -> None:
        self.seconds.append(self.clock.spent)
        self.losses.append(self._loss)
        self.errors.append(self._error(theta))
        self._next = max(self.clock.spent * GROWTH, self.clock.spent + APART)

    def _error(self, theta: Theta) -> float:
        """Of the solution, zero in windows not yet reached, or of the unknown coefficients."""
        if self.case.truth:
            found = Field(self.case, theta).unknown
            return max(abs(float(found[k]) / true - 1) for k, true in self.case.truth.items())
        found, truth = self.values(theta), self.reference.values
        whole = np.concatenate([found, np.zeros_like(truth[len(found) :])])
        return relative_error(whole, truth)


@dataclass(frozen=True)
class Run:
    """The errors of one run, and where it ended."""

    problem: str
    method: str
    seed: int
    status: str
    seconds: np.ndarray
    errors: np.ndarray
    losses: np.ndarray
    iterations: int
    compiling: float  # of the seconds
    parameters: int
    residuals: int
    device: str
    values: np.ndarray  # at the points of the reference, at the end

    @property
    def error(self) -> float:
        """At the end."""
        return float(self.errors[-1])

    @property
    def lowest(self) -> float:
        """The lowest error on the way, of which a user would not know."""
        return float(np.nanmin(self.errors))

    def within(self, seconds: float) -> float:
        """The last error within so many seconds; NaN if there is none."""
        known = np.flatnonzero(self.seconds <= seconds)
        return float(self.errors[known[-1]]) if known.size else float("nan")

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        names = ("problem", "method", "seed", "status", "error", "lowest", "iterations")
        more = ("compiling", "parameters", "residuals", "device", "seconds", "errors", "losses")
        return pick(self, *names, *more)


def run_one(case: Case, reference: Reference, method: str, seed: int, settings: Settings) -> Run:
    """Train from a seed until the seconds are spent, compilation included."""
    pinn, theta = case.collocation(seed), case.start(seed)
    points = {name: block.points for name, block in pinn.blocks.items()}
    period = case.period if settings.period < 0 else settings.period
    budget = settings.seconds * case.share
    label = label_runs(f"{case.key}, {method}, seed {seed}")
    status, before, result = "", None, None
    with label, show_run(ng.Stop(seconds=budget)) as watch, CompilingClock() as clock:
        trace = ErrorTrace(budget, clock, watch, case, reference)
        for leg in range(case.legs):
            moved = case.advance(leg, points, before)
            change = lambda points, leg=leg, before=before: case.advance(leg, points, before)
            draw = case.draws(change, settings.adaptive if method == "LM" else 0)
            batch = ng.Resampled(draw, period, seed) if period else None
            trace.begin(leg, theta)
            task = Task(case, pinn.at(moved), theta, batch, seed, settings, trace, result)
            theta, status, result = TRAIN[method](task)
            trace.end(theta)
            before = Field(case, theta)
    return Run(
        problem=case.key,
        method=method,
        seed=seed,
        status="max_seconds" if status == "stopped" else status,
        seconds=np.array(trace.seconds),
        errors=np.array(trace.errors),
        losses=np.array(trace.losses),
        iterations=trace.iterations,
        compiling=clock.compiling,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(theta)),
        residuals=sum(block.count for block in case.blocks.values()),
        device=jax.devices()[0].device_kind,
        values=trace.values(theta) if not case.windows else trace.done[0],
    )


def run_elsewhere(case: Case, reference: Reference, seed: int, settings: Settings) -> Run:
    """rla-pinns on its own problem; its errors made relative."""
    assert settings.rla_pinns is not None
    rows = run_rla_pinns(settings.rla_pinns, case.key, seed, settings.seconds * case.share)
    steps, losses, errors, seconds = np.array(rows).T
    return Run(
        problem=case.key,
        method="rla-pinns",
        seed=seed,
        status="max_seconds",
        seconds=seconds,
        errors=errors / np.sqrt(np.mean(reference.values**2)),
        losses=losses,
        iterations=int(steps[-1]),
        compiling=0.0,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(case.start(seed))),
        residuals=sum(block.count for block in case.blocks.values()),
        device=jax.devices()[0].device_kind,
        values=np.empty(0),
    )


# --- the whole study ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    cases: dict[str, Case]
    references: dict[str, Reference]
    runs: list[Run]

    def of(self, problem: str, method: str) -> list[Run]:
        """The runs of one method on one problem, one a seed."""
        return [run for run in self.runs if (run.problem, run.method) == (problem, method)]

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {"runs": [run.numbers() for run in self.runs]}


KEPT = (Run, Reference)
MAY_DIFFER = (
    *("preset", "output", "problems", "methods", "seeds", "jax_ng", "rla_pinns", "parts"),
    *("within", "workers"),
)
MARGIN = 20.0  # seconds of a run that are not counted: references, errors, the start


def take_up(settings: Settings, kept: Kept) -> None:
    """Copy the finished runs of other folders; `InputError` for one with other settings."""
    for folder in settings.parts:
        study, found = ResultFolder(folder).origin()
        wanted = plain(settings)
        other = [k for k in wanted if k not in MAY_DIFFER and found.get(k) != wanted[k]]
        if study != "records" or other:
            what = f"{folder} is of the study {study}" + (
                f" with another {other[0]}" if other else ""
            )
            raise ng.InputError("parts", what, "folders of this study with the same settings")
        for path in sorted((folder / "runs").glob("*.npz")):
            target = kept.path(path.stem)
            if target is not None and not target.exists():
                replace_file(target, path.read_bytes())


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of references and finished runs.

    Runs that do not fit into the time of this call are left out.
    """
    began = perf_counter()
    if settings.workers > 1:  # before the first use of a GPU, all of whose memory JAX would take
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    take_up(settings, kept)
    cases = {key: make_case(key, settings) for key in settings.problems}
    made = lambda key: kept.part(f"{key}-reference", cases[key].reference)
    apart = settings.workers > 1 and kept.folder is not None
    references = {key: made(key) for key in cases} if apart else {}
    names = [
        (key, method, seed)
        for key in cases
        for method in filter(partial(settings.runs, key), settings.methods)
        for seed in settings.seeds
    ]
    failed = run_in_processes(settings, kept.folder, names) if apart else {}
    for (key, method, seed), error in failed.items():
        what = f"{type(error).__name__}: {error}"
        say(f"{cases[key].title}, {method}, seed {seed} has failed: {what}")
    if failed and len(failed) == len(names):
        raise next(iter(failed.values()))
    runs: list[Run] = []
    for key, method, seed in [name for name in names if name not in failed]:
        references[key] = references[key] if key in references else made(key)
        path = kept.path(f"{key}-{method}-{seed}")
        ends = perf_counter() - began + settings.seconds * cases[key].share + MARGIN
        if ends > settings.within and not (path is not None and path.exists()):
            continue
        run = run_or_read(settings, kept, references[key], key, method, seed)
        runs.append(run)
        say(
            f"{cases[key].title}, {method}, seed {seed}: error {run.error:.2e} (lowest "
            f"{run.lowest:.2e}), loss {run.losses[-1]:.2e}, {run.iterations:,} iterations "
            f"in {run.seconds[-1]:.1f} s, {run.compiling:.1f} of them to compile "
            f"({run.status})"
        )
    if missing := len(names) - len(runs):
        say(f"{missing} of {len(names)} runs are left: the same command goes on with them")
    done = {run.problem for run in runs}
    cases = {key: case for key, case in cases.items() if key in done}
    return StudyResult(settings, cases, references, runs)


def make_case(key: str, settings: Settings) -> Case:
    """The problem at the size that is asked for."""
    return CASES[key]().scaled(settings.points, settings.width)


def run_or_read(
    settings: Settings, kept: Kept, reference: Reference, key: str, method: str, seed: int
) -> Run:
    """One run, from its file if it is there."""
    make = partial(run_one, make_case(key, settings), reference, method, seed, settings)
    if method == "rla-pinns":
        make = partial(run_elsewhere, make_case(key, settings), reference, seed, settings)
    return kept.part(f"{key}-{method}-{seed}", make)


# --- several at once ------------------------------------------------------------------------------


Name = tuple[str, str, int]  # of a run: problem, method, seed


def run_in_processes(settings: Settings, folder: Any, names: list[Name]) -> dict[Name, Exception]:
    """Make the runs that are not there, in processes; all end in files but those returned.

    On a CPU each process has a core of its own, on an accelerator a share of it.
    """
    cores = sorted(os.sched_getaffinity(0)) if jax.default_backend() == "cpu" else []
    with Crew(begin, settings, folder, cores) as crew:
        crew.resize(min(settings.workers, len(names)))
        ended = crew.wait([crew.submit(crew.do, name) for name in names])
    return {name: error for name, error in zip(names, ended, strict=True) if error is not None}


def begin(
    number: int, settings: Settings, folder: Path, cores: list[int]
) -> Callable[[Name], Exception | None]:
    """In each process of a crew: what makes a run, and returns the exception that has ended it."""
    if cores:
        os.sched_setaffinity(0, {cores[number % len(cores)]})
        os.environ |= {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
        jax.config.update("jax_platforms", "cpu")

    def run(name: Name) -> Exception | None:
        try:
            run_alone(settings, folder, *name)
        except Exception as error:
            return make_portable(error)
        return None

    return run


def run_alone(settings: Settings, folder: Path, key: str, method: str, seed: int) -> None:
    """One run, which ends in a file; the reference is there."""
    kept = Kept(folder, *KEPT)
    reference = kept.part(f"{key}-reference", make_case(key, settings).reference)
    run_or_read(settings, kept, reference, key, method, seed)
