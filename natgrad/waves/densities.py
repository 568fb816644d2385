"""Data as densities: fewer samples in time, and two ways to make a wave positive."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core.settings import Number, setting


def decimated(data: Array, every: int) -> Array:
    """S u: the means of blocks of `every` samples along the last axis; the last may be shorter.

    >>> decimated(jnp.array([1.0, 3.0, 5.0, 7.0, 8.0]), 2).tolist()
    [2.0, 6.0, 8.0]

    Half of the weight is lost at 0.6/(`every` dt) Hz: take blocks that are short against the
    period of the highest frequency. S Sᵀ is the diagonal matrix of 1/(samples in a block).
    """
    blocks, missing = _blocks(data.shape[-1], every)
    padded = jnp.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, missing)])
    sums = padded.reshape(*data.shape[:-1], blocks, every).sum(-1)
    return sums / block_sizes(data.shape[-1], every).astype(data.dtype)


def decimated_transpose(values: Array, every: int, steps: int) -> Array:
    """Sᵀy, on `steps` samples.

    >>> decimated_transpose(jnp.array([2.0, 4.0, 8.0]), 2, 5).tolist()
    [1.0, 1.0, 2.0, 2.0, 8.0]
    """
    shares = values / block_sizes(steps, every).astype(values.dtype)
    return jnp.repeat(shares, every, axis=-1)[..., :steps]


def block_sizes(steps: int, every: int) -> Array:
    """How many samples are in each block.

    >>> block_sizes(5, 2).tolist()
    [2, 2, 1]
    """
    blocks, missing = _blocks(steps, every)
    return jnp.full(blocks, every).at[-1].add(-missing)


def _blocks(steps: int, every: int) -> tuple[int, int]:
    blocks = -(-steps // every)
    return blocks, blocks * every - steps


class Positive(eqx.Module):
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

    The more it is shifted, the closer W₂ is to a weighted Ḣ⁻¹. σ is positive at the reference
    data only, so that this serves a metric, which is asked about no other, and not a misfit.

    ```python
    ng.waves.DataWasserstein(survey.gather_grid, normalisation=ng.waves.Shifted(1.2))
    ```

    Reference: Yang, Engquist, Sun and Hamfeldt, Geophysics 83 (2018).
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

    For small b in proportion to the shifted wave, 2 log 2 + bu/c; for large b its positive part,
    which makes W₂ see where the energy is and no more where it cancels. Positive for all u; the
    `floor` keeps W₂ from resting on the little mass that is left in a trough.

    ```python
    ng.waves.TraceWasserstein(shots.data, normalisation=ng.waves.Softplus(sharpness=2.0, floor=0.1))
    ```

    Reference: Engquist and Yang, Optimal transport based seismic inversion: beyond cycle
    skipping, Comm. Pure Appl. Math. 75 (2022).
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
