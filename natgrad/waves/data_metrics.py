"""Recorded waves as densities, with fewer samples in time, and the Wasserstein metric on them."""

import abc
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..core.operators import AdjointOperator
from ..core.selection import Selection
from ..core.settings import Number, Public, check_instance, check_integer, setting
from ..errors import InputError
from ..grids import Grid
from ..metrics.base import (
    Geometry,
    Metric,
    PyTree,
    Report,
    admissible_density,
    check_density,
    check_on_grid,
    grid_axes,
    positive_operator,
)
from ..metrics.elliptic.equation import Elliptic
from ..metrics.transport import Wasserstein


def average_blocks(data: Array, every: int) -> Array:
    """S u: the means of blocks of `every` samples along the last axis; the last may be shorter.

    >>> average_blocks(jnp.array([1.0, 3.0, 5.0, 7.0, 8.0]), 2).tolist()
    [2.0, 6.0, 8.0]

    Half of the weight is lost at 0.6/(`every` dt) Hz: take blocks that are short against the
    period of the highest frequency. S Sᵀ is the diagonal matrix of 1/(samples in a block).
    """
    sizes = block_sizes(data.shape[-1], every)
    missing = len(sizes) * every - data.shape[-1]
    padded = jnp.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, missing)])
    sums = padded.reshape(*data.shape[:-1], len(sizes), every).sum(-1)
    return sums / sizes.astype(data.dtype)


def spread_blocks(values: Array, every: int, steps: int) -> Array:
    """Sᵀy, on `steps` samples.

    >>> spread_blocks(jnp.array([2.0, 4.0, 8.0]), 2, 5).tolist()
    [1.0, 1.0, 2.0, 2.0, 8.0]
    """
    shares = values / block_sizes(steps, every).astype(values.dtype)
    return jnp.repeat(shares, every, axis=-1)[..., :steps]


