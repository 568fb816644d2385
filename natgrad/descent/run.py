"""A run under way: where it stands, what it has spent, what it keeps, and what is held out."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.archive import replace_leaves
from ..core.outcomes import Counts, Status
from ..core.settings import Public, check_instance, check_integer
from ..core.sharding import take_local
from ..devices import Devices
from ..direction.linearise import check_structure
from ..direction.local import Setup
from ..errors import InputError
from ..parameters import flatten
from ..problem import Problem
from ..result import Best, Info, Result
from .methods import Record, State

FEW_PARAMETERS = 16  # every iterate is kept unasked, for plots of paths
MANY = 1000
COLUMNS = (
    *("loss", "gradient_norm", "step", "step_norm", "damping", "halvings", "ratio"),
    *("predicted", "radius"),
    *("rank", "condition", "solver_iterations", "reachable", "decreased"),
    *("held_out", "seconds", "forward", "linearised", "adjoint"),
)


class Run:
    """The last good θ of a run with the state of its method, its history, and its clock.

    `iteration` is the number of iterations begun, `completed` of those that ended; `agreeing`
    counts the selections in a row that would end the run. `memory` is what a batch carries from
    one draw to the next; `judge` is the column whose smallest value the best iterate has.
    """

    def __init__(
        self, theta: PyTree, snapshots: "Snapshots", devices: Devices | None, judge: str | None
    ):
        self.theta, self.snapshots, self.devices, self.judge = theta, snapshots, devices, judge
        self.memory: PyTree = None
        self.best: Best | None = None
        self.held_out = float("nan")  # at the end
        self.state: State | None = None
        self.loss = float("nan")
        self.info: Info | None = None
        self.iteration = self.completed = self.agreeing = self.accepted = 0
        self.rows: list[dict[str, float]] = []
        self.counts = self.before = Counts(0, 0, 0)  # before the iteration that was begun last
        self.began = time.perf_counter()  # earlier for a resumed run

    def measure_seconds(self) -> float:
        """How long the run has taken; in every process what the leader's clock says."""
        seconds = time.perf_counter() - self.began
        return seconds if self.devices is None else float(self.devices.agree(seconds))

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """What is done inside takes none of the run's time."""
        start = time.perf_counter()
        yield
        self.began += time.perf_counter() - start

    def count(self, forward: Any = 0, linearised: Any = 0, adjoint: Any = 0) -> None:
        """Add to what was spent."""
        more = (int(forward), int(linearised), int(adjoint))
        self.counts = Counts(*(a + b for a, b in zip(self.counts, more, strict=True)))

    def begin(self, loss: float, gradient_norm: float, held_out: float = np.nan) -> None:
        """A new row of the history, for the point where the run stands, perhaps the best yet."""
        row = dict.fromkeys(COLUMNS, np.nan)
        row |= {
            "loss": loss,
            "gradient_norm": gradient_norm,
            "held_out": held_out,
            "seconds": time.perf_counter() - self.began,
        }
        self.rows.append(row | self.counts._asdict())
        value = np.nan if self.judge is None else row[self.judge]
        if value < (np.inf if self.best is None else self.best.loss):
            self.best = Best(self.theta, float(value), len(self.rows) - 1)

    def finish(self, record: Record) -> None:
        """Complete the row with the step that was taken from there, or tried."""
        accepted, info = bool(record.accepted), record.info
        self.accepted += accepted
        self.rows[-1] |= {
            "step": float(record.step) if accepted else 0.0,
            "step_norm": float(record.step_norm) if accepted else 0.0,
            "damping": float(record.damping),
            "halvings": float(record.halvings),
            "ratio": float(record.ratio),
            "predicted": float(record.expected),
            "radius": float(record.radius),
            "rank": float(info.rank),
            "condition": float(info.condition),
            "solver_iterations": float(info.iterations),
            "reachable": float(record.reach),
            "decreased": float(bool(record.value < self.rows[-1]["loss"])),
        }

    def take_back(self) -> None:
        """Undo an iteration that found nothing to do, and ended the run before a step was tried."""
        self.rows.pop()
        self.counts, self.agreeing = self.before, 0
        self.iteration = self.completed = self.iteration - 1

    def save(self, status: Status | None) -> Callable[[], tuple[dict[str, Any], PyTree]]:
        """How to have the run as it is now in plain values and arrays; most are never asked for."""
        rows = list(self.rows)  # no row changes once the iteration is over
        values = {
            "iteration": self.iteration,
            "agreeing": self.agreeing,
            "loss": self.loss,
            "status": None if status is None else str(status),
            "info": None if self.info is None else asdict(self.info),
            "columns": list(COLUMNS),
            "counts": [int(count) for count in self.counts],
            "before": [int(count) for count in self.before],
            "accepted": self.accepted,
            "seconds": time.perf_counter() - self.began,
            "snapshots": list(self.snapshots.kept),
            "best": None if self.best is None else [self.best.loss, self.best.iterate],
        }
        assert self.state is not None
        state = self.state.without_evaluation()
        best = None if self.best is None else self.best.theta
        kept = list(self.snapshots.kept.values())
        tree = (self.theta, state, kept, best, self.memory)
        plain = lambda x: None if np.isnan(x) else float(x)
        table = lambda: [[plain(row[name]) for name in COLUMNS] for row in rows]
        return lambda: (values | {"rows": table()}, tree)

    def restore(self, values: dict[str, Any], leaves: dict[str, Any]) -> Status | None:
        """Take up what was saved; returns why the run had ended, if it had."""
        assert self.state is not None
        for place, number in enumerate(values["snapshots"]):
            self.snapshots.note(number, jnp.asarray(leaves.pop(f"[2][{place}]")))
        best = None if values["best"] is None else self.theta
        like = (self.theta, self.state.without_evaluation(), [], best, self.memory)
        restored = replace_leaves(like, leaves, "checkpoint")
        self.theta, self.state, _, best, self.memory = restored
        self.best = None if values["best"] is None else Best(best, *values["best"])
        self.iteration = self.completed = int(values["iteration"])
        self.agreeing, self.accepted = int(values["agreeing"]), int(values["accepted"])
        self.loss = float(values["loss"])
        self.info = Info.restore(values["info"])
        fill = lambda row: [np.nan if x is None else float(x) for x in row]
        self.rows = [
            dict.fromkeys(COLUMNS, np.nan) | dict(zip(values["columns"], fill(row), strict=True))
            for row in values["rows"]
        ]
        self.counts, self.before = Counts(*values["counts"]), Counts(*values["before"])
        self.began = time.perf_counter() - values["seconds"]
        return None if values["status"] is None else Status(values["status"])

    def result(self, status: Status) -> Result:
        """What the caller gets."""
        if not self.rows or self.rows[-1]["step"] > 0:  # which led to a point not recorded
            self.begin(self.loss, np.nan, self.held_out)
        elif np.isnan(self.rows[-1]["held_out"]):
            row = self.rows.pop()
            self.begin(row["loss"], row["gradient_norm"], self.held_out)
            self.rows[-1] = row | {"held_out": self.held_out}
        # no later row will tell what was spent on the last one
        spent = self.counts._asdict() | {"seconds": time.perf_counter() - self.began}
        self.rows[-1] = self.rows[-1] | spent
        theta = self.theta if self.devices is None else take_local(self.theta)
        history = {name: np.array([row[name] for row in self.rows]) for name in COLUMNS}
        iterates, last = {}, len(self.rows) - 1
        if self.snapshots.most > 0:
            unravel, kept = flatten(theta)[1], self.snapshots.kept
            earlier = [i for i in kept if i < last][: self.snapshots.most - 1]
            iterates = {i: unravel(jnp.asarray(kept[i])) for i in earlier}
            iterates[last] = theta
        best = Best(theta, float(self.loss), last) if self.best is None else self.best
        best = best._replace(theta=theta if best.iterate == last else take_local(best.theta))
        loss, info = float(self.loss), self.info
        return Result(theta, loss, status, self.accepted, history, info, iterates, best)


