"""Sobolev metrics Hˢ and Ḣˢ by fast transforms."""

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.tree_util import Partial

from ..core.operators import AdjointOperator
from ..core.selection import Selection, Sublattice
from ..core.sharding import replace_mesh
from ..errors import InputError
from ..grids import Grid
from .base import POSITIVE, FlatMetric, Metric, PyTree, check_grid, check_on_grid
from .elliptic.spectral import (
    Scheme,
    inverse_transform,
    inverse_transform_in_slabs,
    sobolev_symbol,
    transform,
    transform_in_slabs,
)

SCHEMES: tuple[Scheme, ...] = ("staggered", "collocated")


class _SpectralMetric(FlatMetric):
    """A = w Tᵀ diag(symbol) T, with the factor L = √w diag(√symbol) T: one transform a product."""

    grid: Grid = eqx.field(static=True)
    s: int = eqx.field(static=True)
    scheme: Scheme = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    _homogeneous: eqx.AbstractClassVar[bool]

    def __init__(self, grid: Grid, s: int, scheme: Scheme):
        check_grid(grid)
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)):
            raise InputError(
                "s", f"{s!r} is not an integer", "an integer such as 1 or -1 (0 is L²)"
            )
        if scheme not in SCHEMES:
            raise InputError("scheme", f"{scheme!r} is unknown", f"one of {SCHEMES}")
        if scheme == "collocated" and grid.boundary == "periodic":
            raise InputError(
                "scheme",
                "the collocated differences of appendix B.1 take zero outside the grid, "
                "which a periodic grid contradicts",
                "a neumann or dirichlet grid, or scheme='staggered'",
            )
        self.grid, self.s, self.scheme, self.mesh = grid, int(s), scheme, None

    def _root(self, dtype: np.dtype) -> np.ndarray:
        symbol = sobolev_symbol(self.grid, self.scheme, self.s, self._homogeneous)
        return np.sqrt(self.grid.cell_volume * symbol).astype(dtype)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        root = self._root(rho.dtype)
        mv = Partial(_to_modes, self, root)
        return AdjointOperator(mv, Partial(_from_modes, self, root), rho, rho)

    def whiten(self, rho: Array, c: Array) -> Array:
        root = self._root(c.dtype)
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        return _to_modes(self, inverse, c)

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        product = Partial(_filter, self, self._root(rho.dtype) ** 2)
        return AdjointOperator(product, product, rho, rho, POSITIVE)

    @property
    def annihilates(self) -> bool:
        return bool(np.any(self._root(np.dtype(float)) == 0))

    def remainder(self, rho: Array, c: Array) -> Array:
        return _filter(self, (self._root(c.dtype) == 0).astype(c.dtype), c)

    def restricted(self, selection: Selection) -> Metric:
        """On a sublattice the metric of the coarser grid."""
        if isinstance(selection, Sublattice):
            return type(self)(selection.coarse(self.grid), self.s, self.scheme)
        return super().restricted(selection)

    def distributed(self, mesh: Mesh) -> Metric:
        return replace_mesh(self, mesh)

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)


def _to_modes(metric: _SpectralMetric, root: np.ndarray, values: Array) -> Array:
    return jnp.multiply(root, _transformed(metric, values))


def _from_modes(metric: _SpectralMetric, root: np.ndarray, modes: Array) -> Array:
    return _restored(metric, jnp.multiply(root, modes))


def _filter(metric: _SpectralMetric, symbol: np.ndarray, values: Array) -> Array:
    return _restored(metric, jnp.multiply(symbol, _transformed(metric, values)))


def _transformed(metric: _SpectralMetric, values: Array) -> Array:
    if metric.mesh is None:
        return transform(metric.grid, metric.scheme, values)
    return transform_in_slabs(metric.grid, metric.scheme, values, metric.mesh)


def _restored(metric: _SpectralMetric, modes: Array) -> Array:
    if metric.mesh is None:
        return inverse_transform(metric.grid, metric.scheme, modes)
    return inverse_transform_in_slabs(metric.grid, metric.scheme, modes, metric.mesh)


class Sobolev(_SpectralMetric):
    """‖ζ‖²_{Hˢ} = Σ_{j=0..s} ∫ |∇ʲζ|² dx for s > 0, the dual norm for s < 0, L² for s = 0.

    A = w (I + Λ + … + Λˢ), Λ the eigenvalues of −Δ: mixed derivatives are counted with their
    multiplicity, as in the paper's I − Δ + Δ². s > 0 damps oscillations of the state, s < 0 looks
    at its large scales. `scheme="collocated"` uses the central differences of the paper's appendix
    B.1 (zero outside the grid) in place of −Δ. Second-order accurate for states that satisfy
    the grid's boundary condition, first-order for others.

    ```python
    ng.Sobolev(grid, 1), ng.Sobolev(grid, -1)
    ```

    Cost: O(k log k), one transform. Reference: section 2.2 of the paper.
    """

    _homogeneous = False

    def __init__(self, grid: Grid, s: int, scheme: Scheme = "staggered"):
        super().__init__(grid, s, scheme)


class HomogeneousSobolev(_SpectralMetric):
    """‖ζ‖²_{Ḣˢ} = Σ_{j=1..s} ∫ |∇ʲζ|² dx for s > 0, the dual norm for s < 0, L² for s = 0.

    On Neumann and periodic grids the constant has length zero: tangents are measured without
    their mean. A direction that changes the mean is still found, because solvers return
    G η = −∂_θ f with the whole gradient; a model in which only the mean moves has a singular G.

    ```python
    ng.HomogeneousSobolev(grid, -1)
    ```

    Cost: O(k log k), one transform. Reference: section 2.3 of the paper.
    """

    _homogeneous = True

    def __init__(self, grid: Grid, s: int, scheme: Scheme = "staggered"):
        super().__init__(grid, s, scheme)
