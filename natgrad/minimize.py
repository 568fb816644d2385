"""The loop: linearise, solve, step, record, stop."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .attempt import Attempt, attempt
from .counts import Counts
from .damping import Damping, as_damping
from .direction import check_inputs, describe
from .errors import InputError
from .linearisation import Bounds, flatten, linearise
from .metrics.base import Metric
from .metrics.l2 import Euclidean
from .problems import Problem
from .result import Progress, Result, Status
from .solvers import Auto, Solver
from .steps import INADMISSIBLE, NO_DECREASE, NOT_FINITE, ModelStep, Step

PyTree = Any

MAX_REJECTIONS = 30
REASONS = {
    NO_DECREASE: Status.NO_DECREASE,
    NOT_FINITE: Status.NOT_FINITE,
    INADMISSIBLE: Status.INADMISSIBLE,
}


def minimize(
    problem: Problem,
    theta0: PyTree,
    *,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping | float = 0.0,
    step: Step = ModelStep(),
    bounds: tuple[PyTree, PyTree] | None = None,
    max_iterations: int = 100,
    max_propagations: int | None = None,
    max_seconds: float | None = None,
    tolerance: float = 1e-6,
    step_tolerance: float = 0.0,
    loss_target: float | None = None,
    callbacks: Sequence[Callable[[Progress], Any]] = (),
) -> Result:
    """Natural gradient descent from θ₀.

    ```python
    result = ng.minimize(problem, theta0, metric=ng.Wasserstein(grid), step=ng.FixedStep(3.0))
    print(result)
    ```

    Stops when ‖∂_θ f‖ ≤ `tolerance` · ‖∂_θ f(θ₀)‖, when a step is no longer than
    `step_tolerance` · max(1, ‖θ‖), when the loss reaches `loss_target`, when a budget of
    iterations, model propagations or seconds is spent, when no step decreases the loss, or when a
    callback returns True; `result.status` says which. `bounds = (lower, upper)` are scalars,
    pytrees like θ, or None; parameters on a bound that a descent would cross are held there, the
    others move along the projected direction.

    Compiled once per problem, metric, solver and step: new values of θ, damping, step length or
    target data reuse the program.
    """
    damping = as_damping(damping)
    check_inputs(problem, theta0, metric, solver, damping)
    if not isinstance(step, Step):
        raise InputError("step", f"is a {type(step).__name__}", "FixedStep(0.1) or ModelStep()")
    if not isinstance(max_iterations, (int, np.integer)) or max_iterations < 1:
        raise InputError("max_iterations", f"{max_iterations!r} is no positive integer", "100")
    if not all(callable(callback) for callback in callbacks):
        raise InputError("callbacks", "are not all callable", "callbacks=[function]")
    box = _box(bounds, theta0)
    theta, recorder = _settled(theta0), _Recorder()
    recorder.count(forward=0 if isinstance(metric, Euclidean) else 1)  # the check at theta0
    budget = lambda: _spent(recorder, max_propagations, max_seconds)
    damping_state = jnp.asarray(damping.initial_state(), dtype=float)  # strong, as θ is
    loss, info, first_norm, lin = np.nan, None, np.nan, None
    status = Status.MAX_ITERATIONS
    for iteration in range(max_iterations):
        lin = None  # frees the last factorisation before the next one is made
        lin = linearise(problem, theta, metric, solver, damping, box, np.asarray(first_norm, float))
        loss, norm, counts = jax.device_get((lin.loss, lin.gradient_norm, lin.counts))
        recorder.count(*counts)
        recorder.begin(loss, norm)
        if iteration == 0:
            first_norm = norm
            if not np.isfinite(loss):
                advice = "a starting point where the loss is finite"
                raise InputError("theta0", f"the loss there is {loss}", advice)
        if norm <= tolerance * first_norm:
            status = Status.CONVERGED
            break
        promised = np.nan  # the decrease predicted by the first attempt, before λ grew
        for _ in range(MAX_REJECTIONS if damping.adapts else 1):
            result = attempt(problem, theta, metric, lin, damping, damping_state, step, box)
            damping_state, point = result.damping_state, result.outcome.theta
            trial = _numbers(result)
            outcome = trial.outcome
            recorder.count(*trial.info.counts)
            recorder.count(forward=outcome.evaluations, linearised=outcome.linearised)
            promised = float(outcome.predicted) if np.isnan(promised) else promised
            if outcome.accepted or budget() is not None:
                break
        recorder.finish(trial, bool(outcome.value < loss))
        info = describe(lin, trial.info, trial.damping, np.isfinite(trial.slope))
        if not outcome.accepted:
            status = budget() or _why_rejected(trial, float(loss), promised)
            break
        theta, loss = flatten(theta)[1](point), float(outcome.value)
        progress = Progress(iteration + 1, theta, loss, recorder.last())
        asked = [bool(callback(progress)) for callback in callbacks]
        if any(asked):
            status = Status.STOPPED
        elif loss_target is not None and loss <= loss_target:
            status = Status.LOSS_REACHED
        elif trial.step_norm <= step_tolerance * max(1.0, trial.theta_norm):
            status = Status.SMALL_STEP
        elif spent := budget():
            status = spent
        else:
            continue
        break
    taken = recorder.accepted
    if taken == len(recorder.rows):  # the last row's step led to a point not yet recorded
        recorder.begin(loss, np.nan)
    recorder.close()
    return Result(theta, float(loss), status, taken, recorder.history(), info)


def _numbers(result: Attempt) -> Attempt:
    """The scalars of an attempt on the host, in one transfer; its θ stays where it is."""
    return jax.device_get(result._replace(outcome=result.outcome._replace(theta=None)))


def _spent(
    recorder: "_Recorder", max_propagations: int | None, max_seconds: float | None
) -> Status | None:
    if max_propagations is not None and sum(recorder.counts) >= max_propagations:
        return Status.MAX_PROPAGATIONS
    if max_seconds is not None and recorder.elapsed() >= max_seconds:
        return Status.MAX_SECONDS
    return None


def _settled(theta: PyTree) -> PyTree:
    """θ with strongly typed parameters: weakly typed ones would compile every program twice."""
    settle = lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_inexact_array(x) else x
    return jax.tree.map(settle, theta)


def _why_rejected(trial: Attempt, loss: float, promised: float) -> Status:
    slope, outcome = float(trial.slope), trial.outcome
    if not np.isfinite(slope):
        return Status.NOT_FINITE
    if slope >= 0:
        return Status.NOT_DESCENT
    status = REASONS[int(outcome.reason)]
    rounding = 8 * float(np.finfo(outcome.value.dtype).eps) * abs(loss)
    if status == Status.NO_DECREASE and 0 <= promised <= rounding:
        return Status.PRECISION
    return status


class _Recorder:
    """The history under construction: one row per iterate."""

    columns = (
        *("loss", "gradient_norm", "step", "step_norm", "damping", "halvings", "ratio"),
        *("rank", "condition", "solver_iterations", "decreased"),
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
            "decreased": float(decreased),
        }

    def close(self) -> None:
        """Give the last row what was spent on it: no later row will tell."""
        self.rows[-1] |= self.counts._asdict() | {"seconds": self.elapsed()}

    def last(self) -> dict[str, float]:
        return dict(self.rows[-1])

    def history(self) -> dict[str, np.ndarray]:
        return {name: np.array([row[name] for row in self.rows]) for name in self.columns}


def _box(bounds: tuple[PyTree, PyTree] | None, theta: PyTree) -> Bounds | None:
    if bounds is None:
        return None
    if not (isinstance(bounds, tuple) and len(bounds) == 2):
        raise InputError("bounds", f"{bounds!r} is not a pair", "(lower, upper)")
    flat, _ = flatten(theta)
    lower, upper = _like(bounds[0], theta, flat, -np.inf), _like(bounds[1], theta, flat, np.inf)
    if bool(jnp.any(jnp.isnan(lower) | jnp.isnan(upper))):
        raise InputError("bounds", "have entries that are not numbers", "None for no bound")
    if bool(jnp.any(lower > upper)):
        raise InputError("bounds", "a lower bound exceeds its upper bound", "lower ≤ upper")
    if bool(jnp.any((flat < lower) | (flat > upper))):
        raise InputError("theta0", "lies outside the bounds", "jnp.clip(theta0, lower, upper)")
    return Bounds(lower, upper)


def _like(bound: PyTree, theta: PyTree, flat: Array, unbounded: float) -> Array:
    """A bound on the flattened parameters: from None, a number, or a pytree like θ."""
    if bound is None:
        return jnp.full_like(flat, unbounded)
    if np.ndim(bound) == 0 and isinstance(bound, (int, float, np.number, np.ndarray, jax.Array)):
        return jnp.full_like(flat, bound)
    spread = lambda t, b: None if t is None else jnp.broadcast_to(jnp.asarray(b, t.dtype), t.shape)
    parameters = eqx.filter(theta, eqx.is_inexact_array)
    try:
        return flatten(jax.tree.map(spread, parameters, bound, is_leaf=lambda x: x is None))[0]
    except (ValueError, TypeError) as error:
        raise InputError("bounds", "do not have the structure of theta", "a scalar") from error
