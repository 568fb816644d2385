"""Weighted divergences on tensor grids from one-dimensional difference stencils.

A stencil along one axis maps n + extra flux positions to n cells,

    (Av)_r = Σ_o c_o v_{r+o},   r = 0..n−1,   v = 0 outside (or wrapped),

and d of them with weights s_i ≥ 0 at the flux positions of axis i (s = √a for a mobility a)
make the weighted divergence and its exact transpose, the weighted gradient,

    Bv = −Σ_i A_i(s_i v_i),      (Bᵀφ)_i = −s_i A_iᵀφ.

Everything is shifts of whole arrays: no dense matrix, no gather.

>>> apply_difference(central(1.0), jnp.array([1.0, 3.0, 7.0]), axis=0).tolist()
[1.5, 3.0, -1.5]

Cost: O(k). Reference: appendix B.1 of the paper.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


@dataclasses.dataclass(frozen=True)
class Stencil:
    """(Av)_r = Σ_o coefficient_o v_{r + offset_o}, from n + extra fluxes to n cells.

    Frozen and hashable, so that it can be a static argument of a jitted function.
    """

    offsets: tuple[int, ...]
    coefficients: tuple[float, ...]
    wrap: bool = False
    extra: int = 0

    def __post_init__(self):
        if len(self.offsets) != len(self.coefficients) or not self.offsets:
            raise ValueError("a stencil needs one coefficient for each offset, and at least one")
        if len(set(self.offsets)) != len(self.offsets):
            raise ValueError(f"the offsets {self.offsets} are not distinct")
        if self.wrap and self.extra:
            raise ValueError("a periodic stencil has as many flux positions as cells")

    @property
    def transpose(self) -> "Stencil":
        """The stencil of Aᵀ, from cells to flux positions."""
        negated = tuple(-offset for offset in self.offsets)
        return Stencil(negated, self.coefficients, self.wrap, -self.extra)

    @property
    def is_two_point(self) -> bool:
        """Whether Av is a plain difference c(v_p − v_q), so that A diag(a) Aᵀ is a graph
        Laplacian with conductances c²a."""
        return len(self.offsets) == 2 and sum(self.coefficients) == 0.0

    @property
    def gap(self) -> int:
        """Cells r and r + gap interact, no closer ones: the greatest common divisor of the
        distances between offsets. A gap of 2 splits the axis into even and odd cells."""
        return math.gcd(*(offset - self.offsets[0] for offset in self.offsets)) or 1

    @property
    def span(self) -> int:
        """The largest distance between two cells that share a flux."""
        return max(self.offsets) - min(self.offsets)


def central(dx: float) -> Stencil:
    """(v_{r+1} − v_{r−1})/2dx on n points, zero outside: the C_n of appendix B.1."""
    return Stencil((-1, 1), (-0.5 / dx, 0.5 / dx))


def forward(dx: float) -> Stencil:
    """(v_{r+1} − v_r)/dx on n points, zero outside."""
    return Stencil((0, 1), (-1.0 / dx, 1.0 / dx))


def fourth_order(dx: float) -> Stencil:
    """(v_{r−2} − 8v_{r−1} + 8v_{r+1} − v_{r+2})/12dx on n points, zero outside."""
    weights = (1.0, -8.0, 8.0, -1.0)
    return Stencil((-2, -1, 1, 2), tuple(weight / (12.0 * dx) for weight in weights))


def shift(v: Array, offset: int, length: int, axis: int, wrap: bool = False) -> Array:
    """v_{r + offset} for r = 0..length−1 along `axis`, zero (or wrapped) outside.

    Padding by a negative amount cuts: the whole shift is one `lax.pad`.
    """
    axis = axis % v.ndim
    size = v.shape[axis]
    if wrap:
        start = offset % size
        head = lax.slice_in_dim(v, start, size, axis=axis)
        tail = lax.slice_in_dim(v, 0, start, axis=axis)
        return lax.concatenate([head, tail], axis)
    padding = [(0, 0, 0)] * v.ndim
    padding[axis] = (-offset, length + offset - size, 0)
    return lax.pad(v, jnp.zeros((), v.dtype), padding)


def apply_difference(stencil: Stencil, v: Array, axis: int) -> Array:
    """Av along one axis of v, which has n + extra entries there; the result has n."""
    length = v.shape[axis] - stencil.extra
    terms = [
        coefficient * shift(v, offset, length, axis, stencil.wrap)
        for offset, coefficient in zip(stencil.offsets, stencil.coefficients, strict=True)
    ]
    return sum(terms[1:], terms[0])


def apply_transpose(stencil: Stencil, phi: Array, axis: int) -> Array:
    """Aᵀφ along one axis of φ, which has n entries there; the result has n + extra."""
    return apply_difference(stencil.transpose, phi, axis)


def divergence(
    stencils: Sequence[Stencil], weights: Sequence[Array], fluxes: Sequence[Array]
) -> Array:
    """Bv = −Σ_i A_i(s_i v_i); the grid is on the trailing axes, any batch axes lead."""
    dim = len(stencils)
    terms = [
        apply_difference(stencil, weight * flux, axis - dim)
        for axis, (stencil, weight, flux) in enumerate(zip(stencils, weights, fluxes, strict=True))
    ]
    return -sum(terms[1:], terms[0])


def weighted_gradient(
    stencils: Sequence[Stencil], weights: Sequence[Array], phi: Array
) -> tuple[Array, ...]:
    """Bᵀφ: the arrays −s_i A_iᵀφ, the exact transpose of `divergence`."""
    dim = len(stencils)
    return tuple(
        -weight * apply_transpose(stencil, phi, axis - dim)
        for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True))
    )


class Factor(eqx.Module):
    """A factorised K = BBᵀ; ζ and the fluxes may have batch axes before those of the grid."""

    stencils: eqx.AbstractVar[tuple[Stencil, ...]]
    weights: eqx.AbstractVar[tuple[Array, ...]]

    @abc.abstractmethod
    def solve(self, zeta: Array) -> Array:
        """φ with Kφ = ζ.

        Where K is singular (`conservative_classes`), one cell is grounded, the one with the
        largest weights: what ζ has in excess of zero mass leaves there, φ is fixed up to a
        constant by that cell, and `solve` is symmetric. `remove_null_component` comes first for
        the pseudo-inverse in the strict sense.
        """

    def pseudo_inverse(self, zeta: Array) -> tuple[Array, ...]:
        """B†ζ = BᵀK⁻¹ζ, the fluxes v of least norm with Bv = ζ."""
        return weighted_gradient(self.stencils, self.weights, self.solve(zeta))

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        """The exact transpose of `pseudo_inverse`, K⁻¹Bv."""
        return self.solve(divergence(self.stencils, self.weights, fluxes))


def cell_shape(stencils: Sequence[Stencil], weights: Sequence[Array]) -> tuple[int, ...]:
    """The shape of the grid of cells, checked against the shapes of the weights."""
    dim = len(stencils)
    if len(weights) != dim or any(weight.ndim != dim for weight in weights):
        raise ValueError(f"{dim} stencils need {dim} weight arrays with {dim} axes each")
    shape = tuple(weights[i].shape[i] - stencils[i].extra for i in range(dim))
    for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True)):
        expected = (*shape[:axis], shape[axis] + stencil.extra, *shape[axis + 1 :])
        if weight.shape != expected:
            raise ValueError(f"weights[{axis}] has shape {weight.shape}, expected {expected}")
    return shape


def graph_links(
    stencils: Sequence[Stencil], weights: Sequence[Array]
) -> tuple[tuple[Array, ...], Array]:
    """The conductances of K = BBᵀ for two-point stencils, where K is a graph Laplacian:

        (Kφ)_r = Σ_i [ link_i(r)(φ_r − φ_{r+g}) + link_i(r−g)(φ_r − φ_{r−g}) ] + leak(r)φ_r

    with shifts by the gap g of stencil i along axis i. Returns the links, each an array over the
    lower cell of a pair, and the leak of each cell through fluxes at the boundary that have only
    one neighbour.
    """
    shape = cell_shape(stencils, weights)
    links, leak = [], jnp.zeros(shape, jnp.result_type(*weights))
    for axis, (stencil, weight) in enumerate(zip(stencils, weights, strict=True)):
        n = shape[axis]
        conductance = jnp.square(stencil.coefficients[0] * weight)
        upward = shift(conductance, max(stencil.offsets), n, axis, stencil.wrap)
        if not stencil.wrap:
            downward = shift(conductance, min(stencil.offsets), n, axis)
            cell = jnp.arange(n).reshape([n if i == axis else 1 for i in range(len(shape))])
            has_upper, has_lower = cell < n - stencil.gap, cell >= stencil.gap
            leak = leak + jnp.where(has_upper, 0.0, upward) + jnp.where(has_lower, 0.0, downward)
            upward = jnp.where(has_upper, upward, 0.0)
        links.append(upward)
    return tuple(links), leak


def conservative_classes(
    stencils: Sequence[Stencil], shape: Sequence[int]
) -> tuple[tuple[slice, ...], ...]:
    """The sublattices of cells on which every flux conserves mass, so that Bᵀ1 = 0 there.

    Each is a tuple of slices of the grid: the whole grid for a staggered scheme, the cells with
    even indices for the central collocated scheme with odd n on every axis, none for even n.
    """
    candidates = []
    for stencil, n in zip(stencils, shape, strict=True):
        dense = matrix(stencil, n)
        slices = [slice(start, None, stencil.gap) for start in range(min(stencil.gap, n))]
        candidates.append([rows for rows in slices if not np.any(dense[rows].sum(axis=0))])
    return tuple(itertools.product(*candidates))


def matrix(stencil: Stencil, n: int) -> np.ndarray:
    """The dense n × (n + extra) matrix A, for oracles and set-up."""
    dense = np.zeros((n, n + stencil.extra))
    for row in range(n):
        for offset, coefficient in zip(stencil.offsets, stencil.coefficients, strict=True):
            column = (row + offset) % n if stencil.wrap else row + offset
            if 0 <= column < dense.shape[1]:
                dense[row, column] += coefficient
    return dense


def remove_null_component(stencils: Sequence[Stencil], zeta: Array) -> Array:
    """ζ minus its mean on every conservative class.

    For positive weights and two-point stencils this is the orthogonal projection on range(B); the
    fourth-order scheme with odd n on every axis has a null vector besides, which stays.

    >>> remove_null_component((central(1.0),), jnp.array([1.0, 2.0, 5.0])).tolist()
    [-2.0, 2.0, 2.0]

    Cost: O(k).
    """
    for cells in conservative_classes(stencils, zeta.shape[zeta.ndim - len(stencils) :]):
        grid_axes = tuple(range(-len(stencils), 0))
        mean = jnp.mean(zeta[..., *cells], axis=grid_axes, keepdims=True)
        zeta = zeta.at[..., *cells].add(-mean)
    return zeta
