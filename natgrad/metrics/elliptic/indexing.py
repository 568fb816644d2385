"""Where cells and fluxes go: slabs of cells, padded index lists, and the nonzeros of B."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from .stencils import Stencil


def as_index(array: np.ndarray) -> np.ndarray:
    """32 bits, which JAX takes with and without x64."""
    return array.astype(np.int32)


def slab_order(n: int, slabs: int, wrap: bool) -> np.ndarray:
    """(blocks, slabs): which slab goes where, n for padding. A periodic axis is folded,
    0, n−1, 1, n−2, …, which brings the two ends of the ring together."""
    order = np.arange(n)
    if wrap:
        order[0::2], order[1::2] = np.arange(-(-n // 2)), n - 1 - np.arange(n // 2)
    blocks = -(-n // slabs)
    return np.append(order, np.full(blocks * slabs - n, n)).reshape(blocks, slabs)


def gather(flat: Array, index: np.ndarray) -> Array:
    """flat[..., index], where the index one past the end gives zero."""
    padding = [(0, 0)] * (flat.ndim - 1) + [(0, 1)]
    return jnp.pad(flat, padding)[..., index]


class Entries(NamedTuple):
    """The nonzeros of the divergence: B[cell, flux] = −coefficient · s[flux], with the fluxes of
    all axes numbered one after the other."""

    flux: np.ndarray
    cell: np.ndarray
    coefficient: np.ndarray


def entries_of(stencils: tuple[Stencil, ...], shape: tuple[int, ...]) -> Entries:
    """The nonzeros of B for cells of the given shape."""
    cells, first_flux = np.indices(shape), 0
    fluxes, owners, coefficients = [], [], []
    for axis, stencil in enumerate(stencils):
        flux_shape = list(shape)
        flux_shape[axis] += stencil.extra
        for offset, coefficient in zip(stencil.offsets, stencil.coefficients, strict=True):
            position = cells.copy()
            position[axis] += offset
            if stencil.wrap:
                position[axis] %= shape[axis]
            exists = (position[axis] >= 0) & (position[axis] < flux_shape[axis])
            flux = np.ravel_multi_index(tuple(position[:, exists]), flux_shape)
            fluxes.append(first_flux + flux)
            owners.append(np.ravel_multi_index(tuple(cells[:, exists]), shape))
            coefficients.append(np.full(np.count_nonzero(exists), coefficient))
        first_flux += math.prod(flux_shape)
    return Entries(
        flux=as_index(np.concatenate(fluxes)),
        cell=as_index(np.concatenate(owners)),
        coefficient=np.concatenate(coefficients),
    )


def concatenate_fluxes(fluxes: Sequence[Array], dim: int) -> Array:
    """(..., all fluxes) from one array (..., grid) for each axis."""
    return jnp.concatenate([f.reshape(*f.shape[: f.ndim - dim], -1) for f in fluxes], axis=-1)


def entry_values(entries: Entries, weights: tuple[Array, ...]) -> Array:
    """The values of the nonzeros, in the precision of the weights."""
    weight = concatenate_fluxes(weights, len(weights))
    return -weight[entries.flux] * entries.coefficient.astype(weight.dtype)
