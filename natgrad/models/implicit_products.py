"""Zη and Zᵀξ of h(ρ, θ) = 0: one solve with ∂_ρh or its transpose each."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.compiled import each
from ..core.operators import hoisted, norm, scaled, structure_of
from .base import Evaluation, Loss, Products, SecondOrder
from .external import from_numpy, named, to_numpy

if TYPE_CHECKING:
    from .implicit import ImplicitModel

Solve = Callable[[PyTree], PyTree]


class Kept(NamedTuple):
    """The field with h(field, θ) = 0, and the host's factorisation of ∂_ρh there, if it is made."""

    field: PyTree
    factor: Any = None


class ConstraintProducts(Products):
    """Products by compiled linear solves; what they share is in the leaves of one closure."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    _both: Callable[[Array, PyTree], tuple[PyTree, Array]]
    _flat: jax.ShapeDtypeStruct = eqx.field(static=True)

    @classmethod
    def at(
        cls,
        model: "ImplicitModel",
        unravel: Callable[[Array], PyTree],
        flat: Array,
        rho: PyTree,
        field: PyTree,
        evaluations: int,
    ) -> "ConstraintProducts":
        """The products at θ = `unravel(flat)`, where h = 0 at `field`."""
        solve, solve_transposed = linear_solves(model, field, unravel(flat))
        flat_structure = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
        _, in_theta = jax.linearize(lambda v: model.residual(field, unravel(v)), flat)
        in_theta_transposed = jax.linear_transpose(in_theta, flat_structure)
        _, observed = jax.linearize(model.observe or (lambda u: u), field)
        observed_transposed = jax.linear_transpose(observed, structure_of(field))

        def both(eta: Array, xi: PyTree) -> tuple[PyTree, Array]:
            push = observed(_minus(solve(in_theta(eta))))
            (pull,) = in_theta_transposed(_minus(solve_transposed(observed_transposed(xi)[0])))
            return push, pull

        closure = hoisted(both, flat_structure, structure_of(rho))
        return cls(rho, evaluations, closure, flat_structure)

    def push(self, eta: Array) -> PyTree:
        nothing = jax.tree.map(jnp.zeros_like, self.rho)
        return self._both(eta.astype(self._flat.dtype), nothing)[0]

    def pull(self, xi: PyTree) -> Array:
        xi = jax.tree.map(lambda x, like: x.astype(like.dtype), xi, self.rho)
        return self._both(jnp.zeros(self._flat.shape, self._flat.dtype), xi)[1]


def linear_solves(model: "ImplicitModel", field: PyTree, theta: PyTree) -> tuple[Solve, Solve]:
    """b ↦ (∂_ρh)⁻¹b and b ↦ (∂_ρh)⁻ᵀb by lineax, sharing what its solver sets up.

    b is scaled to a largest entry of 1, so that an absolute tolerance is relative to b. A solve
    that fails gives NaN: one with a residual above a tenth of b, or above 1e-7 (in single precision
    1e-4) where lineax calls it a failure. Checking costs one product with ∂_ρh.
    """
    tangent = lambda v: jax.jvp(lambda u: model.residual(u, theta), (field,), (v,))[1]
    operator = lx.FunctionLinearOperator(tangent, structure_of(field), model.tags)
    options: dict[str, Any] = {}
    if model.preconditioner is not None:
        options["preconditioner"] = named("preconditioner", model.preconditioner, field, theta)
    solver: Any = model.linear_solver
    state = solver.init(operator, options)

    def solve(operator: lx.AbstractLinearOperator, state: Any, options: Any, b: PyTree) -> PyTree:
        leaves = jax.tree.leaves(b)
        largest = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(leaf)) for leaf in leaves])
        size = jnp.where(largest > 0, largest, 1.0)
        unit = scaled(1 / size, b)
        found = lx.linear_solve(operator, unit, solver, state=state, options=options, throw=False)
        left = norm(jax.tree.map(jnp.subtract, operator.mv(found.value), unit))
        failed = jnp.maximum(1e-7, 1e3 * jnp.finfo(left.dtype).eps)
        limit = jnp.where(found.result == lx.RESULTS.successful, 0.1, failed)
        good = (left <= limit * norm(unit)) & jnp.isfinite(largest)
        return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), scaled(size, found.value))

    def transposed(b: PyTree) -> PyTree:
        state_transposed, options_transposed = solver.transpose(state, options)
        return solve(operator.T, state_transposed, options_transposed, b)

    return lambda b: solve(operator, state, options, b), transposed


class FactorisedProducts(Products):
    """Products by the user's factorisation on the host; JAX does the derivatives of h."""

    rho: PyTree
    evaluations: int = eqx.field(static=True)
    model: "ImplicitModel"
    theta: PyTree
    field: PyTree
    factor: Any = eqx.field(static=True)

    def push(self, eta: Array) -> PyTree:
        b = _residual_push(self.model, self.field, self.theta, eta)
        return _observed_push(self.model, self.field, self._solve("solve", b))

    def pull(self, xi: PyTree) -> Array:
        b = _observed_pull(self.model, self.field, xi)
        adjoint = self._solve("solve_transposed", b)
        return _residual_pull(self.model, self.field, self.theta, adjoint)

    def columns(self) -> PyTree:
        """All columns of Z, from one call with p right-hand sides where the factor takes them."""
        basis = jnp.eye(_flat(self.theta).size)
        b = _residual_columns(self.model, self.field, self.theta, basis)
        if getattr(self.factor, "leading_axes", False):
            columns = self._solve("solve", b)
        else:
            columns = each(lambda column: self._solve("solve", column), b)
        return _observed_columns(self.model, self.field, columns)

    def _solve(self, method: str, b: PyTree) -> PyTree:
        x = named(f"{method} of the factorisation", getattr(self.factor, method), to_numpy(b))
        return _minus(from_numpy(method, x, b))


