"""Operators on tensor grids: the weighted divergence B, its transpose, and K = BBᵀ as a graph.

A stencil along one axis maps n + extra flux positions to n cells,

    (Av)_r = Σ_o c_o v_{r+o},   r = 0..n−1,   v = 0 outside (or wrapped),

and d of them with weights s_i ≥ 0 at the flux positions of axis i (s = √a for a mobility a)
make the weighted divergence and its exact transpose, the weighted gradient,

    Bv = −Σ_i A_i(s_i v_i),      (Bᵀφ)_i = −s_i A_iᵀφ.

For differences of two neighbours K is a graph Laplacian, given by the conductances of its links.
A link of offset δ ∈ {−1, 0, 1}ᵈ joins the cells r and r + δ with conductance c_δ(r):

    (Kφ)_r = Σ_δ [ c_δ(r)(φ_r − φ_{r+δ}) + c_δ(r−δ)(φ_r − φ_{r−δ}) ].

One of each pair ±δ is kept. The product is a sum of differences, never a diagonal minus its
neighbours: constants are annihilated exactly, and small conductances keep all their digits beside
large ones.

The grid is on the trailing axes of an array; axes that lead are independent vectors. Everything is
shifts of whole arrays: no dense matrix, no gather.

>>> import jax.numpy as jnp
>>> apply_difference(staggered_neumann(1.0), jnp.array([1.0, 3.0]), axis=0).tolist()
[1.0, 2.0, -3.0]
>>> links = pad_links(nearest_links((jnp.array([1.0, 2.0, 0.0]),)), periodic=False)
>>> laplacian(links, jnp.array([0.0, 1.0, 3.0]), periodic=False).tolist()
[-1.0, -3.0, 4.0]

Cost: O(k). Reference for the collocated stencils: appendix B.1 of the paper.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...errors import InputError

Offset = tuple[int, ...]
Links = Mapping[Offset, Array]


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


def staggered_neumann(dx: float) -> Stencil:
    """(v_r − v_{r−1})/dx on the n − 1 interior faces; nothing flows through the boundary."""
    return Stencil((-1, 0), (-1.0 / dx, 1.0 / dx), extra=-1)


def staggered_periodic(dx: float) -> Stencil:
    """(v_r − v_{r−1})/dx on n faces, face r between the cells r and r + 1 modulo n."""
    return Stencil((-1, 0), (-1.0 / dx, 1.0 / dx), wrap=True)


def collocated_central(dx: float) -> Stencil:
    """(v_{r+1} − v_{r−1})/2dx on n points, zero outside: the C_n of appendix B.1."""
    return Stencil((-1, 1), (-0.5 / dx, 0.5 / dx))


def collocated_forward(dx: float) -> Stencil:
    """(v_{r+1} − v_r)/dx on n points, zero outside."""
    return Stencil((0, 1), (-1.0 / dx, 1.0 / dx))


def collocated_fourth_order(dx: float) -> Stencil:
    """(v_{r−2} − 8v_{r−1} + 8v_{r+1} − v_{r+2})/12dx on n points, zero outside."""
    weights = (1.0, -8.0, 8.0, -1.0)
    return Stencil((-2, -1, 1, 2), tuple(weight / (12.0 * dx) for weight in weights))


def shift_along(v: Array, offset: int, length: int, axis: int, wrap: bool = False) -> Array:
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
        coefficient * shift_along(v, offset, length, axis, stencil.wrap)
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
        upward = shift_along(conductance, max(stencil.offsets), n, axis, stencil.wrap)
        if not stencil.wrap:
            downward = shift_along(conductance, min(stencil.offsets), n, axis)
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


def nearest_links(conductances: Sequence[Array]) -> dict[Offset, Array]:
    """The links of a five-point (2D) or seven-point (3D) scheme, one array for each axis."""
    dim = len(conductances)
    return {unit(axis, dim): array for axis, array in enumerate(conductances)}


def dimension(links: Links) -> int:
    """The number of grid axes."""
    return len(next(iter(links)))


def unit(axis: int, dim: int) -> Offset:
    """The offset of the next cell along `axis`."""
    return tuple(int(i == axis) for i in range(dim))


def opposite(offset: Offset) -> Offset:
    """The way back."""
    return tuple(-o for o in offset)


def shift(values: Array, offset: Offset, periodic: bool) -> Array:
    """The values at r + offset: zero, or wrapped around, outside."""
    for axis, o in enumerate(offset, start=values.ndim - len(offset)):
        if o and periodic:
            values = jnp.roll(values, -o, axis)
        elif o:
            padding = [(0, 0, 0)] * values.ndim
            padding[axis] = (-o, o, 0)
            values = lax.pad(values, jnp.zeros((), values.dtype), padding)
    return values


def add_halo(values: Array, dim: int, periodic: bool) -> Array:
    """One more layer of cells on every side: zeros, or the values of the opposite side."""
    width = [(0, 0)] * (values.ndim - dim) + [(1, 1)] * dim
    return jnp.pad(values, width, mode="wrap" if periodic else "constant")


def window(padded: Array, offset: Offset) -> Array:
    """The cells at r + offset of an array with a halo."""
    sizes = padded.shape[padded.ndim - len(offset) :]
    return padded[..., *(slice(1 + o, n - 1 + o) for o, n in zip(offset, sizes, strict=True))]


def pad_links(links: Links, periodic: bool) -> dict[Offset, Array]:
    """The links with a halo, as `laplacian` and `degrees` take them."""
    dim = dimension(links)
    return {offset: add_halo(link, dim, periodic) for offset, link in links.items()}


def laplacian(links: Links, phi: Array, periodic: bool) -> Array:
    """Kφ, for links with a halo. Cost: O(k), one pass over φ and each link."""
    dim = dimension(links)
    padded, here = add_halo(phi, dim, periodic), (0,) * dim
    terms = []
    for offset, link in links.items():
        terms.append(window(link, here) * (phi - window(padded, offset)))
        back = opposite(offset)
        terms.append(window(link, back) * (phi - window(padded, back)))
    return sum(terms[1:], terms[0])


def degrees(links: Links) -> Array:
    """The diagonal of K, for links with a halo."""
    here = (0,) * dimension(links)
    terms = [window(link, here) + window(link, opposite(o)) for o, link in links.items()]
    return sum(terms[1:], terms[0])


def grid_shape(links: Sequence[Array], values: Array | None = None) -> tuple[int, ...]:
    """The shape of the grid of cells, checked for every link array and for `values`."""
    shape = tuple(links[0].shape) if links else ()
    for i, link in enumerate(links):
        if tuple(link.shape) != shape or len(shape) != len(links):
            raise InputError(
                f"links[{i}]",
                f"has shape {tuple(link.shape)}, but {len(links)} link arrays need "
                f"{len(links)} axes and one common shape",
                "one array of the shape of the grid for each axis",
            )
    if values is not None and tuple(values.shape[values.ndim - len(shape) :]) != shape:
        raise InputError(
            "values",
            f"have shape {tuple(values.shape)} on a grid of shape {shape}",
            "the grid on the trailing axes",
        )
    return shape


class Solution(NamedTuple):
    """φ, and for each right-hand side the iterations taken and the error left (0 and 0 if direct).

    The error is the energy norm of that of φ, as a share of the energy norm of φ. `converged` is
    whether it reached the tolerance.
    """

    phi: Array
    iterations: Array
    error: Array
    converged: Array


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

    def solution(self, zeta: Array, tolerance: float | None = None) -> Solution:
        """`solve` with its diagnosis; an iterative solve may be asked for less than usual."""
        lead = zeta.shape[: zeta.ndim - len(self.stencils)]
        none, zero = jnp.zeros(lead, jnp.int32), jnp.zeros(lead, zeta.dtype)
        return Solution(self.solve(zeta), none, zero, jnp.ones(lead, bool))

    def flows(
        self, zeta: Array, tolerance: float | None = None
    ) -> tuple[tuple[Array, ...], Solution]:
        """B†ζ and the solution that it comes from."""
        solution = self.solution(zeta, tolerance)
        return weighted_gradient(self.stencils, self.weights, solution.phi), solution

    def pseudo_inverse(self, zeta: Array) -> tuple[Array, ...]:
        """B†ζ = BᵀK⁻¹ζ, the fluxes v of least norm with Bv = ζ."""
        return self.flows(zeta)[0]

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        """The exact transpose of `pseudo_inverse`, K⁻¹Bv."""
        return self.solve(divergence(self.stencils, self.weights, fluxes))


def remove_null_component(stencils: Sequence[Stencil], zeta: Array) -> Array:
    """ζ minus its mean on every conservative class.

    For positive weights and two-point stencils this is the orthogonal projection on range(B); the
    fourth-order scheme with odd n on every axis has a null vector besides, which stays.

    >>> remove_null_component((staggered_neumann(1.0),), jnp.array([1.0, 2.0, 6.0])).tolist()
    [-2.0, -1.0, 3.0]

    Cost: O(k).
    """
    for cells in conservative_classes(stencils, zeta.shape[zeta.ndim - len(stencils) :]):
        grid_axes = tuple(range(-len(stencils), 0))
        mean = jnp.mean(zeta[..., *cells], axis=grid_axes, keepdims=True)
        zeta = zeta.at[..., *cells].add(-mean)
    return zeta
