"""Solvers: from L Z and the right-hand side to η."""

from .auto import Auto
from .base import (
    DenseSolver,
    InformationSolver,
    MatrixFreeSolver,
    Solution,
    SolveInfo,
    Solver,
)
from .cg import CG
from .dense import QR, SVD, Cholesky, PivotedQR
from .kernel import Kernel, NystromKernel
from .low_rank import Hutchinson, RandomizedSVD
from .lsmr import LSMR
from .preconditioners import Diagonal, Nystrom, Preconditioner, Recycled
from .system import System

__all__ = [
    "CG",
    "LSMR",
    "QR",
    "SVD",
    "Auto",
    "Cholesky",
    "DenseSolver",
    "Diagonal",
    "Hutchinson",
    "InformationSolver",
    "Kernel",
    "MatrixFreeSolver",
    "Nystrom",
    "NystromKernel",
    "PivotedQR",
    "Preconditioner",
    "RandomizedSVD",
    "Recycled",
    "Solution",
    "SolveInfo",
    "Solver",
    "System",
]
