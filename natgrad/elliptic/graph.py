"""Graph Laplacians on tensor grids, given by the conductances between neighbouring cells.

`links` holds one array of the shape of the grid for each axis: links[i][r] ≥ 0 joins the cells r
and r + e_i. The last one along axis i joins the last cell to the first on a periodic grid and is
zero otherwise. Functions may have batch axes before those of the grid.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from ..errors import InputError
from .stencils import shifted


def graph_product(links: Sequence[Array], phi: Array, periodic: bool) -> Array:
    """(Kφ)_r = Σ_i [ c_i(r)(φ_r − φ_{r+e_i}) + c_i(r−e_i)(φ_r − φ_{r−e_i}) ].

    The conductances multiply differences, never values, so that a constant in φ loses no digits
    and no contrast between the links does: a product with the assembled K does not have this.

    >>> graph_product((jnp.array([1.0, 2.0, 0.0]),), jnp.array([5.0, 4.0, 4.5]), False).tolist()
    [1.0, -2.0, 1.0]

    Cost: O(k).
    """
    shape = grid_shape(links, phi)
    total = jnp.zeros((), phi.dtype)
    for i, link in enumerate(links):
        axis, n = i - len(links), shape[i]
        flow = link * (phi - shifted(phi, 1, n, axis, periodic))
        total = total + flow - shifted(flow, -1, n, axis, periodic)
    return total


def graph_diagonal(links: Sequence[Array], periodic: bool) -> Array:
    """The diagonal of K: the sum of the conductances of each cell.

    >>> graph_diagonal((jnp.array([1.0, 2.0, 0.0]),), False).tolist()
    [1.0, 3.0, 2.0]

    A periodic axis of one cell joins the cell to itself, which K does not see; the diagonal
    counts such a link all the same. Cost: O(k).
    """
    shape = grid_shape(links)
    total = jnp.zeros((), jnp.result_type(*links))
    for axis, link in enumerate(links):
        total = total + link + shifted(link, -1, shape[axis], axis, periodic)
    return total


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
