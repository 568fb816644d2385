"""Graph Laplacians on tensor grids, given by the conductances of links to near neighbours.

A link of offset δ ∈ {−1, 0, 1}ᵈ joins the cells r and r + δ with conductance c_δ(r):

    (Kφ)_r = Σ_δ [ c_δ(r)(φ_r − φ_{r+δ}) + c_δ(r−δ)(φ_r − φ_{r−δ}) ].

One of each pair ±δ is kept. The product is a sum of differences, never a diagonal minus its
neighbours: constants are annihilated exactly, and small conductances keep all their digits beside
large ones. The grid is on the trailing axes; axes that lead are independent vectors.

>>> links = padded_links(nearest_links((jnp.array([1.0, 2.0, 0.0]),)), periodic=False)
>>> laplacian(links, jnp.array([0.0, 1.0, 3.0]), periodic=False).tolist()
[-1.0, -3.0, 4.0]
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array, lax

from ...errors import InputError

Offset = tuple[int, ...]
Links = Mapping[Offset, Array]


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


def minus(offset: Offset) -> Offset:
    """The way back."""
    return tuple(-o for o in offset)


def shifted(values: Array, offset: Offset, periodic: bool) -> Array:
    """The values at r + offset: zero, or wrapped around, outside."""
    for axis, o in enumerate(offset, start=values.ndim - len(offset)):
        if o and periodic:
            values = jnp.roll(values, -o, axis)
        elif o:
            padding = [(0, 0, 0)] * values.ndim
            padding[axis] = (-o, o, 0)
            values = lax.pad(values, jnp.zeros((), values.dtype), padding)
    return values


def with_halo(values: Array, dim: int, periodic: bool) -> Array:
    """One more layer of cells on every side: zeros, or the values of the opposite side."""
    width = [(0, 0)] * (values.ndim - dim) + [(1, 1)] * dim
    return jnp.pad(values, width, mode="wrap" if periodic else "constant")


def window(padded: Array, offset: Offset) -> Array:
    """The cells at r + offset of an array with a halo."""
    sizes = padded.shape[padded.ndim - len(offset) :]
    return padded[..., *(slice(1 + o, n - 1 + o) for o, n in zip(offset, sizes, strict=True))]


def padded_links(links: Links, periodic: bool) -> dict[Offset, Array]:
    """The links with a halo, as `laplacian` and `degrees` take them."""
    dim = dimension(links)
    return {offset: with_halo(link, dim, periodic) for offset, link in links.items()}


def laplacian(links: Links, phi: Array, periodic: bool) -> Array:
    """Kφ, for links with a halo. Cost: O(k), one pass over φ and each link."""
    dim = dimension(links)
    padded, here = with_halo(phi, dim, periodic), (0,) * dim
    terms = []
    for offset, link in links.items():
        terms.append(window(link, here) * (phi - window(padded, offset)))
        back = minus(offset)
        terms.append(window(link, back) * (phi - window(padded, back)))
    return sum(terms[1:], terms[0])


def degrees(links: Links) -> Array:
    """The diagonal of K, for links with a halo."""
    here = (0,) * dimension(links)
    terms = [window(link, here) + window(link, minus(o)) for o, link in links.items()]
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
