"""Solves with the matrices of finite elements, by NumPy, SciPy and pyamg."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..elliptic.sparse_direct import (
    LOST_PIVOT,
    available_backend,
    grounded_inverse,
    symmetric_inverse,
)
from .elements import required

Solver = Literal["sparse", "multigrid", "diagonal"]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # φ, iterations, error, converged
Inverse = Callable[[np.ndarray, float, int], Rows]  # of right-hand sides as rows


def inverse_of(matrix: Any, solver: Solver, singular: bool) -> Inverse:
    """The solve with a symmetric matrix; a singular one annihilates the constants."""
    if solver != "sparse":
        return Iterative(matrix, solver, singular)
    make = grounded_inverse if singular else symmetric_inverse
    try:
        return functools.partial(_direct, make(matrix, available_backend()))
    except LOST_PIVOT:
        return unsolvable


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

    def __init__(self, matrix: Any, solver: Solver, singular: bool):
        self.root = np.sqrt(matrix.diagonal())
        scaled = matrix.multiply(1 / self.root[:, None]).multiply(1 / self.root).tocsr()
        self.matrix = 0.5 * (scaled + scaled.T)
        self.null = self.root / np.linalg.norm(self.root) if singular else None
        self.precondition: Callable[[np.ndarray], np.ndarray] = lambda residual: residual
        if solver == "multigrid":
            hierarchy = required("pyamg", "method").smoothed_aggregation_solver(
                self.matrix, B=self.root[:, None], max_coarse=200
            )
            self.precondition = hierarchy.aspreconditioner().matvec

    def __call__(self, rows: np.ndarray, tolerance: float, max_iterations: int) -> Rows:
        found = [self._solve(row / self.root, tolerance, max_iterations) for row in rows]
        phi, iterations, error = (np.array(part) for part in zip(*found, strict=True))
        converged = error <= tolerance
        phi = np.where(converged[:, None], phi / self.root, np.nan)
        return phi, iterations, error, converged

    def _solve(self, b: np.ndarray, tolerance: float, most: int) -> tuple[np.ndarray, int, float]:
        """φ, the iterations, and the error in the energy norm as a share of that of φ.

        With a preconditioner B ≈ A⁻¹ the energy norm of the error is about ⟨r, Br⟩^½. The residual
        that is updated can become small where b − Aφ is not, so the error is of one made anew.
        """
        b = self._compatible(b)
        phi, residual, search = np.zeros_like(b), b, np.zeros_like(b)
        energy = first = 0.0
        for iteration in range(most + 1):
            z = self._compatible(self.precondition(residual))
            last, energy = energy, float(residual @ z)
            first = energy if iteration == 0 else first
            if not energy > tolerance**2 * first or iteration == most:
                break
            search = z + (energy / last if iteration else 0.0) * search
            image = self.matrix @ search
            step = energy / float(search @ image)
            phi, residual = phi + step * search, residual - step * image
        if first == 0:
            return phi, 0, 0.0
        residual = self._compatible(b - self.matrix @ phi)
        error = np.sqrt(residual @ self._compatible(self.precondition(residual)) / first)
        return phi, iteration, float(error)

    def _compatible(self, vector: np.ndarray) -> np.ndarray:
        return vector if self.null is None else vector - (self.null @ vector) * self.null
