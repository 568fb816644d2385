"""The systems that a matrix-free solver is given: a model's products in a metric, or Newton's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.operators import hoist, structure_of
from ..core.outcomes import Counts
from ..metrics.base import Metric
from ..models.base import Evaluation, Products
from ..parameters import flatten
from ..problem import Problem
from ..solvers import MatrixFreeSolver
from ..solvers.system import Factor, Gram, HessianSystem, System
from .damping import ParameterOperator


def matrix_free_system(
    products: Products,
    gradient: Array,
    metric: Metric,
    solver: MatrixFreeSolver,
    *,
    free: Array | None = None,
    parameter: ParameterOperator | None = None,
    first_norm: Array | float = jnp.nan,
    covector: PyTree | None = None,
    memory: Any = None,
) -> System:
    """(G + λD) η = −∂_θ f for these products, with what of the metric this solver uses.

    `first_norm` is ‖∂_θ f‖ in the first iteration of a run, NaN outside of one; `covector` is ∂_ρ f
    where it accounts for all of the gradient. The set-up of the metric is compiled by itself where
    the products are outside JAX.
    """
    rho, uses = products.rho, solver.uses
    gradient = gradient if free is None else gradient * free
    whitens = "factor" in uses and covector is not None and not metric.annihilates
    return System(
        products=products,
        gradient=gradient,
        whitened=_whitened(metric, rho, covector) if whitens else None,
        gram=gram_at(metric, rho) if "gram" in uses else None,
        factor=factor_at(metric, rho) if "factor" in uses else None,
        free=free,
        parameter=parameter,
        progress=_progress(gradient, first_norm),
        memory=memory,
    )


class NewtonPoint(NamedTuple):
    """The value at θ and Newton's system, with the propagations spent on them."""

    value: Array
    rho: PyTree
    gradient: Array
    parts: tuple[Callable[[Array], Array], ...]
    counts: Counts

    def system(
        self,
        *,
        free: Array | None,
        parameter: ParameterOperator | None,
        first_norm: Array | float,
        memory: Any,
    ) -> HessianSystem:
        """(∇²_θ f + λD) η = −∂_θ f on the parameters that may move."""
        gradient = self.gradient if free is None else self.gradient * free
        return HessianSystem(
            gradient=gradient,
            free=free,
            parameter=parameter,
            progress=_progress(gradient, first_norm),
            memory=memory,
            rho=self.rho,
            parts=self.parts,
        )


def newton_point(problem: Problem, theta: PyTree, known: Evaluation | None) -> NewtonPoint:
    """f, ∂_θ f and products with ∇²_θ f; of an objective of θ by JAX alone."""
    if problem.objective is not None:
        value, gradient, product = _twice(problem.objective, theta)
        return NewtonPoint(value, jnp.zeros(()), gradient, (product,), Counts(1, 0, 1))
    flat, unravel = flatten(theta)
    found = problem.model.second_order(unravel, flat, known, problem.loss)
    counts = Counts(found.evaluations, 0, 1)
    value, gradient = found.value, found.gradient
    if problem.regulariser is None:
        return NewtonPoint(value, found.rho, gradient, (found.product,), counts)
    extra, slope, product = _twice(problem.regulariser, theta)
    parts = (found.product, product)
    return NewtonPoint(value + extra, found.rho, gradient + slope, parts, counts)


def _progress(gradient: Array, first_norm: Array | float) -> Array:
    """‖∂_θ f‖ relative to the first of a run; 1 where there is none."""
    first = jnp.asarray(first_norm)
    relative = jnp.linalg.norm(gradient) / jnp.where(first > 0, first, 1.0)
    return jnp.where(first > 0, relative, 1.0).astype(gradient.dtype)


@eqx.filter_jit
def _twice(function: Callable[[PyTree], Array], theta: PyTree) -> Any:
    """A function of θ, its gradient, and its Hessian as a product."""
    flat, unravel = flatten(theta)
    slope = jax.value_and_grad(lambda v: function(unravel(v)))
    (value, gradient), tangent = jax.linearize(slope, flat)
    return value, gradient, hoist(lambda eta: tangent(eta)[1], structure_of(flat))


@eqx.filter_jit
def gram_at(metric: Metric, rho: PyTree) -> Gram:
    """A at ρ, compiled by itself where what is around it is not."""
    return Gram(metric.gram(rho))


@eqx.filter_jit
def factor_at(metric: Metric, rho: PyTree) -> Factor:
    """L at ρ, likewise."""
    return Factor(metric.factor(rho))


@eqx.filter_jit
def _whitened(metric: Metric, rho: PyTree, covector: PyTree) -> PyTree:
    return metric.whiten(rho, covector)
