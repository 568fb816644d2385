"""The system as products: a model's in a metric, never formed."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.operators import probe
from ..core.outcomes import Counts
from ..metrics.base import Geometry, Metric, Report
from ..models.base import Products
from ..parameters import find_free, flatten
from ..problem import LossDerivatives, Problem, differentiate_loss
from ..solvers.base import Factor, Gram, LinearSystem, MatrixFreeSolver, Parts, Solution, System
from .local import Local, Setup, measure_energy

ALIKE = 1e-3  # relative difference up to which a metric is that of the loss


class Iterative(Local):
    """A system of products that a `MatrixFreeSolver` has prepared."""

    solver: MatrixFreeSolver
    prepared: Any
    rho: PyTree
    products: ClassVar[None] = None

    @classmethod
    def from_system(cls, setup: Setup, system: LinearSystem, counts: Counts, **fields: Any) -> Self:
        """The rest of the fields, which follow from the system; `counts` was spent on it."""
        solver, samples = setup.solver, setup.damping.trace_samples
        assert isinstance(solver, MatrixFreeSolver)
        trace = jnp.full((), jnp.nan, system.gradient.dtype)
        if samples:
            trace = system.trace(samples)
            counts = counts.plus(0, samples, samples if system.indefinite else 0)
        prepared, spent = solver.prepare(system)
        return cls(
            setup=setup,
            gradient=system.gradient,
            gradient_norm=jnp.linalg.norm(system.gradient),
            free=system.free,
            trace=trace,
            solver=solver,
            prepared=prepared,
            counts=counts.plus(*spent),
            **fields,
        )

    def _solve(self, damping: Array) -> Solution:
        setup = self.setup
        trusted = (setup.radius, setup.enough) if self.solver.keeps_trail else ()
        return self.solver.solve(self.prepared, damping, *trusted)


class MatrixFree(Iterative):
    """The system from the products Zη and Zᵀξ of the model and those of the metric."""

    @property
    def products(self) -> Products | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the system, where the solver has kept it."""
        system = getattr(self.prepared, "system", None)
        return None if system is None else system.products

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
        free = None if setup.bounds is None else find_free(flat, gradient, setup.bounds, value)
        memory = setup.memory
        steps = getattr(memory, "last", memory) is not None  # pairs of solves alone do not ask
        operators, energy, report, share = set_up_metric(
            metric, products.rho, derivatives, solver.uses, setup.problem if steps else None
        )
        if memory is not None:
            memory = memory.arrive(flat, gradient, share)
        system = System(
            gradient if free is None else gradient * free,
            products=products,
            free=free,
            parameter=setup.damping.operator,
            memory=memory,
            energy=energy,
            overhead=setup.problem.model.overhead,
            **operators,
        )
        return cls.from_system(
            setup,
            system,
            Counts(products.evaluations + (covector is None), 0, 1),
            loss=value,
            energy=energy,
            report=report,
            rho=products.rho,
        )

    def aim(self, image: PyTree, gradient: Array) -> "MatrixFree":
        prepared = self.solver.aim(self.prepared, image, gradient)
        return eqx.tree_at(lambda x: x.prepared, self, prepared, is_leaf=lambda x: x is None)


# Compiled by themselves where what is around them is not: a model outside JAX.


@eqx.filter_jit
def set_up_metric(
    metric: Metric,
    rho: PyTree,
    derivatives: LossDerivatives,
    uses: Parts,
    problem: Problem | None = None,
) -> tuple[dict[str, Any], Array, Report, Array]:
    """What a `System` needs of the metric at ρ, the energy of the gradient, the metric's report.

    The gradient is whitened where ∂_ρ f is all of it, and the metric annihilates no tangent. Last
    comes the likeness of the metric to the loss of the problem, 0 without one.
    """
    geometry, (_, covector, direct) = metric.at(rho), derivatives
    operators: dict[str, Any] = {}
    if "gram" in uses:
        operators["gram"] = Gram(geometry.gram)
    if "factor" in uses:
        operators["factor"] = Factor(geometry.factor)
        if covector is not None and direct is None and not geometry.annihilates:
            operators["whitened"] = geometry.whiten(covector)
    energy, share = measure_energy(geometry, derivatives), jnp.zeros(())
    if problem is not None and problem.objective is None:
        share = compare_to_loss(geometry, problem, rho)
    return operators, energy, geometry.report(), share


def compare_to_loss(geometry: Geometry, problem: Problem, rho: PyTree) -> Array:
    """c where A is c times the Hessian of the loss at ρ, as a random tangent shows; else 0."""
    zeta = probe(rho)
    hessian = ravel_pytree(jax.jvp(jax.grad(problem.loss), (rho,), (zeta,))[1])[0]
    gram = ravel_pytree(geometry.gram.mv(zeta))[0].astype(hessian.dtype)
    square = hessian @ hessian
    share = (gram @ hessian) / jnp.where(square > 0, square, 1.0)
    alike = jnp.linalg.norm(gram - share * hessian) <= ALIKE * jnp.linalg.norm(gram)
    return jnp.where(alike & (share > 0), share, 0.0)


@eqx.filter_jit
def gram_at(metric: Metric, rho: PyTree) -> Gram:
    """A at ρ."""
    return Gram(metric.at(rho).gram)


@eqx.filter_jit
def factor_at(metric: Metric, rho: PyTree) -> Factor:
    """L at ρ."""
    return Factor(metric.at(rho).factor)
