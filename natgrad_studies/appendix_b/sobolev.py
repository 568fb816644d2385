"""Sobolev metrics by the central differences of appendix B.1."""

from functools import cached_property, lru_cache, reduce
from typing import Any

import equinox as eqx
import lineax as lx
import numpy as np
from jax import Array

from natgrad import L2, Grid, InputError
from natgrad.metrics import AdjointOperator, FlatMetric, Geometry
from natgrad.metrics.elliptic import sine_transform, sobolev_symbol


class CollocatedSobolev(FlatMetric):
    """Hˢ, or Ḣˢ if `homogeneous`, with −Δ := Σ CᵀC for the central differences C of appendix B.1.

    As `natgrad.Sobolev` and `natgrad.HomogeneousSobolev`, with zero outside the grid. C is
    antisymmetric: with σ_j = (−1)^⌊j/2⌋, CᵀC = diag(σ) M² diag(σ)/4h² for the symmetric tridiagonal
    M = tridiag(1, 0, 1), which the DST-I diagonalises. The eigenvalues along one axis of n points
    are cos²(π(j+1)/(n+1))/h²; one is zero if n is odd.

    ```python
    CollocatedSobolev(grid, 1), CollocatedSobolev(grid, -1, homogeneous=True)
    ```

    Cost: O(k log k), one transform. Reference: sections 2.2 and 2.3 and appendix B.1 of the paper.
    """

    grid: Grid = eqx.field(static=True)
    s: int = eqx.field(static=True)
    homogeneous: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        L2(self.grid)  # refuses what is not a grid
        if isinstance(self.s, bool) or not isinstance(self.s, (int, np.integer)):
            what = f"{self.s!r} is not an integer"
            raise InputError("s", what, "an integer such as 1 or -1 (0 is L²)")
        if self.grid.boundary == "periodic":
            raise InputError(
                "grid",
                "the collocated differences of appendix B.1 take zero outside the grid, "
                "which a periodic grid contradicts",
                "a neumann or dirichlet grid, or natgrad.Sobolev",
            )

    def at(self, rho: Array) -> Geometry:
        return _CollocatedGeometry(self, rho)

    def root(self, dtype: np.dtype) -> np.ndarray:
        """√(w symbol): the entries of L after the transform."""
        symbol = sobolev_symbol(collocated_eigenvalues(self.grid), self.s, self.homogeneous)
        return np.sqrt(self.grid.cell_volume * symbol).astype(dtype)

    def check_structure(self, state: Any) -> None:
        L2(self.grid).check_structure(state)


class _CollocatedGeometry(Geometry):
    """L = √w diag(√symbol) T."""

    metric: CollocatedSobolev
    whitens_shortest = True

    def __init__(self, metric: CollocatedSobolev, rho: Array):
        super().__init__(metric, rho)
        self.annihilates = bool(np.any(metric.root(np.dtype(float)) == 0))

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        grid, root = self.metric.grid, self.metric.root(self.rho.dtype)
        to_modes = lambda values: collocated_transform(grid, values) * root
        from_modes = lambda modes: collocated_inverse_transform(grid, modes * root)
        return AdjointOperator(to_modes, from_modes, self.rho, self.rho)

    def whiten(self, c: Array) -> Array:
        root = self.metric.root(c.dtype)
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        return collocated_transform(self.metric.grid, c) * inverse

    def remainder(self, c: Array) -> Array:
        grid, lost = self.metric.grid, self.metric.root(c.dtype) == 0
        return collocated_inverse_transform(grid, collocated_transform(grid, c) * lost)


def collocated_transform(grid: Grid, values: Array) -> Array:
    """The orthonormal T with Σ CᵀC = Tᵀ diag(Λ) T: along each axis DST-I after changes of sign."""
    for axis in range(-grid.dimension, 0):
        values = sine_transform(_change_signs(values, axis), axis)
    return values


def collocated_inverse_transform(grid: Grid, modes: Array) -> Array:
    """Tᵀ = T⁻¹."""
    for axis in range(-grid.dimension, 0):
        modes = _change_signs(sine_transform(modes, axis), axis)
    return modes


def _change_signs(values: Array, axis: int) -> Array:
    n = values.shape[axis]
    signs = np.where(np.arange(n) // 2 % 2 == 0, 1.0, -1.0)
    shape = [1] * values.ndim
    shape[axis] = n
    return values * signs.reshape(shape).astype(values.dtype)


@lru_cache(maxsize=64)
def collocated_eigenvalues(grid: Grid) -> np.ndarray:
    """Λ ≥ 0 of Σ CᵀC; modes that the differences annihilate are exactly zero."""
    along = []
    for n, h in zip(grid.shape, grid.spacing, strict=True):
        values = np.cos(np.pi * (np.arange(n) + 1) / (n + 1)) ** 2
        values[values < 1e-28] = 0.0  # cos(π/2) in floating point, n odd
        along.append(values / h**2)
    return reduce(np.add.outer, along)
