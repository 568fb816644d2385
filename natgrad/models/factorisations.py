"""Sparse factorisations on the host, made once for each θ and shared by all products there."""

from typing import Any, Protocol, TypeAlias

import jax
import numpy as np
import scipy
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from ..core.settings import Public
from ..core.sparse import symmetric_lu
from ..errors import InputError

COLUMNS = 16
Matrix: TypeAlias = "ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix"


class Factorisation(Protocol):
    """Solves on the host with ∂_ρh and its transpose."""

    def solve(self, b: PyTree, /) -> PyTree:
        """(∂_ρh)⁻¹b."""
        ...

    def solve_transposed(self, b: PyTree, /) -> PyTree:
        """(∂_ρh)⁻ᵀb."""
        ...


class SingularMatrix(InputError, np.linalg.LinAlgError):
    """A matrix without a factorisation."""


class Unsolvable:
    """Stands for the factors of a matrix that has none: every solution is NaN."""

    leading_axes = True

    def solve(self, b: PyTree) -> PyTree:
        """NaN, with the shape of b."""
        return jax.tree.map(lambda leaf: np.full(np.shape(leaf), np.nan), b)

    solve_transposed = solve


class SparseLU(Public):
    """P A Q = L U by SuperLU, with solves by A and by Aᵀ for any number of right-hand sides.

    `matrix` is a square SciPy sparse matrix of size n. Right-hand sides are arrays whose trailing
    axes hold n values; leading axes (sources, a batch) are solved with the same factors. For a
    symmetric matrix say so: the ordering is better and the factors are smaller. Its pivots are
    then taken from the diagonal, but for those below a hundredth of their column.

    ```python
    factor = ng.models.SparseLU(scipy.sparse.eye(4) * 2.0)
    factor.solve(np.ones((3, 2, 2)))            # three right-hand sides on a 2 × 2 grid
    ```

    Cost on a grid of n = m² cells: O(m³) work and O(m² log m) memory once, O(m² log m) a solve.
    Reference: Li, An overview of SuperLU, ACM Trans. Math. Softw. 31 (2005).

    Args:
        matrix: A square sparse matrix of SciPy.
        symmetric: Whether it is symmetric.
    """

    leading_axes = True  # several right-hand sides at once

    def __init__(self, matrix: Matrix, symmetric: bool = False):
        A: Any = scipy.sparse.csc_matrix(matrix)
        if np.iscomplexobj(A.data):
            advice = "its real form [[Re, −Im], [Im, Re]] on real and imaginary parts"
            raise InputError("matrix", "is complex, and states are real", advice)
        A = A.astype(float)
        if A.shape[0] != A.shape[1]:
            raise InputError("matrix", f"has shape {A.shape}", "a square ∂h/∂ρ")
        if not np.all(np.isfinite(A.data)):
            raise SingularMatrix("matrix", "has entries that are not finite", "a finite ∂h/∂ρ")
        try:
            self._factor = symmetric_lu(A, 0.01) if symmetric else scipy.sparse.linalg.splu(A)
            pivots = np.abs(self._factor.U.diagonal())
            columns = abs(A).max(axis=0).toarray().ravel()[np.argsort(self._factor.perm_c)]
            lost = np.any(pivots <= np.finfo(float).eps * len(pivots) * columns)
        except RuntimeError:  # a pivot is zero
            lost = True
        if lost:
            what = "is singular to working precision: the equation does not determine the state"
            advice = "a boundary condition or constraint that fixes what is free (a constant, say)"
            raise SingularMatrix("matrix", what, advice)

    def solve(self, b: np.ndarray) -> np.ndarray:
        """A⁻¹b, with the shape of b."""
        return self._columns(b, "N")

    def solve_transposed(self, b: np.ndarray) -> np.ndarray:
        """A⁻ᵀb, with the shape of b."""
        return self._columns(b, "T")

    def _columns(self, b: np.ndarray, transposed: str) -> np.ndarray:
        n = self._factor.shape[0]
        b = np.asarray(b, dtype=float)
        if b.size % n:
            raise InputError("b", f"has {b.size} values for a matrix of size {n}", "a multiple")
        rows = b.reshape(-1, n)
        # A few columns at once share the reading of the factors; many are slower than one by one.
        blocks = [
            self._factor.solve(np.ascontiguousarray(rows[i : i + COLUMNS].T), transposed).T
            for i in range(0, len(rows), COLUMNS)
        ]
        return np.concatenate(blocks).reshape(b.shape)