def block_sizes(steps: int, every: int) -> Array:
    """How many samples are in each block.

    >>> block_sizes(5, 2).tolist()
    [2, 2, 1]
    """
    blocks = -(-steps // every)
    return jnp.full(blocks, every).at[-1].add(steps - blocks * every)


class Positive(Public, eqx.Module):
    """u ↦ σ(u; c) > 0, sample by sample, with numbers c that are found once from reference data.

    Divided by its mean it is a density ρ̃. A change du of the data with c frozen changes it by
    P (σ′ du)/mean σ, where P = I − ρ̃1ᵀ/1ᵀρ̃ is the derivative of the division by the mean, and
    the projection that a transport metric at ρ̃ makes anyway.
    """

    @abc.abstractmethod
    def constants(self, data: Array, axes: tuple[int, ...]) -> Array:
        """c for the functions of `data` along `axes`, which are kept with length 1."""

    @abc.abstractmethod
    def value(self, data: Array, constants: Array) -> Array:
        """σ(u; c)."""

    @abc.abstractmethod
    def slope(self, data: Array, constants: Array) -> Array:
        """∂σ/∂u."""


class Shifted(Positive):
    """σ = u + `shift` |min u|, c = |min u| and at least a tenth of the root mean square.

    The larger the shift, the closer W₂ is to a weighted Ḣ⁻¹. σ is positive at the reference data
    only. That is enough for a metric, which is evaluated there alone, but not for a misfit.

    ```python
    ng.waves.DataWasserstein(survey.gather_grid, normalisation=ng.waves.Shifted(1.2))
    ```

    Reference: Yang, Engquist, Sun and Hamfeldt, Geophysics 83 (2018).

    Args:
        shift: Shift of the wave, in units of its lowest value.
    """

    shift: Number = setting("shift", 1.2, above=1.0)

    def constants(self, data: Array, axes: tuple[int, ...]) -> Array:
        return jnp.maximum(-jnp.min(data, axes, keepdims=True), 0.1 * size(data, axes))

    def value(self, data: Array, constants: Array) -> Array:
        return data + jnp.asarray(self.shift, data.dtype) * constants

    def slope(self, data: Array, constants: Array) -> Array:
        return jnp.ones_like(data)


class Softplus(Positive):
    """σ = log(1 + e^{bu/c}) + `floor`, b = `sharpness`, c the root mean square of the reference.

    For small b it is proportional to the shifted wave, 2 log 2 + bu/c. For large b it approaches
    the positive part of u, and W₂ then compares where the energy is. It is positive for all u; the
    `floor` keeps W₂ from depending on the little mass that is left in a trough.

    ```python
    ng.waves.TraceWasserstein(shots.data, normalisation=ng.waves.Softplus(sharpness=2.0, floor=0.1))
    ```

    Reference: Engquist and Yang, Optimal transport based seismic inversion: beyond cycle
    skipping, Comm. Pure Appl. Math. 75 (2022).

    Args:
        sharpness: b.
        floor: What is added to every sample.
    """

    sharpness: Number = setting("sharpness", 1.0, positive=True)
    floor: Number = setting("floor", 0.1)

    def constants(self, data: Array, axes: tuple[int, ...]) -> Array:
        return size(data, axes)

    def value(self, data: Array, constants: Array) -> Array:
        scaled = jnp.asarray(self.sharpness, data.dtype) * data / constants
        return jax.nn.softplus(scaled) + jnp.asarray(self.floor, data.dtype)

    def slope(self, data: Array, constants: Array) -> Array:
        rate = jnp.asarray(self.sharpness, data.dtype) / constants
        return rate * jax.nn.sigmoid(rate * data)


def size(data: Array, axes: tuple[int, ...]) -> Array:
    """The root mean square along `axes`; that of all the data, or 1, where it is zero."""
    square = jnp.mean(data**2, axes, keepdims=True)
    overall = jnp.mean(square)
    instead = jnp.where(overall > 0, overall, 1.0)
    return jnp.sqrt(jnp.where(square > 0, square, instead))


class DataWasserstein(Metric):
    """W₂ between waves made densities: A = SᵀD A_W(ρ̃) D S, ρ̃ = σ(Su)/mean σ(Su).

    S takes the means of `every` samples in time, σ > 0 is the `normalisation`, D = σ′/mean σ its
    derivative with the constants of σ frozen, and A_W the metric `Wasserstein` at ρ̃, which has
    the derivative of the division by the mean in its projection P. `grid` is `survey.gather_grid`
    (a density for each shot, transport along receivers and time) or `survey.trace_grid` (a
    density for each trace, transport in time alone, by cumulative sums). Time is its last axis.

    The constants are those of the current wave; with `reference` data they are those of the data
    throughout, and on `trace_grid` the metric is the Gauss–Newton matrix of `TraceWasserstein`.

    A does not see oscillations within a block, nor the mass of ρ̃. For a solver to converge, add a
    metric that does, or damping. A few steps of `CG` need neither.

    ```python
    metric = ng.waves.DataWasserstein(survey.gather_grid, every=8)
    metric + 1e-4 * ng.L2(survey.gather_grid)
    ```

    Cost: that of `Wasserstein` on 1/`every` of the samples, a multigrid hierarchy in each outer
    iteration and one solve in each product; for traces O(k) without set-up.
    Reference: section 4.3 of the paper; Engquist and Yang, Seismic imaging and optimal transport,
    Comm. Inf. Syst. 19 (2019).

    Args:
        grid: `survey.gather_grid` or `survey.trace_grid`.
        every: Samples in time that are averaged to one.
        normalisation: σ: `Shifted` or `Softplus`.
        reference: Data that set the constants of σ; the current wave by default.
        elliptic: How the elliptic equation is solved.
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
        reference: ArrayLike | None = None,
        elliptic: Elliptic = Elliptic(tolerance=1e-6),
    ):
        self.grid, self.every = grid, check_integer(every, "every", 1)
        steps = -(-grid.shape[-1] // every)
        if steps < 2:
            what = f"{every} leaves {steps} of {grid.shape[-1]} samples in time"
            raise InputError("every", what, "every=8, or less")
        check_instance("normalisation", normalisation, Positive, "ng.waves.Shifted(1.2)")
        self.normalisation = normalisation
        coarse = Grid(grid.lower, grid.upper, (*grid.shape[:-1], steps), grid.boundary)
        self.transport = Wasserstein(coarse, elliptic=elliptic)
        self.constants = None
        if reference is not None:
            if not np.all(np.isfinite(reference)):
                raise InputError("reference", "is not finite", "recorded data")
            check_on_grid(grid, np.asarray(reference))
            means = average_blocks(jnp.asarray(reference), every)
            self.constants = normalisation.constants(means, grid_axes(grid))

    @eqx.filter_jit
    def density(self, rho: Array) -> Array:
        """ρ̃, on the coarser grid."""
        return self.normalise(rho)[0]

    def normalise(self, rho: Array) -> tuple[Array, Array]:
        """ρ̃ and the diagonal of D."""
        u, axes, sigma = average_blocks(rho, self.every), grid_axes(self.grid), self.normalisation
        constants = sigma.constants(u, axes) if self.constants is None else self.constants
        constants = constants.astype(u.dtype)
        values = sigma.value(u, constants)
        mean = jnp.mean(values, axes, keepdims=True)
        return values / mean, sigma.slope(u, constants) / mean

    def at(self, rho: Array) -> Geometry:
        return _DataGeometry(self, rho)

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


class _DataGeometry(Geometry):
    """L_W D S and SᵀD A_W D S, from the geometry of W₂ at ρ̃."""

    metric: DataWasserstein
    annihilates = True
    whitens_shortest = True

    @cached_property
    def _density_and_slope(self) -> tuple[Array, Array]:
        """ρ̃ and the diagonal of D."""
        return self.metric.normalise(self.rho)

    @cached_property
    def _transport(self) -> Geometry:
        return self.metric.transport.at(self._density_and_slope[0])

    def _means(self, values: Array) -> Array:
        """D S x."""
        return self._density_and_slope[1] * average_blocks(values, self.metric.every)

    def _spread(self, values: Array) -> Array:
        """Sᵀ y."""
        return spread_blocks(values, self.metric.every, self.metric.grid.shape[-1])

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        L, D = self._transport.factor, self._density_and_slope[1]
        transpose = lambda y: self._spread(D * L.T.mv(y))
        return AdjointOperator(
            lambda x: L.mv(self._means(x)), transpose, self.rho, L.out_structure()
        )

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        A, D = self._transport.gram, self._density_and_slope[1]
        return positive_operator(lambda x: self._spread(D * A.mv(self._means(x))), self.rho)

    def image(self, columns: Array) -> tuple[Array, Report]:
        return self._transport.image(self._means(columns))

    def information(self, columns: Array) -> tuple[Array, Report]:
        return self._transport.information(self._means(columns))

    def whiten(self, c: Array) -> tuple[Array, ...]:
        """That of ρ̃ for D⁻¹(SSᵀ)⁻¹Sc: Lᵀb is the part of c that is constant in each block."""
        return self._transport.whiten(self._sums(c) / self._density_and_slope[1])

    def remainder(self, c: Array) -> Array:
        D, sums = self._density_and_slope[1], self._sums(c)
        return c - self._spread(sums - D * self._transport.remainder(sums / D))

    def _sums(self, c: Array) -> Array:
        """(SSᵀ)⁻¹S c: sums over blocks."""
        sizes = block_sizes(self.metric.grid.shape[-1], self.metric.every).astype(c.dtype)
        return sizes * average_blocks(c, self.metric.every)

    def report(self) -> Report:
        density = self._density_and_slope[0]
        return {"contrast": jnp.max(density) / jnp.min(density)}
