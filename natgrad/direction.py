"""From θ to η: model → metric → solver, in two compiled programs.

`linearise` does everything that does not depend on λ (ρ, Z, L, Y = LZ, and the solver's
factorisation); `attempt` solves for one λ and takes a step. A rejected Levenberg–Marquardt step
repeats only the second.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from .counts import Counts
from .damping import Damping, Undamped, as_damping
from .errors import InputError, warn_once
from .linalg import gram
from .metrics.base import Metric
from .metrics.l2 import Euclidean
from .models.checks import check_model, check_parameters
from .problems import Problem
from .result import Direction, Info
from .solvers import Auto, SolveInfo, Solver
from .steps import Outcome, Path, Step, Trial

PyTree = Any


class Bounds(NamedTuple):
    """Box bounds on the flattened parameters."""

    lower: Array
    upper: Array


class Linearisation(eqx.Module):
    """The problem at θ as a solver sees it, factorised; `solver` is the one that was chosen."""

    loss: Array
    gradient: Array
    gradient_norm: Array
    trace: Array
    parameter_factor: Array | None
    prepared: Any
    solver: Solver | None
    counts: Counts
    report: dict[str, Array]


class Attempt(NamedTuple):
    """One solve and one step."""

    outcome: Outcome
    info: SolveInfo
    damping: Array
    damping_state: Array
    slope: Array
    step_norm: Array
    theta_norm: Array


def natural_gradient(
    problem: Problem,
    theta: PyTree,
    *,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping | float = 0.0,
) -> Direction:
    """The natural gradient direction η = −(G + λD)⁻¹ ∂_θ f at θ.

    ```python
    d = ng.natural_gradient(problem, theta, metric=ng.Sobolev(grid, -1))
    d.eta, d.info.rank, d.info.condition
    ```

    Cost: that of Z (see `Explicit` and `Pointwise`), of p products with L, and of the solver.
    """
    damping = as_damping(damping)
    check_inputs(problem, theta, metric, solver, damping)
    lin = linearise(problem, theta, metric, solver, damping, None)
    strength = damping.strength(jnp.asarray(damping.initial_state()), lin.trace, lin.gradient.size)
    eta, info = _solve(lin, strength)
    parameters = eqx.filter(theta, eqx.is_inexact_array)
    unravel = ravel_pytree(parameters)[1]
    return Direction(
        eta=unravel(eta),
        info=describe(lin, info, strength, jnp.all(jnp.isfinite(eta))),
        loss=float(lin.loss),
        gradient=unravel(lin.gradient),
    )


def information_matrix(problem: Problem, theta: PyTree, *, metric: Metric) -> Array:
    """G = ZᵀLᵀLZ, the p × p matrix of the metric on parameters.

    ```python
    G = ng.information_matrix(problem, theta, metric=ng.FisherRao(grid))
    ```

    Cost: that of Z, p products with L, and kp².
    """
    check_inputs(problem, theta, metric, Auto(), Undamped())
    if isinstance(metric, Euclidean):
        return jnp.eye(flatten(theta)[0].size, dtype=flatten(theta)[0].dtype)
    return _information_matrix(problem, theta, metric)


@eqx.filter_jit
def _information_matrix(problem: Problem, theta: PyTree, metric: Metric) -> Array:
    flat, unravel = flatten(theta)
    rho, columns, _ = problem.model.jacobian(unravel, flat)
    return gram(_image(metric, rho, columns).T)


def _image(metric: Metric, rho: PyTree, columns: PyTree) -> Array:
    """Yᵀ: L applied to each column of Z."""
    L = metric.factor(rho)
    return jax.vmap(lambda column: ravel_pytree(L.mv(column))[0])(columns)


def traced_direction(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver = Auto(),
    damping: Damping = Undamped(),
) -> tuple[Array, Array]:
    """η as a flat vector, and the loss: `natural_gradient` without checks, for jit and vmap."""
    lin = linearise(problem, theta, metric, solver, damping, None)
    strength = damping.strength(jnp.asarray(damping.initial_state()), lin.trace, lin.gradient.size)
    return _solve(lin, strength)[0], lin.loss


def flatten(theta: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """The floating-point arrays of θ as one vector, and the way back; other leaves are kept."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    return flat, lambda vector: eqx.combine(unravel(vector.astype(flat.dtype)), rest)


