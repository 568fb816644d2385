"""Sparse direct solves with graph Laplacians in 1D to 3D, on the host.

K is the graph Laplacian of `divergence.py`. A sparse factorisation pays where many right-hand sides
meet one K on a grid of moderate size. It is computed by SuperLU, through SciPy, or by CHOLMOD where
scikit-sparse is installed (`pip install natgrad[cholmod]`): faster with many right-hand sides, and
on large grids if SuiteSparse was built with an optimised BLAS.

A solve is a pure function of its arguments and works inside compiled code. What was factorised
last is remembered by its value, so that the products of one iteration share a factorisation.

Accuracy: K is assembled, so the error grows with the contrast of the links, and past 1e14 (two
bumps joined by nothing but a tail) few digits may be left. `iterative.py` refines by conjugate
gradients on differences, preconditioned with `sparse_solve`.

Cost on an n × n grid: O(n³) work and O(n² log n) memory for the factorisation, O(n² log n) for
each right-hand side; in 3D O(n⁶), O(n⁴) and O(n⁴).
Reference: George, Nested dissection of a regular finite element mesh (1973); Davis, Direct Methods
for Sparse Linear Systems (2006).
"""

import functools
import importlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array

from ...core.sparse import symmetric_lu
from ...errors import InputError
from .divergence import grid_shape

Backend = Literal["superlu", "cholmod"]
Solve = Callable[[np.ndarray], np.ndarray]  # right-hand sides as rows

# Enough for the densities of a small sum or batch; a factor at 1000 × 1000 takes about a gigabyte.
REMEMBERED_FACTORS = 4


def available_backend() -> Backend:
    """What `sparse_solve` uses by default: CHOLMOD where it can be imported."""
    return "superlu" if _cholmod() is None else "cholmod"


@functools.cache
def _cholmod() -> Any:
    """CHOLMOD's module, or None where it cannot be imported."""
    try:
        return importlib.import_module("sksparse.cholmod")
    except ImportError:
        return None


def sparse_solve(
    links: Sequence[Array], zeta: Array, periodic: bool = False, backend: Backend | None = None
) -> Array:
    """φ with Kφ = ζ, for any number of right-hand sides on the leading axes of ζ.

    Every connected part of the grid is grounded at its cell with the largest diagonal of K: φ = 0
    there, and what ζ has in excess of zero mass leaves there, so that the solve is symmetric. A
    cell without links is its own ground.

    NaN comes back, in every entry, where K cannot be factorised: a link that is negative, infinite
    or NaN, or a contrast at which a pivot is lost.

    >>> links = (jnp.array([1.0, 2.0, 0.0]),)
    >>> sparse_solve(links, jnp.array([1.0, 0.0, -1.0])).tolist()
    [1.0, 0.0, -0.5]

    Under `vmap` over ζ there is one call to the host with all columns; under `vmap` over links one
    with a factorisation for each. Derivatives are not defined: the solve is its own transpose.
    """
    backend = available_backend() if backend is None else backend
    if backend not in ("superlu", "cholmod"):
        raise InputError("backend", f"{backend!r} is unknown", "'superlu' or 'cholmod'")
    if backend == "cholmod" and _cholmod() is None:
        what = "scikit-sparse is not installed"
        raise InputError("backend", what, "pip install natgrad[cholmod]")
    shape = grid_shape(links, zeta)
    columns = zeta.reshape(-1, *shape)
    dtype = jnp.result_type(columns, *links)
    phi = jax.pure_callback(
        functools.partial(_solve_on_host, len(shape), periodic, backend),
        jax.ShapeDtypeStruct(columns.shape, dtype),
        jnp.stack(list(links)),
        columns,
        vmap_method="expand_dims",
    )
    return phi.reshape(zeta.shape)


def _solve_on_host(
    dim: int, periodic: bool, backend: Backend, links: Any, columns: Any
) -> np.ndarray:
    """φ for links of shape (*batch, d, *grid) and columns of shape (*batch, m, *grid).

    The batch axes are those of `vmap`, of length one where an argument was not batched.
    """
    links, columns = np.asarray(links), np.asarray(columns)
    batches = links.shape[: -dim - 1]
    lead = np.broadcast_shapes(batches, columns.shape[: -dim - 1])
    columns = np.broadcast_to(columns, (*lead, *columns.shape[-dim - 1 :]))
    phi = np.empty(columns.shape, np.result_type(links, columns))
    for index in np.ndindex(*batches):
        part = tuple(slice(None) if n == 1 else i for i, n in zip(index, batches, strict=True))
        one = np.ascontiguousarray(links[index], dtype=np.float64)
        solve = _factorise(one.tobytes(), one.shape[1:], periodic, backend)
        chosen = columns[part]
        flat = chosen.reshape(-1, math.prod(one.shape[1:])).astype(np.float64)
        phi[part] = solve(flat).reshape(chosen.shape)
    return phi


