"""The rival: limited-memory BFGS, with the history of a natural gradient run."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from scipy.optimize import minimize as scipy_minimize

from ..core.sharding import take_local
from ..devices import Distribution
from ..direction.damping import Undamped
from ..direction.inputs import check_inputs
from ..direction.linearisation import linearise
from ..errors import InputError
from ..metrics.diagonal import Euclidean
from ..models.base import Evaluation
from ..parameters import Bounds, as_box, flatten, settled
from ..problem import Problem
from ..result import Progress, Result, Status
from ..solvers import Auto
from .checkpoint import Checkpoint, Keeper, as_checkpoint
from .progress import Watch, watched
from .run import Run, Snapshots, check_run
from .stop import Budget

FLAT, SOLVER, NO_DAMPING = Euclidean(), Auto(), Undamped()


def lbfgs(
    problem: Problem,
    theta0: PyTree,
    *,
    memory: int = 10,
    bounds: tuple[PyTree, PyTree] | None = None,
    max_iterations: int = 1000,
    max_propagations: int | None = None,
    max_seconds: float | None = None,
    tolerance: float = 1e-6,
    loss_target: float | None = None,
    callbacks: Sequence[Callable[[Progress], Any]] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    snapshots: int | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
) -> Result:
    """L-BFGS-B of SciPy on the same problem, with the history and the statuses of `minimize`.

    The baseline to compare natural gradients with: per propagation of a PDE it is hard to beat.
    `memory` is the number of pairs that it keeps. Every evaluation in its line search costs one
    forward and one adjoint propagation. A `checkpoint` holds all of them: SciPy's loop is replayed
    from it, without a propagation, before it goes on. `snapshots`, `progress` and `mesh` are as in
    `minimize`.

    ```python
    ng.lbfgs(problem, theta0, memory=20, max_propagations=400).history["loss"]
    ```

    Reference: Byrd, Lu, Nocedal and Zhu, SIAM J. Sci. Comput. 16 (1995); Morales and Nocedal, ACM
    Trans. Math. Softw. 38 (2011).
    """
    spread = Distribution.over(mesh)
    problem, _, theta0 = spread.inputs(problem, theta0, FLAT)
    known = check_inputs(problem, theta0, FLAT, SOLVER, NO_DAMPING)
    check_run(max_iterations, max_propagations, max_seconds, callbacks)
    if not isinstance(memory, (int, np.integer)) or memory < 1:
        raise InputError("memory", f"{memory!r} is no positive integer", "10")
    box, theta = as_box(bounds, theta0), settled(theta0)
    start = np.asarray(flatten(theta)[0], float)
    budget = Budget(max_iterations, max_propagations, max_seconds)
    run = Run(theta, snapshots=Snapshots.of(snapshots, theta))
    run.recorder.distribution = spread
    search = _Search(problem, run, box, budget, tolerance, loss_target, callbacks)
    search.run.recorder.count(forward=int(known is not None))
    kept = as_checkpoint(checkpoint)
    if kept is not None:
        search.keep(kept, theta0, memory, known)
    with (
        search.run.kept_if_it_fails(),
        search.keeper or nullcontext(),
        spread.explained(),
        watched(budget, progress if spread.leads else False) as search.watch,
    ):
        try:
            search.accept(start, known)
            found = scipy_minimize(
                search.value_and_gradient,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=None if box is None else list(zip(*map(np.asarray, box), strict=True)),
                callback=search.accept,
                options={"maxcor": memory, "maxiter": max_iterations, "maxfun": 10**9}
                | {"ftol": 0.0, "gtol": 0.0},
            )
            status = _status(found)
        except _Stopped as stopped:
            status = stopped.status
    return search.run.result(status)


def _status(found: Any) -> Status:
    """Why SciPy stopped by itself."""
    if found.status == 1:
        return Status.MAX_ITERATIONS
    message = found.message.replace("_", " ")  # as SciPy wrote it until 1.14
    if "PROJECTED GRADIENT" in message:
        return Status.CONVERGED
    return Status.PRECISION if "REDUCTION" in message else Status.NO_DECREASE


class _Stopped(Exception):
    """Ends SciPy's loop from inside."""

    def __init__(self, status: Status):
        self.status = status


class _Evaluated(NamedTuple):
    """f and ∂_θ f at a point, what they cost, and when they were known."""

    value: Any
    gradient: np.ndarray
    counts: Any
    seconds: float