class Snapshots:
    """At most `most` iterates θ, spread evenly over a run of any length.

    Once there are more, every other one is dropped. Cost: `most` vectors like θ on the host, and
    in the checkpoint.
    """

    def __init__(self, asked: int | None, theta: PyTree):
        """As asked of `minimize`, with θ₀ as the first."""
        if asked is None:
            size = jax.eval_shape(lambda: flatten(theta)[0]).size
            asked = MANY if size <= FEW_PARAMETERS else 0
        if isinstance(asked, bool) or not isinstance(asked, (int, np.integer)) or asked < 0:
            raise InputError("snapshots", f"{asked!r} is no number of iterates", "20, or None")
        self.most, self.every = int(asked), 1
        self.kept: dict[int, np.ndarray] = {}
        self.note(0, theta)

    def note(self, iterate: int, theta: PyTree) -> None:
        """Keep this iterate if it is one of those wanted."""
        if self.most == 0 or iterate % self.every:
            return
        self.kept[iterate] = np.asarray(flatten(theta)[0])
        while len(self.kept) > self.most:
            self.every *= 2
            self.kept = {i: x for i, x in self.kept.items() if i % self.every == 0}


@dataclass(frozen=True)
class HeldOut(Public):
    """Another problem for the same θ, evaluated `every` so many iterations and at the end.

    Its loss is `history["held_out"]`, judges what `result.best` is, and is compared with the loss
    in `result.warning`. Nothing else of a run looks at it, and its evaluations are not counted.

    ```python
    others = pinn.at({"interior": box.uniform(key, 1000)}).problem
    ng.minimize(pinn.problem, net, method, held_out=others)
    ng.minimize(pinn.problem, net, method, held_out=ng.descent.HeldOut(others, every=50))
    ```

    Args:
        problem: A problem of the same θ: other points, other data.
        every: Iterations between two evaluations.
    """

    problem: Problem
    every: int = 10

    def __post_init__(self) -> None:
        check_instance("held_out", self.problem, Problem, "pinn.at(points).problem")
        check_integer(self.every, "every", 1, 10)

    def measure(self, theta: PyTree) -> float:
        """Its loss at θ."""
        measure = _measure if self.problem.model.on_host else _measure_compiled
        return float(measure(self.problem, take_local(theta)))


def as_held_out(given: Any, theta: PyTree) -> HeldOut:
    """As asked of `minimize`; `InputError` unless it is a problem of this θ."""
    found = given if isinstance(given, HeldOut) else HeldOut(given)
    try:
        check_structure(Setup(found.problem, theta))
    except InputError as error:
        what, _, advice = str(error).removesuffix(".").partition(". Try: ")
        raise InputError("held_out", what, advice) from error
    return found


def _measure(problem: Problem, theta: PyTree) -> Array:
    return problem.value(theta, problem.model(theta))


_measure_compiled = eqx.filter_jit(_measure)
