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
from jax.scipy.linalg import solve_triangular

from .assembled import assembled
from .counts import Counts
from .damping import Damping
from .errors import InputError
from .matrix_free import matrix_free_system, newton_point
from .metrics.base import Metric, Report
from .metrics.l2 import Euclidean
from .metrics.newton import Newton
from .models.base import Evaluation
from .parameters import Bounds, flatten, free_parameters
from .problems import Problem
from .slopes import slopes
from .solvers import (
    CG,
    DenseSolver,
    MatrixFreeSolver,
    Solution,
    SolveInfo,
    Solver,
)
from .solvers.system import LinearSystem

PyTree = Any


class Linearisation(eqx.Module):
    """The problem at θ as a solver sees it, factorised; `solver` is the one that was chosen.

    `rho` is kept where the solver carries Zη along, for the curvature of the loss there. `on_host`
    says that its products are outside JAX.
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
    first = jnp.nan if first_norm is None else jnp.asarray(first_norm)
    D = damping.parameter_operator()
    if isinstance(metric, Newton):
        value, rho, gradient, *_, counts = point = newton_point(problem, theta, known)
        free = None if bounds is None else free_parameters(flat, gradient, bounds)
        system = point.system(free=free, parameter=D, first_norm=first, memory=memory)
        iterative = newton_solver(solver)
        return _iterative(value, rho, system, iterative, damping, counts, {}, model.on_host)
    rho = known.rho if known is not None else jax.eval_shape(lambda v: model(unravel(v)), flat)
    iterative = matrix_free(solver, rho, flat, model.solves)
    if iterative is None:
        rho, columns, counts = model.jacobian(unravel, flat, known)
        found = assembled(problem, theta, metric, solver, damping, bounds, rho, columns, counts)
        norm = jnp.linalg.norm(found.gradient)
        return Linearisation(**found._asdict(), gradient_norm=norm)
    products = model.products(unravel, flat, known)
    value, covector, direct = slopes(problem, theta, products.rho)
    gradient = jnp.zeros_like(flat) if covector is None else products.pull(covector)
    gradient = gradient if direct is None else gradient + direct
    system = matrix_free_system(
        products,
        gradient,
        metric,
        iterative,
        free=None if bounds is None else free_parameters(flat, gradient, bounds),
        parameter=D,
        first_norm=first,
        covector=covector if direct is None else None,
        memory=memory,
    )
    counts = Counts(products.evaluations + (covector is None), 0, 1)
    rho, report = products.rho, metric.report(products.rho)
    return _iterative(value, rho, system, iterative, damping, counts, report, model.on_host)


def _iterative(
    value: Array,
    rho: PyTree,
    system: LinearSystem,
    solver: MatrixFreeSolver,
    damping: Damping,
    counts: Counts,
    report: Report,
    on_host: bool,
) -> Linearisation:
    """The system with its solver, prepared."""
    samples, dtype = damping.trace_samples, system.gradient.dtype
    trace = system.trace(samples) if samples else jnp.full((), jnp.nan, dtype)
    sampled = Counts(0, samples, samples if system.indefinite else 0)
    return Linearisation(
        loss=value,
        gradient=system.gradient,
        gradient_norm=jnp.linalg.norm(system.gradient),
        trace=trace,
        parameter_factor=None,
        prepared=solver.prepare(system),
        solver=solver,
        counts=counts.plus(*solver.spent(system)).plus(*sampled),
        report=report,
        rho=rho,
        on_host=on_host,
    )


_linearise_compiled = eqx.filter_jit(_linearise)


def _plain_gradient(
    problem: Problem, theta: PyTree, bounds: Bounds | None, known: Evaluation | None
) -> Linearisation:
    """∂_θ f, with G = I."""
    flat, unravel = flatten(theta)
    if problem.model.solves and problem.objective is None:
        products = problem.model.products(unravel, flat, known)
        loss, covector, direct = slopes(problem, theta, products.rho)
        gradient, counts = products.pull(covector), Counts(products.evaluations, 0, 1)
        gradient = gradient if direct is None else gradient + direct
    else:
        objective = lambda v: problem.value(unravel(v), problem.model(unravel(v)))
        loss, gradient = jax.value_and_grad(objective)(flat)
        counts = Counts(1, 0, 1)
    gradient = gradient * free_parameters(flat, gradient, bounds)
    trace, norm = jnp.asarray(flat.size, flat.dtype), jnp.linalg.norm(gradient)
    return Linearisation(loss, gradient, norm, trace, None, None, None, counts.plus(), {})


def newton_solver(solver: Solver) -> MatrixFreeSolver:
    """The solver for Newton's system, which is indefinite and never formed."""
    chosen = solver.matrix_free(2**31, 2**31, 8, True)
    if not isinstance(chosen, CG):
        raise InputError("solver", f"Newton does not work with {solver.name}", "CG(...)")
    return chosen


def matrix_free(
    solver: Solver, state: PyTree, flat: Array, solves: bool
) -> MatrixFreeSolver | None:
    """The solver that does without Z for a state of this structure, if that is to be used."""
    leaves = jax.tree.leaves(state)
    k = sum(math.prod(leaf.shape) for leaf in leaves)
    return solver.matrix_free(k, flat.size, jnp.result_type(*leaves).itemsize, solves)


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
    return Solution(eta.astype(lin.gradient.dtype), info)


_solve_compiled = eqx.filter_jit(_solve)
