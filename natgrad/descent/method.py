"""What makes an iteration: problem, metric, solver, damping, step, and the draws of a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..batches import MiniBatch
from ..core.operators import structure_of
from ..devices import Distribution
from ..direction.damping import Damping
from ..direction.linearisation import matrix_free, newton_solver
from ..errors import InputError
from ..metrics.base import Metric
from ..metrics.diagonal import Euclidean
from ..metrics.newton import Newton
from ..models.base import Evaluation
from ..parameters import Bounds, flatten
from ..pinn.collocation import Collocation
from ..pinn.resampling import Resampled
from ..problem import Problem
from ..solvers import Solver
from .checkpoint import Checkpoint, Keeper
from .curves import Route
from .run import Carried
from .steps import Step

Draw = Callable[[int], tuple[Problem, Metric]]


class Method(NamedTuple):
    """The parts of an iteration, as given to `minimize`."""

    problem: Problem
    metric: Metric
    solver: Solver
    damping: Damping
    step: Step
    box: Bounds | None
    route: Route
    draws: Draw | None

    def keeper(
        self,
        checkpoint: Checkpoint,
        theta0: PyTree,
        metric: Metric,
        batch: Any,
        known: Evaluation | None,
        distribution: Distribution,
    ) -> Keeper:
        """The checkpoint of a run of this method from θ₀ in the `metric` as it was given."""
        return Keeper.of(
            checkpoint,
            self.problem,
            theta0,
            known,
            distribution,
            metric=metric,
            solver=self.solver,
            damping=self.damping,
            step=self.step,
            bounds=self.box,
            momentum=self.route,
            batch=batch,
        )

    def start(self, theta: PyTree, known: Evaluation | None) -> Carried:
        """What the first iteration starts from."""
        damping_state = jnp.asarray(self.damping.initial_state(), dtype=float)  # strong, as θ is
        problem, metric = (self.problem, self.metric) if self.draws is None else self.draws(0)
        batches = self.draws is not None
        memory = _memory(problem, theta, metric, self.solver, self.damping, known, batches)
        return Carried(damping_state, np.asarray(np.nan), memory, self.route.previous)


def sampler(
    batch: MiniBatch | Resampled,
    problem: Problem,
    metric: Metric,
    theta: PyTree,
    known: Evaluation | None,
    distribution: Distribution,
) -> Draw:
    """The draws of a batch, checked against the state at θ, over the devices of the run."""
    if not isinstance(batch, (MiniBatch, Resampled)):
        raise InputError("batch", f"is a {type(batch).__name__}", "MiniBatch(64)")
    selects = isinstance(batch, MiniBatch) and batch.select is None
    if selects and isinstance(problem.model, Collocation):
        what = "a MiniBatch selects from the state, and collocation points are drawn anew"
        raise InputError("batch", what, "Resampled(draw)")
    flat, unravel = flatten(theta)
    whole = lambda v: problem.model(unravel(v))
    state = jax.eval_shape(whole, flat) if known is None else structure_of(known.rho)
    draw = batch.sampler(problem, metric, state)

    def spread(iteration: int) -> tuple[Problem, Metric]:
        problem, metric = draw(iteration)
        return distribution.spread(problem, theta, metric)

    return spread


def _memory(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    known: Evaluation | None,
    batches: bool,
) -> Any:
    """What the solver carries from one iteration to the next, before the first."""
    if isinstance(metric, Euclidean):
        return None
    flat, unravel = flatten(theta)
    if isinstance(metric, Newton):
        return newton_solver(solver).initial_memory(flat.size, flat.dtype, batches)
    model = problem.model
    state = known.rho if known is not None else jax.eval_shape(lambda v: model(unravel(v)), flat)
    iterative = matrix_free(solver, state, flat, model, metric, damping)
    return None if iterative is None else iterative.initial_memory(flat.size, flat.dtype, batches)
