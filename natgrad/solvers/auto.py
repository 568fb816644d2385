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
    | p > k | any | `Kernel` | k × k is the smaller matrix |
    | p ≤ k | λ > 0 | `Cholesky` | damping bounds the condition number |
    | p ≤ k | none | `PivotedQR` | nothing squared, minimum norm where Y is deficient |
    """

    def choose(self, k: int, p: int, damped: bool) -> Solver:
        if p > k:
            return Kernel()
        return Cholesky() if damped else PivotedQR()

    def prepare(self, Y: Array, b: Array, r: Array) -> Any:
        return self.choose(*Y.shape, damped=False).prepare(Y, b, r)

    def solve(self, prepared: Any, damping: Array) -> tuple[Array, SolveInfo]:
        raise TypeError("Auto chooses a solver by the shape of Y: solve with the one it chose")