def check_inputs(
    problem: Problem, theta: PyTree, metric: Metric, solver: Solver, damping: Damping
) -> None:
    """Everything that can be said about the input before a program is compiled."""
    for name, value, kind in (
        ("problem", problem, Problem),
        ("metric", metric, Metric),
        ("solver", solver, Solver),
    ):
        if not isinstance(value, kind):
            what = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise InputError(name, f"is {what}", f"an instance of a {kind.__name__}")
    flat, unravel = flatten(theta)
    check_parameters(theta, flat)
    structure = check_model(lambda v: problem.model(unravel(v)), flat)
    problem.check(theta, structure)
    factor = damping.parameter_factor()
    if factor is not None and factor.shape[0] != flat.size:
        raise InputError(
            "damping", f"acts on {factor.shape[0]} parameters, theta has {flat.size}", "a p × p D"
        )
    if isinstance(metric, Euclidean):
        if factor is not None:
            raise InputError(
                "damping",
                "Euclidean has G = I and no system to add an operator to",
                "AbsoluteDamping(λ), or a metric on states",
            )
        return
    metric.check_structure(structure)
    rho = _state(problem, theta)
    finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(rho))
    if not finite:
        raise InputError(
            "model", "the state at theta has entries that are not finite", "another starting point"
        )
    metric.check_values(rho)
    if any(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(rho)):
        warn_once(
            "float32",
            "the state is in single precision: a direct solver then loses all digits of a "
            "direction once the condition number of Y nears 1e4 (Cholesky) or 1e7 (QR, SVD). "
            'Try: jax.config.update("jax_enable_x64", True) and float64 data.',
        )


@eqx.filter_jit
def _state(problem: Problem, theta: PyTree) -> PyTree:
    return problem.model(theta)


@eqx.filter_jit
def linearise(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
) -> Linearisation:
    """ρ, Z, L and the factorised least-squares problem at θ."""
    flat, unravel = flatten(theta)
    if isinstance(metric, Euclidean):
        objective = lambda v: problem.value(unravel(v), problem.model(unravel(v)))
        loss, gradient = jax.value_and_grad(objective)(flat)
        gradient = gradient * _free(flat, gradient, bounds)
        trace = jnp.asarray(flat.size, flat.dtype)
        norm, counts = jnp.linalg.norm(gradient), Counts(1, 0, 1).plus()
        return Linearisation(loss, gradient, norm, trace, None, None, None, counts, {})

    rho, columns, counts = problem.model.jacobian(unravel, flat)
    Zt = jax.vmap(lambda column: ravel_pytree(column)[0])(columns)
    Yt = _image(metric, rho, columns)
    if problem.objective is not None:
        loss, gradient = jax.value_and_grad(lambda v: problem.objective(unravel(v)))(flat)
        b, r = jnp.zeros(Yt.shape[1], Yt.dtype), gradient
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
    if bounds is not None:
        Yt, r, gradient = Yt * free[:, None], r * free, gradient * free
    factor = damping.parameter_factor()
    if factor is not None:
        factor = _restricted(factor, free) if bounds is not None else factor
        Yt, r = solve_triangular(factor, Yt, trans="T"), solve_triangular(factor, r, trans="T")
    dtype = jnp.result_type(Yt, b, r)
    Yt, b, r = Yt.astype(dtype), b.astype(dtype), r.astype(dtype)
    chosen = solver.choose(Yt.shape[1], Yt.shape[0], damping.damps)
    return Linearisation(
        loss=loss,
        gradient=gradient.astype(flat.dtype),
        gradient_norm=jnp.linalg.norm(gradient),
        trace=jnp.sum(Yt**2),
        parameter_factor=factor,
        prepared=chosen.prepare(Yt.T, b, r),
        solver=chosen,
        counts=counts.plus(),
        report=metric.report(rho),
    )


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
def _solve(lin: Linearisation, strength: Array) -> tuple[Array, SolveInfo]:
    if lin.solver is None:
        one = jnp.ones((), lin.gradient.dtype)
        info = SolveInfo(jnp.asarray(lin.gradient.size), one, jnp.asarray(False))
        return -lin.gradient / (1 + strength), info
    eta, info = lin.solver.solve(lin.prepared, strength)
    if lin.parameter_factor is not None:
        eta = solve_triangular(lin.parameter_factor, eta)
    return eta.astype(lin.gradient.dtype), info


