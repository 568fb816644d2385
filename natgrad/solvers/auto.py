"""The choice of a solver by shape, memory and damping."""

from .base import MatrixFreeSolver, Solver
from .cg import CG
from .dense import Cholesky, PivotedQR
from .kernel import Kernel

DENSE_LIMIT = 2 * 2**30
SOLVES_LIMIT = 100


class Auto(Solver):
    """Chooses a solver and says which in `info.solver`.

    | Z is k × p | damping | solver | why |
    |---|---|---|---|
    | more than 2 GiB | any | `CG` | Z is never formed |
    | of points, min(k, p)² > 2 GiB | any | `CG` | neither G nor YYᵀ fits |
    | of a PDE, min(k, p) > 100 | any | `CG` | forming Z takes min(k, p) solves |
    | p ≤ k | λ > 0 | `Cholesky` | damping bounds the condition number |
    | p > k | λ > 0 | `Kernel` | the same, and k × k is the smaller matrix |
    | any | none | `PivotedQR` | nothing squared, minimum norm where Y is deficient |
    """

    def choose(self, k: int, p: int, damped: bool) -> Solver:
        if not damped:
            return PivotedQR()
        return Kernel() if p > k else Cholesky()

    def matrix_free(self, held: int, solves: int) -> MatrixFreeSolver | None:
        return CG() if solves > SOLVES_LIMIT or held > DENSE_LIMIT else None
