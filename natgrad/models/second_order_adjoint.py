"""Products with the Hessian of f(ρ(θ)) behind h(ρ, θ) = 0: the second-order adjoint method."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from ..operators import hoisted
from .base import Evaluation
from .host import from_numpy, named, to_numpy
from .implicit_products import linear_solves
from .second_order import Loss, SecondOrder

if TYPE_CHECKING:
    from .implicit import ImplicitModel

PyTree = Any


def constrained_twice(
    model: "ImplicitModel",
    unravel: Callable[[Array], PyTree],
    flat: Array,
    known: Evaluation | None,
    loss: Loss,
) -> SecondOrder:
    """For h(u, θ) = 0, from the Lagrangian ℓ(u, θ) = f(u) + ⟨λ, h(u, θ)⟩ with ∂_u ℓ = 0.

    The gradient is ∂_θ ℓ, and with û = −(∂_u h)⁻¹ ∂_θh η and λ̂ = −(∂_u h)⁻ᵀ (∂²_uu ℓ û + ∂²_uθ ℓ η)

        ∇²_θ f η = ∂²_θu ℓ û + ∂²_θθ ℓ η + (∂_θh)ᵀ λ̂.

    Reference: Hinze, Pinnau, Ulbrich and Ulbrich, Optimization with PDE Constraints (2009), 1.6.5.
    """
    evaluations = 0
    if known is None:
        known, evaluations = model.evaluate(unravel(flat)), 1
    theta, field = unravel(flat), known.kept.field
    if model.factorise is None:
        solve, solve_transposed = linear_solves(model, field, theta)
    else:
        factor = known.kept.factor
        factor = model.factorised(field, theta) if factor is None else factor
        solve, solve_transposed = _on_host(factor.solve), _on_host(factor.solve_transposed)
    problem = _Lagrangian(model, loss, theta, field)
    value, slope = problem.loss_slope()
    adjoint = _minus(solve_transposed(slope))

    def product(eta: Array) -> Array:
        motion = _minus(solve(problem.pushed(eta)))
        in_field, in_theta = problem.curved(adjoint, motion, eta)
        return in_theta + problem.pulled(_minus(solve_transposed(in_field)))

    if model.factorise is None:
        product = hoisted(product, jax.ShapeDtypeStruct(flat.shape, flat.dtype))
    return SecondOrder(known.rho, value, problem.pulled(adjoint), evaluations, product)


class _Lagrangian(eqx.Module):
    """ℓ and its derivatives at one point; compiled by themselves where the solves are not."""

    model: "ImplicitModel"
    loss: Loss
    theta: PyTree
    field: PyTree

    def _flat(self) -> tuple[Array, Callable[[Array], PyTree]]:
        parameters, rest = eqx.partition(self.theta, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(parameters)
        return flat, lambda v: eqx.combine(unravel(v), rest)

    def _f(self, field: PyTree) -> Array:
        return self.loss(field if self.model.observe is None else self.model.observe(field))

    def _h(self, v: Array) -> PyTree:
        return self.model.residual(self.field, self._flat()[1](v))

    @eqx.filter_jit
    def loss_slope(self) -> tuple[Array, PyTree]:
        """f and ∂_u f."""
        return jax.value_and_grad(self._f)(self.field)

    @eqx.filter_jit
    def pushed(self, eta: Array) -> PyTree:
        """∂_θh η."""
        return jax.jvp(self._h, (self._flat()[0],), (eta,))[1]

    @eqx.filter_jit
    def pulled(self, adjoint: PyTree) -> Array:
        """(∂_θh)ᵀ λ."""
        return jax.vjp(self._h, self._flat()[0])[1](adjoint)[0]

    @eqx.filter_jit
    def curved(self, adjoint: PyTree, motion: PyTree, eta: Array) -> tuple[PyTree, Array]:
        """The derivative of (∂_u ℓ, ∂_θ ℓ) along (û, η)."""
        flat, unravel = self._flat()

        def lagrangian(field: PyTree, v: Array) -> Array:
            h = self.model.residual(field, unravel(v))
            terms = jax.tree.map(lambda a, b: jnp.sum(a * b), adjoint, h)
            return self._f(field) + sum(jax.tree.leaves(terms))

        slopes = jax.grad(lagrangian, argnums=(0, 1))
        return jax.jvp(slopes, (self.field, flat), (motion, eta))[1]


def _on_host(solve: Callable[[Any], Any]) -> Callable[[PyTree], PyTree]:
    name = "the factorisation's solve"
    return lambda b: from_numpy(name, named(name, solve, to_numpy(b)), b)


def _minus(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.negative, tree)
