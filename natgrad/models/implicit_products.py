"""Zη, Zᵀξ and ∇²_θ f η of h(ρ, θ) = 0: solves with ∂_ρh and its transpose.

The solves are compiled, by lineax, or on the host, by the user's factorisation.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import each
from ..core.operators import dot, negate, norm, scale, structure_of
from ..parameters import flatten
from .base import Evaluation, Loss, Products, SecondOrder, Unravel
from .external import call_named, from_numpy, to_numpy
from .factorisations import Factorisation

if TYPE_CHECKING:
    from .implicit import ImplicitModel

Solve = Callable[[PyTree], PyTree]


class Kept(NamedTuple):
    """The field with h(field, θ) = 0, and the host's factorisation of ∂_ρh there, if it is made."""

    field: PyTree
    factor: Factorisation | None = None


class Solves(NamedTuple):
    """b ↦ (∂_ρh)⁻¹b and b ↦ (∂_ρh)⁻ᵀb, with the host's factorisation where that makes them."""

    solve: Solve
    solve_transposed: Solve
    factor: Factorisation | None = None


def compile_solves(model: "ImplicitModel", field: PyTree, theta: PyTree) -> Solves:
    """Solves by lineax that share what its solver sets up.

    b is scaled to a largest entry of 1, so that an absolute tolerance is relative to b. A solve
    that fails gives NaN: one with a residual above a tenth of b, or above 1e-7 (in single precision
    1e-4) where lineax calls it a failure. Checking costs one product with ∂_ρh.
    """
    tangent = lambda v: jax.jvp(lambda u: model.residual(u, theta), (field,), (v,))[1]
    operator = lx.FunctionLinearOperator(tangent, structure_of(field), model.tags)
    options: dict[str, Any] = {}
    if model.preconditioner is not None:
        options["preconditioner"] = call_named("preconditioner", model.preconditioner, field, theta)
    solver: Any = model.linear_solver
    state = solver.init(operator, options)

    def solve(operator: lx.AbstractLinearOperator, state: Any, options: Any, b: PyTree) -> PyTree:
        leaves = jax.tree.leaves(b)
        largest = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(leaf)) for leaf in leaves])
        size = jnp.where(largest > 0, largest, 1.0)
        unit = scale(1 / size, b)
        found = lx.linear_solve(operator, unit, solver, state=state, options=options, throw=False)
        left = norm(jax.tree.map(jnp.subtract, operator.mv(found.value), unit))
        failed = jnp.maximum(1e-7, 1e3 * jnp.finfo(left.dtype).eps)
        limit = jnp.where(found.result == lx.RESULTS.successful, 0.1, failed)
        good = (left <= limit * norm(unit)) & jnp.isfinite(largest)
        return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), scale(size, found.value))

    def solve_transposed(b: PyTree) -> PyTree:
        state_transposed, options_transposed = solver.transpose(state, options)
        return solve(operator.T, state_transposed, options_transposed, b)

    return Solves(lambda b: solve(operator, state, options, b), solve_transposed)


def call_solves(factor: Factorisation) -> Solves:
    """Solves by the user's factorisation on the host."""

    def solve(method: str, b: PyTree) -> PyTree:
        name = f"{method} of the factorisation"
        return from_numpy(method, call_named(name, getattr(factor, method), to_numpy(b)), b)

    solve_transposed = functools.partial(solve, "solve_transposed")
    return Solves(functools.partial(solve, "solve"), solve_transposed, factor)


class HoistedSolves(eqx.Module):
    """Compiled solves in one closure: what they share is among its leaves, and there once."""

    _both: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]

    @classmethod
    def of(cls, solves: Solves, field: PyTree) -> "HoistedSolves":
        """The solves of an equation for this field."""
        both = lambda b, c: (solves.solve(b), solves.solve_transposed(c))
        return cls(eqx.filter_closure_convert(both, structure_of(field), structure_of(field)))

    def solve(self, b: PyTree) -> PyTree:
        """(∂_ρh)⁻¹b."""
        return self._both(b, jax.tree.map(jnp.zeros_like, b))[0]

    def solve_transposed(self, b: PyTree) -> PyTree:
        """(∂_ρh)⁻ᵀb."""
        return self._both(jax.tree.map(jnp.zeros_like, b), b)[1]


