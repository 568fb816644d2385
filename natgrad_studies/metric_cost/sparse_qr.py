"""The paper's way to W₂: a sparse QR factorisation Bᵀ = QR on the host, by SuiteSparseQR.

K = BBᵀ = RᵀR, so v ↦ B†v is BᵀR⁻¹R⁻ᵀv, and G = YᵀY needs one forward substitution Y = R⁻ᵀZ. Q is
never formed: that takes far longer than the factorisation. B is assembled here from scratch, so
that the comparison with natgrad's own operators is one between two programs.

The wrapper `sparseqr` is optional: `pip install natgrad[suitesparse]`, which needs SuiteSparse
(Debian's libsuitesparse-dev). Its speed is that of the BLAS which SuiteSparse finds.
"""

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve_triangular

from natgrad import Grid

ADVICE = "pip install natgrad[suitesparse], after Debian's libsuitesparse-dev or its like"
FLOOR = 1e-14  # under a density, relative to its maximum: that of natgrad in double precision
NO_RANK_TEST = -1.0  # SPQR_NO_TOL: the matrix has full column rank


def is_installed() -> bool:
    """Whether SuiteSparseQR can be used here."""
    try:
        importlib.import_module("sparseqr")
    except (ImportError, OSError):
        return False
    return True


@dataclass(frozen=True)
class TransportQR:
    """R of Bᵀ for one density, with its columns reordered: Bᵀ[:, kept][:, order] = QR.

    In the staggered scheme the rows of B add up to zero. The cell with the largest density is left
    out: its equation follows from the others.
    """

    gradient: Any  # Bᵀ, sparse
    triangle: Any
    transpose: Any
    kept: np.ndarray
    order: np.ndarray
    volume: float
    mobility: np.ndarray
    conserves: bool

    @classmethod
    def of(cls, grid: Grid, rho: Any, scheme: str) -> "TransportQR":
        """Assemble Bᵀ at ρ and factorise it."""
        sparseqr: Any = importlib.import_module("sparseqr")
        conserves = scheme == "staggered"
        density = np.asarray(rho)
        if conserves:
            density = np.maximum(density, FLOOR * density.max())
        list_entries = _list_staggered if conserves else _list_collocated
        entries, rows, columns, height = list_entries(grid, density)
        gradient = sparse.coo_matrix((entries, (rows, columns)), shape=(height, grid.size))
        kept = np.arange(grid.size)
        matrix = gradient
        if conserves:
            ground = int(density.argmax())
            kept = np.delete(kept, ground)
            use = columns != ground
            below = columns[use] - (columns[use] > ground)
            matrix = sparse.coo_matrix(
                (entries[use], (rows[use], below)), shape=(height, grid.size - 1)
            )
        nothing = np.zeros((height, 1))  # carried along as Qᵀb, and not needed for G
        _, triangle, order, _ = sparseqr.rz(matrix, nothing, tolerance=NO_RANK_TEST)
        return cls(
            gradient.tocsr(),
            triangle.tocsr(),
            triangle.T.tocsr(),
            kept,
            order,
            grid.cell_volume,
            density.ravel(),
            conserves,
        )

    def _forward(self, zeta: np.ndarray) -> np.ndarray:
        """R⁻ᵀζ for the columns of ζ, with their mass removed along ρ."""
        if self.conserves:
            zeta = zeta - self.mobility[:, None] * (zeta.sum(axis=0) / self.mobility.sum())
        return spsolve_triangular(self.transpose, zeta[self.kept[self.order]], lower=True)

    def product(self, zeta: Any) -> np.ndarray:
        """Lζ = √w B†ζ, by the seminormal equations."""
        half = self._forward(np.asarray(zeta).reshape(-1, 1))
        phi = np.zeros(self.mobility.size)
        phi[self.kept[self.order]] = spsolve_triangular(self.triangle, half, lower=False)[:, 0]
        return math.sqrt(self.volume) * (self.gradient @ phi)

    def whiten(self, covector: Any) -> np.ndarray:
        """Bᵀc/√w."""
        return self.gradient @ (np.asarray(covector).ravel() / math.sqrt(self.volume))

    def information(self, columns: Any) -> np.ndarray:
        """G = w YᵀY with Y = R⁻ᵀZ, for the stacked columns of Z."""
        Y = self._forward(np.asarray(columns).reshape(len(columns), -1).T)
        return self.volume * (Y.T @ Y)


Entries = tuple[np.ndarray, np.ndarray, np.ndarray, int]  # values, rows, columns, height


def _list_staggered(grid: Grid, rho: np.ndarray) -> Entries:
    """√ρ on a face times the difference across it: entries, rows, columns, number of rows."""
    cells = np.arange(grid.size).reshape(grid.shape)
    lower, upper, weights = [], [], []
    for axis, spacing in enumerate(grid.spacing):
        below, above = _neighbours(grid.dimension, axis)
        lower.append(cells[below].ravel())
        upper.append(cells[above].ravel())
        weights.append(np.sqrt(0.5 * (rho[below] + rho[above])).ravel() / spacing)
    weight, first, second = map(np.concatenate, (weights, lower, upper))
    rows = np.arange(weight.size)
    entries = np.concatenate([-weight, weight])
    return entries, np.tile(rows, 2), np.concatenate([first, second]), weight.size


def _list_collocated(grid: Grid, rho: np.ndarray) -> Entries:
    """√ρ at a node times the central difference there, with zero outside (appendix B.1)."""
    cells = np.arange(grid.size).reshape(grid.shape)
    root = np.sqrt(rho)
    entries, rows, columns = [], [], []
    for axis, spacing in enumerate(grid.spacing):
        below, above = _neighbours(grid.dimension, axis)
        for here, there, sign in ((below, above, 1.0), (above, below, -1.0)):
            entries.append(sign * root[here].ravel() / (2 * spacing))
            rows.append(cells[here].ravel() + axis * grid.size)
            columns.append(cells[there].ravel())
    height = grid.dimension * grid.size
    return np.concatenate(entries), np.concatenate(rows), np.concatenate(columns), height


def _neighbours(dimension: int, axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """All cells but the last along an axis, and all but the first."""
    below, above = [slice(None)] * dimension, [slice(None)] * dimension
    below[axis], above[axis] = slice(None, -1), slice(1, None)
    return tuple(below), tuple(above)


def blas() -> str:
    """The libraries for dense blocks that SuiteSparse found, where the system tells (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return "unknown"
    paths = {Path(line.split()[-1]).resolve() for line in lines if "/" in line}
    names = {
        path.name
        for path in paths
        if path.name.startswith(("libblas", "libopenblas", "libmkl", "libblis", "libcblas"))
    }
    return ", ".join(sorted(names)) or "unknown"
