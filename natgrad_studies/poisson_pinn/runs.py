"""One run of a method: losses against iterations and CPU seconds."""

from dataclasses import dataclass, field
from time import process_time
from typing import Any

import numpy as np

from natgrad import Budget, Progress
from natgrad.descent.progress import Watch, label_runs, show_run

from .methods import Method
from .network import Theta
from .pinn import Pinn

SHARES = (0.25, 0.5, 1.0)  # of the seconds: where losses and errors are compared
COMPILING = 2  # iterations that a method makes before its clock runs
UNLIMITED = 10**9
OWN_ENDS = ("no_decrease", "not_finite", "inadmissible", "not_descent", "precision", "converged")


@dataclass
class Trace:
    """What a run's callback writes down, off the clock; it ends the run with its seconds."""

    pinn: Pinn
    whole: bool
    budget: float
    watch: Watch
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    best: tuple[float, Theta | None] = (np.inf, None)
    marks: list[tuple[float, float]] = field(default_factory=list)  # loss and error at the shares
    _spent: float = 0.0
    _clock: float = field(default_factory=process_time)

    def begin(self) -> None:
        """The start of the run, before its clock runs."""
        self._write(self.pinn.loss(self.pinn.start), self.pinn.start)
        self._clock = process_time()

    def __call__(self, progress: Progress) -> bool:
        self._spent += process_time() - self._clock
        loss = progress.loss if self.whole else self.pinn.loss(progress.theta)
        self._write(loss, progress.theta)
        self.watch.update(progress.iteration, loss, progress.row)
        self._clock = process_time()
        return self._spent >= self.budget

    def _write(self, loss: float, theta: Theta) -> None:
        self.losses.append(loss)
        self.seconds.append(self._spent)
        if loss < self.best[0]:
            self.best = loss, theta
        reached = sum(self._spent >= share * self.budget for share in SHARES)
        self._mark(reached)

    def _mark(self, count: int) -> None:
        """The loss and the error of the best iterate, for each share of the time just reached."""
        loss, theta = self.best
        if len(self.marks) < count and theta is not None:
            self.marks += [(loss, self.pinn.error(theta))] * (count - len(self.marks))

    def end(self) -> None:
        """A run that ended early stays where it is."""
        self._mark(len(SHARES))


@dataclass(frozen=True)
class Run:
    """The end of a run and its history, one entry per iterate, the start first."""

    method: Method
    status: str
    losses: np.ndarray
    seconds: np.ndarray  # of the CPU, without compiling
    marks: list[tuple[float, float]]
    theta: Theta  # where the loss was lowest
    error: float

    @property
    def iterations(self) -> int:
        """The steps that were taken."""
        return len(self.losses) - 1

    @property
    def final(self) -> float:
        """The lowest loss."""
        return float(self.losses.min())

    @property
    def seconds_per_iteration(self) -> float:
        """The mean."""
        return float(self.seconds[-1] / max(self.iterations, 1))

    @property
    def ended_by_itself(self) -> bool:
        """Whether it found no further step, rather than the end of its budget."""
        return self.status in OWN_ENDS

    def after(self, iterations: int) -> float:
        """The lowest loss within so many iterations."""
        return float(self.losses[: iterations + 1].min())

    def within(self, seconds: float) -> float:
        """The lowest loss within so many CPU seconds."""
        return float(self.losses[self.seconds <= seconds].min())

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        return {
            "name": self.method.name,
            "status": self.status,
            "iterations": self.iterations,
            "loss": self.final,
            "relative_error": self.error,
            "cpu_seconds": self.seconds[-1],
            "loss_and_error_at_shares_of_the_time": self.marks,
            "losses": self.losses,
            "seconds": self.seconds,
        }


def run(method: Method, pinn: Pinn) -> Run:
    """From θ₀ until the seconds are spent. Some iterations before that compile, uncounted."""
    settings = pinn.settings
    most = UNLIMITED if method.cheap else settings.max_iterations
    method.run(pinn, lambda progress: False, COMPILING)
    pinn.error(pinn.start)  # compiled before the clock runs
    with label_runs(method.name), show_run(Budget(seconds=settings.seconds)) as watch:
        trace = Trace(pinn, method.whole, settings.seconds, watch)
        trace.begin()
        status = method.run(pinn, trace, most)
    trace.end()
    theta = trace.best[1]
    assert theta is not None
    stopped = status == "stopped"
    return Run(
        method=method,
        status="max_seconds" if stopped else str(status),
        losses=np.array(trace.losses),
        seconds=np.array(trace.seconds),
        marks=trace.marks,
        theta=theta,
        error=pinn.error(theta),
    )
