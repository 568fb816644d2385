"""Where a step leads: the direction with its momentum, and the curve that bends with the model.

All of it is made of responses: the η that answers a tangent ζ of the state, the least-squares
solution of Zη = −ζ with the damping and the factorisation of the natural gradient itself.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..core.series import expand
from ..direction.local import Local, Responder
from ..models.base import Model
from ..parameters import flatten
from ..solvers.base import Solution
from .steps import Path


def bend(
    local: Local,
    solution: Solution,
    damping: Array,
    order: int,
    momentum: Array | None,
    previous: Array | None,
) -> Path:
    """The path θ(τ) = θ + τη + τ²a₂ + … for the natural gradient η, found with this damping λ.

    With a momentum μ the damping pulls towards c = μ times the `previous` direction instead of
    towards zero, (G + λD)(η − c) = −∂_θ f − Gc, unless that would not descend.

    The coefficients make the state move straight ahead, ρ(θ(τ)) = ρ + τZη + O(τ^{q+1}) for the
    order q, as far as its tangent space reaches: with tₙ the n-th Taylor coefficient of ρ along the
    curve known so far,

        aₙ = argmin ‖L(tₙ + Z aₙ)‖² + λ‖aₙ‖².

    Order 2 is the geodesic acceleration of Levenberg–Marquardt. Where a coefficient is not well
    below the one before it, at the first length τ that the step tries, it and those after it are
    left out: a metric times a constant gives the same path.

    Cost: for each order n one solve with the factors that η was found with, one product Zᵀξ where
    the rows of Z are not at hand, and 2ⁿ evaluations.
    Reference: Transtrum and Sethna, arXiv:1201.5885 (order 2).
    """
    responder = local.responder(damping)
    counts = Counts(forward=responder.evaluations)
    if momentum is not None:
        assert previous is not None
        solution, spent = _carry_momentum(local, solution, responder, momentum * previous)
        counts = counts.plus(*spent)
    if order == 1:
        return Path(local, solution, damping, counts=counts)
    flat, unravel = flatten(local.setup.theta)
    coefficients = [solution.eta]
    for n in range(2, order + 1):
        tangent = _taylor_coefficient(local.setup.problem.model, unravel, flat, coefficients, n)
        coefficient, spent = responder.respond(tangent)
        coefficients.append(coefficient)
        counts = counts.plus(*spent).plus(forward=2**n)
    return Path(local, solution, damping, jnp.stack(coefficients), counts)


def _carry_momentum(
    local: Local, solution: Solution, responder: Responder, centre: Array
) -> tuple[Solution, Counts]:
    """η with the damping pulling towards `centre`; of its motion nothing is known then."""
    eta = solution.eta
    centre = local.hold(centre.astype(eta.dtype))
    answer, spent = responder.carry(centre)
    carried = eta + centre + answer
    eta = jnp.where(local.gradient @ carried < 0, carried, eta)  # else it would not descend
    return solution._replace(eta=eta, motion=None), spent


def _taylor_coefficient(
    model: Model, unravel: Callable[[Array], PyTree], flat: Array, coefficients: list[Array], n: int
) -> PyTree:
    """tₙ, the coefficient of τⁿ in ρ(θ + τη + … + τⁿ⁻¹aₙ₋₁)."""
    curve = jnp.stack([flat, *coefficients, jnp.zeros_like(flat)])
    state = expand(lambda v: model(unravel(v)), curve)
    return jax.tree.map(lambda stack: stack[n], state)
