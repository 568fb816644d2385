"""Descent whose trial step is twice the last one, halved until the loss falls enough."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from natgrad.descent.attempt import attempt
from natgrad.direction.inputs import check_inputs
from natgrad.direction.linearisation import linearise

from natgrad import Auto, Backtracking, Damping, Metric, MiniBatch, Problem, Progress, Status
from natgrad.descent.curves import Route
from natgrad.direction.damping import as_damping
from natgrad.parameters import flatten

SOLVER, STRAIGHT = Auto(), Route(1)
PATIENCE = 10  # mini-batches in a row without a step that end a run


def doubling_descent(
    problem: Problem,
    theta: Any,
    metric: Metric,
    damping: Damping | float,
    *,
    max_iterations: int,
    callback: Callable[[Progress], bool],
    batch: MiniBatch | None = None,
) -> Status:
    """Natural gradient descent with a line search that remembers; returns why it ended.

    The length of a natural gradient step differs between metrics by orders of magnitude, and
    `Backtracking` in `minimize` starts every search from the same one. Here it starts from 2τ for
    the last τ, and from 2 at first. Everything else is an iteration of `minimize`.
    """
    damping = as_damping(damping)
    check_inputs(problem, theta, metric, SOLVER, damping)
    state = jax.eval_shape(problem.model, theta)
    draws = None if batch is None else batch.sampler(problem, metric, state)
    memory, unravel = jnp.zeros(()), flatten(theta)[1]
    tau, refused = 1.0, 0
    for iteration in range(max_iterations):
        if draws is not None:
            problem, metric = draws(iteration)
        lin = linearise(problem, theta, metric, SOLVER, damping, None)
        step = Backtracking(initial=2 * tau, max_halvings=60)
        tried = attempt(problem, theta, metric, lin, damping, memory, step, None, STRAIGHT)
        outcome = tried.outcome
        accepted, reason, length, value, norm = jax.device_get(
            (outcome.accepted, outcome.reason, outcome.tau, outcome.value, lin.gradient_norm)
        )
        if not accepted:
            refused += 1
            if draws is None or refused == PATIENCE:
                return Status.from_code(reason)
            continue
        theta, tau, refused = unravel(outcome.theta), float(length), 0
        row = {"loss": float(value), "gradient_norm": float(norm), "step": tau}
        if callback(Progress(iteration + 1, theta, float(value), row)):
            return Status.STOPPED
    return Status.MAX_ITERATIONS
