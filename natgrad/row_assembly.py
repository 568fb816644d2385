"""The least-squares problem from the rows of Z, for a pointwise model in a diagonal metric."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .assembled import Assembled, in_coordinates, restricted
from .counts import Counts
from .damping import Damping
from .errors import InputError
from .linalg import gram
from .metrics.base import Metric
from .models.base import Model
from .models.pointwise import RowModel
from .operators import AdjointOperator
from .parameter_operators import ParameterOperator
from .parameters import Bounds, flatten, free_parameters
from .problems import Problem
from .rows import ProductMatrix, Rows
from .slopes import energy, slopes
from .solvers import DenseSolver, InformationSolver, Kernel, Solver
from .solvers.kernel import pulled

PyTree = Any


def has_rows(model: Model, metric: Metric, rho: PyTree) -> bool:
    """Whether Y has rows that can be made by themselves."""
    return isinstance(model, RowModel) and jax.eval_shape(metric.diagonal, rho) is not None


def row_factor(metric: Metric, rho: PyTree) -> AdjointOperator:
    """L = A^½ for a diagonal A: square, also where the metric's own factor is not."""
    root = jax.tree.map(jnp.sqrt, metric.diagonal(rho))
    product = lambda zeta: jax.tree.map(jnp.multiply, root, zeta)
    return AdjointOperator(product, product, rho, rho)


@eqx.filter_jit
def assembled_by_rows(
    problem: Problem,
    theta: PyTree,
    metric: Metric,
    solver: Solver,
    damping: Damping,
    bounds: Bounds | None,
) -> Assembled:
    """The factorised least-squares problem, from Y = A^½ Z or from blocks of its rows."""
    flat, unravel = flatten(theta)
    model = cast(RowModel, problem.model)
    rho = model(theta)
    root = jax.tree.map(jnp.sqrt, metric.diagonal(rho))
    scale = ravel_pytree(root)[0]
    shape = k, p = scale.size, flat.size
    chosen = cast(DenseSolver, solver.choose(k, p, damping.damps))
    D = damping.parameter_operator()
    rows = Rows(model, unravel, flat, root)
    blocks = _takes_blocks(chosen, D)
    whole = rows.fit and not (blocks and model.mesh is not None)  # whose rows would be sent around
    if not whole and not blocks:
        raise _does_not_fit(chosen, D, rows)

    loss, c, direct = found = slopes(problem, theta, rho)
    dtype = jnp.result_type(flat, scale)  # θ and the state may differ in precision
    b = jnp.zeros_like(scale) if c is None else ravel_pytree(c)[0] / scale
    b = b.astype(dtype)
    if whole:
        Y: Any = rows.whole()
    else:
        Y = ProductMatrix(model.products(unravel, flat), scale, None, shape)
    gradient = jnp.zeros(p, dtype) if c is None else pulled(Y, b)
    r = jnp.zeros_like(gradient)
    if direct is not None:
        gradient, r = gradient + direct, r + direct
    factor, free = None if D is None else D.triangle(), None
    if bounds is not None:
        free = free_parameters(flat, gradient, bounds)
        gradient, r = gradient * free, r * free
        factor = None if factor is None else restricted(factor, free)
        Y = Y * free if whole else ProductMatrix(Y.products, scale, free, shape)
        rows = Rows(model, unravel, flat, root, free)

    if isinstance(chosen, InformationSolver):
        G = gram(Y) if whole else rows.gram()
        G = in_coordinates(in_coordinates(G, factor).T, factor)
        prepared = chosen.prepare_information(G, in_coordinates(gradient, factor), k)
        trace = jnp.trace(G)
    elif whole:
        Y, r = in_coordinates(Y.T, factor).T, in_coordinates(r, factor)
        prepared, trace = chosen.prepare(Y, b, r), jnp.sum(Y**2)
    else:
        K = rows.outer()
        prepared, trace = cast(Kernel, chosen).prepare_kernel(Y, K, b, r), jnp.trace(K)
    return Assembled(
        loss=loss,
        gradient=gradient.astype(flat.dtype),
        energy=energy(metric, rho, found),
        free=free,
        trace=trace,
        parameter_factor=factor,
        prepared=prepared,
        solver=chosen,
        counts=Counts(1 + (c is None), 0, 1 + (c is None)).plus(),
        report=metric.report(rho),
    )


def _takes_blocks(solver: Solver, D: ParameterOperator | None) -> bool:
    """Whether G or K is all that is needed, which blocks of rows give."""
    return isinstance(solver, InformationSolver) or (isinstance(solver, Kernel) and D is None)


def _does_not_fit(solver: Solver, D: ParameterOperator | None, rows: Rows) -> InputError:
    k, p = rows.shape
    what = solver.name if D is None else f"{solver.name} with an operator D"
    return InputError(
        "solver",
        f"{what} needs all {k} × {p} entries of Y, {rows.nbytes} bytes, and the model has "
        f"memory={rows.memory}",
        "damping with Cholesky or Kernel, which take blocks of rows; CG; or more memory",
    )
