"""The weighted divergence B on a grid, K = BBᵀ as a graph, and what a factorisation of K offers.

Fluxes v live on the faces between cells, ζ and φ in the cells. With weights s on the faces (s = √a
for a mobility a) and the spacing h_i along axis i,

    (Bv)_r = −Σ_i [ (s_i v_i)_r − (s_i v_i)_{r−eᵢ} ] / h_i,
    (Bᵀφ)_{i,r} = s_{i,r} (φ_{r+eᵢ} − φ_r) / h_i,

where face r of axis i lies between the cells r and r + eᵢ. K is a graph Laplacian, given by the
conductances (s_i/h_i)² of its links. On coarser grids there are links to diagonal neighbours too:
one of offset δ ∈ {−1, 0, 1}ᵈ joins the cells r and r + δ with conductance c_δ(r),

    (Kφ)_r = Σ_δ [ c_δ(r)(φ_r − φ_{r+δ}) + c_δ(r−δ)(φ_r − φ_{r−δ}) ],

and one of each pair ±δ is kept. The product is a sum of differences, never a diagonal minus its
neighbours: constants are annihilated exactly, and small conductances keep all their digits beside
large ones.

The grid is on the trailing axes of an array; axes that lead are independent vectors. Everything is
shifts of whole arrays: no dense matrix, no gather.

>>> links = pad_links(nearest_links((jnp.array([1.0, 2.0, 0.0]),)), periodic=False)
>>> laplacian(links, jnp.array([0.0, 1.0, 3.0]), periodic=False).tolist()
[-1.0, -3.0, 4.0]

Cost: O(k) a product.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

from ...errors import InputError

Fluxes = tuple[Array, ...]  # one array for each axis of the grid
Offset = tuple[int, ...]
Links = Mapping[Offset, Array]


class Divergence(eqx.Module):
    """B for weights s on the faces: n − 1 of them along an axis of n cells, n round a ring.

    >>> B = Divergence((jnp.ones(2),), (1.0,), periodic=False)
    >>> B.apply((jnp.array([1.0, 3.0]),)).tolist()
    [-1.0, -2.0, 3.0]
    """

    weights: Fluxes
    spacing: tuple[float, ...] = eqx.field(static=True)
    periodic: bool = eqx.field(static=True)

    def apply(self, fluxes: Sequence[Array]) -> Array:
        """Bv."""
        terms = []
        axes = range(-len(fluxes), 0)
        for axis, s, h, v in zip(axes, self.weights, self.spacing, fluxes, strict=True):
            flow = s * v * (1.0 / h)
            if self.periodic:
                terms.append(flow - jnp.roll(flow, 1, axis))
            else:
                none = jnp.zeros((), flow.dtype)
                terms.append(jnp.diff(flow, axis=axis, prepend=none, append=none))
        return -sum(terms[1:], terms[0])

    def apply_transpose(self, phi: Array) -> Fluxes:
        """Bᵀφ."""
        fluxes = []
        axes = range(-len(self.spacing), 0)
        for axis, s, h in zip(axes, self.weights, self.spacing, strict=True):
            scaled = phi * (1.0 / h)
            if self.periodic:
                fluxes.append(s * (jnp.roll(scaled, -1, axis) - scaled))
            else:
                fluxes.append(s * jnp.diff(scaled, axis=axis))
        return tuple(fluxes)

    @property
    def conductances(self) -> Fluxes:
        """(s_i/h_i)² at the lower cell of each link; zero at the upper end of an axis with ends."""
        pairs = zip(self.weights, self.spacing, strict=True)
        squares = [jnp.square(s * (1.0 / h)) for s, h in pairs]
        if self.periodic:
            return tuple(squares)
        end = lambda x, axis: [(0, int(a == axis)) for a in range(-x.ndim, 0)]
        axes = range(-len(squares), 0)
        return tuple(jnp.pad(x, end(x, axis)) for x, axis in zip(squares, axes, strict=True))


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

    B: eqx.AbstractVar[Divergence]

    @abc.abstractmethod
    def solve(self, zeta: Array) -> Array:
        """φ with Kφ = ζ, symmetric in ζ.

        K annihilates the constants. A direct method grounds the cell with the largest weights: what
        ζ has in excess of zero mass leaves there, and that cell fixes φ up to a constant.
        """

    def solution(self, zeta: Array, tolerance: float | None = None) -> Solution:
        """`solve` with its diagnosis; an iterative solve may be asked for less than usual."""
        lead = zeta.shape[: zeta.ndim - len(self.B.spacing)]
        none, zero = jnp.zeros(lead, jnp.int32), jnp.zeros(lead, zeta.dtype)
        return Solution(self.solve(zeta), none, zero, jnp.ones(lead, bool))

    def flows(self, zeta: Array, tolerance: float | None = None) -> tuple[Fluxes, Solution]:
        """B†ζ and the solution that it comes from."""
        solution = self.solution(zeta, tolerance)
        return self.B.apply_transpose(solution.phi), solution

    def pseudo_inverse(self, zeta: Array) -> Fluxes:
        """B†ζ = BᵀK⁻¹ζ, the fluxes v of least norm with Bv = ζ."""
        return self.flows(zeta)[0]

    def pseudo_inverse_transpose(self, fluxes: Sequence[Array]) -> Array:
        """The exact transpose of `pseudo_inverse`, K⁻¹Bv."""
        return self.solve(self.B.apply(fluxes))


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
