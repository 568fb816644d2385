"""The problem at θ as a solver sees it: model → metric → factorised least squares, or products.

`linearise` does everything that does not depend on λ (ρ, Z, L, Y = LZ, and the solver's
factorisation; or the linearised model and the metric's operator, where Z is not formed), so that
another λ at the same θ costs only `solve`.
"""

import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from .counts import Counts
from .damping import Damping
from .matrix_free import matrix_free_system
from .metrics.base import Metric, Report
from .metrics.l2 import Euclidean
from .models.base import Evaluation
from .models.products import Products
from .parameters import Bounds, flatten
from .problems import Problem
from .slopes import slopes
from .solvers import (
    DenseSolver,
    InformationSolver,
    MatrixFreeSolver,
    Solution,
    SolveInfo,
    Solver,
)

PyTree = Any


class Linearisation(eqx.Module):
    """The problem at θ as a solver sees it, factorised; `solver` is the one that was chosen.

    `rho` is kept where Zη comes with η, for the curvature of the loss there: from the solver, or
    from the `columns` of Z where these were a PDE's solves. `products` are kept where the gradient
    took them and they may serve again. `on_host` says that products are outside JAX.
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
    columns: PyTree | None = None
    products: Products | None = None
    on_host: bool = eqx.field(static=True, default=False)


def linearise(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
    first_norm: Array | np.ndarray | None = None,
    known: Evaluation | None = None,
    memory: Any = None,
) -> Linearisation:
    """ρ, Z, L and the factorised least-squares problem at θ, or the products that stand for it.

    `first_norm` is ‖∂_θ f‖ at the start of a run, for solvers whose tolerance follows it; `known`
    an evaluation of the model at θ; `memory` what the solver remembers of earlier iterations.
    Compiled, unless the model is outside JAX: then only its parts are.
    """
    run = _linearise if problem.model.on_host else _linearise_compiled
    return run(problem, theta, metric, solver, damping, bounds, first_norm, known, memory)


def _linearise(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
    first_norm: Array | np.ndarray | None,
    known: Evaluation | None,
    memory: Any,
) -> Linearisation:
    flat, unravel = flatten(theta)
    model = problem.model
    if isinstance(metric, Euclidean):
        return _plain_gradient(problem, theta, bounds, known)
    unseen = known is None and model.on_host
    if unseen:
        known = model.evaluate(theta)
    rho = known.rho if known is not None else jax.eval_shape(lambda v: model(unravel(v)), flat)
    iterative = matrix_free(solver, rho, flat, model.solves)
    if iterative is None:
        rho, columns, counts = model.jacobian(unravel, flat, known)
        counts = counts.plus(forward=int(unseen))
        return _dense(problem, theta, metric, solver, damping, bounds, rho, columns, counts)
    products = model.products(unravel, flat, known)
    loss, covector, direct = slopes(problem, theta, products.rho)
    gradient = jnp.zeros_like(flat) if covector is None else products.pull(covector)
    gradient = gradient if direct is None else gradient + direct
    system = matrix_free_system(
        products,
        gradient,
        metric,
        iterative,
        free=None if bounds is None else _free(flat, gradient, bounds),
        parameter=damping.parameter_operator(),
        first_norm=jnp.nan if first_norm is None else jnp.asarray(first_norm),
        covector=covector if direct is None else None,
        memory=memory,
    )
    samples = damping.trace_samples
    trace = system.trace(samples) if samples else jnp.full((), jnp.nan, flat.dtype)
    counts = Counts(products.evaluations + unseen + (covector is None), samples, 1)
    return Linearisation(
        loss=loss,
        gradient=system.gradient,
        gradient_norm=jnp.linalg.norm(system.gradient),
        trace=trace,
        parameter_factor=None,
        prepared=iterative.prepare(system),
        solver=iterative,
        counts=counts.plus(*iterative.spent(system)),
        report=metric.report(products.rho),
        rho=products.rho,
        on_host=model.on_host,
    )


_linearise_compiled = eqx.filter_jit(_linearise)


def _plain_gradient(
    problem: Problem, theta: PyTree, bounds: Bounds | None, known: Evaluation | None
) -> Linearisation:
    """∂_θ f, with G = I."""
    flat, unravel = flatten(theta)
    products = None
    if problem.objective is not None:
        loss, gradient = jax.value_and_grad(lambda v: problem.objective(unravel(v)))(flat)
        counts = Counts(1, 0, 1)
    elif problem.model.solves:
        products = problem.model.products(unravel, flat, known)
        loss, covector, direct = slopes(problem, theta, products.rho)
        gradient, counts = products.pull(covector), Counts(products.evaluations, 0, 1)
        gradient = gradient if direct is None else gradient + direct
    else:
        objective = lambda v: problem.value(unravel(v), problem.model(unravel(v)))
        loss, gradient = jax.value_and_grad(objective)(flat)
        counts = Counts(1, 0, 1)
    gradient = gradient * _free(flat, gradient, bounds)
    trace, norm = jnp.asarray(flat.size, flat.dtype), jnp.linalg.norm(gradient)
    return Linearisation(
        loss=loss,
        gradient=gradient,
        gradient_norm=norm,
        trace=trace,
        parameter_factor=None,
        prepared=None,
        solver=None,
        counts=counts.plus(),
        report={},
        products=products,
        on_host=problem.model.on_host,
    )


@eqx.filter_jit
def _dense(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
    rho: PyTree,
    columns: PyTree,
    counts: Counts,
) -> Linearisation:
    """The factorised least-squares problem, from ρ and the columns of Z."""
    flat, _ = flatten(theta)
    Zt = jax.vmap(lambda column: ravel_pytree(column)[0])(columns)
    whitened = jax.tree.leaves(jax.eval_shape(metric.whiten, rho, rho))
    k = sum(math.prod(leaf.shape) for leaf in whitened)  # the rows of Y
    chosen = cast(DenseSolver, solver.choose(k, flat.size, damping.damps))
    loss, c, direct = slopes(problem, theta, rho)
    if c is None:
        assert direct is not None
        gradient = direct
        b, r = jnp.zeros(k, whitened[0].dtype), gradient
        counts = counts.plus(forward=1, adjoint=1)
    else:
        gradient = Zt @ ravel_pytree(c)[0]
        b = ravel_pytree(metric.whiten(rho, c))[0]
        r = _leftover(metric, rho, c, Zt)
        if direct is not None:
            gradient, r = gradient + direct, r + direct

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
        rho=rho if problem.model.solves else None,
        columns=columns if problem.model.solves else None,
    )


def matrix_free(
    solver: Solver, state: PyTree, flat: Array, solves: bool
) -> MatrixFreeSolver | None:
    """The solver that does without Z for a state of this structure, if that is to be used."""
    leaves = jax.tree.leaves(state)
    k = sum(math.prod(leaf.shape) for leaf in leaves)
    return solver.matrix_free(k, flat.size, jnp.result_type(*leaves).itemsize, solves)


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


def solve(lin: Linearisation, strength: Array) -> Solution:
    """η for this λ, as a flat vector; compiled, unless the products are outside JAX."""
    return (_solve if lin.on_host else _solve_compiled)(lin, strength)


def _solve(lin: Linearisation, strength: Array) -> Solution:
    if lin.solver is None:
        one = jnp.ones((), lin.gradient.dtype)
        info = SolveInfo(jnp.asarray(lin.gradient.size), one, jnp.asarray(False))
        return Solution(-lin.gradient / (1 + strength), info)
    if isinstance(lin.solver, MatrixFreeSolver):
        return lin.solver.solve(lin.prepared, strength)
    eta, info = cast(DenseSolver, lin.solver).solve(lin.prepared, strength)
    if lin.parameter_factor is not None:
        eta = solve_triangular(lin.parameter_factor, eta)
    motion = None
    if lin.columns is not None:
        motion = jax.tree.map(lambda Z: jnp.tensordot(eta.astype(Z.dtype), Z, 1), lin.columns)
    return Solution(eta.astype(lin.gradient.dtype), info, motion)


_solve_compiled = eqx.filter_jit(_solve)
