"""Solvers of natgrad as solvers of lineax."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.operators import Structure, flat_product
from ..core.outcomes import Counts, Status
from ..core.settings import check_instance
from ..direction.linearise import linearise
from ..direction.local import Setup
from ..metrics.diagonal import L2
from ..models.base import Evaluation, Model, Products, Unravel
from ..problem import LeastSquares, Problem
from ..solvers import Solver

Operator = lx.AbstractLinearOperator
Options = dict[str, Any]


def as_lineax_solver(solver: Solver) -> lx.AbstractLinearSolver:
    """A solver of natgrad for `lineax.linear_solve`: x of minimum norm with ‖Yx − b‖ least.

    ```python
    lx.linear_solve(Y, b, ng.interop.as_lineax_solver(ng.PivotedQR())).value
    ```

    Y may be of any shape and rank; `stats` has its rank and condition number, as far as the solver
    knows them, and the iterations. Direct solvers form Y, by `as_matrix`, and factorise it in every
    solve; `CG` and `LSMR` take products. Cost: that of the solver.

    Args:
        solver: A solver of natgrad.
    """
    check_instance("solver", solver, Solver)
    return LeastSquaresSolver(solver)


class LeastSquaresSolver(lx.AbstractLinearSolver):
    """The natural gradient of ½‖Yx − b‖² at x = 0: its state is the operator Y."""

    solver: Solver

    def init(self, operator: Operator, options: Options) -> Operator:
        return operator

    def compute(
        self, state: Operator, vector: PyTree, options: Options
    ) -> tuple[PyTree, lx.RESULTS, dict[str, Any]]:
        start, unravel = ravel_pytree(Structure(state.in_structure()).zeros())
        problem = Problem(LinearModel(state), LeastSquares(ravel_pytree(vector)[0]))
        local = linearise(Setup(problem, start, L2(), self.solver))
        x, info, *_ = local.solve(jnp.zeros_like(local.trace))
        reason, results = jnp.asarray(info.reason), lx.RESULTS
        result = results.where(
            reason == Status.MAX_ITERATIONS.code, results.max_steps_reached, results.successful
        )
        result = results.where(reason == Status.BREAKDOWN.code, results.breakdown, result)
        stats = {"rank": info.rank, "condition": info.condition, "num_steps": info.iterations}
        return unravel(x), result, jax.tree.map(jnp.asarray, stats)

    def transpose(self, state: Operator, options: Options) -> tuple[Operator, Options]:
        return state.T, options

    def conj(self, state: Operator, options: Options) -> tuple[Operator, Options]:
        return lx.conj(state), options

    def assume_full_rank(self) -> bool:
        return False


class LinearModel(Model):
    """x ↦ Yx on flat vectors, for a lineax operator Y."""

    operator: Operator

    def __call__(self, theta: Array) -> Array:
        return flat_product(self.operator, theta)

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[Array, Array, Counts]:
        Y = self.operator.as_matrix()
        return Y @ flat, Y.T, Counts(forward=1, linearised=flat.size)

    def products(self, unravel: Unravel, flat: Array, known: Evaluation | None = None) -> Products:
        return OperatorProducts(self(flat), 1, self.operator)


class OperatorProducts(Products):
    """Yη and Yᵀξ on flat vectors."""

    rho: Array
    evaluations: int = eqx.field(static=True)
    operator: Operator

    def push(self, eta: Array) -> Array:
        return flat_product(self.operator, eta)

    def pull(self, xi: Array) -> Array:
        return flat_product(self.operator.T, xi)
