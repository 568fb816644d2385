"""Sparse matrices of a finite element space on the host, and solves with them.

M = ∫ φᵢφⱼ dx, K_a = ∫ a ∇φᵢ·∇φⱼ dx, K₁ + M. A system is solved by a sparse factorisation (that of
`metrics/elliptic/sparse_direct.py`), or by conjugate gradients preconditioned with smoothed
aggregation (pyamg); with an a, conjugate gradients refine the factorisation too. M is left to
conjugate gradients with its diagonal, in some tens of iterations on any mesh. What was set up last
is remembered by the value of a.
"""

import functools
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ..metrics.elliptic.sparse_direct import REMEMBERED_FACTORS
from .elements import Elements
from .host_solves import Inverse, Rows, Solver, inverse_of, unsolvable

System = Literal["mass", "stiffness", "both"]  # M, K_a, K₁ + M


class Matrices:
    """The matrices of one mesh; two are equal only if they are one object.

    `free`: no node is held, so that constants are in the space and K_a is singular.
    """

    def __init__(self, elements: Elements, free: bool):
        self.elements, self.free = elements, free
        self.size = len(elements.points)
        n = elements.cells.shape[1]
        row, column = np.repeat(elements.cells, n, 1), np.tile(elements.cells, n)
        inside = ((row < self.size) & (column < self.size)).ravel()
        pair = row.ravel()[inside].astype(np.int64) * self.size + column.ravel()[inside]
        pairs, self._slots = np.unique(pair, return_inverse=True)
        self._inside, self._columns = inside, pairs % self.size
        self._starts = np.searchsorted(pairs, self.size * np.arange(self.size + 1, dtype=np.int64))
        self.prepared = functools.lru_cache(maxsize=REMEMBERED_FACTORS)(self._prepared)

    def __repr__(self) -> str:
        return f"Matrices({self.size} nodes, {len(self.elements.cells)} cells)"

    @functools.cached_property
    def parts(self) -> int:
        """Into how many connected parts the mesh falls."""
        return connected_components(self.mass, directed=False)[0]

    @functools.cached_property
    def mass(self) -> sparse.csr_matrix:
        """M."""
        v, w = self.elements.values, self.elements.weights
        return self._assembled(np.einsum("qi,qj,eq->eij", v, v, w, optimize=True))

    def stiffness(self, a: np.ndarray | None) -> sparse.csr_matrix:
        """K_a, for a at the points where gradients are taken, (E, R)."""
        w = self.elements.slope_weights if a is None else a * self.elements.slope_weights
        scaled = self.elements.slopes * w[:, :, None, None]
        E, n = self.elements.cells.shape
        left, right = (g.reshape(E, -1, n) for g in (self.elements.slopes, scaled))
        return self._assembled(left.swapaxes(1, 2) @ right)

    def weighted_slopes(self, a: np.ndarray) -> sparse.csr_matrix:
        """D_a, with D_aᵀD_a = K_a, of a space without held nodes."""
        E, R, d, n = self.elements.slopes.shape
        roots = np.sqrt(a * self.elements.slope_weights)[:, :, None, None]
        columns = np.broadcast_to(self.elements.cells[:, None, None], (E, R, d, n))
        starts = n * np.arange(E * R * d + 1)
        parts = (roots * self.elements.slopes).ravel(), columns.ravel(), starts
        return sparse.csr_matrix(parts, (E * R * d, self.size))

    def _assembled(self, local: np.ndarray) -> sparse.csr_matrix:
        data = np.bincount(self._slots, local.ravel()[self._inside], len(self._columns))
        shape = (self.size, self.size)
        return sparse.csr_matrix((data, self._columns, self._starts), shape)

    def solve(
        self,
        system: System,
        solver: Solver,
        tolerance: float,
        max_iterations: int,
        a: np.ndarray | None,
        columns: np.ndarray,
    ) -> Rows:
        """φ for right-hand sides (*batch, m, k) and a of (*batch, E, R) or None.

        The batch axes are those of `vmap`, of length one where an argument was not batched. φ is
        NaN where a matrix could not be factorised or an iteration ended short of the tolerance.
        """
        batches = () if a is None else a.shape[:-2]
        lead = np.broadcast_shapes(batches, columns.shape[: len(columns.shape) - 2])
        columns = np.broadcast_to(columns, (*lead, *columns.shape[-2:]))
        out = (
            np.empty(columns.shape, columns.dtype),
            np.empty(columns.shape[:-1], np.int32),
            np.empty(columns.shape[:-1], columns.dtype),
            np.empty(columns.shape[:-1], bool),
        )
        for index in np.ndindex(*batches):
            part = tuple(slice(None) if n == 1 else i for i, n in zip(index, batches, strict=True))
            data = None if a is None else np.asarray(a[index], np.float64).tobytes()
            inverse = self.prepared(system, solver, data)
            chosen = columns[part]
            rows = inverse(
                chosen.reshape(-1, self.size).astype(np.float64), tolerance, max_iterations
            )
            for whole, found in zip(out, rows, strict=True):
                whole[part] = found.reshape(whole[part].shape)
        return out

    def _prepared(self, system: System, solver: Solver, data: bytes | None) -> Inverse:
        a = None if data is None else np.frombuffer(data).reshape(self.elements.slope_weights.shape)
        if a is not None and not np.all(np.isfinite(a) & (a > 0)):
            return unsolvable
        matrix = self.mass if system == "mass" else self.stiffness(a)
        if system == "both":
            matrix = matrix + self.mass
        factor = None if a is None else self.weighted_slopes(a)
        return inverse_of(matrix, solver, system == "stiffness" and self.free, factor)
