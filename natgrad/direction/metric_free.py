"""Directions without a metric on states: the plain gradient, and Newton's."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import jit_forwarding
from ..core.operators import structure_of
from ..core.outcomes import Counts
from ..models.base import Products
from ..parameters import find_free, flatten
from ..problem import ValueAndGradient, value_and_gradient
from ..solvers.base import HessianSystem, Solution, SolveInfo
from .local import Local, Setup
from .matrix_free import Iterative


class PlainGradient(Local):
    """G = I: η = −∂_θ f/(1 + λ)."""

    products: Products | None
    rho: ClassVar[None] = None
    solver: ClassVar[None] = None

    @classmethod
    def prepare(cls, setup: Setup) -> "PlainGradient":
        found = value_and_gradient(setup.problem, setup.theta, setup.known)
        make = cls.from_gradient if setup.problem.model.on_host else from_gradient
        return make(dataclasses.replace(setup, known=None), found)

    @classmethod
    def from_gradient(cls, setup: Setup, found: ValueAndGradient) -> "PlainGradient":
        """From a value and a gradient that are known already."""
        flat, gradient = flatten(setup.theta)[0], found.gradient
        if setup.bounds is not None:
            none = jnp.zeros(())  # parameters do not hinder each other along the gradient
            gradient = gradient * find_free(flat, gradient, setup.bounds, none)
        return cls(
            setup=setup,
            loss=found.value,
            gradient=gradient,
            gradient_norm=jnp.linalg.norm(gradient),
            energy=jnp.full((), jnp.nan, flat.dtype),
            free=None,
            trace=jnp.asarray(flat.size, flat.dtype),
            counts=found.counts.plus(),
            report={},
            products=found.products,
        )

    def _solve(self, damping: Array) -> Solution:
        one = jnp.ones((), self.gradient.dtype)
        info = SolveInfo(jnp.asarray(self.gradient.size), one, jnp.asarray(False))
        return Solution(-self.gradient / (1 + damping), info)


from_gradient = jit_forwarding(PlainGradient.from_gradient)


class Hessian(Iterative):
    """Newton's system: G is ∇²_θ f, by second-order adjoints; it may be indefinite."""

    @classmethod
    def prepare(cls, setup: Setup) -> "Hessian":
        flat = flatten(setup.theta)[0]
        value, rho, gradient, parts, evaluations = _differentiate_twice(setup)
        free = None if setup.bounds is None else find_free(flat, gradient, setup.bounds, value)
        one = jnp.ones(())  # G is the Hessian itself
        system = HessianSystem(
            gradient if free is None else gradient * free,
            parts=parts,
            free=free,
            parameter=setup.damping.operator,
            memory=None if setup.memory is None else setup.memory.arrive(flat, gradient, one),
            overhead=setup.problem.model.overhead,
        )
        counts, energy = Counts(evaluations, 0, 1), jnp.full((), jnp.nan)
        return cls.from_system(setup, system, counts, loss=value, energy=energy, report={}, rho=rho)

    def curvature(self, solution: Solution) -> tuple[Array, int]:
        """⟨η, Gη⟩ = −⟨∂_θ f, η⟩, because G is the Hessian itself."""
        return -(self.gradient @ solution.eta), 0


Part = Callable[[Array], Array]


def _differentiate_twice(setup: Setup) -> tuple[Array, PyTree, Array, tuple[Part, ...], int]:
    """f, ρ, ∂_θ f, the parts whose sum is the product with ∇²_θ f, and the evaluations spent."""
    problem, (flat, unravel) = setup.problem, flatten(setup.theta)
    if problem.objective is not None:
        value, gradient, product = _differentiate_function(problem.objective, setup.theta)
        return value, jnp.zeros(()), gradient, (product,), 1
    found = problem.model.second_order(unravel, flat, setup.known, problem.loss)
    if problem.regulariser is None:
        return found.value, found.rho, found.gradient, (found.product,), found.evaluations
    extra, slope, product = _differentiate_function(problem.regulariser, setup.theta)
    parts = (found.product, product)
    return found.value + extra, found.rho, found.gradient + slope, parts, found.evaluations


@eqx.filter_jit
def _differentiate_function(function: Callable[[PyTree], Array], theta: PyTree) -> Any:
    """A function of θ, its gradient, and its Hessian as a product."""
    flat, unravel = flatten(theta)
    slope = jax.value_and_grad(lambda v: function(unravel(v)))
    (value, gradient), tangent = jax.linearize(slope, flat)
    return (
        value,
        gradient,
        eqx.filter_closure_convert(lambda eta: tangent(eta)[1], structure_of(flat)),
    )
