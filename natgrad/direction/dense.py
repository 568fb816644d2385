"""The least-squares problem from the columns of a dense Z: Y = LZ or G = YᵀY, factorised."""

import math
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import PyTree

from ..core.outcomes import Counts
from ..metrics.base import Geometry, Metric, Report
from ..parameters import Bounds, flatten, free_parameters
from ..problem import Problem, energy, slopes
from ..solvers import DenseSolver, InformationSolver, Solver
from .damping import Damping


class Assembled(NamedTuple):
    """The loss and its gradient, the solver that was chosen, and what it has prepared.

    `energy` is that of `slopes.energy`; `free` is 0 for parameters held by bounds.
    `parameter_factor` is the triangle F of D = FᵀF; the solver works in the coordinates Fη.
    """

    loss: Array
    gradient: Array
    energy: Array
    free: Array | None
    trace: Array
    parameter_factor: Array | None
    prepared: Any
    solver: DenseSolver
    counts: Counts
    report: Report


@eqx.filter_jit
def assembled(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
    rho: PyTree,
    columns: PyTree,
    counts: Counts,
) -> Assembled:
    """The factorised least-squares problem, from ρ and the columns of Z."""
    flat, _ = flatten(theta)
    Zt = jax.vmap(lambda column: ravel_pytree(column)[0])(columns)
    geometry = metric.at(rho)
    whitened = jax.tree.leaves(jax.eval_shape(metric.whiten, rho, rho))
    k = sum(math.prod(leaf.shape) for leaf in whitened)  # the rows of Y
    chosen = cast(DenseSolver, solver.choose(k, flat.size, damping.damps))
    loss, c, direct = found = slopes(problem, theta, rho)
    if c is None:
        assert direct is not None
        gradient = direct
        b, r = jnp.zeros(k, whitened[0].dtype), gradient
        known = energy(metric, rho, found)
        counts = counts.plus(forward=1, adjoint=1)
    else:
        gradient = Zt @ ravel_pytree(c)[0]
        b = ravel_pytree(geometry.whiten(c))[0]
        r = _leftover(geometry, c, Zt)
        known = energy(metric, rho, found, b, r)
        if direct is not None:
            gradient, r = gradient + direct, r + direct

    free = free_parameters(flat, gradient, bounds)
    r, gradient = r * free, gradient * free
    D = damping.parameter_operator()
    factor = None if D is None else D.triangle()
    if factor is not None and bounds is not None:
        factor = restricted(factor, free)
    if isinstance(chosen, InformationSolver):
        G, report = geometry.information(columns)
        G = in_coordinates(in_coordinates(G * free * free[:, None], factor).T, factor)
        slope = in_coordinates(gradient, factor).astype(G.dtype)
        prepared, trace = chosen.prepare_information(G, slope, k), jnp.trace(G)
    else:
        Yt, report = geometry.image(columns)
        Yt, r = in_coordinates(Yt * free[:, None], factor), in_coordinates(r, factor)
        dtype = jnp.result_type(Yt, b, r)
        Yt, b, r = Yt.astype(dtype), b.astype(dtype), r.astype(dtype)
        prepared, trace = chosen.prepare(Yt.T, b, r), jnp.sum(Yt**2)
    return Assembled(
        loss=loss,
        gradient=gradient.astype(flat.dtype),
        energy=known,
        free=None if bounds is None else free,
        trace=trace,
        parameter_factor=factor,
        prepared=prepared,
        solver=chosen,
        counts=counts.plus(),
        report=geometry.report() | report,
    )


def in_coordinates(rows: Array, factor: Array | None) -> Array:
    """F⁻ᵀ rows, for the triangle F of D = FᵀF: in the coordinates Fη, D is the identity."""
    return rows if factor is None else solve_triangular(factor, rows, trans="T")


def restricted(factor: Array, free: Array) -> Array:
    """The factor of D on the parameters that may move, of the identity on those held."""
    both = free[:, None] * free
    return jnp.linalg.cholesky(both * (factor.T @ factor) + jnp.diag(1 - free)).T


def _leftover(geometry: Geometry, c: PyTree, Zt: Array) -> Array:
    """r = Zᵀ(c − Lᵀb), set to zero where it is only rounding error.

    G† amplifies r by the square of the condition number, so noise must not pass for signal.
    """
    if not geometry.annihilates:
        return jnp.zeros(Zt.shape[0], Zt.dtype)
    rest = ravel_pytree(geometry.remainder(c))[0]
    r = Zt @ rest
    noise = 4 * jnp.finfo(Zt.dtype).eps * jnp.sqrt(rest.size) * (jnp.abs(Zt) @ jnp.abs(rest))
    return jnp.where(jnp.abs(r) > noise, r, 0.0)