class Constraint(eqx.Module):
    """h and what is observed, near a field with h(field, θ) = 0; a program for each derivative."""

    model: "ImplicitModel"
    theta: PyTree
    field: PyTree

    def residual(self, v: Array) -> PyTree:
        """h at the field, as a function of the flat parameters."""
        return self.model.residual(self.field, flatten(self.theta)[1](v))

    @eqx.filter_jit
    def push_theta(self, eta: Array) -> PyTree:
        """∂_θh η."""
        flat, _ = flatten(self.theta)
        return jax.jvp(self.residual, (flat,), (eta.astype(flat.dtype),))[1]

    @eqx.filter_jit
    def pull_theta(self, b: PyTree) -> Array:
        """(∂_θh)ᵀ b."""
        return jax.vjp(self.residual, flatten(self.theta)[0])[1](b)[0]

    @eqx.filter_jit
    def push_observed(self, tangent: PyTree) -> PyTree:
        """What is observed of a tangent of the field."""
        return jax.jvp(self.model.observe, (self.field,), (tangent,))[1]

    @eqx.filter_jit
    def pull_observed(self, xi: PyTree) -> PyTree:
        """The transpose of `push_observed`."""
        rho, pull = jax.vjp(self.model.observe, self.field)
        return pull(jax.tree.map(lambda x, like: x.astype(like.dtype), xi, rho))[0]

    @eqx.filter_jit
    def differentiate_loss(self, loss: Loss) -> tuple[Array, PyTree]:
        """f and ∂_u f."""
        return jax.value_and_grad(lambda u: loss(self.model.observe(u)))(self.field)

    @eqx.filter_jit
    def push_gradient(
        self, loss: Loss, adjoint: PyTree, motion: PyTree, eta: Array
    ) -> tuple[PyTree, Array]:
        """The derivative of (∂_u ℓ, ∂_θ ℓ) along (û, η), for ℓ = f(u) + ⟨λ, h(u, θ)⟩."""
        flat, unravel = flatten(self.theta)

        def lagrangian(u: PyTree, v: Array) -> Array:
            h = self.model.residual(u, unravel(v))
            return dot(adjoint, h) + loss(self.model.observe(u))

        gradient = jax.grad(lagrangian, argnums=(0, 1))
        return jax.jvp(gradient, (self.field, flat), (motion, eta))[1]


class ImplicitProducts(Products):
    """Products by solves with ∂_ρh; JAX does the other derivatives."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    constraint: Constraint
    solves: Solves | HoistedSolves

    def push(self, eta: Array) -> PyTree:
        tangent = negate(self.solves.solve(self.constraint.push_theta(eta)))
        return self.constraint.push_observed(tangent)

    def pull(self, xi: PyTree) -> Array:
        adjoint = negate(self.solves.solve_transposed(self.constraint.pull_observed(xi)))
        return self.constraint.pull_theta(adjoint)

    def columns(self) -> PyTree:
        """All columns of Z, from one call with p right-hand sides where the factor takes them."""
        basis = jnp.eye(flatten(self.constraint.theta)[0].size)
        b = _map(self.constraint.push_theta, basis)
        factor = getattr(self.solves, "factor", None)
        many = getattr(factor, "leading_axes", False)
        tangents = self.solves.solve(b) if many else each(self.solves.solve, b)
        return _map(self.constraint.push_observed, negate(tangents))


@eqx.filter_jit
def _map(function: Callable[[Any], PyTree], xs: PyTree) -> PyTree:
    return jax.vmap(function)(xs)


def differentiate_implicitly_twice(
    model: "ImplicitModel", unravel: Unravel, flat: Array, known: Evaluation | None, loss: Loss
) -> SecondOrder:
    """For h(u, θ) = 0, from the Lagrangian ℓ(u, θ) = f(u) + ⟨λ, h(u, θ)⟩ with ∂_u ℓ = 0.

    The gradient is ∂_θ ℓ, and with û = −(∂_u h)⁻¹ ∂_θh η and λ̂ = −(∂_u h)⁻ᵀ (∂²_uu ℓ û + ∂²_uθ ℓ η)

        ∇²_θ f η = ∂²_θu ℓ û + ∂²_θθ ℓ η + (∂_θh)ᵀ λ̂.

    Reference: Hinze, Pinnau, Ulbrich and Ulbrich, Optimization with PDE Constraints (2009), 1.6.5.
    """
    theta, evaluations = unravel(flat), int(known is None)
    known = model.evaluate(theta) if known is None else known
    constraint = Constraint(model, theta, known.kept.field)
    solve, solve_transposed, _ = model.make_solves(known.kept, theta)
    value, slope = constraint.differentiate_loss(loss)
    adjoint = negate(solve_transposed(slope))

    def product(eta: Array) -> Array:
        motion = negate(solve(constraint.push_theta(eta)))
        in_field, in_theta = constraint.push_gradient(loss, adjoint, motion, eta)
        return in_theta + constraint.pull_theta(negate(solve_transposed(in_field)))

    if model.factorise is None:
        product = eqx.filter_closure_convert(product, jax.ShapeDtypeStruct(flat.shape, flat.dtype))
    return SecondOrder(known.rho, value, constraint.pull_theta(adjoint), evaluations, product)
