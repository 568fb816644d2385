"""Solvers: from L Z and the right-hand side to η."""

from .auto import Auto
from .base import (
    REASONS,
    DenseSolver,
    InformationSolver,
    MatrixFreeSolver,
    Solution,
    SolveInfo,
    Solver,
)
from .dense import QR, SVD, Cholesky, PivotedQR
from .kernel import Kernel
from .krylov import CG, LSMR
from .system import System

__all__ = [
    "CG",
    "LSMR",
    "QR",
    "REASONS",
    "SVD",
    "Auto",
    "Cholesky",
    "DenseSolver",
    "InformationSolver",
    "Kernel",
    "MatrixFreeSolver",
    "PivotedQR",
    "Solution",
    "SolveInfo",
    "Solver",
    "System",
]
