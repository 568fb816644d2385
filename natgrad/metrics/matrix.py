"""Your own metric as a matrix A, or as a factor L."""

from functools import cached_property
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from ..core.operators import AdjointOperator, Structure, structure_of
from ..core.selection import Selection
from ..core.sparse import as_lineax_operator, is_scipy, sparse_root
from ..errors import InputError
from .base import FlatMetric, Geometry, Metric, PyTree, one_host_only, positive_operator
from .combine import Embedded


class _GivenMetric(FlatMetric):
    """L as it was given or found, on the flattened state or on the state itself.

    `_gram` is A and `_whitener` (Lᵀ)†, where they are at hand; `_complete` says that L is known to
    have no null space. Without (Lᵀ)† the whitened covector is zero, which leaves the whole gradient
    to the solver: the same direction, with the condition number of G rather than of Y.
    """

    L: lx.AbstractLinearOperator | Array
    _gram: lx.AbstractLinearOperator | None
    _whitener: Array | None
    _complete: bool = eqx.field(static=True)
    _argument: eqx.AbstractClassVar[str]

    def at(self, rho: PyTree) -> Geometry:
        return _GivenGeometry(self, rho)

    def restricted(self, selection: Selection) -> Metric:
        """The principal submatrix, of functions too: the matrix may couple them."""
        return Embedded(self, selection)

    def distributed(self, mesh: Mesh) -> Metric:
        if isinstance(self.L, AdjointOperator) and self.L.on_host:
            raise one_host_only(self)
        return self

    def check_structure(self, state: PyTree) -> None:
        L = self.L
        size = L.in_size() if isinstance(L, lx.AbstractLinearOperator) else L.shape[1]
        total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state))
        if total != size:
            what = f"acts on {size} unknowns but the state has {total}"
            raise InputError(self._argument, what, "a matching size")


class _GivenGeometry(Geometry):
    """The same at every ρ, whose structure alone matters."""

    metric: _GivenMetric

    def __init__(self, metric: _GivenMetric, rho: PyTree):
        super().__init__(metric, rho)
        self.annihilates = not metric._complete
        self.whitens_shortest = metric._whitener is not None

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        return _on_state(self.metric.L, self.rho)

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        A, unravel = self.metric._gram, ravel_pytree(self.rho)[1]
        if A is None:
            return super().gram
        return positive_operator(lambda x: unravel(A.mv(ravel_pytree(x)[0])), self.rho)

    def whiten(self, c: PyTree) -> PyTree:
        if self.metric._whitener is None:
            return Structure(self.factor.out_structure()).zeros()
        return self.metric._whitener @ ravel_pytree(c)[0]


class MatrixMetric(_GivenMetric):
    """A given symmetric positive (semi)definite matrix A on the flattened state.

    The factor is found once, at construction: A = V diag(λ) Vᵀ, L = diag(√λ) Vᵀ over the
    eigenvalues above k·eps·λ_max; the others are annihilated.

    ```python
    ng.MatrixMetric(stiffness)
    ```

    Cost: O(k³) once, O(k²) a product. A sparse matrix of SciPy that is positive definite is
    factorised as one (L is triangular, up to an ordering) and stays sparse: products take time in
    the entries of A, or of L for the solvers that need it. The whole gradient then reaches the
    solver as it is, see `FactorMetric`.

    Args:
        A: A symmetric positive (semi)definite matrix, dense or sparse.
    """

    _argument: ClassVar[str] = "A"

    def __init__(self, A: Any):
        if scipy.sparse.issparse(A):
            self.L, self._whitener, self._complete = as_lineax_operator(sparse_root(A)), None, False
            self._gram = as_lineax_operator(0.5 * (A + A.T))
            return
        if is_scipy(A):
            raise InputError(
                "A", "is an operator, which has no factor", "FactorMetric(L), or A as a matrix"
            )
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
        self.L, self._gram = jnp.asarray((vectors[:, kept] * root).T), None
        self._whitener = jnp.asarray((vectors[:, kept] / root).T)
        self._complete = bool(kept.all())


class FactorMetric(_GivenMetric):
    """A given factor L, A = LᵀL: a matrix on the flattened state, or a lineax operator on it.

    Sparse matrices and operators of SciPy are taken too, by `as_lineax_operator`. A covector is
    whitened with (Lᵀ)†, found once, when L is a dense matrix. For an operator the whitened covector
    is zero, and the whole gradient reaches the solver as it is: the same direction, with the
    condition number of G rather than of Y.

    ```python
    ng.FactorMetric(L)
    ```

    Cost: O(k³) once and O(k²) a product for a matrix, that of the products for an operator.

    Args:
        L: A dense matrix, a lineax operator, or a sparse matrix or operator of SciPy.
    """

    _argument: ClassVar[str] = "L"

    def __init__(self, L: Any):
        self._gram = None
        L = as_lineax_operator(L) if is_scipy(L) else L
        if isinstance(L, lx.AbstractLinearOperator):
            self.L, self._whitener, self._complete = L, None, False
            return
        matrix = jnp.array(L)
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


def _on_state(L: lx.AbstractLinearOperator | Array, rho: PyTree) -> lx.AbstractLinearOperator:
    """L on states: a matrix, or an operator on flat vectors, acts on the flattened state."""
    unravel, operator = ravel_pytree(rho)[1], L
    if not isinstance(operator, lx.AbstractLinearOperator):
        operator = lx.MatrixLinearOperator(operator)
    if Structure(operator.in_structure()) == Structure(structure_of(rho)):
        return operator
    return AdjointOperator(
        lambda x: operator.mv(ravel_pytree(x)[0]),
        lambda y: unravel(operator.T.mv(y)),
        rho,
        operator.out_structure(),
    )
