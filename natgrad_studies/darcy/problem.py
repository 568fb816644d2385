"""A log-permeability field m from pressures: the equation, the truth and its data, the prior.

−∇·(e^m ∇u) = q on the unit square with u = 0 on its boundary, by finite volumes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from scipy import sparse

from natgrad import Grid, ImplicitModel, LeastSquares, Problem, Sobolev
from natgrad.metrics import AdjointOperator
from natgrad.models import SparseLU

from .settings import EVERY, Settings

START = 0.0  # m at the start, a constant
POSITIVE = frozenset({lx.symmetric_tag, lx.positive_semidefinite_tag})


class Balance(eqx.Module):
    """h(u, m) = K(m)u − q: the fluxes out of every cell less what its source puts in.

    `inflow` are the sources integrated over the cells, of shape (sources, n, n); u has that shape,
    and m has (n, n). Fluxes between neighbours are T (u − u'), with T the harmonic mean of the
    permeabilities e^m of both: exact in one dimension for a permeability that jumps at the face.
    At the boundary, half a cell away, T = 2e^m and u' = 0. The width of a face over the distance
    of its cells is 1 in two dimensions, so K has no factor of h. Second order in the size of
    the cells where m is smooth.

    Cost: O(sources · n²). Reference: Eymard, Gallouët and Herbin, Finite Volume Methods (2000).
    """

    inflow: Array

    def __call__(self, u: Array, m: Array) -> Array:
        across, along, edges = transmissibilities(m, jnp)
        down = across * (u[:, 1:, :] - u[:, :-1, :])
        right = along * (u[:, :, 1:] - u[:, :, :-1])
        out = edges * u - self.inflow
        out = out.at[:, 1:, :].add(down).at[:, :-1, :].add(-down)
        return out.at[:, :, 1:].add(right).at[:, :, :-1].add(-right)


def transmissibilities(m: Any, xp: Any) -> tuple[Any, Any, Any]:
    """T on the faces between rows, on those between columns, and its sum over boundary faces.

    `xp` is `jnp` or `np`. The harmonic mean 2ab/(a + b) of a = e^m and b = e^m' is computed
    as 2/(1/a + 1/b), which does not overflow before its result does.
    """
    resistance = xp.exp(-m)
    across = 2.0 / (resistance[1:, :] + resistance[:-1, :])
    along = 2.0 / (resistance[:, 1:] + resistance[:, :-1])
    at_border = [np.isin(np.arange(n), (0, n - 1)).astype(float) for n in m.shape]
    faces = at_border[0][:, None] + at_border[1]
    return across, along, 2.0 * faces / resistance


def stiffness(m: np.ndarray) -> sparse.csc_matrix:
    """K(m) as a sparse matrix, symmetric and positive definite. Cost: O(n²)."""
    across, along, edges = transmissibilities(np.asarray(m), np)
    cells = np.arange(m.size).reshape(m.shape)
    one = np.concatenate([cells[1:, :].ravel(), cells[:, 1:].ravel()])
    other = np.concatenate([cells[:-1, :].ravel(), cells[:, :-1].ravel()])
    T = np.concatenate([across.ravel(), along.ravel()])
    rows = np.concatenate([one, other, one, other, cells.ravel()])
    columns = np.concatenate([one, other, other, one, cells.ravel()])
    values = np.concatenate([T, T, -T, -T, edges.ravel()])
    return sparse.csc_matrix((values, (rows, columns)), shape=(m.size, m.size))


def factorise(m: np.ndarray) -> SparseLU:
    """LU of K(m); no factors if a step is so long that e^m exceeds the range of a double."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        K = stiffness(m)
    return SparseLU(K, symmetric=True)


def pressure(m: np.ndarray, inflow: np.ndarray) -> np.ndarray:
    """u with K(m)u = q for all sources, outside JAX."""
    return factorise(m).solve(inflow)


def centres(n: int) -> np.ndarray:
    """The n × n × 2 cell centres of the unit square."""
    x = (np.arange(n) + 0.5) / n
    return np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)


def wells(per_side: int) -> np.ndarray:
    """Places of per_side² sources, evenly spread over the square."""
    x = (np.arange(per_side) + 0.5) / per_side
    return np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)


def inflows(n: int, per_side: int, width: float) -> np.ndarray:
    """Gaussian sources of the given standard deviation, integrated over cells to 1 in all each."""
    distances = ((centres(n) - wells(per_side)[:, None, None, :]) ** 2).sum(-1)
    q = np.exp(-distances / (2 * width**2))
    return q / q.sum(axis=(1, 2), keepdims=True)


