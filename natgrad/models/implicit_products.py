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
from ..core.operators import dot, hoist, negate, norm, scale, structure_of
from ..parameters import flatten
from .base import Evaluation, Loss, Products, SecondOrder, Unravel
from .external import call_named, from_numpy, to_numpy

if TYPE_CHECKING:
    from .implicit import ImplicitModel

Solve = Callable[[PyTree], PyTree]


class Kept(NamedTuple):
    """The field with h(field, θ) = 0, and the host's factorisation of ∂_ρh there, if it is made."""

    field: PyTree
    factor: Any = None


class CompiledProducts(Products):
    """Products by compiled linear solves; what they share is in the leaves of one closure."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    _both: Callable[[Array, PyTree], tuple[PyTree, Array]]
    _flat: jax.ShapeDtypeStruct = eqx.field(static=True)

    @classmethod
    def at(
        cls,
        model: "ImplicitModel",
        unravel: Unravel,
        flat: Array,
        rho: PyTree,
        field: PyTree,
        evaluations: int,
    ) -> "CompiledProducts":
        """The products at θ = `unravel(flat)`, where h = 0 at `field`."""
        solve, solve_transposed = compiled_solves(model, field, unravel(flat))
        flat_structure = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
        _, in_theta = jax.linearize(lambda v: model.residual(field, unravel(v)), flat)
        in_theta_transposed = jax.linear_transpose(in_theta, flat_structure)
        _, observed = jax.linearize(model.observe or (lambda u: u), field)
        observed_transposed = jax.linear_transpose(observed, structure_of(field))

        def both(eta: Array, xi: PyTree) -> tuple[PyTree, Array]:
            push = observed(negate(solve(in_theta(eta))))
            (pull,) = in_theta_transposed(negate(solve_transposed(observed_transposed(xi)[0])))
            return push, pull

        closure = hoist(both, flat_structure, structure_of(rho))
        return cls(rho, evaluations, closure, flat_structure)

    def push(self, eta: Array) -> PyTree:
        nothing = jax.tree.map(jnp.zeros_like, self.rho)
        return self._both(eta.astype(self._flat.dtype), nothing)[0]

    def pull(self, xi: PyTree) -> Array:
        xi = jax.tree.map(lambda x, like: x.astype(like.dtype), xi, self.rho)
        return self._both(jnp.zeros(self._flat.shape, self._flat.dtype), xi)[1]


def compiled_solves(model: "ImplicitModel", field: PyTree, theta: PyTree) -> tuple[Solve, Solve]:
    """b ↦ (∂_ρh)⁻¹b and b ↦ (∂_ρh)⁻ᵀb by lineax, sharing what its solver sets up.

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

    def transposed(b: PyTree) -> PyTree:
        state_transposed, options_transposed = solver.transpose(state, options)
        return solve(operator.T, state_transposed, options_transposed, b)

    return lambda b: solve(operator, state, options, b), transposed


def solve_on_host(factor: Any, method: str, b: PyTree, like: PyTree) -> PyTree:
    """A solution by the user's factorisation, `method` being "solve" or "solve_transposed"."""
    solve = getattr(factor, method)
    return from_numpy(
        method, call_named(f"{method} of the factorisation", solve, to_numpy(b)), like
    )


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
        observe = self.model.observe
        return tangent if observe is None else jax.jvp(observe, (self.field,), (tangent,))[1]

    @eqx.filter_jit
    def pull_observed(self, xi: PyTree) -> PyTree:
        """The transpose of `push_observed`."""
        observe = self.model.observe
        return xi if observe is None else jax.vjp(observe, self.field)[1](xi)[0]


class FactorisedProducts(Products):
    """Products by the user's factorisation on the host; JAX does the derivatives of h."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    constraint: Constraint
    factor: Any = eqx.field(static=True)

    def push(self, eta: Array) -> PyTree:
        tangent = self._solve("solve", self.constraint.push_theta(eta))
        return self.constraint.push_observed(tangent)

    def pull(self, xi: PyTree) -> Array:
        adjoint = self._solve("solve_transposed", self.constraint.pull_observed(xi))
        return self.constraint.pull_theta(adjoint)

    def columns(self) -> PyTree:
        """All columns of Z, from one call with p right-hand sides where the factor takes them."""
        basis = jnp.eye(flatten(self.constraint.theta)[0].size)
        b = _map(self.constraint.push_theta, basis)
        if getattr(self.factor, "leading_axes", False):
            columns = self._solve("solve", b)
        else:
            columns = each(lambda column: self._solve("solve", column), b)
        return _map(self.constraint.push_observed, columns)

    def _solve(self, method: str, b: PyTree) -> PyTree:
        return negate(solve_on_host(self.factor, method, b, like=b))


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
    evaluations = 0
    if known is None:
        known, evaluations = model.evaluate(unravel(flat)), 1
    theta, field = unravel(flat), known.kept.field
    if model.factorise is None:
        solve, solve_transposed = compiled_solves(model, field, theta)
    else:
        factor = model.make_factor(known.kept, theta)
        solve = lambda b: solve_on_host(factor, "solve", b, like=b)
        solve_transposed = lambda b: solve_on_host(factor, "solve_transposed", b, like=b)
    constraint = Constraint(model, theta, field)
    lagrangian = _Lagrangian(constraint, loss)
    value, slope = lagrangian.differentiate_loss()
    adjoint = negate(solve_transposed(slope))

    def product(eta: Array) -> Array:
        motion = negate(solve(constraint.push_theta(eta)))
        in_field, in_theta = lagrangian.push_gradient(adjoint, motion, eta)
        return in_theta + constraint.pull_theta(negate(solve_transposed(in_field)))

    if model.factorise is None:
        product = hoist(product, jax.ShapeDtypeStruct(flat.shape, flat.dtype))
    return SecondOrder(known.rho, value, constraint.pull_theta(adjoint), evaluations, product)


class _Lagrangian(eqx.Module):
    """ℓ near one point; its derivatives are compiled by themselves where the solves are not."""

    constraint: Constraint
    loss: Loss

    def _f(self, field: PyTree) -> Array:
        observe = self.constraint.model.observe
        return self.loss(field if observe is None else observe(field))

    @eqx.filter_jit
    def differentiate_loss(self) -> tuple[Array, PyTree]:
        """f and ∂_u f."""
        return jax.value_and_grad(self._f)(self.constraint.field)

    @eqx.filter_jit
    def push_gradient(self, adjoint: PyTree, motion: PyTree, eta: Array) -> tuple[PyTree, Array]:
        """The derivative of (∂_u ℓ, ∂_θ ℓ) along (û, η)."""
        at = self.constraint
        flat, unravel = flatten(at.theta)
        value = lambda u, v: dot(adjoint, at.model.residual(u, unravel(v))) + self._f(u)
        gradient = jax.grad(value, argnums=(0, 1))
        return jax.jvp(gradient, (at.field, flat), (motion, eta))[1]
