"""Where an iteration is put together: what is given is checked, and one of five systems chosen."""

import dataclasses
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..core.compiled import is_traced, jit_forwarding, release_programs
from ..core.operators import structure_of
from ..core.settings import check_instance
from ..errors import InputError, warn_once
from ..metrics.base import Metric
from ..models.base import Evaluation, check_model, check_state, evaluate
from ..models.external import check_concrete
from ..models.pointwise import RowModel
from ..parameters import check_parameters, flatten
from ..problem import Problem
from ..solvers.base import Solver
from .damping import Damping, Undamped
from .dense import Dense
from .local import Local, Setup
from .matrix_free import MatrixFree
from .metric_free import Hessian, PlainGradient
from .rows import ByRows

BETWEEN_RELEASES = 64  # checks, each of which may have been about a new problem
_checks = itertools.count(1)


def linearise(setup: Setup) -> Local:
    """f, ∂_θ f and the prepared system at θ; compiled, unless the model is outside JAX.

    Everything that does not depend on λ happens here: ρ, Z, L, Y = LZ and the solver's
    factorisation, or the products that stand for them. Another λ costs only `Local.solve`.
    """
    plain = setup.metric is None and setup.solver is None  # by a program of L-BFGS
    if not (setup.problem.model.on_host or plain):
        return _linearise_compiled(setup)
    if setup.metric is None or setup.known is not None:
        return _linearise(setup)
    local = _linearise(dataclasses.replace(setup, known=setup.problem.model.evaluate(setup.theta)))
    return eqx.tree_at(lambda x: x.counts, local, local.counts.plus(forward=1))


def _linearise(setup: Setup) -> Local:
    system, solver = choose(setup)
    local = system.prepare(dataclasses.replace(setup, solver=solver))
    kept = dataclasses.replace(local.setup, known=None, memory=None)
    return dataclasses.replace(local, setup=kept)  # without what may be large


_linearise_compiled = jit_forwarding(_linearise)


def choose(setup: Setup) -> tuple[type[Local], Solver | None]:
    """The class of system for these parts, and the solver for it.

    | metric | Z | system |
    |---|---|---|
    | none | not needed | `PlainGradient`, or `Hessian` if there is a solver |
    | any | not formed: the solver does without it, or `Auto` finds it too large | `MatrixFree` |
    | diagonal | that of a pointwise model | `ByRows` |
    | any | formed by columns | `Dense` |
    """
    model, metric, solver = setup.problem.model, setup.metric, setup.solver
    if metric is None:
        return (PlainGradient if solver is None else Hessian), solver
    assert solver is not None
    flat = jax.eval_shape(lambda: flatten(setup.theta)[0])
    if setup.known is not None:
        state = structure_of(setup.known.rho)
    else:
        state = jax.eval_shape(lambda v: model(flatten(setup.theta)[1](v)), flat)
    rows = isinstance(model, RowModel)  # which can be made by themselves
    by_rows = rows and jax.eval_shape(lambda rho: metric.at(rho).diagonal, state) is not None
    leaves = jax.tree.leaves(state)
    k, p = sum(math.prod(leaf.shape) for leaf in leaves), flat.size
    entries = min(k, p) ** 2 if by_rows and setup.damping.damps else k * p  # then G or K is enough
    held = entries * jnp.result_type(*leaves).itemsize
    iterative = solver.matrix_free(held, min(k, p) if model.solves else 0)
    if iterative is not None:
        return MatrixFree, iterative
    return (ByRows if by_rows else Dense), solver


def set_up(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping = Undamped(),
) -> Setup:
    """The parts of one direction, checked, with the evaluation of the model that this took."""
    check_instance("metric", metric, Metric)
    setup = Setup(problem, theta, metric, solver, damping)
    known = check(setup)
    return dataclasses.replace(setup, known=known if problem.model.solves else None)


def check_structure(setup: Setup) -> tuple[PyTree, Evaluation | None]:
    """Everything that can be said without values, so also where θ is being traced.

    Returns the structure of the state, and the evaluation of a model outside JAX that it took.
    """
    check_instance("problem", setup.problem, Problem)
    if setup.metric is not None:
        check_instance("metric", setup.metric, Metric)
        check_instance("solver", setup.solver, Solver)
    check_parameters(setup.theta)
    flat = jax.eval_shape(lambda: flatten(setup.theta)[0])  # outside of a program, it would be one
    model, known = setup.problem.model, None
    try:
        if model.on_host:
            check_concrete(setup.theta)
            known = evaluate(setup.problem.model, setup.theta)
            structure = check_state(structure_of(known.rho))
        else:
            structure = check_model(lambda v: model(flatten(setup.theta)[1](v)), flat)
    except Exception as error:
        if not isinstance(error, InputError):
            shape = getattr(setup.theta, "shape", None)
            told = f"with {flat.size} parameters" if shape is None else f"of shape {shape}"
            error.add_note(f"Raised by the model at theta {told}.")
        raise
    setup.problem.check(setup.theta, structure)
    D = setup.damping.operator
    if D is not None and D.size != flat.size:
        what = f"acts on {D.size} parameters, theta has {flat.size}"
        raise InputError("damping", what, "a p × p D")
    if setup.metric is not None:
        setup.metric.check_structure(structure)
    return structure, known


def check(setup: Setup) -> Evaluation | None:
    """Refuse bad input before anything is spent on it.

    Returns the evaluation of the model at θ, if one was made; the plain gradient of a model that
    solves no equation takes none.
    """
    structure, known = check_structure(setup)
    model, metric = setup.problem.model, setup.metric
    if (setup.solver is None and not model.solves) or is_traced(setup):
        return None
    if next(_checks) % BETWEEN_RELEASES == 0:
        release_programs()
    known = evaluate(setup.problem.model, setup.theta) if known is None else known
    model.check(setup.theta, known)
    # by NumPy where it can, which compiles nothing
    finite = lambda x: (np if getattr(x, "is_fully_addressable", True) else jnp).isfinite(x).all()
    if not all(map(finite, jax.tree.leaves(known.rho))):
        what = "the state at theta has entries that are not finite"
        raise InputError("model", what, "another starting point")
    if metric is None:
        return known
    metric.check_values(known.rho)
    forms, _ = choose(dataclasses.replace(setup, known=Evaluation(structure)))
    if forms is not MatrixFree and any(
        leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(known.rho)
    ):
        warn_once(
            "float32",
            "the state is in single precision: a direct solver then loses all digits of a "
            "direction once the condition number of Y nears 1e4 (Cholesky) or 1e7 (QR, SVD). "
            'Try: jax.config.update("jax_enable_x64", True) and float64 data.',
        )
    return known
