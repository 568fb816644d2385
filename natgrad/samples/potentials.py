"""Point clouds, and potentials φ on them: Gaussians around some of the samples."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.dense import accurate_product as product
from ..errors import InputError, name_kind


class Potentials(NamedTuple):
    """φ(x) = a·x + Σ_j u_j exp(−|x − c_j|²/2h²), with c_j m of the samples; a only if `linear`.

    The coefficients (a, w) are those of an orthonormal basis of the Gaussians' own space, u = Cw,
    so that |w|² is the norm of φ there. Its directions below the square root of the precision are
    left out: centres may coincide.

    `weights` are the eigenvalues of the Gaussians' Gram matrix, zero where they are left out.
    `samples` and `centres` are relative to the mean, `kernel` is the N × m matrix of the Gaussians
    at the samples: all that is kept, gradients are products with it.
    """

    samples: Array
    centres: Array
    bandwidth: Array
    kernel: Array
    basis: Array
    weights: Array
    linear: bool

    @classmethod
    def at(cls, x: Array, bandwidth: Array, count: int, linear: bool) -> "Potentials":
        """Around every N/m-th sample."""
        samples = x - jnp.mean(x, axis=0)
        centres = samples[(jnp.arange(count) * len(x)) // count]
        kernel = _gaussians(samples, centres, bandwidth)
        values, vectors = jnp.linalg.eigh(_gaussians(centres, centres, bandwidth))
        kept = values > jnp.sqrt(jnp.finfo(x.dtype).eps) * values[-1]
        basis = vectors * jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1.0)), 0.0)
        weights = jnp.where(kept, values, 0.0)
        return cls(samples, centres, bandwidth, kernel, basis, weights, linear)

    @property
    def extra(self) -> int:
        """How many of the coefficients are those of a."""
        return self.samples.shape[1] if self.linear else 0

    def pairings(self, v: Array) -> Array:
        """⟨ζ, ψ_j⟩ = (1/N) Σᵢ ∇ψ_j(xᵢ)·vᵢ for every basis function: what φ sees of a motion v."""
        along = self.centres * product(self.kernel.T, v)
        radial = product(self.kernel.T, jnp.sum(self.samples * v, axis=1))
        pairs = product(self.basis.T, jnp.sum(along, axis=1) - radial)
        pairs = pairs / (self.bandwidth**2 * len(v))
        return jnp.concatenate([jnp.mean(v, axis=0), pairs]) if self.linear else pairs

    def gradients(self, coefficients: Array) -> Array:
        """(1/N) ∇φ(xᵢ): the transpose of `pairings`."""
        u = product(self.basis, coefficients[self.extra :])
        towards = product(self.kernel, self.centres * u[:, None])
        slope = towards - self.samples * product(self.kernel, u)[:, None]
        slope = slope / self.bandwidth**2
        slope = slope + coefficients[: self.extra] if self.linear else slope
        return slope / len(self.samples)

    def energies(self) -> Array:
        """S with (1/N) Σᵢ |∇φ(xᵢ)|² = ⟨(a, w), S(a, w)⟩, one coordinate at a time."""

        def coordinate(position: tuple[Array, Array]) -> tuple[Array, Array]:
            x, c = position
            slopes = self.kernel * (c - x[:, None]) / self.bandwidth**2
            return product(slopes.T, slopes), jnp.mean(slopes, axis=0)

        squares, means = jax.lax.map(coordinate, (self.samples.T, self.centres.T))
        S = self.in_basis(jnp.sum(squares, axis=0)) / len(self.samples)
        if not self.linear:
            return S
        cross = product(means, self.basis)
        return jnp.block([[jnp.eye(self.extra, dtype=S.dtype), cross], [cross.T, S]])

    def in_basis(self, Q: Array) -> Array:
        """CᵀQC, a form on the coefficients u in terms of w."""
        return product(self.basis.T, product(Q, self.basis))

    def mean_of(self, Q: Array) -> Array:
        """The mean of Q(φ) over single Gaussians φ, from Q on the coefficients."""
        return jnp.diag(Q)[self.extra :] @ self.weights / len(self.centres)

    def separations(self) -> Array:
        """|c_i − c_j|²."""
        return _squared_distances(self.centres, self.centres)


def check_cloud(state: PyTree) -> None:
    """The state must be one array of N points in d dimensions, N > d."""
    shape = tuple(state.shape) if hasattr(state, "shape") else None
    if shape is None or len(shape) != 2:
        what = f"has shape {shape}" if shape is not None else f"is {name_kind(state)}"
        raise InputError("model", f"the state {what}", "one array (N, d), a row for each sample")
    if shape[0] <= shape[1]:
        what = f"the state has {shape[0]} samples in {shape[1]} dimensions"
        raise InputError("model", what, "an array (N, d) with many more samples than dimensions")


def spread(x: Array) -> Array:
    """σ: the root of the mean variance of a coordinate."""
    return jnp.sqrt(jnp.mean(jnp.var(x, axis=0)))


def _gaussians(x: Array, c: Array, bandwidth: Array) -> Array:
    return jnp.exp(-_squared_distances(x, c) / (2 * bandwidth**2))


def _squared_distances(x: Array, c: Array) -> Array:
    """One coordinate after the other: nothing of size N m d, and no cancellation."""
    add = lambda total, pair: (total + (pair[0][:, None] - pair[1]) ** 2, None)
    return jax.lax.scan(add, jnp.zeros((len(x), len(c)), x.dtype), (x.T, c.T))[0]