class _Search:
    """The problem as SciPy calls it, and the record of its iterates."""

    def __init__(
        self,
        problem: Problem,
        run: Run,
        box: Bounds | None,
        budget: Budget,
        tolerance: float,
        loss_target: float | None,
        callbacks: Sequence[Callable[[Progress], Any]],
    ):
        self.problem, self.run, self.box, self.budget = problem, run, box, budget
        self.tolerance, self.loss_target, self.callbacks = tolerance, loss_target, callbacks
        self._evaluated: dict[bytes, tuple[float, np.ndarray]] = {}
        self._at: np.ndarray | None = None
        self.keeper: Keeper | None = None
        self.watch: Watch | None = None
        self._log: list[_Evaluated] = []
        self._replay: list[_Evaluated] = []

    def keep(
        self, checkpoint: Checkpoint, theta0: PyTree, memory: int, known: Evaluation | None
    ) -> None:
        """Keep the evaluations in a file, and replay those that are there."""
        settings = {"memory": memory, "bounds": self.box, "method": "L-BFGS"}
        spread = self.run.recorder.distribution
        self.keeper = Keeper.of(checkpoint, self.problem, theta0, known, spread, **settings)
        if (saved := self.keeper.load()) is not None:
            columns = [saved[1][f"[{number}]"] for number in range(len(_Evaluated._fields))]
            self._replay = [_Evaluated(*row) for row in zip(*columns, strict=True)]

    def value_and_gradient(self, x: np.ndarray, known: Evaluation | None = None) -> Any:
        """f and ∂_θ f; where they are not finite, those of a parabola that shortens the step."""
        if x.tobytes() in self._evaluated:
            return self._evaluated[x.tobytes()]
        spent = self.run.recorder.spent(self.budget)
        if spent and self._at is not None:
            raise _Stopped(spent)
        found = self._next(x, known)
        self._log.append(found)
        self.run.recorder.count(*found.counts)
        if self.keeper is not None and not self._replay:  # a shorter log would lose the rest
            self.keeper.note(lambda: ({}, tuple(map(np.asarray, zip(*self._log, strict=True)))))
        value, slope = float(found.value), np.asarray(found.gradient, float)
        if not (np.isfinite(value) and np.all(np.isfinite(slope))) and self._at is not None:
            value, slope = self._wall(x)
        self._evaluated[x.tobytes()] = value, slope
        return value, slope

    def _next(self, x: np.ndarray, known: Evaluation | None) -> "_Evaluated":
        """What the checkpoint has, else a propagation and its adjoint."""
        recorder = self.run.recorder
        if self._replay:
            found = self._replay.pop(0)
            recorder.continue_from(max(float(found.seconds), recorder.elapsed()))
            return found
        lin = linearise(self.problem, self._theta(x), FLAT, SOLVER, NO_DAMPING, None, None, known)
        loss, gradient, counts = jax.device_get((lin.loss, lin.gradient, lin.counts))
        return _Evaluated(loss, gradient, counts, recorder.elapsed())

    def _wall(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The parabola with f and ∂_θ f of the last iterate and its minimum a quarter of the way.

        The line search interpolates, which an infinite value would end.
        """
        assert self._at is not None
        loss, gradient = self._evaluated[self._at.tobytes()]
        way = x - self._at
        descent = max(abs(float(gradient @ way)), np.finfo(float).tiny)
        return loss + descent, 3 * descent * way / max(float(way @ way), np.finfo(float).tiny)

    def accept(self, x: np.ndarray, known: Evaluation | None = None) -> None:
        """Record an iterate; raises to end the run."""
        loss, gradient = self.value_and_gradient(x, known)
        recorder, norm = self.run.recorder, self._norm(x, gradient)
        first = self._at is None
        if self._at is None and not np.isfinite(loss):
            advice = "a starting point where the loss is finite"
            raise InputError("theta0", f"the loss there is {loss}", advice)
        if self._at is not None:
            recorder.rows[-1] |= {
                "step_norm": float(np.linalg.norm(x - self._at)),
                "decreased": float(loss < self.run.loss),
            }
            recorder.accepted += 1
        recorder.begin(loss, norm)
        self.run.theta, self.run.loss = self._theta(x), loss
        self.run.snapshots.note(recorder.accepted, x)
        self._at, self._evaluated = x.copy(), {x.tobytes(): (loss, gradient)}
        if norm <= self.tolerance * recorder.rows[0]["gradient_norm"] and not (first and norm > 0):
            raise _Stopped(Status.CONVERGED)
        if first:
            return
        progress = Progress(recorder.accepted, take_local(self.run.theta), loss, recorder.last())
        if self.watch is not None:
            self.watch.update(recorder.accepted, loss, progress.row)
        asked = [bool(callback(progress)) for callback in self.callbacks]
        if asked and recorder.distribution.agreed(any(asked)):
            raise _Stopped(Status.STOPPED)
        if self.loss_target is not None and loss <= self.loss_target:
            raise _Stopped(Status.LOSS_REACHED)

    def _norm(self, x: np.ndarray, gradient: np.ndarray) -> float:
        """The length of the gradient, without what pushes against a bound."""
        if self.box is not None:
            lower, upper = map(np.asarray, self.box)
            held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
            gradient = np.where(held, 0.0, gradient)
        return float(np.linalg.norm(gradient))

    def _theta(self, x: np.ndarray) -> PyTree:
        flat, unravel = flatten(self.run.theta)
        return self.run.recorder.distribution.whole(unravel(jnp.asarray(x, flat.dtype)))
