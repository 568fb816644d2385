"""The system as products: a model's in a metric, never formed."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..metrics.base import Metric
from ..models.base import Products
from ..parameters import ParameterOperator, find_free, flatten
from ..problem import LossDerivatives, differentiate_loss
from ..solvers.base import MatrixFreeSolver, Solution
from ..solvers.system import Factor, Gram, System
from .local import Local, Setup, measure_energy


class Iterative(Local):
    """A system of products that a `MatrixFreeSolver` has prepared."""

    solver: MatrixFreeSolver
    prepared: Any
    rho: PyTree
    products: ClassVar[None] = None

    def _solve(self, damping: Array) -> Solution:
        return self.solver.solve(self.prepared, damping)


class MatrixFree(Iterative):
    """The system from the products Zη and Zᵀξ of the model and those of the metric."""

    @classmethod
    def prepare(cls, setup: Setup) -> "MatrixFree":
        flat, unravel = flatten(setup.theta)
        metric, solver = setup.metric, setup.solver
        assert metric is not None
        assert isinstance(solver, MatrixFreeSolver)
        products = setup.problem.model.products(unravel, flat, setup.known)
        derivatives = differentiate_loss(setup.problem, setup.theta, products.rho)
        value, covector, direct = derivatives
        gradient = jnp.zeros_like(flat) if covector is None else products.pull(covector)
        gradient = gradient if direct is None else gradient + direct
        system = make_system(
            products,
            gradient,
            metric,
            solver,
            free=None if setup.bounds is None else find_free(flat, gradient, setup.bounds),
            parameter=setup.damping.operator,
            first_norm=setup.first_norm,
            covector=covector if direct is None else None,
            memory=solver.arrive(setup.memory, flat, gradient),
        )
        energy, report = _describe_metric(metric, products.rho, derivatives)
        return cls(
            **prepare_system(setup, system, solver),
            loss=value,
            energy=energy,
            report=report,
            counts=Counts(products.evaluations + (covector is None), 0, 1).plus(
                *count_preparation(setup, system, solver)
            ),
            rho=products.rho,
        )

    def aim(self, image: PyTree, gradient: Array) -> "MatrixFree":
        prepared = self.solver.aim(self.prepared, image, gradient)
        return eqx.tree_at(lambda x: x.prepared, self, prepared, is_leaf=lambda x: x is None)


def prepare_system(setup: Setup, system: Any, solver: MatrixFreeSolver) -> dict[str, Any]:
    """The fields of an `Iterative` that follow from its system."""
    samples, dtype = setup.damping.trace_samples, system.gradient.dtype
    return {
        "setup": setup,
        "gradient": system.gradient,
        "gradient_norm": jnp.linalg.norm(system.gradient),
        "free": system.free,
        "trace": system.trace(samples) if samples else jnp.full((), jnp.nan, dtype),
        "solver": solver,
        "prepared": solver.prepare(system),
    }


def count_preparation(setup: Setup, system: Any, solver: MatrixFreeSolver) -> Counts:
    """The products spent on the trace of G and on the solver's preparation."""
    samples = setup.damping.trace_samples
    sampled = Counts(0, samples, samples if system.indefinite else 0)
    return solver.spent(system).plus(*sampled)


def make_system(
    products: Products,
    gradient: Array,
    metric: Metric,
    solver: MatrixFreeSolver,
    *,
    free: Array | None = None,
    parameter: ParameterOperator | None = None,
    first_norm: Array | float | None = None,
    covector: PyTree | None = None,
    memory: PyTree = None,
) -> System:
    """(G + λD) η = −∂_θ f for these products, with what of the metric this solver uses.

    `covector` is ∂_ρ f where it accounts for all of the gradient. The set-up of the metric is
    compiled by itself where the products are outside JAX.
    """
    rho, uses = products.rho, solver.uses
    gradient = gradient if free is None else gradient * free
    whitened = (
        None if covector is None or "factor" not in uses else whiten_at(metric, rho, covector)
    )
    return System(
        products=products,
        gradient=gradient,
        whitened=whitened,
        gram=gram_at(metric, rho) if "gram" in uses else None,
        factor=factor_at(metric, rho) if "factor" in uses else None,
        free=free,
        parameter=parameter,
        progress=measure_progress(gradient, first_norm),
        memory=memory,
    )


def measure_progress(gradient: Array, first_norm: Array | float | None) -> Array:
    """‖∂_θ f‖ relative to the first of a run; 1 where there is none."""
    first = jnp.asarray(jnp.nan if first_norm is None else first_norm)
    relative = jnp.linalg.norm(gradient) / jnp.where(first > 0, first, 1.0)
    return jnp.where(first > 0, relative, 1.0).astype(gradient.dtype)


# Compiled by themselves where what is around them is not.


@eqx.filter_jit
def gram_at(metric: Metric, rho: PyTree) -> Gram:
    """A at ρ."""
    return Gram(metric.at(rho).gram)


@eqx.filter_jit
def factor_at(metric: Metric, rho: PyTree) -> Factor:
    """L at ρ."""
    return Factor(metric.at(rho).factor)


@eqx.filter_jit
def whiten_at(metric: Metric, rho: PyTree, covector: PyTree) -> PyTree | None:
    """A b with Lᵀb = c on all tangents; None where the metric annihilates some."""
    geometry = metric.at(rho)
    return None if geometry.annihilates else geometry.whiten(covector)


@eqx.filter_jit
def _describe_metric(
    metric: Metric, rho: PyTree, derivatives: LossDerivatives
) -> tuple[Array, dict[str, Any]]:
    """The energy of the gradient where it is known, and what the metric reports."""
    geometry = metric.at(rho)
    return measure_energy(geometry, derivatives), geometry.report()