def coarsen(field: np.ndarray) -> np.ndarray:
    """Means over blocks of 2 × 2 cells."""
    *front, n, k = field.shape
    return field.reshape(*front, n // 2, 2, k // 2, 2).mean(axis=(-3, -1))


# --- the truth and its data -----------------------------------------------------------------------


def log_permeability(n: int, seed: int) -> np.ndarray:
    """m on n × n cells: a smooth random field, a winding channel and two inclusions.

    The random field is a sum of cosines with normal amplitudes that do not depend on n, so
    that finer grids sample the same function.
    """
    rng = np.random.default_rng(seed)
    modes = 12
    i = np.arange(modes)
    spread = (1 + (np.pi * 0.22) ** 2 * (i[:, None] ** 2 + i**2)) ** -1.5
    amplitudes = rng.normal(size=(modes, modes)) * spread
    amplitudes[0, 0] = 0.0
    x, y = np.moveaxis(centres(n), -1, 0)
    cosines = np.cos(np.pi * i[:, None] * (np.arange(n) + 0.5) / n)
    smooth = cosines.T @ amplitudes @ cosines
    smooth *= 0.55 / np.sqrt(np.sum(amplitudes**2) / 4)
    channel = _step(0.055 - np.abs(y - 0.52 - 0.17 * np.sin(5.2 * x + 0.4)))
    sand = _step(0.12 - np.hypot(x - 0.27, 0.8 * (y - 0.2)))
    clay = _step(0.11 - np.hypot(0.8 * (x - 0.72), y - 0.83))
    return smooth + 1.7 * channel + 1.0 * sand - 1.7 * clay


def _step(inside: np.ndarray, width: float = 0.012) -> np.ndarray:
    """1 where positive, 0 where negative, with a smooth passage."""
    return 0.5 * (1 + np.tanh(inside / width))


@dataclass(frozen=True)
class Data:
    """Pressures with noise, and what they came from."""

    truth: np.ndarray  # m on n × n cells
    inflow: np.ndarray  # the sources
    clean: np.ndarray  # the pressures observed, from the finer grid
    noise: float  # σ, the standard deviation of the noise
    observed: np.ndarray
    model_error: float  # rms of what the coarse grid gets wrong of the clean data, over σ


def observe(pressures: Any, every: int) -> Any:
    """The pressures in the middle of every block of `every` × `every` cells, or next to it."""
    return pressures[..., every // 2 :: every, every // 2 :: every]


def measure(settings: Settings, every: int) -> Data:
    """Data of one variant: pressures at the centre of every `every`-th cell in each direction.

    They come from a grid with twice as many cells per side, averaged around each cell's centre.
    Data from the grid of the inversion would be an inverse crime, because they share its errors.
    The noise is white, with a standard deviation relative to the rms of the data.
    """
    n, shape = settings.cells, (settings.sources, settings.width)
    fine = log_permeability(2 * n, settings.seed)
    truth, inflow = coarsen(fine), inflows(n, *shape)
    clean = observe(coarsen(pressure(fine, inflows(2 * n, *shape))), every)
    sigma = settings.noise * float(np.sqrt(np.mean(clean**2)))
    rng = np.random.default_rng(settings.seed + 1)
    wrong = observe(pressure(truth, inflow), every) - clean
    return Data(
        truth=truth,
        inflow=inflow,
        clean=clean,
        noise=sigma,
        observed=clean + sigma * rng.normal(size=clean.shape),
        model_error=float(np.sqrt(np.mean(wrong**2)) / sigma),
    )


# --- the prior ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Smoothness:
    """D = M²/γ² with M = I − ℓ²Δ: the precision of a random field with correlation length ℓ.

    A field γM⁻¹x with white noise x of unit variance has the standard deviation `size`, on average
    over the n × n cells; γ is chosen so. M is the Gram operator of `Sobolev(grid, 1)` over the cell
    volume, on a grid that measures lengths in units of ℓ, and M⁻¹ that of `Sobolev(grid, -1)`.

    Cost: one fast transform and its inverse a product. Reference: Lindgren, Rue and Lindström,
    J. R. Stat. Soc. B 73 (2011); Bui-Thanh, Ghattas, Martin and Stadler, SIAM J. Sci. Comput. 35
    (2013).
    """

    n: int
    length: float
    size: float

    @cached_property
    def grid(self) -> Grid:
        """The cells, in units of ℓ."""
        return Grid((0.0, 0.0), (1 / self.length, 1 / self.length), (self.n, self.n))

    def rough(self, field: Array) -> Array:
        """M field."""
        return Sobolev(self.grid, 1).at(field).gram.mv(field) / self.grid.cell_volume

    def smooth(self, field: Array) -> Array:
        """M⁻¹ field."""
        return Sobolev(self.grid, -1).at(field).gram.mv(field) / self.grid.cell_volume

    @cached_property
    def _spectrum(self) -> np.ndarray:
        """The eigenvalues of M, for the products of cosines of both directions."""
        angles = np.pi * np.arange(self.n) / (2 * self.n)
        one_side = (2 * self.n * self.length * np.sin(angles)) ** 2  # of −ℓ²∂²
        return 1 + one_side[:, None] + one_side

    @cached_property
    def gain(self) -> float:
        """γ, from the mean of the diagonal of M⁻²: that is the mean of its eigenvalues."""
        return float(self.size / np.sqrt(np.mean(self._spectrum**-2.0)))

    def variance(self) -> np.ndarray:
        """diag D⁻¹, from the squares of the eigenvectors. Cost: O(n³)."""
        k = np.arange(self.n)
        cosines = np.cos(np.pi * (k[:, None] + 0.5) * k / self.n) * np.sqrt(2 / self.n)
        cosines[:, 0] = np.sqrt(1 / self.n)
        return self.gain**2 * cosines**2 @ self._spectrum**-2.0 @ (cosines**2).T

    def field(self, coordinates: Array) -> Array:
        """γM⁻¹x: the field whose coordinates are x, in which D is the identity."""
        return self.gain * self.smooth(coordinates)

    def coordinates(self, field: Array) -> Array:
        """x with γM⁻¹x = field."""
        return self.rough(field) / self.gain

    def precision(self) -> lx.AbstractLinearOperator:
        """D = M²/γ², for `ParameterDamping`."""
        return self._operator(lambda v: self.rough(self.rough(v)) / self.gain**2)

    def covariance(self) -> lx.AbstractLinearOperator:
        """D⁻¹ = γ²M⁻², as a preconditioner."""
        return self._operator(lambda v: self.gain**2 * self.smooth(self.smooth(v)))

    def _operator(self, product: Callable[[Array], Array]) -> lx.AbstractLinearOperator:
        like = jax.ShapeDtypeStruct((self.n, self.n), jnp.result_type(float))
        product = jax.jit(product)  # a run on the host applies it by itself
        return AdjointOperator(product, product, like, like, POSITIVE)


# --- the inverse problem --------------------------------------------------------------------------


class WhiteBalance(eqx.Module):
    """h(u, x) = K(m)u − q with m = m₀ + γM⁻¹x: the equation in the prior's coordinates."""

    balance: Balance
    prior: Smoothness = eqx.field(static=True)

    def __call__(self, u: Array, x: Array) -> Array:
        return self.balance(u, START + self.prior.field(x))


@dataclass(eq=False)
class Inversion:
    """m, or its coordinates x, from pressures at every few cells of a grid.

    The loss is ½ ∫ |ρ − d|² over the grid of the observations, so that L² natural gradients are
    Gauss–Newton steps; it is ½ w k (σ · misfit)² with the misfit relative to the noise σ.
    `factorisations` counts those of K(m) since it was last set to zero.
    """

    variant: str
    settings: Settings
    data: Data
    factorisations: int = field(default=0)

    @classmethod
    def of(cls, variant: str, settings: Settings) -> "Inversion":
        """With the data made for it."""
        return cls(variant, settings, measure(settings, EVERY[variant]))

    @cached_property
    def grid(self) -> Grid:
        """The cells in which the pressure is known, as a grid of their own."""
        return Grid((0.0, 0.0), (1.0, 1.0), self.data.observed.shape[1:])

    @cached_property
    def prior(self) -> Smoothness:
        """What is known of m in advance: it is smooth, and deviates by about 1 from the start."""
        return Smoothness(self.settings.cells, self.settings.correlation, 1.0)

    @cached_property
    def start(self) -> Array:
        """The starting point in either coordinates."""
        return jnp.full(self.data.truth.shape, START)

    @cached_property
    def problem(self) -> Problem:
        """The problem with the parameters m."""
        return self._problem(Balance(jnp.asarray(self.data.inflow)), self._factorise)

    @cached_property
    def white_problem(self) -> Problem:
        """The problem with the parameters x."""
        balance = WhiteBalance(Balance(jnp.asarray(self.data.inflow)), self.prior)
        return self._problem(balance, lambda u, x: self._factorise(u, self.field(x)))

    def field(self, x: Array | np.ndarray) -> np.ndarray:
        """m from the prior's coordinates x."""
        return np.asarray(START + self._colour(jnp.asarray(x)))

    @cached_property
    def _colour(self):
        return jax.jit(self.prior.field)

    def _factorise(self, u: np.ndarray, m: np.ndarray) -> SparseLU:
        self.factorisations += 1
        return factorise(m)

    def _problem(self, residual, factorise) -> Problem:
        model = ImplicitModel(
            residual,
            initial=jnp.zeros(self.data.inflow.shape),
            linear=True,
            observe=partial(observe, every=EVERY[self.variant]),
            factorise=factorise,
        )
        return Problem(model, LeastSquares(jnp.asarray(self.data.observed), self.grid))

    @property
    def noise_loss(self) -> float:
        """The loss of a misfit as large as the noise: ½ w k σ²."""
        return 0.5 * self.grid.cell_volume * self.data.observed.size * self.data.noise**2

    def misfit(self, loss: np.ndarray) -> np.ndarray:
        """The rms of ρ − d over σ."""
        return np.sqrt(loss / self.noise_loss)

    def error(self, m: np.ndarray) -> float:
        """‖m − m*‖ / ‖m* − m₀‖, so that the start has error 1."""
        truth = self.data.truth
        return float(np.linalg.norm(m - truth) / np.linalg.norm(truth - START))
