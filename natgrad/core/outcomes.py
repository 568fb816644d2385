"""What became of a solve, a step or a run: how it ended, and what it cost."""

from enum import StrEnum
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Status(StrEnum):
    """How a solve, a step or a run ended.

    A status is a string, `result.status == "converged"`, with a `message`, the status in a
    sentence. Compiled code carries its `code`, an integer; `STATUSES[code]` is the way back. Code 0
    is `OK`, which is also what a loop carries while there is no reason to end it.
    """

    message: str
    code: int

    OK = "ok", "there is nothing to report"
    RANK_DEFICIENT = "rank_deficient", "G is singular; the direction is the one of least norm"
    CONVERGED = "converged", "the gradient norm fell below the tolerance"
    RECYCLED = "recycled", "the direction was made of pairs from earlier solves, without products"
    LOSS_REACHED = "loss_reached", "the loss reached its target"
    SMALL_STEP = "small_step", "the step became shorter than the step tolerance"
    PRECISION = (
        "precision",
        "the decrease still to be had is below the rounding error of the loss",
    )
    MAX_ITERATIONS = "max_iterations", "iteration limit reached"
    RADIUS = "radius", "the direction became as long as the model is trusted"
    TRUNCATED = "truncated", "a further product would gain too little, or more than is asked for"
    MAX_SECONDS = "max_seconds", "time limit reached"
    MAX_PROPAGATIONS = "max_propagations", "propagation limit reached"
    STOPPED = "stopped", "a callback asked to stop"
    BREAKDOWN = "breakdown", "the curvature along a direction of the solver was not positive"
    NO_DECREASE = (
        "no_decrease",
        "no step along the direction decreased the loss; none was taken",
    )
    NOT_FINITE = (
        "not_finite",
        "the loss or the direction was not finite; the step was not taken",
    )
    INADMISSIBLE = (
        "inadmissible",
        "the step left the states on which the metric is defined; not taken",
    )
    NOT_DESCENT = (
        "not_descent",
        "the direction found does not descend: G is singular or not positive",
    )
    BLIND = (
        "blind",
        "the metric does not see what is left of the gradient, or is not positive; damping helps",
    )
    METRIC_NOT_CONVERGED = (
        "metric_not_converged",
        "an iteration inside the metric did not converge; the direction is not a number",
    )
    FAILED = "failed", "an exception ended the run; this is what it had reached"

    def __new__(cls, value: str, message: str) -> "Status":
        member = str.__new__(cls, value)
        member._value_, member.message, member.code = value, message, len(cls.__members__)
        return member


STATUSES = tuple(Status)  # by their codes


def find_reason(*cases: tuple[Array, Status]) -> Array:
    """The code of the first case that holds, or that of a loop that goes on."""
    conditions, reasons = zip(*cases, strict=True)
    codes = [jnp.int32(reason.code) for reason in reasons]
    return jnp.select(conditions, codes, jnp.int32(Status.OK.code))


def was_taken(reason: Array) -> Array:
    """Whether the step that ended for this reason is a good one."""
    return (reason != Status.NOT_FINITE.code) & (reason != Status.BREAKDOWN.code)


# These say nothing about the problem: with more to spend, such a run goes on.
BUDGETS = (
    Status.MAX_ITERATIONS,
    Status.MAX_PROPAGATIONS,
    Status.MAX_SECONDS,
    Status.STOPPED,
)


class Counts(NamedTuple):
    """Evaluations ρ(θ), products Zη and products Zᵀξ: the currency of PDE-based optimisation.

    A dense Z counts as the products that make it: p linearised ones in forward mode, k adjoint
    ones in reverse mode, one adjoint pass for a pointwise model.
    """

    forward: Array | int = 0
    linearised: Array | int = 0
    adjoint: Array | int = 0

    def plus(self, forward: Array | int = 0, linearised: Array | int = 0, adjoint: Array | int = 0):
        """These counts and some more."""
        return Counts(
            jnp.asarray(self.forward + forward),
            jnp.asarray(self.linearised + linearised),
            jnp.asarray(self.adjoint + adjoint),
        )
