"""Solves with the matrices of finite elements, by NumPy, SciPy and pyamg."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy import sparse

from ..errors import import_optional
from ..metrics.elliptic.sparse_direct import (
    LOST_PIVOT,
    Solve,
    available_backend,
    grounded_inverse,
    symmetric_inverse,
)

Solver = Literal["sparse", "multigrid", "diagonal"]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # φ, iterations, error, converged
Inverse = Callable[[np.ndarray, float, int], Rows]  # of right-hand sides as rows
ROUNDING = 4 * np.finfo(float).eps


def inverse_of(matrix: Any, solver: Solver, singular: bool, factor: Any = None) -> Inverse:
    """The solve with a symmetric matrix; a singular one annihilates the constants.

    `factor` is D with DᵀD = matrix, for products that keep their digits where entries differ by
    orders of magnitude: an error in Dφ moves mass, one in the matrix itself makes mass.
    """
    if solver != "sparse":
        return Iterative(matrix, solver, singular, factor)
    make = grounded_inverse if singular else symmetric_inverse
    try:
        solve = make(matrix, available_backend())
    except LOST_PIVOT:
        return unsolvable
    if factor is None:
        return functools.partial(_direct, solve)
    return Iterative(matrix, solve, singular, factor)


def unsolvable(rows: np.ndarray, tolerance: float, max_iterations: int) -> Rows:
    """NaN for every right-hand side."""
    return _direct(functools.partial(np.full_like, fill_value=np.nan), rows, tolerance, 0)


def _direct(
    solve: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    tolerance: float,
    max_iterations: int,
) -> Rows:
    phi = solve(rows)
    zero = np.zeros(len(rows))
    return phi, zero.astype(int), zero, np.all(np.isfinite(phi), axis=1)


class Iterative:
    """Conjugate gradients on the matrix scaled to a unit diagonal, one right-hand side at a time.

    The scaling takes the contrast of a density out of the entries. A singular matrix annihilates
    one vector, the scaled constant: right-hand sides and solutions are kept orthogonal to it, so
    that the solve is symmetric, and φ has no mean in proportion to the diagonal.
    """

    def __init__(self, matrix: Any, solver: Solver | Solve, singular: bool, factor: Any = None):
        self.root = np.sqrt(matrix.diagonal())
        inverse = sparse.diags(1 / self.root)
        scaled = (inverse @ matrix @ inverse).tocsr()
        self.product: Callable[[np.ndarray], np.ndarray] = lambda psi: scaled @ psi
        if factor is not None:
            D = (factor @ inverse).tocsr()
            transposed = D.T.tocsr()
            self.product = lambda psi: transposed @ (D @ psi)
        self.null = self.root / np.linalg.norm(self.root) if singular else None
        self.precondition: Callable[[np.ndarray], np.ndarray] = lambda residual: residual
        if solver == "multigrid":
            hierarchy = import_optional("pyamg", "elliptic").smoothed_aggregation_solver(
                scaled, B=self.root[:, None], max_coarse=200
            )
            self.precondition = hierarchy.aspreconditioner().matvec
        elif callable(solver):
            self.precondition = lambda residual: self.root * solver((self.root * residual)[None])[0]

    def __call__(self, rows: np.ndarray, tolerance: float, max_iterations: int) -> Rows:
        found = [self._solve(row / self.root, tolerance, max_iterations) for row in rows]
        psi, iterations, error, converged = (np.array(part) for part in zip(*found, strict=True))
        phi = np.where(converged[:, None], psi / self.root, np.nan)
        return phi, iterations, error, converged

    def _solve(
        self, b: np.ndarray, tolerance: float, most: int
    ) -> tuple[np.ndarray, int, float, bool]:
        """The solution, the iterations, the error, and whether that is small enough.

        The error is the energy norm of that of φ as a share of that of φ: with B ≈ A⁻¹ about
        ⟨r, Br⟩ over ⟨b, Bb⟩. The residual is made anew every time, because the one that is
        updated becomes small whatever b − Aφ is. Rounding of φ alone leaves eps ‖φ‖.
        """
        if not np.all(np.isfinite(b)):
            return np.full_like(b, np.nan), 0, np.nan, False
        b = self._compatible(b)
        phi, search, first, energy = np.zeros_like(b), np.zeros_like(b), 0.0, 0.0
        for iteration in range(most + 1):
            residual = self._compatible(b - self.product(phi)) if iteration else b
            z = self._compatible(self.precondition(residual))
            last, energy = energy, abs(float(residual @ z))
            first = first if iteration else energy
            enough = max(tolerance * np.sqrt(first), ROUNDING * np.linalg.norm(phi))
            if not np.sqrt(energy) > enough or iteration == most:  # NaN where a pivot was lost
                break
            search = z + (energy / last if iteration else 0.0) * search
            phi = phi + energy / float(search @ self.product(search)) * search
        error = np.sqrt(energy / first) if first else 0.0
        return phi, iteration, float(error), bool(np.sqrt(energy) <= enough)

    def _compatible(self, vector: np.ndarray) -> np.ndarray:
        return vector if self.null is None else vector - (self.null @ vector) * self.null
