"""Operators of natgrad as SciPy's, and SciPy's operators and sparse matrices as operators here."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy
from jax import Array
from jax.custom_derivatives import linear_call
from jax.flatten_util import ravel_pytree

from ..errors import InputError, name_kind
from .compiled import can_call_back
from .operators import AdjointOperator, Structure, flat_product
from .settings import check_instance


def as_linear_operator(operator: lx.AbstractLinearOperator) -> "scipy.sparse.linalg.LinearOperator":
    """A lineax operator as a `scipy.sparse.linalg.LinearOperator` on flat NumPy vectors.

    ```python
    G = ng.interop.information_operator(problem, theta, metric=ng.L2(grid))
    values, vectors = scipy.sparse.linalg.eigsh(ng.interop.as_linear_operator(G), k=5)
    ```

    Arguments and results that are pytrees are flattened leaf by leaf, as `ravel_pytree` does. Cost:
    that of the products, compiled once for each operator; blocks of vectors (`matmat`) by `vmap`.

    Args:
        operator: A lineax operator.
    """
    advice = "metric.factor(rho), or any of lineax"
    check_instance("operator", operator, lx.AbstractLinearOperator, advice)
    on_host = isinstance(operator, AdjointOperator) and operator.on_host
    product = flat_product if on_host else _vector_product
    vector = lambda A, x: _apply_to_parts(lambda x: product(A, x), x.reshape(-1))
    block = lambda A, X: _apply_to_parts(lambda X: _block_product(A, X), X)
    structures = operator.out_structure(), operator.in_structure()
    flat = [jax.eval_shape(lambda s=s: ravel_pytree(Structure(s).zeros())[0]) for s in structures]
    products: dict[str, Any] = {
        "matvec": lambda x: vector(operator, x),
        "rmatvec": lambda x: vector(operator.T, x),
        "matmat": None if on_host else lambda X: block(operator, X),
        "rmatmat": None if on_host else lambda X: block(operator.T, X),
    }
    dtype = np.result_type(flat[0].dtype, flat[1].dtype)
    return scipy.sparse.linalg.LinearOperator(
        shape=(flat[0].size, flat[1].size), dtype=dtype, **products
    )


def _apply_to_parts(product: Callable[[Array], Array], x: np.ndarray) -> np.ndarray:
    """A real product of x, which may be complex."""
    if np.iscomplexobj(x):
        return _apply_to_parts(product, np.real(x)) + 1j * _apply_to_parts(product, np.imag(x))
    return np.asarray(product(jnp.asarray(x)))


_vector_product = eqx.filter_jit(flat_product)


@eqx.filter_jit
def _block_product(operator: lx.AbstractLinearOperator, X: Array) -> Array:
    return jax.vmap(lambda x: flat_product(operator, x), in_axes=1, out_axes=1)(X)


def is_scipy(value: Any) -> bool:
    """Whether this is a sparse matrix or an operator of SciPy."""
    return scipy.sparse.issparse(value) or isinstance(value, scipy.sparse.linalg.LinearOperator)


def as_lineax_operator(operator: Any) -> AdjointOperator:
    """A sparse matrix or a `LinearOperator` of SciPy as a lineax operator on flat vectors.

    ```python
    ng.FactorMetric(D), ng.CG(preconditioner=M)       # these call it themselves
    lx.linear_solve(ng.interop.as_lineax_operator(A), b, lx.GMRES(1e-8, 1e-8))
    ```

    A sparse matrix becomes arrays of JAX: its products are compiled, differentiated and mapped
    like any others, on every device. Of a `LinearOperator`, `matvec` and `rmatvec` are called on
    the host from compiled code. They must be pure; products can be differentiated, and mapped by
    `vmap`, one call for each vector, but derivatives cannot be mapped.

    Cost: O(entries) a product, and a copy of the matrix for its transpose.

    Args:
        operator: A sparse matrix or a `LinearOperator` of SciPy.
    """
    if not is_scipy(operator):
        advice = "a sparse matrix or LinearOperator of SciPy, or lineax.MatrixLinearOperator(array)"
        raise InputError("operator", f"is {name_kind(operator)}", advice)
    if np.issubdtype(operator.dtype, np.complexfloating):
        raise InputError("operator", "is complex, and metrics here are real", "its real form")
    rows, columns = operator.shape
    if scipy.sparse.issparse(operator):
        forward, backward = _Entries.of(operator), _Entries.of(operator.T)
    elif not can_call_back():
        what = "compiled code would call it, which takes a second CPU core to answer"
        raise InputError("operator", what, "a sparse matrix, or another core for this process")
    else:
        for name, size in (("matvec", columns), ("rmatvec", rows)):  # compiled code cannot say so
            try:
                getattr(operator, name)(np.zeros(size))
            except (NotImplementedError, ValueError) as error:
                what = f"its {name} cannot be used on {size} numbers ({error or 'not defined'})"
                advice = "LinearOperator(shape, matvec, rmatvec)"
                raise InputError("operator", what, advice) from error
        adjoint = operator.T  # for real vectors matvec of it is rmatvec
        forward, backward = _Callback(operator, adjoint), _Callback(adjoint, operator)
    dtype = jnp.zeros((), forward.dtype).dtype  # in JAX's precision
    vector = lambda size: jax.ShapeDtypeStruct((size,), dtype)
    on_host = isinstance(forward, _Callback)
    return AdjointOperator(forward, backward, vector(columns), vector(rows), on_host=on_host)


class _Entries(eqx.Module):
    """x ↦ Ax from the entries of a sparse A, row by row."""

    data: Array
    rows: Array
    columns: Array
    size: int = eqx.field(static=True)

    @classmethod
    def of(cls, matrix: Any) -> "_Entries":
        entries = scipy.sparse.csr_array(matrix).tocoo()
        if not np.all(np.isfinite(entries.data)):
            raise InputError("operator", "has entries that are not finite", "a finite matrix")
        data = jnp.array(entries.data, float if entries.data.dtype.kind != "f" else None)
        rows, columns = jnp.array(entries.row), jnp.array(entries.col)
        return cls(data, rows, columns, matrix.shape[0])

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def __call__(self, x: Array) -> Array:
        return jax.ops.segment_sum(
            self.data * x[self.columns], self.rows, self.size, indices_are_sorted=True
        )


class _Callback(eqx.Module):
    """x ↦ Ax by calls of a SciPy operator on the host; its derivative knows the transpose."""

    operator: "scipy.sparse.linalg.LinearOperator" = eqx.field(static=True)
    adjoint: "scipy.sparse.linalg.LinearOperator" = eqx.field(static=True)

    @property
    def dtype(self) -> Any:
        return np.result_type(self.operator.dtype, np.float32)

    def __call__(self, x: Array) -> Array:
        forward, backward = map(_host_product, (self.operator, self.adjoint))
        # without derivatives the call stands by itself: JAX cannot map what has a given transpose
        product = jax.custom_jvp(lambda x: forward(None, x))
        product.defjvps(lambda tangent, *_: linear_call(forward, backward, None, tangent))
        return product(x)


def _host_product(operator: "scipy.sparse.linalg.LinearOperator") -> Any:
    """(nothing, x) ↦ Ax: a call of the host, one for each vector where it is mapped."""

    def call(_: None, x: Array) -> Array:
        matvec = lambda x: np.array(operator.matvec(np.array(x)), x.dtype)
        result = jax.ShapeDtypeStruct((operator.shape[0],), x.dtype)
        return jax.pure_callback(matvec, result, x, vmap_method="sequential")

    return call


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
    matrix: Any = scipy.sparse.csc_array(A).astype(float)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError("A", f"has shape {matrix.shape}", "a square matrix")
    if not np.all(np.isfinite(matrix.data)):
        raise InputError("A", "has entries that are not finite", "a finite matrix")
    largest = np.abs(matrix.data).max(initial=0.0)
    if abs(matrix - matrix.T).max() > 1e-6 * largest:
        raise InputError("A", "is not symmetric", "½(A + Aᵀ)")
    try:
        factor = symmetric_lu(0.5 * (matrix + matrix.T))
        pivots = factor.U.diagonal()
        ordered = np.array_equal(factor.perm_r, factor.perm_c)
        positive = ordered and pivots.min() > len(pivots) * np.finfo(float).eps * largest
    except RuntimeError:  # a pivot is zero
        positive = False
    if not positive:
        what = "is sparse and not positive definite to working precision"
        advice = "A plus a small multiple of a mass matrix, or A.toarray() for a semidefinite A"
        raise InputError("A", what, advice)
    return scipy.sparse.diags_array(np.sqrt(pivots)) @ factor.L.T.tocsc()[:, factor.perm_r]


def symmetric_lu(matrix: Any, pivot_threshold: float = 0.0) -> "scipy.sparse.linalg.SuperLU":
    """The LU factorisation of a symmetric matrix: pivots from the diagonal, one ordering for both.

    Cholesky but for the square roots. A pivot below the threshold, a share of the largest entry of
    its column, is exchanged for that. Raises `RuntimeError` where a pivot is zero.
    """
    return scipy.sparse.linalg.splu(
        scipy.sparse.csc_matrix(matrix),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=pivot_threshold,
        options={"SymmetricMode": True},
    )