@functools.lru_cache(maxsize=REMEMBERED_FACTORS)
def _factorise(data: bytes, shape: tuple[int, ...], periodic: bool, backend: Backend) -> Solve:
    """The solve for the links in `data`; remembered by value, so no two can be confused."""
    links = np.frombuffer(data).reshape(len(shape), *shape)
    if not np.all(np.isfinite(links) & (links >= 0)):
        return functools.partial(np.full_like, fill_value=np.nan)
    return grounded_inverse(assemble(links, periodic), backend)


def grounded_inverse(K: Any, backend: Backend) -> Solve:
    """The solve with a symmetric K ≥ 0 that annihilates the constants on every connected part.

    Each part is grounded at the largest entry of the diagonal; NaN where a pivot was lost.
    """
    _, parts = scipy.sparse.csgraph.connected_components(K, directed=False)
    order = np.lexsort((-K.diagonal(), parts))
    grounds = order[np.append(True, np.diff(parts[order]) > 0)]
    kept = np.setdiff1d(np.arange(len(parts)), grounds)
    if not kept.size:
        return np.zeros_like
    unsolvable = functools.partial(np.full_like, fill_value=np.nan)
    try:
        inner = symmetric_inverse(K[kept][:, kept], backend)
    except RuntimeError:
        return unsolvable
    # Not every lost pivot is an exact zero that stops the factorisation. φ = 1 is known to solve
    # the system with the links to the grounds on the right, and is what a lost pivot changes most.
    to_grounds = -K[kept][:, grounds].sum(axis=1)
    ones = inner(np.asarray(to_grounds).reshape(1, -1))
    if not np.all(np.abs(ones - 1.0) < 0.5):
        return unsolvable

    def solve(zeta: np.ndarray) -> np.ndarray:
        phi = np.zeros_like(zeta)
        phi[:, kept] = inner(zeta[:, kept])
        return phi

    return solve


def assemble(links: np.ndarray, periodic: bool) -> Any:
    """K as a sparse matrix over the cells in C order, for links of shape (d, *grid).

    >>> assemble(np.array([[1.0, 2.0, 0.0]]), False).toarray().tolist()
    [[1.0, -1.0, 0.0], [-1.0, 3.0, -2.0], [0.0, -2.0, 2.0]]
    """
    cells = np.arange(links[0].size).reshape(links.shape[1:])
    lower, upper, weight = [], [], []
    for axis, link in enumerate(links):
        neighbour = np.roll(cells, -1, axis)
        inside = link > 0
        if not periodic:
            inside &= neighbour > cells
        inside &= neighbour != cells
        lower.append(cells[inside])
        upper.append(neighbour[inside])
        weight.append(link[inside])
    row, column, value = map(np.concatenate, (lower, upper, weight))
    half = scipy.sparse.coo_matrix((value, (row, column)), shape=(cells.size, cells.size))
    K: Any = scipy.sparse.csgraph.laplacian((half + half.T).tocsr())
    return K.tocsr()


def symmetric_inverse(matrix: Any, backend: Backend) -> Solve:
    """The solve with a positive definite matrix; `RuntimeError` if it is not one."""
    if backend == "superlu":
        factor = symmetric_lu(matrix)
        # One by one: SuperLU is several times slower on 32 columns at once.
        return lambda rows: np.stack([factor.solve(row) for row in rows])
    matrix = scipy.sparse.csc_matrix(matrix)
    cholmod = _cholmod()
    try:
        if hasattr(cholmod, "cho_factor"):  # scikit-sparse 0.5 and later
            inverse = cholmod.cho_factor(matrix).solve
        else:
            inverse = cholmod.cholesky(matrix).solve_A
    except cholmod.CholmodNotPositiveDefiniteError as lost:
        raise RuntimeError("not positive definite") from lost  # what SuperLU raises
    lock = threading.Lock()

    def solve(rows: np.ndarray) -> np.ndarray:
        with lock:  # CHOLMOD keeps its workspace with the factor
            return inverse(rows.T).T

    return solve
