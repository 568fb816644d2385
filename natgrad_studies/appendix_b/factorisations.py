"""Direct solves with K = BBᵀ for any stencils, and the choice between them.

* `SublatticeElimination` (default for two-point stencils): K is a graph Laplacian on each of the
  sublattices into which the grid falls apart, and is eliminated without a single subtraction, so
  that no contrast of the weights loses digits.
* `BlockQR` (default otherwise): the factor R of Bᵀ = QR, so that cond(B) is not squared.
* `TruncatedInverse`: the truncated pivoted QR for (nearly) rank-deficient B, dense.

Cost: with k cells in blocks of b, elimination takes about (10/3)kb² and `BlockQR` 18kb² flops,
both store kb numbers or twice that, and a solve takes 8kb flops per right-hand side.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from natgrad.metrics.elliptic import BlockInverse, eliminate

from .block_qr import block_qr, truncated_inverse
from .stencils import Factor, Stencil, cell_shape, graph_links


class SublatticeElimination(Factor):
    """K⁻¹ for two-point stencils: those that couple a cell to its gth neighbours along an axis.

    The cells whose indices agree modulo the gaps make a sublattice that the others do not see (the
    2ᵈ parities of the central scheme). On each of them K is a graph Laplacian with links to the
    nearest neighbours and a leak through the boundary; they are factorised side by side as a
    batch. `rank` counts the pivots that are not zero.
    """

    stencils: tuple[Stencil, ...] = eqx.field(static=True)
    weights: tuple[Array, ...]
    inverses: BlockInverse  # one for each sublattice, along a leading axis

    def solve(self, zeta: Array) -> Array:
        gaps = [stencil.gap for stencil in self.stencils]
        shape = cell_shape(self.stencils, self.weights)
        solve = jax.vmap(lambda inverse, zeta: inverse.solve(zeta))
        return _join(solve(self.inverses, _split(zeta, gaps)), gaps, shape)

    @property
    def rank(self) -> Array:
        """The rank of B."""
        return jnp.sum(self.inverses.rank)


def sublattice_elimination(
    stencils: tuple[Stencil, ...], weights: tuple[Array, ...]
) -> SublatticeElimination:
    """Eliminate K on every sublattice; one without a leak is grounded in one cell."""
    links, leak = graph_links(stencils, weights)
    gaps = [stencil.gap for stencil in stencils]
    periodic = tuple(stencil.wrap for stencil in stencils)
    one = jax.vmap(lambda links, leak: eliminate(links, periodic, leak))
    inverses = one(tuple(_split(link, gaps) for link in links), _split(leak, gaps))
    return SublatticeElimination(stencils, weights, inverses)


def _split(values: Array, gaps: Sequence[int]) -> Array:
    """(sublattices, *batch, *sublattice) from (*batch, *grid), filled up with zeros."""
    lead = values.ndim - len(gaps)
    missing = [-n % gap for n, gap in zip(values.shape[lead:], gaps, strict=True)]
    values = jnp.pad(values, [(0, 0)] * lead + [(0, width) for width in missing])
    coarse = [n // gap for n, gap in zip(values.shape[lead:], gaps, strict=True)]
    sides = [side for pair in zip(coarse, gaps, strict=True) for side in pair]
    values = values.reshape(*values.shape[:lead], *sides)
    residues = range(lead + 1, values.ndim, 2)
    values = jnp.moveaxis(values, residues, range(len(gaps)))
    return values.reshape(math.prod(gaps), *values.shape[len(gaps) :])


def _join(parts: Array, gaps: Sequence[int], shape: Sequence[int]) -> Array:
    """The inverse of `_split`, for a grid of this shape."""
    dim = len(gaps)
    values = parts.reshape(*gaps, *parts.shape[1:])
    lead = values.ndim - 2 * dim
    values = jnp.moveaxis(values, range(dim), range(lead + 1, values.ndim, 2))
    batch, sides = values.shape[:lead], values.shape[lead:]
    values = values.reshape(*batch, *(sides[2 * i] * sides[2 * i + 1] for i in range(dim)))
    return values[..., *(slice(n) for n in shape)]


def factorise(
    stencils: Sequence[Stencil],
    weights: Sequence[Array],
    *,
    method: str | None = None,
    tolerance: float | None = None,
) -> Factor:
    """Factorise K = BBᵀ for weights s_i at the flux positions of axis i.

    `method` is "elimination" (two-point stencils only), "qr" or "truncated"; None takes the
    first of these that applies. `tolerance` is the relative truncation of "truncated", by
    default the rounding error times the number of cells.

    >>> from natgrad_studies.appendix_b.stencils import forward
    >>> factor = factorise((forward(1.0),), (jnp.ones(3),))
    >>> (fluxes,) = factor.pseudo_inverse(jnp.array([1.0, 2.0, 3.0]))
    >>> [round(float(v), 3) for v in fluxes]
    [6.0, 5.0, 3.0]
    """
    stencils, weights = tuple(stencils), tuple(weights)
    cell_shape(stencils, weights)
    is_graph = all(s.is_two_point and (s.gap == 1 or not s.wrap) for s in stencils)
    if method is None:
        method = "elimination" if is_graph else "qr"
    if method == "elimination" and not is_graph:
        raise ValueError("elimination needs two-point stencils; use method='qr'")
    if method == "elimination":
        return sublattice_elimination(stencils, weights)
    if method == "qr":
        return block_qr(stencils, weights)
    if method == "truncated":
        return truncated_inverse(stencils, weights, tolerance)
    raise ValueError(f"unknown method {method!r}: use 'elimination', 'qr' or 'truncated'")