def _minus(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.negative, tree)


def _shifted(theta: PyTree, eta: Array) -> PyTree:
    """θ with its parameters replaced by the flat vector, and the other leaves kept."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    return eqx.combine(unravel(eta.astype(flat.dtype)), rest)


def _flat(theta: PyTree) -> Array:
    return ravel_pytree(eqx.filter(theta, eqx.is_inexact_array))[0]


@eqx.filter_jit
def _residual_push(model: "ImplicitModel", field: PyTree, theta: PyTree, eta: Array) -> PyTree:
    """∂_θh η."""
    flat = _flat(theta)
    h = lambda v: model.residual(field, _shifted(theta, v))
    return jax.jvp(h, (flat,), (eta.astype(flat.dtype),))[1]


@eqx.filter_jit
def _residual_columns(model: "ImplicitModel", field: PyTree, theta: PyTree, basis: Array) -> PyTree:
    return jax.vmap(lambda eta: _residual_push(model, field, theta, eta))(basis)


@eqx.filter_jit
def _residual_pull(model: "ImplicitModel", field: PyTree, theta: PyTree, b: PyTree) -> Array:
    """(∂_θh)ᵀ b."""
    return jax.vjp(lambda v: model.residual(field, _shifted(theta, v)), _flat(theta))[1](b)[0]


@eqx.filter_jit
def _observed_push(model: "ImplicitModel", field: PyTree, tangent: PyTree) -> PyTree:
    """What is observed of a tangent of the field."""
    return tangent if model.observe is None else jax.jvp(model.observe, (field,), (tangent,))[1]


@eqx.filter_jit
def _observed_columns(model: "ImplicitModel", field: PyTree, tangents: PyTree) -> PyTree:
    return jax.vmap(lambda tangent: _observed_push(model, field, tangent))(tangents)


@eqx.filter_jit
def _observed_pull(model: "ImplicitModel", field: PyTree, xi: PyTree) -> PyTree:
    """The transpose of `_observed_push`."""
    return xi if model.observe is None else jax.vjp(model.observe, field)[1](xi)[0]


if TYPE_CHECKING:
    from .implicit import ImplicitModel


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
