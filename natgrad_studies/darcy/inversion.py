"""The inverse problem of one variant: its data, and the problem in either of its coordinates."""

from dataclasses import dataclass, field
from functools import cached_property, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import Grid, ImplicitModel, LeastSquares, Problem, SparseLU

from .flow import Balance, factorised
from .prior import Smoothness
from .settings import EVERY, Settings
from .truth import Data, measured, observed

START = 0.0  # m at the start, a constant


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
        return cls(variant, settings, measured(settings, EVERY[variant]))

    @cached_property
    def grid(self) -> Grid:
        """The cells in which the pressure is known, as a grid of their own."""
        return Grid((0.0, 0.0), (1.0, 1.0), self.data.observed.shape[1:])

    @cached_property
    def prior(self) -> Smoothness:
        """What is known of m before: smoothness, and deviations of about 1 from the start."""
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
        return np.asarray(START + self._coloured(jnp.asarray(x)))

    @cached_property
    def _coloured(self):
        return jax.jit(self.prior.field)

    def _factorise(self, u: np.ndarray, m: np.ndarray) -> SparseLU:
        self.factorisations += 1
        return factorised(m)

    def _problem(self, residual, factorise) -> Problem:
        model = ImplicitModel(
            residual,
            initial=jnp.zeros(self.data.inflow.shape),
            linear=True,
            observe=partial(observed, every=EVERY[self.variant]),
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
