"""Where a step leads: the direction with its momentum, and the curve that bends with the model.

All of it is made of responses: the η that answers a tangent ζ of the state, the least-squares
solution of Zη = −ζ with the damping and the factorisation of the natural gradient itself.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.settings import Number, check_number
from ..direction.dense import in_coordinates
from ..direction.linearisation import Linearisation, solve
from ..direction.rows import has_rows, row_factor
from ..errors import InputError
from ..metrics.base import Metric
from ..metrics.diagonal import Euclidean
from ..metrics.newton import Newton
from ..models.base import Model, Products
from ..parameters import flatten
from ..problem import Problem
from ..solvers import MatrixFreeSolver
from .proximal import ProximalStep
from .steps import Step

LARGEST_ORDER = 5
SHRINKAGE = 0.375  # each coefficient of the curve relative to the one before it, at most


class Route(eqx.Module):
    """What a step is taken along, besides η.

    `order` is that of the curve, 1 for a straight line. With a `momentum` μ the damping pulls
    towards μ times the direction of the step before, `previous`, instead of towards zero; None
    for no momentum at all.
    """

    order: int = eqx.field(static=True)
    momentum: Array | None = None
    previous: Array | None = None

    @property
    def straight(self) -> bool:
        """Whether η is all there is."""
        return self.order == 1 and self.momentum is None

    def check(self, problem: Problem, metric: Metric, step: Step) -> None:
        """Raise `InputError` where there is no state to follow, or no path to take."""
        if self.straight:
            return
        name = "order" if self.order > 1 else "momentum"
        if isinstance(step, ProximalStep):
            what = "ProximalStep minimises around θ and takes neither a curve nor momentum"
            raise InputError(name, what, "Backtracking(), or order=1 and momentum=0")
        if isinstance(metric, (Euclidean, Newton)):
            what = f"{type(metric).__name__} has no tangents of a state to go by"
            raise InputError(name, what, "a metric on states, such as L2")
        if self.order > 1 and (problem.model.on_host or problem.model.solves):
            kind = type(problem.model).__name__
            what = f"{self.order} needs derivatives of that order, which a {kind} does not have"
            raise InputError("order", what, "order=1")

    def after(self, eta: Array | None, accepted: bool) -> "Route":
        """The route of the next step; what led nowhere is forgotten."""
        if self.momentum is None or eta is None:
            return self
        return Route(self.order, self.momentum, eta if accepted else jnp.zeros_like(eta))


def as_route(order: int, momentum: Number, size: int, dtype: Any) -> Route:
    """The route as given to `minimize`, checked, for this many parameters."""
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= LARGEST_ORDER:
        raise InputError("order", f"{order!r} is no integer from 1 to {LARGEST_ORDER}", "order=3")
    share = check_number(momentum, "momentum", below=1.0)
    return Route(order) if share == 0 else Route(order, share, jnp.zeros(size, dtype))


class Curve(NamedTuple):
    """θ(τ) = θ + τη + τ²a₂ + …, as the rows η, a₂, …; and the products that it took.

    The coefficients make the state move straight ahead, ρ(θ(τ)) = ρ + τZη + O(τ^{q+1}) for the
    order q, as far as its tangent space reaches: with tₙ the n-th Taylor coefficient of ρ along the
    curve known so far,

        aₙ = argmin ‖L(tₙ + Z aₙ)‖² + λ‖aₙ‖².

    Order 2 is the geodesic acceleration of Levenberg–Marquardt. Where a coefficient is not well
    below the one before it, it and those after it are left out.

    Cost: for each order n one solve with the factors that η was found with, one product Zᵀξ, and
    2ⁿ evaluations. Reference: Transtrum and Sethna, arXiv:1201.5885 (order 2).
    """

    coefficients: Array
    counts: Counts

    @property
    def eta(self) -> Array:
        """The direction at the start."""
        return self.coefficients[0]

    def offset(self, tau: Array) -> Array:
        """θ(τ) − θ."""
        total = jnp.zeros_like(self.eta)
        for coefficient in self.coefficients[::-1]:  # Horner's rule, smooth at τ = 0
            total = tau.astype(total.dtype) * (coefficient + total)
        return total


def curve(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    lin: Linearisation,
    strength: Array,
    eta: Array,
    route: Route,
) -> Curve:
    """The curve for the natural gradient η, found with the damping λ = `strength`."""
    if route.straight:
        return Curve(eta[None], Counts())
    flat, unravel = flatten(theta)
    products = problem.model.products(unravel, flat)
    respond = _responses(problem.model, metric, lin, strength, products)
    counts = Counts(forward=products.evaluations)
    if route.momentum is not None:
        assert route.previous is not None
        centre = (route.momentum * route.previous).astype(eta.dtype)
        centre = centre if lin.free is None else centre * lin.free
        answer, spent = respond(products.push(centre))
        carried = eta + centre + answer
        eta = jnp.where(lin.gradient @ carried < 0, carried, eta)  # else it would not descend
        counts = counts.plus(*spent).plus(linearised=1)
    coefficients = [eta]
    for n in range(2, route.order + 1):
        tangent = _taylor_coefficient(problem.model, unravel, flat, coefficients, n)
        coefficient, spent = respond(tangent)
        small = jnp.linalg.norm(coefficient) < SHRINKAGE * jnp.linalg.norm(coefficients[-1])
        coefficients.append(jnp.where(small, coefficient, 0.0))
        counts = counts.plus(*spent).plus(forward=2**n)
    return Curve(jnp.stack(coefficients), counts)


def _responses(
    model: Model, metric: Metric, lin: Linearisation, strength: Array, products: Products
) -> Callable[[PyTree], tuple[Array, Counts]]:
    """ζ ↦ −(G + λD)⁻¹ ZᵀAζ, and the products spent on it."""
    solver, rho = lin.solver, products.rho
    assert solver is not None
    iterative = isinstance(solver, MatrixFreeSolver)
    by_rows = not iterative and has_rows(model, metric, rho)
    L = row_factor(metric, rho) if by_rows else metric.factor(rho)

    def respond(zeta: PyTree) -> tuple[Array, Counts]:
        image = L.mv(zeta)
        g = products.pull(L.T.mv(image)).astype(lin.gradient.dtype)
        g = g if lin.free is None else g * lin.free
        if iterative:
            aimed = solver.aimed(lin.prepared, image, g)
        else:
            b, rotated = ravel_pytree(image)[0], in_coordinates(g, lin.parameter_factor)
            dtype = lin.trace.dtype  # that of Y
            aimed = solver.aimed(lin.prepared, b.astype(dtype), rotated.astype(dtype))
        answer = solve(eqx.tree_at(lambda x: x.prepared, lin, aimed, is_leaf=_is_none), strength)
        return answer.eta, answer.info.counts.plus(adjoint=1)

    return respond


def _taylor_coefficient(
    model: Any, unravel: Callable[[Array], PyTree], flat: Array, coefficients: list[Array], n: int
) -> PyTree:
    """tₙ, the coefficient of τⁿ in ρ(θ + τη + … + τⁿ⁻¹aₙ₋₁)."""
    along = Curve(jnp.stack(coefficients), Counts())
    function = lambda tau: model(unravel(flat + along.offset(tau)))
    for _ in range(n):
        function = _derivative(function)
    zero = jnp.zeros((), flat.dtype)
    return jax.tree.map(lambda x: x / math.factorial(n), function(zero))


def _derivative(function: Callable[[Array], PyTree]) -> Callable[[Array], PyTree]:
    return lambda tau: jax.jvp(function, (tau,), (jnp.ones_like(tau),))[1]


def _is_none(x: Any) -> bool:
    return x is None
