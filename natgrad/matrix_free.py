"""The system that a matrix-free solver is given: a model's products in a metric."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .metrics.base import Metric
from .models.products import Products
from .parameter_operators import ParameterOperator
from .solvers import MatrixFreeSolver
from .solvers.system import Factor, Gram, System

PyTree = Any


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
    first = jnp.asarray(first_norm)
    relative = jnp.linalg.norm(gradient) / jnp.where(first > 0, first, 1.0)
    whitens = "factor" in uses and covector is not None and not metric.annihilates
    return System(
        products=products,
        gradient=gradient,
        whitened=_whitened(metric, rho, covector) if whitens else None,
        gram=_gram(metric, rho) if "gram" in uses else None,
        factor=_factor(metric, rho) if "factor" in uses else None,
        free=free,
        parameter=parameter,
        progress=jnp.where(first > 0, relative, 1.0).astype(gradient.dtype),
        memory=memory,
    )


@eqx.filter_jit
def _gram(metric: Metric, rho: PyTree) -> Gram:
    return Gram(metric.gram(rho))


@eqx.filter_jit
def _factor(metric: Metric, rho: PyTree) -> Factor:
    return Factor(metric.factor(rho))


@eqx.filter_jit
def _whitened(metric: Metric, rho: PyTree, covector: PyTree) -> PyTree:
    return metric.whiten(rho, covector)
