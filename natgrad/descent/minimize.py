"""The loop: linearise, solve, step, record, stop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..batches import MiniBatch
from ..core.sharding import take_local
from ..devices import Distribution
from ..direction.damping import Damping, as_damping
from ..direction.inputs import check_inputs, evaluated
from ..direction.linearisation import linearise
from ..direction.natural import describe
from ..errors import InputError
from ..metrics.base import Metric
from ..metrics.diagonal import Euclidean
from ..models.base import Evaluation
from ..parameters import as_box, flatten, settled, unflattened
from ..pinn.resampling import Resampled
from ..problem import Problem
from ..result import BUDGETS, Progress, Result, Status
from ..solvers import Auto, Solver
from ..solvers.base import NOT_FINITE as FAILED_SOLVE
from .attempt import Attempt, attempt
from .checkpoint import Checkpoint, Keeper, as_checkpoint
from .curves import as_route
from .method import Method, sampler
from .progress import Watch, watched
from .run import Carried, Run, Snapshots, check_run
from .steps import INADMISSIBLE, NO_DECREASE, NOT_FINITE, ModelStep, Step
from .stop import Budget

MAX_REJECTIONS = 30
PATIENCE = 10  # selections in a row that must agree before they end a run
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
    order: int = 1,
    momentum: float = 0.0,
    bounds: tuple[PyTree, PyTree] | None = None,
    max_iterations: int = 100,
    max_propagations: int | None = None,
    max_seconds: float | None = None,
    tolerance: float = 1e-6,
    step_tolerance: float = 0.0,
    loss_target: float | None = None,
    callbacks: Sequence[Callable[[Progress], Any]] = (),
    batch: MiniBatch | Resampled | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    snapshots: int | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
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

    `order` > 1 takes the steps along a curve θ(τ) on which the state ρ moves straight ahead to that
    order (see `natgrad.curves.Curve`): worth its few evaluations wherever a step is limited by the
    curvature of the model, 3 for networks. A `momentum` μ makes the damping pull towards μ times
    the last direction, (G + λD)(η − μη′) = −∂_θ f − μGη′, which averages over mini-batches.

    With a `batch` every iteration sees a random selection of the state. Losses and gradients are
    then those of the selection, in the history and in every test: a run ends by a test, or because
    no step was possible, only when ten selections in a row say so, and goes on with the next
    selection until then; `tolerance` is relative to the largest gradient seen. `result.loss` is
    that of the whole state, found at the end. A propagation counts as one whatever was selected.

    With a `checkpoint`, a path or a `Checkpoint`, the run is kept in that file and goes on from it
    if it is there; a run that had used up its budget goes on where there is more of it now.

    `result.iterates` has at most `snapshots` iterates θ, spread evenly over the run, by their place
    in the history. By default it has them all where θ is no more than 16 numbers, and none else.

    On a terminal a run that lasts longer than two seconds is shown live: iteration, loss, gradient
    norm, step, propagations, time left. `progress=True` shows it in notebooks too, and by a line
    now and then in logs; `progress=False` never.

    With a `mesh` θ is whole on each of its devices, and the state is in equal parts along its first
    axis: shots, collocation points, sources, slabs of a grid. The devices may belong to several
    processes (`jax.distributed`), which all make this call with the same arguments and all get the
    result. One of them, the leader, keeps the checkpoint, which another number of processes can
    take up.

    An exception, in a model outside JAX or in a callback, passes through with the run until then as
    `error.natgrad_result`.

    Compiled once per problem, metric, solver and step: new values of θ, damping, step length or
    target data reuse the program.
    """
    damping, given, spread = as_damping(damping), (problem, metric), Distribution.over(mesh)
    problem, metric, theta0 = spread.inputs(problem, theta0, metric)
    known = check_inputs(problem, theta0, metric, solver, damping)
    if not isinstance(step, Step):
        raise InputError("step", f"is a {type(step).__name__}", "FixedStep(0.1) or ModelStep()")
    check_run(max_iterations, max_propagations, max_seconds, callbacks)
    draws = None if batch is None else sampler(batch, *given, theta0, known, spread)
    flat = flatten(theta0)[0]
    route = as_route(order, momentum, flat.size, flat.dtype)
    route.check(problem, metric, step)
    box = as_box(bounds, theta0)
    method = Method(problem, metric, solver, damping, step, box, route, draws)
    budget = Budget(max_iterations, max_propagations, max_seconds)
    goal = _Goal(tolerance, step_tolerance, loss_target, callbacks)
    run = Run(settled(theta0), snapshots=Snapshots.of(snapshots, theta0))
    unseen = isinstance(metric, Euclidean) and known is None
    run.recorder.count(forward=0 if unseen else 1)  # the check at theta0
    kept = as_checkpoint(checkpoint)
    run.recorder.distribution = spread
    keeper = None if kept is None else method.keeper(kept, theta0, given[1], batch, known, spread)
    with (
        run.kept_if_it_fails(),
        nullcontext() if keeper is None else keeper,
        spread.explained(),
        watched(budget, progress if spread.leads else False) as watch,
    ):
        status = _descend(run, method, budget, goal, known, keeper, watch)
        if batch is not None:
            run.loss = float(problem.value(run.theta, evaluated(problem.model, run.theta).rho))
            run.recorder.count(forward=1)
    return run.result(status)


class _Goal(NamedTuple):
    """When a run has reached what was asked of it."""

    tolerance: float
    step_tolerance: float
    loss_target: float | None
    callbacks: Sequence[Callable[[Progress], Any]]


