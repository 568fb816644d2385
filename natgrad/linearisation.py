"""The problem at θ as a solver sees it: model → metric → factorised least squares, or products.

`linearise` does everything that does not depend on λ (ρ, Z, L, Y = LZ, and the solver's
factorisation; or the linearised model and the metric's operator, where Z is not formed), so that
another λ at the same θ costs only `solve`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from .counts import Counts
from .damping import Damping
from .metrics.base import Metric, Report
from .metrics.l2 import Euclidean
from .operators import hoisted, structure_of
from .problems import Problem
from .solvers import (
    DenseSolver,
    InformationSolver,
    MatrixFreeSolver,
    Solution,
    SolveInfo,
    Solver,
)
from .solvers.system import Factor, System

PyTree = Any


class Bounds(NamedTuple):
    """Box bounds on the flattened parameters."""

    lower: Array
    upper: Array


class Linearisation(eqx.Module):
    """The problem at θ as a solver sees it, factorised; `solver` is the one that was chosen.

    `rho` is kept where the solver carries Zη along, for the curvature of the loss there.
    """

    loss: Array
    gradient: Array
    gradient_norm: Array
    trace: Array
    parameter_factor: Array | None
    prepared: Any
    solver: Solver | None
    counts: Counts
    report: Report
    rho: PyTree | None = None


def flatten(theta: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """The floating-point arrays of θ as one vector, and the way back; other leaves are kept."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    return flat, lambda vector: eqx.combine(unravel(vector.astype(flat.dtype)), rest)


@eqx.filter_jit
def linearise(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
    first_norm: Array | np.ndarray | None = None,
) -> Linearisation:
    """ρ, Z, L and the factorised least-squares problem at θ, or the products that stand for it.

    `first_norm` is ‖∂_θ f‖ at the start of a run, for solvers whose tolerance follows it.
    """
    flat, unravel = flatten(theta)
    if isinstance(metric, Euclidean):
        objective = lambda v: problem.value(unravel(v), problem.model(unravel(v)))
        loss, gradient = jax.value_and_grad(objective)(flat)
        gradient = gradient * _free(flat, gradient, bounds)
        trace = jnp.asarray(flat.size, flat.dtype)
        norm, counts = jnp.linalg.norm(gradient), Counts(1, 0, 1).plus()
        return Linearisation(loss, gradient, norm, trace, None, None, None, counts, {})

    iterative = matrix_free(solver, jax.eval_shape(lambda v: problem.model(unravel(v)), flat), flat)
    if iterative is not None:
        first = jnp.asarray(jnp.nan if first_norm is None else first_norm)
        return _as_products(problem, unravel, flat, metric, iterative, damping, bounds, first)
    rho, columns, counts = problem.model.jacobian(unravel, flat)
    Zt = jax.vmap(lambda column: ravel_pytree(column)[0])(columns)
    whitened = jax.tree.leaves(jax.eval_shape(metric.whiten, rho, rho))
    k = sum(math.prod(leaf.shape) for leaf in whitened)  # the rows of Y
    chosen = cast(DenseSolver, solver.choose(k, flat.size, damping.damps))
    if problem.objective is not None:
        loss, gradient = jax.value_and_grad(lambda v: problem.objective(unravel(v)))(flat)
        b, r = jnp.zeros(k, whitened[0].dtype), gradient
        counts = counts.plus(forward=1, adjoint=1)
    else:
        loss, c = jax.value_and_grad(problem.loss)(rho)
        gradient = Zt @ ravel_pytree(c)[0]
        b = ravel_pytree(metric.whiten(rho, c))[0]
        r = _leftover(metric, rho, c, Zt)
        if problem.regulariser is not None:
            extra, slope = jax.value_and_grad(lambda v: problem.regulariser(unravel(v)))(flat)
            loss, gradient, r = loss + extra, gradient + slope, r + slope

    free = _free(flat, gradient, bounds)
    r, gradient = r * free, gradient * free
    D = damping.parameter_operator()
    factor = None if D is None else D.triangle()
    if factor is not None and bounds is not None:
        factor = _restricted(factor, free)
    if isinstance(chosen, InformationSolver):
        G, report = metric.information(rho, columns)
        G = _in_coordinates(_in_coordinates(G * free * free[:, None], factor).T, factor)
        slope = _in_coordinates(gradient, factor).astype(G.dtype)
        prepared, trace = chosen.prepare_information(G, slope, k), jnp.trace(G)
    else:
        Yt, report = metric.image(rho, columns)
        Yt, r = _in_coordinates(Yt * free[:, None], factor), _in_coordinates(r, factor)
        dtype = jnp.result_type(Yt, b, r)
        Yt, b, r = Yt.astype(dtype), b.astype(dtype), r.astype(dtype)
        prepared, trace = chosen.prepare(Yt.T, b, r), jnp.sum(Yt**2)
    return Linearisation(
        loss=loss,
        gradient=gradient.astype(flat.dtype),
        gradient_norm=jnp.linalg.norm(gradient),
        trace=trace,
        parameter_factor=factor,
        prepared=prepared,
        solver=chosen,
        counts=counts.plus(),
        report=metric.report(rho) | report,
    )


