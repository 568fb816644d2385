"""The Wasserstein metric on recorded waves, which are no densities and have many samples."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array

from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..core.settings import whole
from ..errors import InputError
from ..grids import Grid
from ..metrics.base import (
    POSITIVE,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_on_grid,
    grid_axes,
)
from ..metrics.elliptic.equation import Elliptic
from ..metrics.transport import Wasserstein
from .densities import Positive, Shifted, block_sizes, decimated, decimated_transpose


class DataWasserstein(Metric):
    """W₂ between waves made densities: A = SᵀD A_W(ρ̃) D S, ρ̃ = σ(Su)/mean σ(Su).

    S takes the means of `every` samples in time, σ > 0 is the `normalisation`, D = σ′/mean σ its
    derivative with the constants of σ frozen, and A_W the metric `Wasserstein` at ρ̃, which has
    the derivative of the division by the mean in its projection P. `grid` is `survey.gather_grid`
    (a density for each shot, transport along receivers and time) or `survey.trace_grid` (a
    density for each trace, transport in time alone, by cumulative sums). Time is its last axis.

    The constants are those of the current wave; with `reference` data they are those of the data
    throughout, and on `trace_grid` the metric is the Gauss–Newton matrix of `TraceWasserstein`.

    A does not see oscillations within a block, nor the mass of ρ̃: add what does, or damp, where
    a solver is to converge. A few steps of `CG` need neither.

    ```python
    metric = ng.waves.DataWasserstein(survey.gather_grid, every=8)
    metric + 1e-4 * ng.L2(survey.gather_grid)
    ```

    Cost: that of `Wasserstein` on 1/`every` of the samples, a multigrid hierarchy in each outer
    iteration and one solve in each product; for traces O(k) without set-up.
    Reference: section 4.3 of the paper; Engquist and Yang, Seismic imaging and optimal transport,
    Comm. Inf. Syst. 19 (2019).
    """

    grid: Grid = eqx.field(static=True)
    every: int = eqx.field(static=True)
    normalisation: Positive
    transport: Wasserstein
    constants: Array | None

    def __init__(
        self,
        grid: Grid,
        *,
        every: int = 8,
        normalisation: Positive = Shifted(),
        reference: Any = None,
        elliptic: Elliptic = Elliptic(tolerance=1e-6),
    ):
        self.grid, self.every = grid, whole(every, "every", 1)
        steps = -(-grid.shape[-1] // every)
        if steps < 2:
            what = f"{every} leaves {steps} of {grid.shape[-1]} samples in time"
            raise InputError("every", what, "every=8, or less")
        if not isinstance(normalisation, Positive):
            raise InputError("normalisation", f"is {normalisation!r}", "ng.waves.Shifted(1.2)")
        self.normalisation = normalisation
        coarse = Grid(grid.lower, grid.upper, (*grid.shape[:-1], steps), grid.boundary)
        self.transport = Wasserstein(coarse, elliptic=elliptic)
        self.constants = None
        if reference is not None:
            if not np.all(np.isfinite(reference)):
                raise InputError("reference", "is not finite", "recorded data")
            check_on_grid(grid, np.asarray(reference))
            found = normalisation.constants(
                decimated(jnp.asarray(reference), every), grid_axes(grid)
            )
            self.constants = found

    def density(self, rho: Array) -> Array:
        """ρ̃, on the coarser grid."""
        return self._normalised(rho)[0]

    def _normalised(self, rho: Array) -> tuple[Array, Array]:
        """ρ̃ and the diagonal of D."""
        u, axes, sigma = decimated(rho, self.every), grid_axes(self.grid), self.normalisation
        constants = sigma.constants(u, axes) if self.constants is None else self.constants
        constants = constants.astype(u.dtype)
        values = sigma.value(u, constants)
        mean = jnp.mean(values, axes, keepdims=True)
        return values / mean, sigma.slope(u, constants) / mean

    def _spread(self, values: Array) -> Array:
        return decimated_transpose(values, self.every, self.grid.shape[-1])

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        density, D = self._normalised(rho)
        L = self.transport.factor(density)
        return AdjointOperator(
            lambda x: L.mv(D * decimated(x, self.every)),
            lambda y: self._spread(D * L.T.mv(y)),
            rho,
            L.out_structure(),
        )

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        density, D = self._normalised(rho)
        A = self.transport.gram(density)
        product = lambda x: self._spread(D * A.mv(D * decimated(x, self.every)))
        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def image(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        density, D = self._normalised(rho)
        return self.transport.image(density, D * decimated(columns, self.every))

    def information(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        density, D = self._normalised(rho)
        return self.transport.information(density, D * decimated(columns, self.every))

    def whiten(self, rho: Array, c: Array) -> tuple[Array, ...]:
        """That of ρ̃ for D⁻¹(SSᵀ)⁻¹Sc: Lᵀb is the part of c that is constant in each block."""
        density, D = self._normalised(rho)
        return self.transport.whiten(density, self._coarse(c) / D)

    def remainder(self, rho: Array, c: Array) -> Array:
        density, D = self._normalised(rho)
        coarse = self._coarse(c)
        mass = self.transport.remainder(density, coarse / D)
        return c - self._spread(coarse - D * mass)

    def _coarse(self, c: Array) -> Array:
        """(SSᵀ)⁻¹S c: sums over blocks."""
        sizes = block_sizes(self.grid.shape[-1], self.every).astype(c.dtype)
        return sizes * decimated(c, self.every)

    @property
    def annihilates(self) -> bool:
        return True

    def restricted(self, selection: Selection) -> Metric:
        """Some of the shots."""
        if selection.of == "functions" and self.constants is not None:
            chosen = selection.take(self.constants)
            return selection.scale * eqx.tree_at(lambda metric: metric.constants, self, chosen)
        return super().restricted(selection)

    def check_structure(self, state: PyTree) -> None:
        check_on_grid(self.grid, state)
        if self.constants is not None:
            lead = tuple(state.shape[: -self.grid.dimension])
            expected = self.constants.shape[: -self.grid.dimension]
            if lead != expected:
                what = f"has functions {expected} and the state {lead}"
                raise InputError("reference", what, "data of the same survey")

    def check_values(self, state: Array) -> None:
        check_density("model", self.density(jnp.asarray(state)), grid_axes(self.grid))

    def admissible(self, rho: Array) -> Array:
        return admissible_density(self.density(rho), grid_axes(self.grid))

    def report(self, rho: Array) -> Report:
        density = self.density(rho)
        return {"contrast": jnp.max(density) / jnp.min(density)}
