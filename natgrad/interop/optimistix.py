"""Natural gradients in the minimisers of optimistix."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.settings import Public
from ..direction.damping import Damping, as_damping
from ..errors import InputError, import_optional, name_kind
from ..metrics.base import Metric
from ..models.base import Model
from ..models.explicit import as_model
from ..solvers import Auto, Solver
from .given_gradient import check_method, convert_gradient

optx = import_optional("optimistix")


class NaturalDescent(Public, optx.AbstractDescent):
    """The direction −(G + λD)⁻¹ ∂_y f, for any minimiser of optimistix that evaluates gradients.

    `model(y)` is the state that the metric measures. Cost: that of `ng.natural_gradient` for each
    accepted step.

    Args:
        model: y ↦ the state.
        metric: The metric on states.
        solver: As in `ng.natural_gradient`.
        damping: As in `ng.natural_gradient`.
    """

    model: Model = eqx.field(converter=as_model)
    _: dataclasses.KW_ONLY
    metric: Metric
    solver: Solver = Auto()
    damping: Damping = eqx.field(converter=as_damping, default=0.0)

    def __check_init__(self):
        check_method(self.metric, self.solver)
        if self.damping.adapts:
            what = f"{type(self.damping).__name__} follows steps, which a descent does not see"
            raise InputError("damping", what, "a fixed damping, and a line search of optimistix")

    def init(self, y: PyTree, f_info_struct: Any) -> PyTree:
        return jax.tree.map(jnp.zeros_like, y)

    def query(self, y: PyTree, f_info: Any, state: PyTree) -> PyTree:
        if not hasattr(f_info, "grad"):
            advice = "a minimiser that evaluates gradients, such as NaturalGradientDescent"
            raise InputError("f_info", f"has no gradient but is {name_kind(f_info)}", advice)
        how = self.metric, self.solver, self.damping, jnp.asarray(self.damping.initial)
        return convert_gradient(self.model, y, f_info.grad, *how).direction

    def step(self, step_size: Array, state: PyTree) -> tuple[PyTree, Any]:
        move = lambda d: -step_size.astype(d.dtype) * d
        return jax.tree.map(move, state), optx.RESULTS.successful


class NaturalGradientDescent(Public, optx.AbstractGradientDescent):
    """`optimistix.GradientDescent` along natural gradients, with a search of your choice.

    ```python
    solver = NaturalGradientDescent(model, metric=ng.L2(grid), rtol=1e-8, atol=1e-8)
    optx.minimise(lambda theta, args: loss(model(theta)), solver, theta)
    ```

    `search` is any of optimistix that evaluates the function alone: backtracking by default, or
    `optx.LearningRate(0.1)`.

    Args:
        model: y ↦ the state.
        metric: The metric on states.
        rtol: Relative tolerance at which optimistix stops.
        atol: Absolute tolerance at which optimistix stops.
        solver: As in `ng.natural_gradient`.
        damping: As in `ng.natural_gradient`.
        search: A search of optimistix that needs values only.
        norm: The norm of the tolerances.
    """

    rtol: float
    atol: float
    norm: Callable[[PyTree], Array]
    descent: NaturalDescent
    search: Any

    def __init__(
        self,
        model: Model | Callable[[PyTree], PyTree],
        *,
        metric: Metric,
        rtol: float,
        atol: float,
        solver: Solver = Auto(),
        damping: Damping | float = 0.0,
        search: Any = optx.BacktrackingArmijo(),
        norm: Callable[[PyTree], Array] = optx.max_norm,
    ):
        self.rtol, self.atol, self.norm, self.search = rtol, atol, norm, search
        self.descent = NaturalDescent(model, metric=metric, solver=solver, damping=damping)
