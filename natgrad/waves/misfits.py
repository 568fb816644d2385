"""Misfits of recorded waves other than least squares: optimal transport, trace by trace."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..core.selection import Selection
from ..core.settings import Public, check_integer
from ..errors import InputError
from ..grids import Grid
from ..metrics.distances import cumulative_distribution, quantile_ends
from ..problem import ScaledLoss
from .data_metrics import DataWasserstein, Positive, Softplus, average_blocks


class TraceWasserstein(Public, eqx.Module):
    """f(u) = ½ Σ W₂²(ũ, ũ*) over the traces: how far their energy is apart in time.

    A trace u becomes the density ũ = σ(Su)/mean σ(Su) on the time axis as the unit interval, S the
    means of `every` samples, σ the `normalisation` with the constants of the recorded trace. On a
    line W₂ is the distance of quantile functions,

        W₂²(ũ, ũ*) = ∫₀¹ |F⁻¹(s) − F*⁻¹(s)|² ds,    F the cumulative distribution of ũ,

    taken at the levels s = (q + ½)/n for n samples: least squares of times instead of amplitudes.
    It grows with a time shift, where ½∫|u − u*|² has a local minimum at every period.

    First derivatives are exact for the sum, dF⁻¹(s) = −dF/ũ at F⁻¹(s). The second derivative is
    that of Gauss–Newton, JᵀJ with J = dF⁻¹/du, never negative, so that `ModelStep` has a length:
    it is the metric W₂ at ũ, `metric()`.

    ```python
    misfit = ng.waves.TraceWasserstein(shots.data, every=4)
    method = ng.NaturalGradient(misfit.metric(), solver=ng.CG(...))
    ng.minimize(ng.Problem(model, misfit), theta, method)
    ```

    Cost: O(n log n) for each trace. References: Engquist, Froese and Yang, Comm. Math. Sci. 14
    (2016); Yang, Engquist, Sun and Hamfeldt, Geophysics 83 (2018).

    Args:
        recorded: The recorded traces.
        every: Samples in time that are averaged to one.
        normalisation: σ: `Softplus`.
    """

    quantiles: Array
    constants: Array
    normalisation: Positive
    every: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __init__(
        self, recorded: ArrayLike, *, every: int = 1, normalisation: Positive = Softplus()
    ):
        data, self.every = jnp.array(recorded), check_integer(every, "every", 1)
        if data.ndim == 0 or data.shape[-1] < 2 * every or not data.size:
            what = f"has shape {data.shape}, with blocks of {every} samples in time"
            raise InputError("recorded", what, "traces (shots, receivers, steps)")
        if not jnp.issubdtype(data.dtype, jnp.floating) or not np.all(np.isfinite(data)):
            raise InputError(
                "recorded", "is not real and finite", "finite traces, zero where there are none"
            )
        if not isinstance(normalisation, Softplus):
            what = f"{normalisation!r} is not positive for every wave"
            raise InputError("normalisation", what, "ng.waves.Softplus(1.0)")
        self.steps, self.normalisation = data.shape[-1], normalisation
        self.constants = normalisation.constants(average_blocks(data, every), (-1,))
        self.quantiles = _quantiles(self.positive(data))

    def positive(self, data: Array) -> Array:
        """σ(Su), in proportion to the density ũ."""
        u = average_blocks(data, self.every)
        return self.normalisation.value(u, self.constants.astype(u.dtype))

    def __call__(self, rho: Array) -> Array:
        residual = self._residual(rho)
        return 0.5 * jnp.sum(residual**2) / residual.shape[-1]

    def _residual(self, rho: Array) -> Array:
        """F⁻¹ − F*⁻¹, linear in a change of ρ as far as second derivatives can see."""

        @jax.custom_jvp
        def times(rho: Array) -> Array:
            return _quantiles(self.positive(rho))

        @times.defjvp
        def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
            frozen = jax.lax.stop_gradient(primals[0])
            change = jax.jvp(lambda u: _quantiles(self.positive(u)), (frozen,), tangents)[1]
            return times(primals[0]), change

        return times(rho) - self.quantiles.astype(rho.dtype)

    def metric(self, **options: Any) -> DataWasserstein:
        """The metric in which a step of length 1 is that of Gauss–Newton for this misfit."""
        grid = Grid(0.0, 1.0, self.steps)
        metric = DataWasserstein(
            grid, every=self.every, normalisation=self.normalisation, **options
        )
        is_none = lambda x: x is None
        return eqx.tree_at(lambda m: m.constants, metric, self.constants, is_leaf=is_none)

    def restricted(self, selection: Selection) -> ScaledLoss:
        """Some of the shots."""
        if selection.of != "functions":
            what = "a trace cannot be compared at a sample of its times"
            raise InputError("batch", what, "MiniBatch(size, of='functions'): whole shots")
        where = lambda misfit: (misfit.quantiles, misfit.constants)
        chosen = eqx.tree_at(where, self, selection.take(where(self)))
        return ScaledLoss(chosen, selection.scale)

    def check_structure(self, state: Any) -> None:
        """The state must have the shape of the recorded data."""
        expected = (*self.constants.shape[:-1], self.steps)
        shape = getattr(state, "shape", None)
        if shape != expected:
            what = f"has shape {expected} but the model returns {shape}"
            raise InputError("recorded", what, "the data of the model's survey")


@jax.jit
def _quantiles(masses: Array) -> Array:
    """F⁻¹ at n levels, for histograms of n cells of the unit interval along the last axis."""
    n = masses.shape[-1]
    levels = (jnp.arange(n, dtype=masses.dtype) + 0.5) / n
    one = lambda p: quantile_ends(cumulative_distribution(p), levels, levels, levels)[0]
    flat = jax.vmap(one)(masses.reshape(-1, n))
    return flat.reshape(masses.shape) / n
