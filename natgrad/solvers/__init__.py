"""Solvers: from L Z and the right-hand side to η."""

from .auto import Auto
from .base import SolveInfo, Solver
from .dense import QR, SVD, Cholesky, PivotedQR
from .kernel import Kernel

__all__ = ["QR", "SVD", "Auto", "Cholesky", "Kernel", "PivotedQR", "SolveInfo", "Solver"]
