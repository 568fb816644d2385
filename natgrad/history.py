"""A run under construction: where it stands, its history, and what it may spend."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .attempt import Attempt
from .counts import Counts
from .errors import InputError
from .result import Info, Result, Status

PyTree = Any


def check_run(max_iterations: int, callbacks: Sequence[Callable]) -> None:
    """Raise `InputError` for a number of iterations or for callbacks that make no sense."""
    if not isinstance(max_iterations, (int, np.integer)) or max_iterations < 1:
        raise InputError("max_iterations", f"{max_iterations!r} is no positive integer", "100")
    if not all(callable(callback) for callback in callbacks):
        raise InputError("callbacks", "are not all callable", "callbacks=[function]")


class Recorder:
    """The history under construction: one row per iterate."""

    columns = (
        *("loss", "gradient_norm", "step", "step_norm", "damping", "halvings", "ratio"),
        *("rank", "condition", "solver_iterations", "reachable", "decreased"),
        *("seconds", "forward", "linearised", "adjoint"),
    )

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.counts = Counts(0, 0, 0)
        self.accepted = 0
        self._start = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def count(self, forward: Any = 0, linearised: Any = 0, adjoint: Any = 0) -> None:
        more = (int(forward), int(linearised), int(adjoint))
        self.counts = Counts(*(a + b for a, b in zip(self.counts, more, strict=True)))

    def begin(self, loss: float, gradient_norm: float) -> None:
        row = dict.fromkeys(self.columns, np.nan)
        row |= {"loss": loss, "gradient_norm": gradient_norm, "seconds": self.elapsed()}
        self.rows.append(row | self.counts._asdict())

    def finish(self, trial: Attempt, decreased: bool) -> None:
        outcome, info = trial.outcome, trial.info
        accepted = bool(outcome.accepted)
        self.accepted += accepted
        self.rows[-1] |= {
            "step": float(outcome.tau) if accepted else 0.0,
            "step_norm": float(trial.step_norm) if accepted else 0.0,
            "damping": float(trial.damping),
            "halvings": float(outcome.halvings),
            "ratio": float(outcome.ratio),
            "rank": float(info.rank),
            "condition": float(info.condition),
            "solver_iterations": float(info.iterations),
            "reachable": float(trial.reach),
            "decreased": float(decreased),
        }

    def close(self) -> None:
        """Give the last row what was spent on it: no later row will tell."""
        self.rows[-1] |= self.counts._asdict() | {"seconds": self.elapsed()}

    def last(self) -> dict[str, float]:
        return dict(self.rows[-1])

    def history(self) -> dict[str, np.ndarray]:
        return {name: np.array([row[name] for row in self.rows]) for name in self.columns}


class Budget(NamedTuple):
    """What a run may spend."""

    iterations: int
    propagations: int | None
    seconds: float | None

    def spent(self, recorder: Recorder) -> Status | None:
        """Which budget is used up, other than the iterations, if one is."""
        if self.propagations is not None and sum(recorder.counts) >= self.propagations:
            return Status.MAX_PROPAGATIONS
        if self.seconds is not None and recorder.elapsed() >= self.seconds:
            return Status.MAX_SECONDS
        return None


@dataclass
class Run:
    """The last good θ of a run and its history."""

    theta: PyTree
    loss: float = float("nan")
    info: Info | None = None
    recorder: Recorder = field(default_factory=Recorder)

    def result(self, status: Status) -> Result:
        """What the caller gets."""
        recorder, taken = self.recorder, self.recorder.accepted
        if not recorder.rows or recorder.rows[-1]["step"] > 0:  # which led to a point not recorded
            recorder.begin(self.loss, np.nan)
        recorder.close()
        return Result(self.theta, float(self.loss), status, taken, recorder.history(), self.info)

    @contextmanager
    def kept_if_it_fails(self) -> Iterator[None]:
        """An exception passes, with the result until then as its attribute `natgrad_result`."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            error.natgrad_result = self.result(Status.FAILED)  # pyright: ignore
            raise