@eqx.filter_jit
def attempt(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    lin: Linearisation,
    damping: Damping,
    damping_state: Array,
    step: Step,
    bounds: Bounds | None,
) -> Attempt:
    """Solve for the present λ, take a step along η, and let the damping learn from it."""
    flat, unravel = flatten(theta)
    strength = damping.strength(damping_state, lin.trace, flat.size)
    eta, info = _solve(lin, strength)
    slope = lin.gradient @ eta

    def trial(tau: Array) -> Trial:
        point = flat + tau.astype(flat.dtype) * eta
        if bounds is not None:
            point = jnp.clip(point, bounds.lower, bounds.upper)
        moved = unravel(point)
        rho = problem.model(moved)
        admissible = jnp.asarray(True) if lin.solver is None else metric.admissible(rho)
        return Trial(point, problem.value(moved, rho), admissible, -lin.gradient @ (point - flat))

    path = Path(trial, lin.loss, slope, lambda: _curvature(problem, unravel, flat, eta))
    outcome = step.take(path)
    return Attempt(
        outcome=outcome,
        info=info,
        damping=strength,
        damping_state=damping.update(strength.astype(damping_state.dtype), outcome),
        slope=slope,
        step_norm=jnp.linalg.norm(outcome.theta - flat),
        theta_norm=jnp.linalg.norm(outcome.theta),
    )


def _curvature(
    problem: Problem, unravel: Callable[[Array], PyTree], flat: Array, eta: Array
) -> Array:
    """⟨Zη, ∇²f Zη⟩ (+ ηᵀ∇²R η); for an objective of θ its second derivative along η."""
    if problem.objective is not None:
        return _second_derivative(lambda v: problem.objective(unravel(v)), flat, eta)
    rho, motion = jax.jvp(lambda v: problem.model(unravel(v)), (flat,), (eta,))
    curvature = _second_derivative(problem.loss, rho, motion)
    if problem.regulariser is not None:
        curvature += _second_derivative(lambda v: problem.regulariser(unravel(v)), flat, eta)
    return curvature


def _second_derivative(function: Callable[[PyTree], Array], x: PyTree, v: PyTree) -> Array:
    _, product = jax.jvp(jax.grad(function), (x,), (v,))
    return ravel_pytree(v)[0] @ ravel_pytree(product)[0]


def describe(lin: Linearisation, info: SolveInfo, damping: Array, finite: Any) -> Info:
    """The numbers of a solve as a user reads them, in one transfer from the device."""
    info, damping, finite, counts, report = jax.device_get(
        (info, damping, finite, lin.counts, lin.report)
    )
    status = "rank_deficient" if info.rank_deficient else "ok"
    return Info(
        solver="gradient" if lin.solver is None else lin.solver.name,
        rank=int(info.rank),
        condition=float(info.condition),
        damping=float(damping),
        status=status if finite else "not_finite",
        iterations=int(info.iterations),
        counts=Counts(*map(int, counts)),
        metric={name: float(value) for name, value in report.items()},
    )
