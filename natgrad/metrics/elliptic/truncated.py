"""Dense truncated pseudo-inverses of B, for weights that make it (nearly) rank-deficient."""

import functools
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.csgraph
from jax import Array
from jax.scipy.linalg import solve_triangular

from ...core.dense import accurate_product
from .factor import Factor
from .indexing import as_index, concatenate_fluxes, entries_of, entry_values
from .stencils import Stencil, cell_shape


class TruncatedInverse(Factor):
    """B† of a (nearly) rank-deficient B as dense matrices, one for each set of cells and fluxes
    that do not interact with the others; `rank` is the number of directions kept.

    Column-pivoted QR of Bᵀ, cut at |R_jj| ≤ tolerance·|R_11|, and a second QR of what is left, R̃:

        BᵀP = QR,   R̃ᵀ = Q₁R₁,   B† = Q̃ R₁⁻¹ Q₁ᵀ Pᵀ.

    Here `solve` is K† and `pseudo_inverse` is B† in the strict sense.

    Cost: O(k³) time and O(k²) memory for a set of k cells. Reference: appendix B.2 of the paper.
    """

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    inverses: tuple[Array, ...]
    rank: Array

    def solve(self, zeta: Array) -> Array:
        return self.pseudo_inverse_transpose(self.pseudo_inverse(zeta))

    def pseudo_inverse(self, zeta: Array) -> tuple[Array, ...]:
        dim = len(self.stencils)
        shapes = [weight.shape for weight in self.weights]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        batch = zeta.shape[: zeta.ndim - dim]
        flat = zeta.reshape(*batch, -1)
        fluxes = jnp.zeros((*batch, ends[-1]), jnp.result_type(zeta, *self.inverses))
        parts = _independent_parts(self.stencils, zeta.shape[zeta.ndim - dim :])
        for (cells, positions), inverse in zip(parts, self.inverses, strict=True):
            fluxes = fluxes.at[..., positions].set(accurate_product(flat[..., cells], inverse.T))
        pieces = jnp.split(fluxes, ends[:-1], axis=-1)
        return tuple(f.reshape(*batch, *shape) for f, shape in zip(pieces, shapes, strict=True))

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        shape = cell_shape(self.stencils, self.weights)
        flat = concatenate_fluxes(fluxes, len(shape))
        zeta = jnp.zeros((*flat.shape[:-1], math.prod(shape)), flat.dtype)
        parts = _independent_parts(self.stencils, shape)
        for (cells, positions), inverse in zip(parts, self.inverses, strict=True):
            zeta = zeta.at[..., cells].set(accurate_product(flat[..., positions], inverse))
        return zeta.reshape(*flat.shape[:-1], *shape)


@functools.lru_cache(maxsize=64)
def _independent_parts(
    stencils: tuple[Stencil, ...], shape: tuple[int, ...]
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """(cells, fluxes) of the connected components of B with at least one cell."""
    entries, k = entries_of(stencils, shape), math.prod(shape)
    ends = (entries.cell, k + entries.flux)
    size = k + entries.flux.max() + 1
    graph = scipy.sparse.coo_array((np.ones(len(entries.flux)), ends), shape=(size, size))
    count, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    parts = [np.flatnonzero(label == part) for part in range(count)]
    return tuple(
        (as_index(part[part < k]), as_index(part[part >= k] - k)) for part in parts if part[0] < k
    )


def truncated_inverse(
    stencils: tuple[Stencil, ...], weights: tuple[Array, ...], tolerance: float | None
) -> TruncatedInverse:
    """Factorise every independent part of B on its own, see `TruncatedInverse`."""
    shape = cell_shape(stencils, weights)
    entries = entries_of(stencils, shape)
    values = entry_values(entries, weights)
    default = math.prod(shape) * float(jnp.finfo(values.dtype).eps)
    cut = default if tolerance is None else tolerance
    inverses, ranks = [], []
    for cells, positions in _independent_parts(stencils, shape):
        chosen = as_index(np.flatnonzero(np.isin(entries.cell, cells)))
        row = as_index(np.searchsorted(positions, entries.flux[chosen]))
        column = as_index(np.searchsorted(cells, entries.cell[chosen]))
        # Rows of zeros keep Bᵀ tall, so that R is square.
        height = max(len(positions), len(cells))
        dense = jnp.zeros((height, len(cells)), values.dtype).at[row, column].add(values[chosen])
        Q, R, pivots = jax.scipy.linalg.qr(dense, mode="economic", pivoting=True)
        size = jnp.abs(jnp.diagonal(R))
        kept = size > cut * size[0]
        Q1, R1 = jnp.linalg.qr(jnp.where(kept[:, None], R, 0.0).T)
        R1 = jnp.where(kept & kept[:, None], R1, jnp.eye(len(cells), dtype=R1.dtype))
        inner = jnp.where(kept[:, None], solve_triangular(R1, Q1.T), 0.0)
        inverse = accurate_product(Q, inner)[: len(positions)]
        inverses.append(jnp.zeros_like(inverse).at[:, pivots].set(inverse))
        ranks.append(jnp.sum(kept))
    return TruncatedInverse(stencils, weights, tuple(inverses), jnp.sum(jnp.stack(ranks)))
