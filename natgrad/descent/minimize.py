"""The loop: linearise, test, try a step, record, stop."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..batches import Batch
from ..core.archive import reading
from ..core.compiled import fetch_together, is_traced, jit_by_work
from ..core.operators import dot, probe
from ..core.outcomes import BUDGETS, STATUSES, Status
from ..core.settings import check_instance
from ..core.sharding import take_local
from ..devices import Devices
from ..direction.local import Local, Setup
from ..errors import InputError, count_some, find_missing_derivative, name_kind, refuse_unknown
from ..identity import identify, prepare
from ..metrics.base import Metric
from ..models.base import Evaluation, evaluate
from ..parameters import Bounds, as_bounds, flatten, strengthen
from ..problem import Problem, differentiate_loss
from ..result import Progress, Result
from ..solvers.base import Solution
from .checkpoint import Checkpoint, RunFile, as_checkpoint
from .methods import Method, Record, State
from .progress import Watch, show_run
from .run import HeldOut, Run, Snapshots, as_held_out
from .steps import assess
from .stop import Stop

MARGIN = 1000  # how much more than rounding the gradient may promise in a run that has converged
PATIENCE = 10  # selections in a row that must agree before they end a run
Draw = Callable[[int, PyTree, PyTree], tuple[Problem, Method, PyTree]]
Callback = Callable[[Progress], Any]


def minimize(
    problem: Problem,
    theta0: PyTree,
    method: Method,
    *,
    bounds: tuple[PyTree, PyTree] | None = None,
    stop: Stop = Stop(),
    batch: Batch | None = None,
    held_out: Problem | HeldOut | None = None,
    callbacks: Iterable[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    snapshots: int | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
    **unknown: Never,
) -> Result:
    """Minimise the problem from θ₀ by a method: `NaturalGradient` or one of its rivals.

    ```python
    method = ng.NaturalGradient(ng.Wasserstein(grid), step=ng.FixedStep(3.0))
    result = ng.minimize(problem, theta0, method, stop=ng.Stop(iterations=200))
    print(result)
    ```

    The run ends as `stop` says, when no step decreases the loss, or when a callback returns True;
    `result.status` says which. An exception, in a model outside JAX or in a callback, passes
    through with the run until then as `error.natgrad_result`.

    With a `batch`, losses and gradients are those of the selection, in the history and in every
    test: a run ends by a test, or because no step was possible, only when ten selections in a row
    say so; `Stop.gradient` is relative to the largest gradient seen. `result.loss` is that of the
    whole state, found at the end. A propagation counts as one whatever was selected.

    With a `mesh`, θ is whole on each device, and the state is in equal parts along its first axis:
    shots, collocation points, sources, slabs of a grid. The devices may belong to several processes
    (`jax.distributed`), which all make this call with the same arguments and all get the result.
    One of them, the leader, keeps the checkpoint; another number of processes can resume it.

    Args:
        problem: What is minimised.
        theta0: The starting point, any pytree of arrays.
        method: What an iteration does.
        bounds: A pair (lower, upper) of scalars, pytrees like θ, or None. Parameters on a bound
            that a descent would cross are held there; the others move along the projected
            direction.
        stop: When to end.
        batch: A random selection of the state for every iteration: `MiniBatch` or `Resampled`.
        held_out: A problem that the run does not see. Its loss is recorded every ten iterations
            (see `ng.descent.HeldOut`), and `result.best` is the iterate with the smallest. Without
            one it is that with the smallest loss, or, under batches, the last.
        callbacks: Functions of a `Progress`, called after every iteration; True ends the run.
        checkpoint: A path or a `Checkpoint`. The run is kept in that file and resumes from it; a
            run that had spent its budget or reached its goal continues if `stop` asks for more.
        snapshots: The most iterates to keep in `result.iterates`, spread evenly over the run. By
            default all are kept if θ has at most 16 numbers, and none otherwise.
        progress: Whether the run is shown live. By default it is on a terminal, after two seconds;
            True also shows it in notebooks, and in logs by a line at the start, every 15 seconds
            and at the end.
        mesh: Devices to spread the state over.
    """
    if unknown:
        refuse_unknown(unknown, minimize)
    devices, asks = None, bool(callbacks)
    if mesh is not None:
        devices = Devices.over(mesh)
        steering = {"method": method, "bounds": bounds, "stop": stop, "batch": batch}
        steering |= {
            "held_out": held_out,
            "checkpoint": checkpoint is not None,
            "snapshots": snapshots,
        }
        devices.check(problem, theta0, **steering)
        asks = devices.any(asks)
    wrapped = "that metric" if isinstance(method, Metric) else "ng.L2(grid)"
    check_instance("method", method, Method, f"ng.NaturalGradient({wrapped})")
    check_instance("stop", stop, Stop, "ng.Stop(iterations=10)")
    if is_traced((problem, theta0, method)):
        what = "is being traced, and a run is driven from Python"
        raise InputError("theta0", what, "a loop over method.step under jit, vmap or grad")
    if not isinstance(callbacks, Iterable):
        raise InputError("callbacks", f"are {name_kind(callbacks)}", "callbacks=[function]")
    callbacks = tuple(callbacks)
    if not all(map(callable, callbacks)):
        raise InputError("callbacks", "are not all callable", "callbacks=[function]")
    given = (problem, method)
    if devices is not None:
        problem, spread_metric = devices.spread(problem, theta0)
        method, theta0 = method.map_metric(spread_metric), devices.replicate(theta0)
    known = method.check(problem, theta0, bounds=bounds)
    draw = None if batch is None else _make_draws(batch, *given, theta0, known, devices)
    theta0, box, file = strengthen(theta0), as_bounds(bounds, theta0), None
    aside = None if held_out is None else as_held_out(held_out, take_local(theta0))
    if checkpoint is not None:
        checkpoint = as_checkpoint(checkpoint)
        seen = {"problem": (problem, method)}
        seen |= {} if draw is None else {"batch": draw(0, theta0, None)[:2]}
        seen |= {} if aside is None else {"held_out": (aside.problem, None)}
        seen = {name: (p, getattr(m, "metric", None)) for name, (p, m) in seen.items()}
        know = partial(identify, seen, theta0, box, batch=batch, **_settings(given[1]))
        file = RunFile(checkpoint, know, devices)
        if problem.model.on_host:  # code outside may remember what it was asked
            file.know()
        elif devices is None:
            rho = None if known is None else known.rho
            prepare(problem, theta0, box, seen["problem"][1], rho)
    judge = "held_out" if aside else "loss" if batch is None else None
    run = Run(theta0, Snapshots(snapshots, theta0), devices, judge)  # its clock begins here
    run.count(forward=int(known is not None))  # the check at θ₀
    together = devices is None and jax.default_backend() != "cpu"
    fetch = fetch_together if together else jax.device_get
    loop = _Loop(problem, method, run, stop, box, callbacks, asks, draw, aside, fetch)
    shown = progress if devices is None or devices.leads else False
    try:
        with (
            file or nullcontext(),
            nullcontext() if devices is None else devices.explain(),
            nullcontext() if shown is False else show_run(stop, shown) as watch,
        ):
            status = loop.run_to_the_end(known, file, watch)
            if loop.unchecked:
                run.count(forward=1)
                problem.model.check(run.theta, evaluate(problem.model, run.theta))
            if batch is not None:
                rho = evaluate(problem.model, run.theta).rho
                run.loss = float(assess(problem, None, run.theta, rho)[0])
                run.count(forward=1)
            if aside is not None:
                run.held_out = aside.measure(run.theta)
            if watch is not None:
                watch.end(str(run.result(status)))
    except (Exception, KeyboardInterrupt) as error:
        refused = find_missing_derivative(error, getattr(method, "order", 1))
        (refused or error).natgrad_result = run.result(Status.FAILED)  # pyright: ignore
        if refused is not None:
            raise refused from error
        raise
    return run.result(status)


def _make_draws(
    batch: Batch,
    problem: Problem,
    method: Method,
    theta: PyTree,
    known: Evaluation | None,
    devices: Devices | None,
) -> Draw:
    """The draws of a batch, checked against the state at θ, over the devices of the run."""
    check_instance("batch", batch, Batch, "MiniBatch(64)")
    draw = batch.sampler(problem, method, theta, known)
    if devices is None:
        return draw

    def spread(iteration: int, now: PyTree, memory: PyTree) -> tuple[Problem, Method, PyTree]:
        problem, method, memory = draw(iteration, take_local(now), memory)
        problem, spread_metric = devices.spread(problem, theta)
        return problem, method.map_metric(spread_metric), memory

    return spread


def _settings(method: Method) -> dict[str, Any]:
    """What a run of this method is known by, part by part."""
    fields = (field.name for field in dataclasses.fields(method))
    parts = {name.removesuffix("_rule"): getattr(method, name) for name in fields}
    return {"method": type(method).__name__} | parts


@dataclass
class _Loop:
    """One run of `minimize`, with all that its iterations look at."""

    problem: Problem
    method: Method
    run: Run
    stop: Stop
    bounds: Bounds | None
    callbacks: Sequence[Callback]
    asks: bool  # whether any process has callbacks
    draw: Draw | None
    held_out: HeldOut | None
    fetch: Callable[[PyTree], PyTree]  # to the host
    program: Callable[..., Any] | None = None  # an iteration, where it is one program
    unchecked: bool = False  # L-BFGS hands on no evaluation, so its state is checked at the end

    def run_to_the_end(
        self, known: Evaluation | None, file: RunFile | None, watch: Watch | None
    ) -> Status:
        """Iterate until there is a reason to stop, with everything worth keeping in `run`."""
        run, wanted = self.run, 1 if self.draw is None else PATIENCE
        status = self._start(known, file)
        if watch is not None and run.iteration and status is None:
            watch.resume(run.iteration)
        while status is None:
            before = run.state, run.memory
            status = self._iterate()
            if status in BUDGETS and status is not Status.STOPPED:  # too little for an iteration
                run.iteration, (run.state, run.memory) = run.iteration - 1, before
            run.completed = run.iteration
            if status not in BUDGETS:
                run.agreeing = 0 if status is None else run.agreeing + 1
                status = status if run.agreeing >= wanted else None
            status = status or self.stop.find_spent(run)
            if file is not None:
                with run.off_the_clock():
                    file.know()
                file.offer(run.save(status))
            if watch is not None:
                watch.update(run.iteration, run.loss, dict(run.rows[-1]))
        return status

    def _start(self, known: Evaluation | None, file: RunFile | None) -> Status | None:
        """The first state, or that of a checkpoint; with why the run had ended, if for good."""
        run = self.run
        problem, method, batches = self.problem, self.method, self.draw is not None
        if self.draw is not None:
            problem, method, run.memory = self.draw(0, run.theta, None)
            known = known if problem.model.on_host else None  # it is of the whole state
        run.state = method.init(problem, run.theta, known=known, batches=batches)
        hands_on = run.state.known is not None
        saved = None if file is None else file.load()
        if file is None or saved is None:
            run.memory = None
            return None
        with reading(file.checkpoint.path, "checkpoint"):
            ended = run.restore(*saved)
        run.theta = run.theta if run.devices is None else run.devices.replicate(run.theta)
        if ended is not None and ended not in BUDGETS:
            if not self.stop.asks_for_more(run, ended):
                return ended
            if ended is Status.CONVERGED:
                run.take_back()
        if spent := self.stop.find_spent(run):
            return spent
        if len(run.rows) > run.iteration:  # there was not enough for a step
            run.rows.pop()
            run.counts = run.before
        if hands_on:
            run.state = dataclasses.replace(run.state, known=evaluate(problem.model, run.theta))
        return None

    def _iterate(self) -> Status | None:
        """One iteration, and the reason that it has found to end the run, if any."""
        run, problem, method = self.run, self.problem, self.method
        assert run.state is not None
        first, run.before = run.iteration == 0, run.counts
        if self.draw is not None:
            problem, method, run.memory = self.draw(run.iteration, run.theta, run.memory)
            if problem.model.on_host:  # what is known is of another selection
                run.state = dataclasses.replace(run.state, known=evaluate(problem.model, run.theta))
                run.count(forward=1)
        run.iteration += 1
        if run.state.one_program and run.devices is None:
            limit = self.stop.propagations
            left = np.inf if limit is None else limit - sum(run.counts)
            left = 0 if first and self.stop.find_spent(run) else left  # no seconds at all
            limits = np.array([self.stop.gradient, left])
            given = (problem, method, run.theta, run.state, self.bounds, limits)
            self.program = self.program or _choose_program(*given)
            numbers, (structure, kinds), local, theta, state = self.program(*given)
            host = iter(np.asarray(numbers))  # in one transfer
            take = lambda kind: next(host).astype(kind) if isinstance(kind, np.dtype) else kind
            loss, norm, reference, seen, record = structure.unflatten(map(take, kinds))
        else:
            local = method.linearise(problem, run.theta, run.state, bounds=self.bounds)
            spent, noted = (local.counts, local.report), run.state.first_norm
            given = (local.loss, local.gradient_norm, noted, spent)
            loss, norm, reference, seen = self.fetch(given)
            if first or run.state.batches:
                reference = np.fmax(reference, norm, dtype=reference.dtype)
            record = None
        run.count(*seen[0])
        aside, apart = self.held_out, np.nan
        if aside is not None and (run.iteration - 1) % aside.every == 0:
            apart = aside.measure(run.theta)
        run.begin(loss, norm, apart)
        run.loss = float(loss)
        if first and not np.isfinite(loss):
            raise _explain_loss(problem, run.theta, loss)
        if first and aside is not None and not np.isfinite(apart):
            advice = "points and data for which it is finite"
            raise InputError("held_out", f"its loss at theta0 is {apart}", advice)
        converged = norm <= self.stop.gradient * reference
        untried = record is None or converged or not (record.accepted or sum(record.counts))
        if untried and (first or run.state.batches):
            run.state = dataclasses.replace(run.state, first_norm=jnp.asarray(reference))
        if converged:
            return Status.CONVERGED
        if untried and (spent := self.stop.find_spent(run)):
            return spent
        if record is None:
            theta, state, record = self._try(method, local)
        else:
            run.count(*record.counts)
        run.finish(record)
        finite = np.isfinite(record.slope)
        run.info = local.describe(record.info, record.damping, finite, record.reach, seen)
        known = state.known is None or (bool(record.accepted) and self.draw is None)
        run.state = state if known else state.without_evaluation()
        if not record.accepted:
            if local.setup is None:  # it went with the program
                setup = Setup(problem, run.theta, getattr(method, "metric", None))
                local = dataclasses.replace(local, setup=setup)
            return self.stop.find_spent(run) or self._explain_rejection(local, record)
        run.theta, run.loss = theta, float(record.value)
        run.snapshots.note(run.iteration, theta)
        if self.asks and self._ask_callbacks():
            return Status.STOPPED
        return self.stop.find_goal(run.loss, float(record.step_norm), float(record.theta_norm))

    def _try(self, method: Method, local: Local) -> tuple[PyTree, State, Record]:
        """Try steps from θ until one is accepted, none can be, or a budget is used up."""
        run, state, promised = self.run, self.run.state, None
        assert state is not None
        if self.stop.loss is not None and self.draw is None:  # nothing is solved for beyond that
            enough = jnp.asarray(run.loss - self.stop.loss)
            setup = dataclasses.replace(local.setup, enough=enough)
            local = dataclasses.replace(local, setup=setup)
        for _ in range(method.tries):
            theta, state, record = method.try_step(local, state)
            if run.devices is not None:
                theta, state = self._replicate(run.devices, theta, state)
            record: Record = self.fetch(record)
            run.count(*record.counts)
            promised = record.predicted if promised is None else promised
            if record.accepted or record.failed or self.stop.find_spent(run) is not None:
                break
        model = local.setup.problem.model
        if record.accepted and model.rechecks:
            self.unchecked = state.known is None
            if state.known is not None:
                model.check(theta, state.known)
        return theta, state, record._replace(predicted=promised)

    def _explain_rejection(self, local: Local, record: Record) -> Status:
        """Why no step was taken; at the rounding level of the loss, whether the gradient agrees.

        It agrees where the quadratic model promises no more along the gradient itself.
        """
        if record.failed:
            return Status.NOT_FINITE
        status, run, promised = STATUSES[int(record.status)], self.run, float(record.predicted)
        if status is Status.NO_DECREASE and promised >= 0 and self.draw is None:
            problem, g = local.setup.problem, local.gradient
            rho = local.rho
            if rho is None:
                rho = evaluate(problem.model, run.theta).rho
                run.count(forward=1)
            rounding = float(_measure_rounding(local, rho))
            if promised <= rounding:
                solution = Solution(-g, record.info)
                run.count(linearised=1)
                curvature, square = float(local.curvature(solution)[0]), float(g @ g)
                left = 0.5 * square**2 / abs(curvature) if curvature else square
                if left <= MARGIN * rounding:
                    return Status.PRECISION
                metric, broken = local.setup.metric, record.info.reason == Status.BREAKDOWN.code
                if metric is not None and broken and (square := _measure(metric, rho)) < 0:
                    what = f"is not positive: ⟨ζ, Aζ⟩ = {square:.3g} for a random ζ at this state"
                    raise InputError("metric", what, "the other sign, so that A = LᵀL")
                return Status.BLIND
        return Status.NOT_DESCENT if float(record.slope) >= 0 else status

    def _ask_callbacks(self) -> bool:
        """Whether a callback wants to stop; in every process what the leader's say."""
        run, devices = self.run, self.run.devices
        seen = Progress(run.iteration, take_local(run.theta), run.loss, dict(run.rows[-1]))
        answers = [bool(callback(seen)) for callback in self.callbacks]  # all are asked
        asked = any(answers)
        return asked if devices is None else bool(devices.agree(asked))

    def _replicate(self, devices: Devices, theta: PyTree, state: State) -> tuple[PyTree, State]:
        """θ and the state whole on every device; the evaluation of the model stays in parts."""
        whole = devices.replicate(state.without_evaluation())
        return devices.replicate(theta), dataclasses.replace(whole, known=state.known)