def matrix_free(solver: Solver, state: PyTree, flat: Array) -> MatrixFreeSolver | None:
    """The solver that does without Z for a state of this structure, if that is to be used."""
    leaves = jax.tree.leaves(state)
    k = sum(math.prod(leaf.shape) for leaf in leaves)
    return solver.matrix_free(k, flat.size, jnp.result_type(*leaves).itemsize)


def _as_products(
    problem: Problem,
    unravel: Callable[[Array], PyTree],
    flat: Array,
    metric: Metric,
    solver: MatrixFreeSolver,
    damping: Damping,
    bounds: Bounds | None,
    first_norm: Array,
) -> Linearisation:
    """The linearised model, the metric's operator and ∂_θ f at θ: one forward, one adjoint."""
    products = problem.model.products(unravel, flat)
    rho, b, counts = products.rho, None, Counts(forward=1, adjoint=1)
    if problem.objective is not None:
        loss, gradient = jax.value_and_grad(lambda v: problem.objective(unravel(v)))(flat)
        counts = counts.plus(forward=1)
    else:
        loss, c = jax.value_and_grad(problem.loss)(rho)
        gradient = products.pull(c)
        if problem.regulariser is not None:
            extra, slope = jax.value_and_grad(lambda v: problem.regulariser(unravel(v)))(flat)
            loss, gradient = loss + extra, gradient + slope
        elif solver.uses == "factor" and not metric.annihilates:
            b = metric.whiten(rho, c)
    free = None if bounds is None else _free(flat, gradient, bounds)
    gradient = gradient if free is None else gradient * free
    norm = jnp.linalg.norm(gradient)
    relative = norm / jnp.where(first_norm > 0, first_norm, 1.0)
    use_gram = solver.uses == "gram"
    system = System(
        products=products,
        gradient=gradient,
        whitened=b,
        gram=hoisted(metric.gram(rho).mv, structure_of(rho)) if use_gram else None,
        factor=None if use_gram else Factor(metric.factor(rho)),
        free=free,
        parameter=damping.parameter_operator(),
        progress=jnp.where(first_norm > 0, relative, 1.0).astype(flat.dtype),
    )
    samples = damping.trace_samples
    trace = system.trace(samples) if samples else jnp.full((), jnp.nan, flat.dtype)
    return Linearisation(
        loss=loss,
        gradient=gradient,
        gradient_norm=norm,
        trace=trace,
        parameter_factor=None,
        prepared=solver.prepare(system),
        solver=solver,
        counts=counts.plus(linearised=samples).plus(*solver.spent(system)),
        report=metric.report(rho),
        rho=rho,
    )


def _in_coordinates(rows: Array, factor: Array | None) -> Array:
    """F⁻ᵀ rows, for the triangle F of D = FᵀF: in the coordinates Fη, D is the identity."""
    return rows if factor is None else solve_triangular(factor, rows, trans="T")


def _restricted(factor: Array, free: Array) -> Array:
    """The factor of D on the parameters that may move, of the identity on those held."""
    both = free[:, None] * free
    return jnp.linalg.cholesky(both * (factor.T @ factor) + jnp.diag(1 - free)).T


def _leftover(metric: Metric, rho: PyTree, c: PyTree, Zt: Array) -> Array:
    """r = Zᵀ(c − Lᵀb), set to zero where it is only rounding error.

    G† amplifies r by the square of the condition number, so noise must not pass for signal.
    """
    if not metric.annihilates:
        return jnp.zeros(Zt.shape[0], Zt.dtype)
    rest = ravel_pytree(metric.remainder(rho, c))[0]
    r = Zt @ rest
    noise = 4 * jnp.finfo(Zt.dtype).eps * jnp.sqrt(rest.size) * (jnp.abs(Zt) @ jnp.abs(rest))
    return jnp.where(jnp.abs(r) > noise, r, 0.0)


def _free(flat: Array, gradient: Array, bounds: Bounds | None) -> Array:
    """1 for parameters that may move, 0 for those that a descent would push out of the box."""
    if bounds is None:
        return jnp.ones_like(flat)
    held = ((flat <= bounds.lower) & (gradient > 0)) | ((flat >= bounds.upper) & (gradient < 0))
    return jnp.where(held, 0.0, 1.0).astype(flat.dtype)


@eqx.filter_jit
def solve(lin: Linearisation, strength: Array) -> Solution:
    """η for this λ, as a flat vector."""
    if lin.solver is None:
        one = jnp.ones((), lin.gradient.dtype)
        info = SolveInfo(jnp.asarray(lin.gradient.size), one, jnp.asarray(False))
        return Solution(-lin.gradient / (1 + strength), info)
    if isinstance(lin.solver, MatrixFreeSolver):
        return lin.solver.solve(lin.prepared, strength)
    eta, info = cast(DenseSolver, lin.solver).solve(lin.prepared, strength)
    if lin.parameter_factor is not None:
        eta = solve_triangular(lin.parameter_factor, eta)
    return Solution(eta.astype(lin.gradient.dtype), info)
