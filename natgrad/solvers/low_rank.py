"""What low-rank solvers share: the inverse of an approximate G that has few directions.

Nothing k × p is formed. What is prepared are singular values and right singular vectors of an
approximate Y, so that another λ costs two small products and one check of the residual.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from ..counts import Counts
from ..errors import InputError
from ..linalg.products import accurate_product
from ..linalg.randomised import LowRank
from .base import NOT_FINITE, MatrixFreeSolver, Solution, SolveInfo
from .system import System

PyTree = Any


class Projection(NamedTuple):
    """The approximate Y, with the gradient in its directions and beside them."""

    approximation: LowRank
    coefficients: Array  # Vᵀ∂_θf
    rest: Array  # ∂_θf − VVᵀ∂_θf
    leading: Array  # how many of the directions are inverted without damping
    floor: Array  # what stands for the eigenvalues of G that are not found, and for smaller ones
    tolerance: Array  # of singular values, relative to the largest


class Prepared(NamedTuple):
    """A system with its low-rank approximation."""

    system: System
    projection: Projection


class LowRankSolver(MatrixFreeSolver):
    """η from σ and V with G ≈ V diag(σ²) Vᵀ: exactly, with a check of the true residual.

    η = −V(max(σ², τ) + λ)⁻¹Vᵀg − (g − VVᵀg)/(τ + λ) for g = ∂_θ f, where τ estimates the largest
    eigenvalue of G that V misses; with λ = 0 the leading directions only, and no rest. Cost: 4pr
    for r directions, one product Zη and one Zᵀξ.
    """

    rtol: eqx.AbstractVar[Array | None]

    @property
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        return ("factor",)

    def solve(self, prepared: Prepared, damping: Array) -> Solution:
        system, g = prepared.system, prepared.system.gradient
        assert system.factor is not None
        damping = damping.astype(g.dtype)
        eta, info = _filtered(prepared.projection, damping)
        eta = eta if system.free is None else eta * system.free
        motion = system.push(eta)
        product = system.pull(system.factor.rmv(system.factor.mv(motion))) + damping * eta
        return Solution(eta, _checked(info, product, g), motion)

    def prepared(self, system: System, approximation: LowRank, leading: int) -> Prepared:
        """What `solve` needs, for any λ."""
        g = system.gradient
        tolerance = max(shape_of(system)) * jnp.finfo(g.dtype).eps
        tolerance = jnp.asarray(tolerance if self.rtol is None else self.rtol, g.dtype)
        return Prepared(system, _projected(g, approximation, jnp.asarray(leading), tolerance))


@jax.jit
def _projected(g: Array, approximation: LowRank, leading: Array, tolerance: Array) -> Projection:
    vectors, missed = approximation.vectors, approximation.missed
    coefficients = accurate_product(vectors, g)
    rest = g - accurate_product(vectors.T, coefficients)
    # once more: 1/λ amplifies what is left along V
    rest = rest - accurate_product(vectors.T, accurate_product(vectors, rest))
    floor = jnp.where(jnp.isnan(missed), 0.0, missed**2)
    return Projection(approximation, coefficients, rest, leading, floor, tolerance)


@jax.jit
def _filtered(projection: Projection, damping: Array) -> tuple[Array, SolveInfo]:
    values, vectors, missed = projection.approximation
    damped = damping > 0
    wanted = damped | (jnp.arange(len(values)) < projection.leading)
    used = (values > projection.tolerance * values[0]) & wanted
    floor = jnp.where(used | damped, projection.floor, 0.0)
    divisor = jnp.maximum(jnp.where(used, values**2, 0.0), floor) + damping
    divided = projection.coefficients / jnp.where(divisor > 0, divisor, 1.0)
    outside = projection.rest / jnp.where(damped, damping + projection.floor, 1.0)
    inside = accurate_product(vectors.T, jnp.where(divisor > 0, divided, 0.0))
    eta = -inside - jnp.where(damped, outside, 0.0)
    smallest = jnp.min(jnp.where(used, values, values[0]))
    cut = jnp.hypot(jnp.max(jnp.where(used, 0.0, values)), missed)
    info = SolveInfo(
        rank=jnp.sum(used),
        condition=jnp.sqrt((values[0] ** 2 + damping) / (smallest**2 + damping)),
        rank_deficient=~damped & (jnp.sum(used) < len(eta)),
        counts=Counts().plus(linearised=1, adjoint=1),
        truncation=cut / jnp.where(values[0] > 0, values[0], 1.0),
    )
    return eta, info


@jax.jit
def _checked(info: SolveInfo, product: Array, gradient: Array) -> SolveInfo:
    """With the residual of (G + λI) η = −∂_θ f, and whether everything is finite."""
    length = jnp.linalg.norm(gradient)
    residual = jnp.linalg.norm(product + gradient) / jnp.where(length > 0, length, 1.0)
    reason = jnp.where(jnp.isfinite(residual), 0, NOT_FINITE)
    return info._replace(residual=residual, reason=reason)


def only_identity(solver: MatrixFreeSolver, system: System) -> None:
    """Raise `InputError` where the damping is by an operator."""
    if system.parameter is not None:
        raise InputError(
            "damping",
            f"{solver.name} damps with the identity only",
            "CG for an operator D, or AbsoluteDamping in parameters scaled so that D = I",
        )


def too_many(name: str, value: int, limit: int) -> InputError:
    """More directions asked for than there can be."""
    problem = f"{value} is more than the rank {limit} that Y can have"
    return InputError(name, problem, f"{name}={limit} or less, or a direct solver such as SVD")


def shape_of(system: System) -> tuple[int, int]:
    """The rows and columns of Y."""
    assert system.factor is not None
    return size_of(system.factor.zero()), system.gradient.size


def flat(tree: PyTree, dtype: Any) -> Array:
    """A pytree as one vector of this precision."""
    return ravel_pytree(tree)[0].astype(dtype)


def size_of(tree: PyTree) -> int:
    """The number of entries in all leaves."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def unraveller(like: PyTree) -> Callable[[Array], PyTree]:
    """From a vector of any precision to the structure of `like`."""
    vector, unravel = ravel_pytree(like)
    return lambda row: unravel(row.astype(vector.dtype))
