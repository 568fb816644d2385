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
from jaxtyping import PyTree

from ..core.compiled import jit_forwarding
from ..core.outcomes import Counts
from ..errors import InputError
from ..metrics.base import Metric, Report
from ..metrics.diagonal import Euclidean
from ..metrics.newton import Newton
from ..models.base import Evaluation, Model, Products
from ..parameters import Bounds, flatten, free_parameters
from ..problem import Problem, energy, slopes
from ..solvers import CG, DenseSolver, MatrixFreeSolver, Solution, SolveInfo, Solver
from ..solvers.system import LinearSystem
from .damping import Damping
from .dense import assembled
from .matrix_free import matrix_free_system, newton_point
from .rows import assembled_by_rows, has_rows


class Linearisation(eqx.Module):
    """The problem at θ as a solver sees it, factorised; `solver` is the one that was chosen.

    `energy` is that of `slopes.energy`. `rho` is kept where Zη comes with η, for the curvature of
    the loss there: from the solver, or from the `columns` of Z where these were a PDE's solves.
    `products` are kept where the gradient took them and they may serve again. `on_host` says that
    products are outside JAX.
    """

    loss: Array
    gradient: Array
    gradient_norm: Array
    energy: Array
    free: Array | None
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
    first = jnp.nan if first_norm is None else jnp.asarray(first_norm)
    D = damping.parameter_operator()
    if isinstance(metric, Newton):
        value, rho, gradient, *_, counts = point = newton_point(problem, theta, known)
        free = None if bounds is None else free_parameters(flat, gradient, bounds)
        chosen, unknown = newton_solver(solver), jnp.full((), jnp.nan)
        memory = chosen.arrived(memory, flat, gradient)
        system = point.system(free=free, parameter=D, first_norm=first, memory=memory)
        return _iterative(value, rho, system, chosen, damping, counts, {}, unknown, model.on_host)
    unseen = known is None and model.on_host
    if unseen:
        known = model.evaluate(theta)
    rho = known.rho if known is not None else jax.eval_shape(lambda v: model(unravel(v)), flat)
    iterative = matrix_free(solver, rho, flat, model, metric, damping)
    if iterative is None and has_rows(model, metric, rho):
        found = assembled_by_rows(problem, theta, metric, solver, damping, bounds)
        return Linearisation(**found._asdict(), gradient_norm=jnp.linalg.norm(found.gradient))
    if iterative is None:
        rho, columns, counts = model.jacobian(unravel, flat, known)
        counts = counts.plus(forward=int(unseen))
        found = assembled(problem, theta, metric, solver, damping, bounds, rho, columns, counts)
        norm = jnp.linalg.norm(found.gradient)
        kept = (rho, columns) if model.solves else (None, None)
        return Linearisation(**found._asdict(), gradient_norm=norm, rho=kept[0], columns=kept[1])
    products = model.products(unravel, flat, known)
    value, covector, direct = found = slopes(problem, theta, products.rho)
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
        memory=iterative.arrived(memory, flat, gradient),
    )
    counts = Counts(products.evaluations + unseen + (covector is None), 0, 1)
    rho, report = products.rho, metric.at(products.rho).report()
    total = energy(metric, rho, found)
    return _iterative(value, rho, system, iterative, damping, counts, report, total, model.on_host)


def _iterative(
    value: Array,
    rho: PyTree,
    system: LinearSystem,
    solver: MatrixFreeSolver,
    damping: Damping,
    counts: Counts,
    report: Report,
    energy: Array,
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
        energy=energy,
        free=system.free,
        trace=trace,
        parameter_factor=None,
        prepared=solver.prepare(system),
        solver=solver,
        counts=counts.plus(*solver.spent(system)).plus(*sampled),
        report=report,
        rho=rho,
        on_host=on_host,
    )


_linearise_compiled = jit_forwarding(_linearise)


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
    gradient = gradient * free_parameters(flat, gradient, bounds)
    trace, norm = jnp.asarray(flat.size, flat.dtype), jnp.linalg.norm(gradient)
    return Linearisation(
        loss=loss,
        gradient=gradient,
        gradient_norm=norm,
        energy=jnp.full((), jnp.nan, flat.dtype),
        free=None,
        trace=trace,
        parameter_factor=None,
        prepared=None,
        solver=None,
        counts=counts.plus(),
        report={},
        products=products,
        on_host=problem.model.on_host,
    )


def newton_solver(solver: Solver) -> MatrixFreeSolver:
    """The solver for Newton's system, which is indefinite and never formed."""
    chosen = solver.matrix_free(2**62, 2**31)
    if not isinstance(chosen, CG):
        raise InputError("solver", f"Newton does not work with {solver.name}", "CG(...)")
    return chosen


def matrix_free(
    solver: Solver, state: PyTree, flat: Array, model: Model, metric: Metric, damping: Damping
) -> MatrixFreeSolver | None:
    """The solver that does without Z for a state of this structure, if that is to be used."""
    leaves = jax.tree.leaves(state)
    k, p = sum(math.prod(leaf.shape) for leaf in leaves), flat.size
    by_rows = damping.damps and has_rows(model, metric, state)  # then G or K is enough
    held = (min(k, p) ** 2 if by_rows else k * p) * jnp.result_type(*leaves).itemsize
    return solver.matrix_free(held, min(k, p) if model.solves else 0)


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
