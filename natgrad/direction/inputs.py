"""What a run or a direction is given, checked before it starts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..core.operators import structure_of
from ..errors import InputError, check_instance, warn_once
from ..metrics.base import Metric
from ..metrics.diagonal import Euclidean
from ..metrics.newton import Newton
from ..models.base import Evaluation, check_model, check_state
from ..parameters import check_parameters, flatten
from ..problem import Problem
from ..solvers import Solver
from .damping import Damping
from .linearisation import matrix_free, newton_solver


def check_structures(
    problem: Problem, theta: PyTree, metric: Metric, solver: Solver, damping: Damping
) -> tuple[PyTree, Evaluation | None]:
    """Everything that can be said without values, so also where θ is being traced.

    Returns the structure of the state, and the evaluation of a model outside JAX that it took.
    """
    for name, value, kind in (
        ("problem", problem, Problem),
        ("metric", metric, Metric),
        ("solver", solver, Solver),
    ):
        check_instance(name, value, kind)
    flat, unravel = flatten(theta)
    check_parameters(flat)
    model, known = problem.model, None
    if model.on_host:
        known = evaluated(model, theta)
        structure = check_state(structure_of(known.rho))
    else:
        structure = check_model(lambda v: model(unravel(v)), flat)
    problem.check(theta, structure)
    D = damping.parameter_operator()
    if D is not None and D.size != flat.size:
        raise InputError(
            "damping", f"acts on {D.size} parameters, theta has {flat.size}", "a p × p D"
        )
    if isinstance(metric, Euclidean) and D is not None:
        raise InputError(
            "damping",
            "Euclidean has G = I and no system to add an operator to",
            "AbsoluteDamping(λ), or a metric on states",
        )
    if isinstance(metric, Newton):
        newton_solver(solver)
    metric.check_structure(structure)
    return structure, known


def check_inputs(
    problem: Problem, theta: PyTree, metric: Metric, solver: Solver, damping: Damping
) -> Evaluation | None:
    """Everything that can be said about the input; most of it before a program is compiled.

    Returns the evaluation of the model at θ, if it was made and can be used again.
    """
    structure, known = check_structures(problem, theta, metric, solver, damping)
    flat, model = flatten(theta)[0], problem.model
    if isinstance(metric, Euclidean) and not model.solves:
        return None
    known = evaluated(model, theta) if known is None else known
    model.check(theta, known)
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(known.rho)):
        raise InputError(
            "model", "the state at theta has entries that are not finite", "another starting point"
        )
    metric.check_values(known.rho)
    direct = not isinstance(metric, (Euclidean, Newton))
    direct = direct and matrix_free(solver, structure, flat, model, metric, damping) is None
    if direct and any(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(known.rho)):
        warn_once(
            "float32",
            "the state is in single precision: a direct solver then loses all digits of a "
            "direction once the condition number of Y nears 1e4 (Cholesky) or 1e7 (QR, SVD). "
            'Try: jax.config.update("jax_enable_x64", True) and float64 data.',
        )
    return known if model.solves else None


def evaluated(model: Any, theta: PyTree) -> Evaluation:
    """The evaluation of the model at θ; compiled, unless it is outside JAX."""
    return model.evaluate(theta) if model.on_host else _evaluated(model, theta)


@eqx.filter_jit
def _evaluated(model: Any, theta: PyTree) -> Evaluation:
    return model.evaluate(theta)
