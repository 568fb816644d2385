"""A square root of a sparse positive definite matrix, sparse itself."""

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from ..errors import InputError


def sparse_root(A: Any) -> Any:
    """L with LᵀL = A for a sparse symmetric positive definite A, from A = PᵀMDMᵀP by SuperLU.

    ```python
    L = sparse_root(scipy.sparse.diags([[4.0, 9.0]], [0]))          # |L| = diag(2, 3)
    ```

    The pivots are taken from the diagonal, so that the factors are those of a Cholesky
    factorisation; P is an ordering of minimum degree. Cost: that of one sparse factorisation.
    """
    if np.issubdtype(A.dtype, np.complexfloating):
        raise InputError("A", "is complex, and metrics here are real", "its real form")
    matrix: Any = sparse.csc_array(A).astype(float)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError("A", f"has shape {matrix.shape}", "a square matrix")
    if not np.all(np.isfinite(matrix.data)):
        raise InputError("A", "has entries that are not finite", "a finite matrix")
    largest = np.abs(matrix.data).max(initial=0.0)
    if abs(matrix - matrix.T).max() > 1e-6 * largest:
        raise InputError("A", "is not symmetric", "½(A + Aᵀ)")
    diagonal = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    try:
        factor = splu(0.5 * (matrix + matrix.T).tocsc(), permc_spec="MMD_AT_PLUS_A", **diagonal)
    except RuntimeError as error:
        raise _not_positive() from error
    pivots = factor.U.diagonal()
    ordered = np.array_equal(factor.perm_r, factor.perm_c)
    if not ordered or pivots.min() <= len(pivots) * np.finfo(float).eps * largest:
        raise _not_positive()
    return sparse.diags_array(np.sqrt(pivots)) @ factor.L.T.tocsc()[:, factor.perm_r]


def _not_positive() -> InputError:
    return InputError(
        "A",
        "is sparse and not positive definite to working precision",
        "A plus a small multiple of a mass matrix, or A.toarray() for a semidefinite A",
    )
