"""Galerkin coarsening of a graph Laplacian along one axis, with operator-dependent interpolation.

Every other cell is kept. A cell o that is dropped lies between a kept cell below and one above and
takes their mean, weighted by how strongly it is linked to each layer,

    φ_o = w₋ φ_below + w₊ φ_above,   w₋ : w₊ = Σ links to the layer below : above,  w₋ + w₊ = 1,

which follows jumps of the conductances, as one-dimensional elimination does. The coarse operator
PᵀKP is again a graph Laplacian and is computed link by link: a fine link of conductance c whose
ends differ by Σ_A q_A Φ_A, Σ q_A = 0, has the energy

    c (Σ_A q_A Φ_A)² = −c Σ_{A<B} q_A q_B (Φ_A − Φ_B)²,

so it adds −c q_A q_B to the coarse link AB. Coarsening one axis after the other gives the usual
2ᵈ-fold coarsening in any dimension from this one step.

Cost: O(k). Reference: Dendy, J. Comput. Phys. 48 (1982), for the interpolation.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .lattice import Links, Offset, dimension, minus, shifted, unit


class Weights(NamedTuple):
    """w₋ and w₊ of the dropped cells; w₋ = 1 and w₊ = 0 where a cell has no links."""

    below: Array
    above: Array


def coarsen(links: Links, axis: int, periodic: bool) -> tuple[dict[Offset, Array], Weights]:
    """The links of PᵀKP and the weights of P, for every other cell along `axis` kept.

    >>> links = {(1,): jnp.array([1.0, 1.0, 3.0, 1.0, 0.0])}
    >>> coarse, weights = coarsen(links, 0, periodic=False)
    >>> coarse[(1,)].tolist(), weights.below.tolist()
    ([0.5, 0.75, 0.0], [0.5, 0.75, 1.0])
    """
    dim = dimension(links)
    here, up = (0,) * dim, unit(axis, dim)
    shift = lambda values, offset: shifted(values, offset, periodic)
    across, along = _oriented(links, axis, periodic)
    kept = {t: split(c, axis, dim)[0] for t, c in across.items()}
    dropped = {t: split(c, axis, dim)[1] for t, c in across.items()}
    leave = {t: split(c, axis, dim)[0] for t, c in along.items()}  # from a kept cell upwards
    arrive = {t: split(c, axis, dim)[1] for t, c in along.items()}  # from a dropped cell upwards
    direct = {}
    if periodic and next(iter(links.values())).shape[axis - dim] % 2:
        leave, direct = _without_seam(leave, axis, dim)
    weights = _weights(leave, arrive, periodic)
    below, above = weights

    coarse: dict[Offset, Array] = {}

    def join(offset: Offset, c: Array) -> None:
        if offset < here:
            offset, c = minus(offset), shift(c, minus(offset))
        coarse[offset] = coarse[offset] + c if offset in coarse else c

    def upwards(t: Offset) -> Offset:
        return tuple(a + b for a, b in zip(up, t, strict=True))

    straight = arrive[here] * below**2 + leave[here] * above**2
    for t, c in kept.items():
        join(t, c)
    for t, c in dropped.items():
        below_t, above_t = shift(below, t), shift(above, t)
        straight -= below * above * c + shift(below_t * above_t * c, minus(t))
        join(t, below * below_t * c + shift(above * above_t * c, minus(up)))
        join(upwards(t), below * above_t * c)
        join(upwards(minus(t)), shift(above * below_t * c, minus(t)))
    for t in leave:
        if t != here:
            c, below_t, above_t = leave[t], shift(below, t), shift(above, t)
            join(t, c * below_t)
            join(upwards(t), c * above_t)
            straight -= shift(c * below_t * above_t, minus(t))
            c = arrive[t]
            join(upwards(t), c * below)
            join(t, shift(c * above, minus(up)))
            straight -= c * below * above
    for t, c in direct.items():
        join(upwards(t), c)
    join(up, straight)
    return coarse, weights


def _oriented(
    links: Links, axis: int, periodic: bool
) -> tuple[dict[Offset, Array], dict[Offset, Array]]:
    """Links within a layer and links to the next layer, by their offsets across the axis."""
    across: dict[Offset, Array] = {}
    along: dict[Offset, Array] = {}
    for offset, c in links.items():
        if offset[axis] < 0:
            offset, c = minus(offset), shifted(c, minus(offset), periodic)
        t = tuple(0 if i == axis else o for i, o in enumerate(offset))
        (along if offset[axis] else across)[t] = c
    return across, along


def _without_seam(
    leave: dict[Offset, Array], axis: int, dim: int
) -> tuple[dict[Offset, Array], dict[Offset, Array]]:
    """An odd circle has two kept cells side by side, the last and the first: their links apart."""
    m = next(iter(leave.values())).shape[axis - dim]
    last = (jnp.arange(m) == m - 1).reshape([m if i == axis else 1 for i in range(dim)])
    inside = {t: jnp.where(last, 0.0, c) for t, c in leave.items()}
    return inside, {t: jnp.where(last, c, 0.0) for t, c in leave.items()}


def _weights(leave: dict[Offset, Array], arrive: dict[Offset, Array], periodic: bool) -> Weights:
    # Coarse links can be negative, their sum over a layer only by rounding.
    downward = sum(shifted(c, minus(t), periodic) for t, c in leave.items())
    downward, upward = jnp.maximum(downward, 0.0), jnp.maximum(sum(arrive.values()), 0.0)
    total = downward + upward
    safe = jnp.where(total > 0, total, 1.0)
    return Weights(jnp.where(total > 0, downward / safe, 1.0), upward / safe)


def split(values: Array, axis: int, dim: int) -> tuple[Array, Array]:
    """The kept (even) and the dropped (odd) cells, as many of each: a missing last one is 0."""
    axis += values.ndim - dim
    n = values.shape[axis]
    if n % 2:
        padding = [(0, 0, 0)] * values.ndim
        padding[axis] = (0, 1, 0)
        values = lax.pad(values, jnp.zeros((), values.dtype), padding)
    even = lax.slice_in_dim(values, 0, n, 2, axis)
    return even, lax.slice_in_dim(values, 1, n + n % 2, 2, axis)


def restrict(weights: Weights, axis: int, dim: int, fine: Array, periodic: bool) -> Array:
    """Pᵀ of a fine vector."""
    kept, dropped = split(fine, axis, dim)
    down = minus(unit(axis, dim))
    return kept + weights.below * dropped + shifted(weights.above * dropped, down, periodic)


def prolong(weights: Weights, axis: int, dim: int, n: int, coarse: Array, periodic: bool) -> Array:
    """P of a coarse vector, to n cells along `axis`."""
    above = shifted(coarse, unit(axis, dim), periodic)
    dropped = weights.below * coarse + weights.above * above
    axis += coarse.ndim - dim
    shape = (*coarse.shape[:axis], 2 * coarse.shape[axis], *coarse.shape[axis + 1 :])
    both = jnp.stack([coarse, dropped], axis + 1).reshape(shape)
    return lax.slice_in_dim(both, 0, n, 1, axis)
