"""Your own metric as a matrix A, or as a factor L."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from ..errors import InputError
from ..operators import AdjointOperator
from .base import FlatMetric, PyTree


class MatrixMetric(FlatMetric):
    """A given symmetric positive (semi)definite matrix A on the flattened state.

    The factor is found once, at construction: A = V diag(λ) Vᵀ, L = diag(√λ) Vᵀ over the
    eigenvalues above k·eps·λ_max; the others are annihilated.

    ```python
    ng.MatrixMetric(stiffness)
    ```

    Cost: O(k³) once, O(k²) a product.
    """

    _factor: Array
    _whitener: Array

    def __init__(self, A: Array):
        matrix = np.asarray(jnp.asarray(A))  # in JAX's precision; the rest needs no program
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError("A", f"has shape {matrix.shape}", "a square matrix")
        if not np.all(np.isfinite(matrix)):
            raise InputError("A", "has entries that are not finite", "a finite matrix")
        if np.abs(matrix - matrix.T).max() > 1e-6 * np.abs(matrix).max():
            raise InputError("A", "is not symmetric", "½(A + Aᵀ)")
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        tolerance = len(values) * np.finfo(values.dtype).eps * np.abs(values).max()
        if values.min() < -tolerance:
            raise InputError(
                "A", f"is not positive: its lowest eigenvalue is {values.min():.3g}", "A ⪰ 0"
            )
        kept = values > tolerance
        if not kept.any():
            raise InputError("A", "is zero", "a metric that measures something")
        root = np.sqrt(values[kept])
        self._factor = jnp.asarray((vectors[:, kept] * root).T)
        self._whitener = jnp.asarray((vectors[:, kept] / root).T)

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        return _matrix_operator(self._factor, rho)

    def whiten(self, rho: PyTree, c: PyTree) -> Array:
        return self._whitener @ ravel_pytree(c)[0]

    @property
    def annihilates(self) -> bool:
        return self._factor.shape[0] < self._factor.shape[1]

    def check_structure(self, state: PyTree) -> None:
        _check_size("A", self._factor.shape[1], state)


class FactorMetric(FlatMetric):
    """A given factor L, A = LᵀL: a matrix on the flattened state, or a lineax operator on it.

    A covector is whitened with (Lᵀ)†, found once, when L is a matrix. For an operator the
    whitened covector is zero, and the whole gradient reaches the solver as it is: the same
    direction, with the condition number of G rather than of Y.

    ```python
    ng.FactorMetric(L)
    ```

    Cost: O(k³) once and O(k²) a product for a matrix, that of the products for an operator.
    """

    L: lx.AbstractLinearOperator | Array
    _whitener: Array | None
    _complete: bool = eqx.field(static=True)

    def __init__(self, L: lx.AbstractLinearOperator | Array):
        if isinstance(L, lx.AbstractLinearOperator):
            self.L, self._whitener, self._complete = L, None, False
            return
        matrix = jnp.asarray(L)
        if matrix.ndim != 2:
            raise InputError("L", f"has shape {matrix.shape}", "a matrix with one column per state")
        if not np.all(np.isfinite(np.asarray(matrix))):
            raise InputError("L", "has entries that are not finite", "a finite matrix")
        self.L = matrix
        left, values, right = np.linalg.svd(np.asarray(matrix), full_matrices=False)
        kept = values > max(matrix.shape) * np.finfo(values.dtype).eps * values.max()
        if not kept.any():
            raise InputError("L", "is zero", "a metric that measures something")
        self._whitener = jnp.asarray((left[:, kept] / values[kept]) @ right[kept])
        self._complete = int(kept.sum()) == matrix.shape[1]

    def factor(self, rho: PyTree) -> lx.AbstractLinearOperator:
        if isinstance(self.L, lx.AbstractLinearOperator):
            return self.L
        return _matrix_operator(self.L, rho)

    def whiten(self, rho: PyTree, c: PyTree) -> PyTree:
        if self._whitener is not None:
            return self._whitener @ ravel_pytree(c)[0]
        structure = self.factor(rho).out_structure()
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), structure)

    @property
    def annihilates(self) -> bool:
        return not self._complete

    def check_structure(self, state: PyTree) -> None:
        if isinstance(self.L, lx.AbstractLinearOperator):
            _check_size("L", self.L.in_size(), state)
        else:
            _check_size("L", self.L.shape[1], state)


def _matrix_operator(matrix: Array, rho: PyTree) -> AdjointOperator:
    _, unravel = ravel_pytree(rho)
    return AdjointOperator(
        lambda x: matrix @ ravel_pytree(x)[0],
        lambda y: unravel(matrix.T @ y),
        rho,
        jax.ShapeDtypeStruct((matrix.shape[0],), matrix.dtype),
    )


def _check_size(argument: str, size: int, state: PyTree) -> None:
    total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state))
    if total != size:
        raise InputError(
            argument, f"acts on {size} unknowns but the state has {total}", "a matching size"
        )
