"""The choice of a direct solver by shape and damping."""

from typing import Any

from jax import Array

from .base import SolveInfo, Solver
from .dense import Cholesky, PivotedQR
from .kernel import Kernel


class Auto(Solver):
    """Chooses a direct solver and says which in `info.solver`.

    | Y is k × p | damping | solver | why |
    |---|---|---|---|
    | p ≤ k | λ > 0 | `Cholesky` | damping bounds the condition number |
    | p > k | λ > 0 | `Kernel` | the same, and k × k is the smaller matrix |
    | any | none | `PivotedQR` | nothing squared, minimum norm where Y is deficient |
    """

    def choose(self, k: int, p: int, damped: bool) -> Solver:
        if not damped:
            return PivotedQR()
        return Kernel() if p > k else Cholesky()

    def prepare(self, Y: Array, b: Array, r: Array) -> Any:
        raise TypeError("Auto only chooses: prepare and solve with the solver it returns")

    def solve(self, prepared: Any, damping: Array) -> tuple[Array, SolveInfo]:
        raise TypeError("Auto only chooses: prepare and solve with the solver it returns")