def _descend(
    run: Run,
    method: Method,
    budget: Budget,
    goal: _Goal,
    known: Evaluation | None,
    keeper: Keeper | None,
    watch: Watch,
) -> Status:
    """Iterate, with everything worth keeping in `run`; returns why it ended."""
    wanted = 1 if method.draws is None else PATIENCE
    run.carried = method.start(run.theta, known)
    saved = None if keeper is None else keeper.load()
    if saved is not None:
        ended = run.restore(*saved)
        run.theta = run.recorder.distribution.whole(run.theta)
        if ended is not None and ended not in BUDGETS:
            return ended
        if spent := run.recorder.spent(budget):
            return spent
        model = method.problem.model
        known = evaluated(model, run.theta) if model.solves or model.on_host else None
    for status in _iterations(run, method, budget, goal, known):
        run.agreeing = 0 if status is None else run.agreeing + 1
        if status is not None and run.agreeing < wanted and status != Status.STOPPED:
            status = None
        status = status or run.recorder.spent(budget)
        watch.update(run.iteration, run.loss, run.recorder.last())
        if keeper is not None:
            snapshot = run.snapshot(status)
            keeper.note(lambda snapshot=snapshot: snapshot)
        if status is not None:
            return status
    return Status.MAX_ITERATIONS


def _iterations(
    run: Run, method: Method, budget: Budget, goal: _Goal, known: Evaluation | None
) -> Iterator[Status | None]:
    """One iteration after the other, each with the reason that it has found to end the run."""
    problem, metric, solver, damping, step, box, route, draws = method
    lin, recorder, spread = None, run.recorder, run.recorder.distribution
    for iteration in range(run.iteration, budget.iterations or 0):
        theta, run.iteration = run.theta, iteration + 1
        assert run.carried is not None
        damping_state, first_norm, memory, previous = run.carried
        route = replace(route, previous=previous)
        if draws is not None:
            problem, metric = draws(iteration)
            on_host = problem.model.on_host
            known = evaluated(problem.model, theta) if on_host else None  # not of another selection
            recorder.count(forward=int(on_host))
        lin = None  # frees the last factorisation before the next one is made
        lin = linearise(problem, theta, metric, solver, damping, box, first_norm, known, memory)
        loss, norm, counts = jax.device_get((lin.loss, lin.gradient_norm, lin.counts))
        recorder.count(*counts)
        recorder.begin(loss, norm)
        run.loss = float(loss)
        if iteration == 0 and not np.isfinite(loss):
            advice = "a starting point where the loss is finite"
            raise InputError("theta0", f"the loss there is {loss}", advice)
        if iteration == 0 or draws is not None:
            first_norm = np.asarray(np.fmax(first_norm, norm))
            run.carried = run.carried._replace(first_norm=first_norm)
        if norm <= goal.tolerance * first_norm:
            yield Status.CONVERGED
            continue
        promised = np.nan  # the decrease predicted by the first attempt, before λ grew
        for _ in range(MAX_REJECTIONS if damping.adapts else 1):
            tried = attempt(problem, theta, metric, lin, damping, damping_state, step, box, route)
            damping_state, point = tried.damping_state, spread.whole(tried.outcome.theta)
            known, memory = tried.known, spread.whole(tried.memory)
            trial = _numbers(tried)
            outcome = trial.outcome
            route = route.after(spread.whole(tried.eta), bool(outcome.accepted))
            recorder.count(*trial.info.counts)
            recorder.count(outcome.evaluations, outcome.linearised, outcome.adjoint)
            promised = float(outcome.predicted) if np.isnan(promised) else promised
            if outcome.accepted or _failed(trial) or recorder.spent(budget) is not None:
                break
        run.carried = Carried(damping_state, first_norm, memory, route.previous)
        recorder.finish(trial, bool(outcome.value < loss))
        run.info = describe(lin, trial.info, trial.damping, np.isfinite(trial.slope), trial.reach)
        if not outcome.accepted:
            yield recorder.spent(budget) or _why_rejected(trial, run.loss, promised)
            continue
        run.theta, run.loss = unflattened(theta, point), float(outcome.value)
        run.snapshots.note(iteration + 1, point)
        seen = Progress(iteration + 1, take_local(run.theta), run.loss, recorder.last())
        asked = [bool(callback(seen)) for callback in goal.callbacks]
        if asked and spread.agreed(any(asked)):
            yield Status.STOPPED
        elif goal.loss_target is not None and run.loss <= goal.loss_target:
            yield Status.LOSS_REACHED
        elif trial.step_norm <= goal.step_tolerance * max(1.0, trial.theta_norm):
            yield Status.SMALL_STEP
        else:
            yield None


def _numbers(result: Attempt) -> Attempt:
    """The scalars of an attempt on the host, in one transfer; its θ stays where it is."""
    outcome = result.outcome._replace(theta=None)
    return jax.device_get(result._replace(outcome=outcome, eta=None, memory=None, known=None))


def _failed(trial: Attempt) -> bool:
    """Whether the direction was not finite, which another λ does not mend."""
    return not np.isfinite(trial.slope) or int(trial.info.reason) == FAILED_SOLVE


def _why_rejected(trial: Attempt, loss: float, promised: float) -> Status:
    slope, outcome = float(trial.slope), trial.outcome
    if _failed(trial):
        return Status.NOT_FINITE
    if slope >= 0:
        return Status.NOT_DESCENT
    status = REASONS[int(outcome.reason)]
    rounding = 8 * float(np.finfo(outcome.value.dtype).eps) * abs(loss)
    if status == Status.NO_DECREASE and 0 <= promised <= rounding:
        return Status.PRECISION
    return status