def _explain_loss(problem: Problem, theta: PyTree, loss: np.ndarray) -> InputError:
    """Why there is no finite loss at the start: data that are not, or a state that is negative."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem.loss):
        if eqx.is_inexact_array(leaf) and (wrong := int(jnp.sum(~jnp.isfinite(leaf)))):
            fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
            what = f"{count_some(wrong, leaf.size, 'values')} not finite"
            return InputError(fields[-1] if fields else "loss", what, "finite data")
    what, advice = f"the loss there is {loss}", "a starting point where the loss is finite"
    state = ravel_pytree(take_local(evaluate(problem.model, theta).rho))[0]
    if negative := int(jnp.sum(state < 0)):
        what += f", where the state has negative values ({negative} of {state.size})"
        advice += ", for a loss of densities one where they are positive"
    return InputError("theta0", what, advice)


def _iterate(
    problem: Problem,
    method: Method,
    theta: PyTree,
    state: State,
    bounds: Bounds | None,
    limits: np.ndarray,
) -> tuple[Array, tuple[Any, list[Any]], Local, PyTree, State]:
    """An iteration as one program: linearise, and try steps unless the gradient is small enough.

    `limits` are the tolerance of the gradient and the propagations left. All numbers come back in
    one array, with their structure and types; a GPU waits for the host once in an iteration.
    """
    local = method.linearise(problem, theta, state, bounds=bounds)
    theta, state, record = method.try_steps(local, state, limits)
    spent = (local.counts, local.report)
    seen = (local.loss, local.gradient_norm, state.first_norm, spent, record)
    leaves, structure = jax.tree.flatten(seen)
    kinds = [jnp.result_type(x) if eqx.is_array_like(x) else x for x in leaves]
    numbers = jnp.stack([jnp.asarray(x, float) for x in leaves if eqx.is_array_like(x)])
    kept = dataclasses.replace(local, **dict.fromkeys(local.system))
    return numbers, (structure, kinds), kept, theta, state


_choose_program = jit_by_work(_iterate)


@eqx.filter_jit
def _measure(metric: Metric, rho: PyTree) -> Array:
    """⟨ζ, Aζ⟩ at ρ for a random ζ."""
    zeta = probe(rho)
    return dot(zeta, metric.at(rho).gram.mv(zeta))


@eqx.filter_jit
def _measure_rounding(local: Local, rho: PyTree) -> Array:
    """How uncertain the loss is, from θ, ρ and the loss itself having so many digits."""
    flat, _ = flatten(local.setup.theta)
    size = lambda x, slope: jnp.finfo(x.dtype).eps * jnp.sum(jnp.abs(x * slope))
    _, covector, _ = differentiate_loss(local.setup.problem, local.setup.theta, rho)
    parts = [size(local.loss, 1.0), size(flat, local.gradient)]
    if covector is not None:
        parts += jax.tree.leaves(jax.tree.map(size, rho, covector))
    return 8 * jnp.sum(jnp.stack(parts))
