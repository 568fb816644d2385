"""How far along a direction: fixed, backtracking and model steps. None knows how it was found."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core.compiled import loop
from ..core.settings import Number, check_number, setting

ACCEPTED, NO_DECREASE, NOT_FINITE, INADMISSIBLE = range(4)


class Trial(NamedTuple):
    """A point θ(τ) of the (projected) path and what was found there."""

    theta: Array
    value: Array
    admissible: Array
    linear_decrease: Array  # −⟨∂_θ f, θ(τ) − θ⟩, which the actual decrease is compared with
    known: Any = None  # the model's evaluation, where it is worth keeping


class Path(NamedTuple):
    """The line search's view of the problem: values along θ(τ), without the direction itself."""

    trial: Callable[[Array], Trial]
    value: Array
    slope: Array  # ⟨∂_θ f, η⟩
    curvature: Callable[[], Array]  # ⟨Zη, ∇²f Zη⟩
    curvature_products: int  # what that costs; nothing where Zη is known
    at: Callable[[Array], Trial]  # any other point
    around: Callable[[float, Any], Any]  # the inner problem of a proximal step
    length: Array  # ‖η‖


class Outcome(NamedTuple):
    """What became of a step.

    `predicted` is the linear decrease promised by the first length tried, `ratio` the actual over
    the linear decrease at the last one.
    """

    accepted: Array
    reason: Array
    tau: Array
    theta: Array
    value: Array
    halvings: Array
    ratio: Array
    predicted: Array
    evaluations: Array
    linearised: Array
    adjoint: Array | int = 0


class Step(eqx.Module):
    """A rule for the length τ of θ ← θ + τ η."""

    @property
    def on_host(self) -> bool:
        """Whether the step is driven from Python."""
        return False

    @abc.abstractmethod
    def take(self, path: Path) -> tuple[Outcome, Any]:
        """Look along the path and accept a point of it, or none; with the evaluation there."""


class FixedStep(Step):
    """τ always the same. A step that would not decrease the loss is rejected and ends the run.

    With `require_decrease=False` such a step is taken all the same and shows in
    `history["decreased"]`. With a `limit` it is no longer than that, τ‖η‖ ≤ `limit`.

    ```python
    ng.FixedStep(0.3)
    ```

    Cost: one evaluation.
    """

    size: Number = setting("size", positive=True)
    require_decrease: bool = eqx.field(static=True, default=True)
    limit: Array | None = eqx.field(
        converter=lambda x: None if x is None else check_number(x, "limit", positive=True),
        default=None,
    )

    def take(self, path: Path) -> tuple[Outcome, Any]:
        tau = jnp.asarray(self.size, path.value.dtype)
        if self.limit is not None:
            longest = jnp.asarray(self.limit) / jnp.where(path.length > 0, path.length, 1.0)
            tau = jnp.minimum(tau, longest.astype(tau.dtype))
        trial = path.trial(tau)
        sufficient = trial.value < path.value if self.require_decrease else jnp.asarray(True)
        return _outcome(path, tau, trial, sufficient, 0, trial.linear_decrease, 0)


class Backtracking(Step):
    """τ = `initial`, then halved until the loss falls by the Armijo share of the linear decrease.

    f(θ(τ)) ≤ f(θ) + `sufficient` ⟨∂_θ f, θ(τ) − θ⟩, with θ(τ) on the bounds where it leaves them.

    ```python
    ng.Backtracking(initial=1.0)
    ```

    Cost: one evaluation per trial. Reference: Nocedal and Wright, Numerical Optimization, ch. 3.
    """

    initial: Number = setting("initial", 1.0, positive=True)
    shrink: Number = setting("shrink", 0.5, positive=True, below=1.0)
    sufficient: Number = setting("sufficient", 1e-4, below=1.0)
    max_halvings: int = eqx.field(static=True, default=30)

    def take(self, path: Path) -> tuple[Outcome, Any]:
        tau = jnp.asarray(self.initial, path.value.dtype)
        return _backtrack(path, tau, self.shrink, self.sufficient, self.max_halvings, 0)


