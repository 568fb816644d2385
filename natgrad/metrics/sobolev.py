"""Sobolev metrics Hˢ and Ḣˢ by fast transforms."""

from functools import cached_property

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.tree_util import Partial

from ..core.operators import AdjointOperator
from ..core.selection import Selection, Sublattice
from ..core.settings import check_instance
from ..core.sharding import replace_mesh
from ..errors import InputError
from ..grids import Grid
from .base import (
    GRIDS,
    FlatMetric,
    Geometry,
    Metric,
    PyTree,
    check_on_grid,
    positive_operator,
)
from .elliptic.spectral import (
    inverse_transform,
    laplacian_eigenvalues,
    sobolev_symbol,
    transform,
)


class _SpectralMetric(FlatMetric):
    """A = w Tᵀ diag(symbol) T, with the factor L = √w diag(√symbol) T: one transform a product."""

    grid: Grid = eqx.field(static=True)
    s: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    _homogeneous: eqx.AbstractClassVar[bool]

    def __init__(self, grid: Grid, s: int):
        check_instance("grid", grid, Grid, GRIDS)
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)):
            raise InputError(
                "s", f"{s!r} is not an integer", "an integer such as 1 or -1 (0 is L²)"
            )
        self.grid, self.s, self.mesh = grid, int(s), None

    def at(self, rho: Array) -> Geometry:
        return _SpectralGeometry(self, rho)

    def root(self, dtype: np.dtype) -> np.ndarray:
        """√(w symbol): the entries of L after the transform."""
        symbol = sobolev_symbol(laplacian_eigenvalues(self.grid), self.s, self._homogeneous)
        return np.sqrt(self.grid.cell_volume * symbol).astype(dtype)

    def restricted(self, selection: Selection) -> Metric:
        """On a sublattice the metric of the coarser grid."""
        if isinstance(selection, Sublattice):
            return type(self)(self.grid.coarsen(selection), self.s)
        return super().restricted(selection)

    def distributed(self, mesh: Mesh) -> Metric:
        return replace_mesh(self, mesh)

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)


class _SpectralGeometry(Geometry):
    """√w diag(√symbol) T, and filters T⁻¹ diag(…) T."""

    metric: _SpectralMetric
    whitens_shortest = True

    def __init__(self, metric: _SpectralMetric, rho: Array):
        super().__init__(metric, rho)
        self.annihilates = bool(np.any(metric.root(np.dtype(float)) == 0))

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        root = self.metric.root(self.rho.dtype)
        to_modes, from_modes = (Partial(f, self.metric, root) for f in (_to_modes, _from_modes))
        return AdjointOperator(to_modes, from_modes, self.rho, self.rho)

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        symbol = self.metric.root(self.rho.dtype) ** 2
        return positive_operator(Partial(_filter, self.metric, symbol), self.rho)

    def whiten(self, c: Array) -> Array:
        root = self.metric.root(c.dtype)
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        return _to_modes(self.metric, inverse, c)

    def remainder(self, c: Array) -> Array:
        return _filter(self.metric, (self.metric.root(c.dtype) == 0).astype(c.dtype), c)


def _to_modes(metric: _SpectralMetric, root: np.ndarray, values: Array) -> Array:
    return jnp.multiply(root, transform(metric.grid, values, metric.mesh))


def _from_modes(metric: _SpectralMetric, root: np.ndarray, modes: Array) -> Array:
    return inverse_transform(metric.grid, jnp.multiply(root, modes), metric.mesh)


def _filter(metric: _SpectralMetric, symbol: np.ndarray, values: Array) -> Array:
    return _from_modes(metric, symbol, transform(metric.grid, values, metric.mesh))


class Sobolev(_SpectralMetric):
    """‖ζ‖²_{Hˢ} = Σ_{j=0..s} ∫ |∇ʲζ|² dx for s > 0, the dual norm for s < 0, L² for s = 0.

    A = w (I + Λ + … + Λˢ), Λ the eigenvalues of −Δ: mixed derivatives are counted with their
    multiplicity, as in the paper's I − Δ + Δ². s > 0 damps oscillations of the state, s < 0 looks
    at its large scales. Second-order accurate for states that satisfy the grid's boundary
    condition, first-order for others.

    ```python
    ng.Sobolev(grid, 1), ng.Sobolev(grid, -1)
    ```

    Cost: O(k log k), one transform. Reference: section 2.2 of the paper.

    Args:
        grid: The grid of the state.
        s: Order of the norm, an integer of either sign.
    """

    _homogeneous = False

    def __init__(self, grid: Grid, s: int):
        super().__init__(grid, s)


class HomogeneousSobolev(_SpectralMetric):
    """‖ζ‖²_{Ḣˢ} = Σ_{j=1..s} ∫ |∇ʲζ|² dx for s > 0, the dual norm for s < 0, L² for s = 0.

    On Neumann and periodic grids the constant has length zero: tangents are measured without
    their mean. A direction that changes the mean is still found, because solvers return
    G η = −∂_θ f with the whole gradient; a model in which only the mean moves has a singular G.

    ```python
    ng.HomogeneousSobolev(grid, -1)
    ```

    Cost: O(k log k), one transform. Reference: section 2.3 of the paper.

    Args:
        grid: The grid of the state.
        s: Order of the norm, an integer of either sign.
    """

    _homogeneous = True

    def __init__(self, grid: Grid, s: int):
        super().__init__(grid, s)
