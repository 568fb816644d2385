"""Natural gradients as a part of an optax chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..direction.damping import Damping, as_damping
from ..errors import InputError, import_optional, name_kind
from ..metrics.base import Metric
from ..models.base import Model
from ..models.explicit import as_model
from ..solvers import Auto, SolveInfo, Solver
from .given_gradient import check_method, convert_gradient

if TYPE_CHECKING:
    import optax


class NaturalGradientState(NamedTuple):
    """What `scale_by_natural_gradient` carries from one update to the next.

    `count` updates were made; `damping` is λ and `info` what the solver saw in the last of them
    (rank, condition, iterations, residual; NaN where it does not know). `value` is the last loss
    that was passed.
    """

    count: Array
    damping: Array
    value: Array
    info: SolveInfo


class OnBatch(eqx.Module):
    """θ ↦ ρ(θ, batch), with the batch as leaves."""

    function: Callable[[PyTree, PyTree], PyTree]
    batch: PyTree

    def __call__(self, theta: PyTree) -> PyTree:
        return self.function(theta, self.batch)


def scale_by_natural_gradient(
    model: Model | Callable[..., PyTree],
    *,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping | float = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """The Euclidean gradient ∂_θ f becomes (G + λD)⁻¹ ∂_θ f: a link of an `optax.chain`.

    ```python
    optimiser = optax.chain(
        ng.interop.scale_by_natural_gradient(model, metric=ng.L2(), damping=1e-3),
        optax.add_decayed_weights(1e-4),
        optax.scale_by_learning_rate(optax.linear_schedule(0.0, 1.0, 10)),
    )
    state = optimiser.init(params)
    updates, state = optimiser.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
    ```

    `model(params)` is the state that the metric measures; what f is does not matter, only its
    gradient is used. With mini-batches it is `model(params, batch)`, and `batch` is passed to
    `update` by name; for a `Pointwise` or `Collocation` model the batch are the points. G is then
    that of the batch: with a loss that is a mean over n samples take `(1 / n) * ng.L2()`.

    Runs inside `jax.jit` and `lax.scan`, unless the model is outside JAX. The state tells λ, the
    rank and the like of the last update. `LevenbergMarquardt` wants the loss by name as `value`:
    λ falls after an update that lowered it and rises after one that did not, which is not undone.

    Cost: that of `ng.natural_gradient`, without the gradient. The solvers are given ∂_θ f alone, so
    rounding errors grow with the square of the condition number of Y, as for an objective of θ.

    Args:
        model: `model(params)` or `model(params, batch)`, the state.
        metric: The metric on states.
        solver: As in `ng.natural_gradient`.
        damping: As in `ng.natural_gradient`.
    """
    optax = import_optional("optax")
    check_method(metric, solver)
    if not callable(model):
        raise InputError("model", f"{name_kind(model)} is not callable", "a function of θ")
    damping = as_damping(damping)

    def init(params: PyTree) -> NaturalGradientState:
        check_params(params)
        unknown, none = jnp.asarray(jnp.nan, float), jnp.zeros((), jnp.int32)
        counts = Counts(none, none, none)  # pyright: ignore[reportArgumentType]
        info = SolveInfo(unknown, unknown, jnp.asarray(False), none, unknown, none, counts, unknown)
        return NaturalGradientState(none, jnp.zeros(()), unknown, info)

    def update(
        updates: PyTree,
        state: NaturalGradientState,
        params: PyTree | None = None,
        *,
        batch: PyTree | None = None,
        value: Array | float | None = None,
        **extra: Any,
    ) -> tuple[PyTree, NaturalGradientState]:
        check_params(params)
        masked = lambda x: isinstance(x, optax.MaskedNode)
        if batch is None and any(map(masked, jax.tree.leaves(params, is_leaf=masked))):
            what = "are masked, so that the model would not get all of them"
            advice = "all of them in batch=, and a model(params, batch) that puts them together"
            raise InputError("params", what, advice)
        if damping.adapts and value is None:
            what = f"{type(damping).__name__} follows the loss, which was not passed"
            advice = "update(gradient, state, params, value=loss), or a fixed damping"
            raise InputError("value", what, advice)
        value = jnp.asarray(jnp.nan if value is None else value, state.value.dtype)
        first = state.count == 0
        before = jnp.asarray(damping.initial, state.damping.dtype)
        followed = damping.update(state.damping, _Fate(value < state.value, jnp.zeros(())))
        carried = jnp.where(first, before, followed)
        found = convert_gradient(
            at(model, batch), params, updates, metric, solver, damping, carried
        )
        new = NaturalGradientState(state.count + 1, found.damping, value, found.info)
        rest = eqx.filter(updates, eqx.is_inexact_array, inverse=True)
        like = lambda a, b: jnp.asarray(a, b.dtype)  # a loop needs the dtypes of the old state
        return eqx.combine(found.direction, rest), jax.tree.map(like, new, state)

    return optax.GradientTransformationExtraArgs(init, update)


def at(model: Model | Callable[..., PyTree], batch: PyTree | None) -> Model:
    """The model on this batch; None for a model that needs none."""
    if batch is None:
        return as_model(model)
    if not isinstance(model, Model):
        return as_model(OnBatch(model, batch))
    if not hasattr(model, "at"):
        advice = "a function model(params, batch), or Pointwise, whose batch are points"
        raise InputError("batch", f"{name_kind(model)} takes none", advice)
    return model.at(batch)  # pyright: ignore[reportAttributeAccessIssue]


def check_params(params: PyTree | None) -> None:
    """Parameters must be there, and some of them real arrays."""
    if params is None:
        what = "were not passed, and G depends on them"
        raise InputError("params", what, "update(updates, state, params)")
    if not jax.tree.leaves(eqx.filter(params, eqx.is_inexact_array)):
        what = "hold no floating-point array"
        raise InputError("params", what, "jnp.asarray(params, dtype=float)")


class _Fate(NamedTuple):
    """An update as a step, which is accepted where it has lowered the loss; nothing is foreseen."""

    accepted: Array
    halvings: Array
    ratio: Array = jnp.nan  # pyright: ignore[reportAssignmentType]
    expected: Array = jnp.nan  # pyright: ignore[reportAssignmentType]