class ModelStep(Step):
    """τ = −⟨∂_θ f, η⟩ / ⟨Zη, ∇²f Zη⟩, the minimiser of the Gauss–Newton model along η; then halved.

    Natural directions of different metrics differ in length by orders of magnitude: this step has
    no length to tune. Where the curvature is not positive it starts from 1.

    ```python
    ng.ModelStep()
    ```

    Cost: one evaluation per trial, and one linearised product, which `CG` and `LSMR` have made.
    """

    shrink: Number = setting("shrink", 0.5, positive=True, below=1.0)
    sufficient: Number = setting("sufficient", 1e-4, below=1.0)
    max_halvings: int = eqx.field(static=True, default=30)

    def take(self, path: Path) -> tuple[Outcome, Any]:
        curvature = path.curvature()
        length = -path.slope / jnp.where(curvature > 0, curvature, 1.0)
        tau = jnp.where((curvature > 0) & jnp.isfinite(length), length, 1.0)
        spent = path.curvature_products
        return _backtrack(path, tau, self.shrink, self.sufficient, self.max_halvings, spent)


def refused(path: Path, theta: Array) -> Outcome:
    """No step, without looking: there is no direction, or not a finite one."""
    zero, none = jnp.zeros_like(path.value), jnp.zeros((), int)
    reason = jnp.where(jnp.isfinite(path.slope), NO_DECREASE, NOT_FINITE)
    return Outcome(
        accepted=jnp.asarray(False),
        reason=reason,
        tau=zero,
        theta=theta,
        value=path.value,
        halvings=none,
        ratio=zero,
        predicted=zero,
        evaluations=none,
        linearised=none,
    )


def _backtrack(
    path: Path, tau: Array, shrink: Number, sufficient: Number, max_halvings: int, linearised: int
) -> tuple[Outcome, Any]:
    shrink = jnp.asarray(shrink, tau.dtype)

    def enough(trial: Trial) -> Array:
        wanted = jnp.asarray(sufficient, tau.dtype) * trial.linear_decrease
        return (trial.value <= path.value - wanted) & (trial.value < path.value)

    def searching(carry: tuple[Array, Trial, Array]) -> Array:
        _, trial, halvings = carry
        return ~(enough(trial) & _usable(trial)) & (halvings < max_halvings)

    def halve(carry: tuple[Array, Trial, Array]) -> tuple[Array, Trial, Array]:
        tau, _, halvings = carry
        return tau * shrink, path.trial(tau * shrink), halvings + 1

    first = path.trial(tau)
    start = (tau, first, jnp.zeros((), int))
    tau, trial, halvings = loop(searching, halve, start)
    promised = first.linear_decrease
    return _outcome(path, tau, trial, enough(trial), halvings, promised, linearised)


def _usable(trial: Trial) -> Array:
    return jnp.isfinite(trial.value) & jnp.all(jnp.isfinite(trial.theta)) & trial.admissible


def _outcome(
    path: Path,
    tau: Array,
    trial: Trial,
    sufficient: Array,
    halvings: Array | int,
    promised: Array,
    linearised: int,
) -> tuple[Outcome, Any]:
    finite = jnp.isfinite(trial.value) & jnp.all(jnp.isfinite(trial.theta))
    reason = jnp.where(
        ~finite,
        NOT_FINITE,
        jnp.where(~trial.admissible, INADMISSIBLE, jnp.where(sufficient, ACCEPTED, NO_DECREASE)),
    )
    predicted = jnp.where(trial.linear_decrease == 0, 1.0, trial.linear_decrease)
    outcome = Outcome(
        accepted=reason == ACCEPTED,
        reason=reason,
        tau=tau,
        theta=trial.theta,
        value=trial.value,
        halvings=jnp.asarray(halvings),
        ratio=(path.value - trial.value) / predicted,
        predicted=promised,
        evaluations=jnp.asarray(halvings) + 1,
        linearised=jnp.asarray(linearised),
    )
    return outcome, trial.known
