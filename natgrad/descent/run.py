"""Iterates kept on the way, spread evenly over a run of any length."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.sharding import take_local
from ..devices import ALONE
from ..errors import InputError
from ..parameters import flatten
from ..result import Info, Result, Status
from .attempt import Attempt
from .checkpoint import restored
from .stop import Budget, check_amount

FEW_PARAMETERS = 16  # every iterate is kept unasked, for plots of paths
MANY = 1000


class Snapshots:
    """At most `most` iterates θ: once there are more, every other one is dropped.

    Cost: `most` vectors like θ on the host, and in the checkpoint.
    """

    def __init__(self, most: int):
        self.most, self.every = most, 1
        self.kept: dict[int, np.ndarray] = {}

    @classmethod
    def of(cls, asked: int | None, theta: PyTree) -> "Snapshots":
        """As asked of `minimize`, with θ₀ as the first."""
        flat = flatten(theta)[0]
        if asked is None:
            asked = MANY if flat.size <= FEW_PARAMETERS else 0
        if isinstance(asked, bool) or not isinstance(asked, (int, np.integer)) or asked < 0:
            raise InputError("snapshots", f"{asked!r} is no number of iterates", "20, or None")
        found = cls(int(asked))
        found.note(0, flat)
        return found

    def note(self, iterate: int, flat: Any) -> None:
        """Keep this iterate if it is one of those wanted."""
        if self.most == 0 or iterate % self.every:
            return
        self.kept[iterate] = np.asarray(flat)
        while len(self.kept) > self.most:
            self.every *= 2
            self.kept = {i: x for i, x in self.kept.items() if i % self.every == 0}

    def iterates(self, last: int, theta: PyTree) -> dict[int, PyTree]:
        """Those kept by their place in the history, and the last, in the structure of θ."""
        if self.most == 0:
            return {}
        unravel = flatten(theta)[1]
        return {i: unravel(jnp.asarray(x)) for i, x in self.kept.items() if i < last} | {
            last: theta
        }

    def packed(self) -> tuple[list[int], list[np.ndarray]]:
        """Numbers and vectors, for a checkpoint."""
        return list(self.kept), list(self.kept.values())

    def restore(self, numbers: Sequence[int], vectors: Sequence[np.ndarray]) -> None:
        """Take up what a checkpoint has."""
        for number, vector in zip(numbers, vectors, strict=True):
            self.note(number, vector)


def check_run(
    max_iterations: int,
    max_propagations: int | None,
    max_seconds: float | None,
    callbacks: Sequence[Callable],
) -> None:
    """Raise `InputError` for limits or callbacks that make no sense."""
    check_amount("max_propagations", max_propagations)
    check_amount("max_seconds", max_seconds)
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
        self.distribution = ALONE

    def spent(self, budget: Budget) -> Status | None:
        """Which budget is used up, other than the iterations, if one is."""
        seconds = self.elapsed()
        if budget.seconds is not None:
            seconds = float(self.distribution.agreed(seconds))  # clocks differ
        return budget.spent(sum(map(int, self.counts)), seconds)

    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def continue_from(self, seconds: float) -> None:
        """Let the clock stand at so many seconds now."""
        self._start = time.perf_counter() - seconds

    def snapshot(self) -> dict[str, Any]:
        """All of it, in plain values."""
        table = [[row[name] for name in self.columns] for row in self.rows]
        counts = [int(count) for count in self.counts]
        return {
            "columns": list(self.columns),
            "rows": [[None if np.isnan(x) else float(x) for x in row] for row in table],
            "counts": counts,
            "accepted": self.accepted,
            "seconds": self.elapsed(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up a snapshot."""
        numbers = lambda row: [np.nan if x is None else x for x in row]
        self.rows = [
            dict.fromkeys(self.columns, np.nan)
            | dict(zip(saved["columns"], numbers(row), strict=True))
            for row in saved["rows"]
        ]
        self.counts, self.accepted = Counts(*saved["counts"]), saved["accepted"]
        self.continue_from(saved["seconds"])

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


class Carried(NamedTuple):
    """What one iteration hands to the next besides θ.

    `first_norm` is the gradient norm that tolerances refer to, `memory` what the solver remembers,
    `previous` the last direction where there is momentum.
    """

    damping_state: Array
    first_norm: np.ndarray
    memory: PyTree
    previous: Array | None


@dataclass
class Run:
    """The last good θ of a run, its history, and what the next iteration starts from."""

    theta: PyTree
    loss: float = float("nan")
    info: Info | None = None
    recorder: Recorder = field(default_factory=Recorder)
    iteration: int = 0  # the next
    agreeing: int = 0  # selections in a row that would end the run
    carried: Carried | None = None
    snapshots: Snapshots = field(default_factory=lambda: Snapshots(0))

    def snapshot(self, status: Status | None) -> tuple[dict[str, Any], PyTree]:
        """The run in plain values and arrays."""
        values = {
            "iteration": self.iteration,
            "agreeing": self.agreeing,
            "loss": self.loss,
            "status": None if status is None else str(status),
            "info": None if self.info is None else asdict(self.info),
            "history": self.recorder.snapshot(),
        }
        numbers, vectors = self.snapshots.packed()
        return values | {"snapshots": numbers}, (self.theta, self.carried, vectors)

    def restore(self, values: dict[str, Any], leaves: dict[str, Any]) -> Status | None:
        """Take up a snapshot; returns why the run had ended, if it had."""
        numbers = values.get("snapshots", [])  # none in older files
        vectors = [leaves.pop(f"[2][{place}]") for place in range(len(numbers))]
        self.theta, self.carried = restored((self.theta, self.carried), leaves)
        self.snapshots.restore(numbers, vectors)
        self.iteration, self.agreeing = values["iteration"], values["agreeing"]
        self.loss = values["loss"]
        self.info = Info.restored(values["info"])
        self.recorder.restore(values["history"])
        return None if values["status"] is None else Status(values["status"])

    def result(self, status: Status) -> Result:
        """What the caller gets."""
        recorder, taken = self.recorder, self.recorder.accepted
        if not recorder.rows or recorder.rows[-1]["step"] > 0:  # which led to a point not recorded
            recorder.begin(self.loss, np.nan)
        recorder.close()
        theta, loss, history = take_local(self.theta), float(self.loss), recorder.history()
        iterates = self.snapshots.iterates(len(recorder.rows) - 1, theta)
        return Result(theta, loss, status, taken, history, self.info, iterates)

    @contextmanager
    def kept_if_it_fails(self) -> Iterator[None]:
        """An exception passes, with the result until then as its attribute `natgrad_result`."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            error.natgrad_result = self.result(Status.FAILED)  # pyright: ignore
            raise
