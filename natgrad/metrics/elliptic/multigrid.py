"""One multigrid cycle for graph Laplacians on tensor grids, a symmetric preconditioner.

A V-cycle: Chebyshev smoothing of degree two before and after, operator-dependent coarsening along
the strongly coupled axes (`coarsening.py`), and a direct solve on the coarsest grid. The error
shrinks by about 30 in each cycle under conjugate gradients, on any number of cells, with smooth
conductances of any contrast.

Large levels are written out one by one. The small ones, which cost nothing to run but as much as
any other to compile, share one padded shape and one compiled loop.

Cost: set-up and cycle both O(k). Reference: Trottenberg, Oosterlee and Schüller, Multigrid (2001).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .coarsening import Weights, coarsen, prolong, restrict
from .dominant import dominant_factor
from .isolation import isolated
from .lattice import (
    Links,
    Offset,
    degrees,
    dimension,
    laplacian,
    minus,
    nearest_links,
    padded_links,
)

DENSE_CELLS = 32  # solved directly
LOOPED_CELLS = 6000  # levels up to this size share one loop,
LOOPED_SHARE = 1 / 64  # and so do levels up to this share of the finest
SHORTEST_AXIS = 4  # shorter ones are not coarsened while others are longer
STRONG = 0.25  # axes with at least this share of the strongest coupling are coarsened together
SPECTRUM = (0.4, 2.0)  # the part of the spectrum of D⁻¹K that smoothing damps


def _smoothing_steps() -> tuple[float, float]:
    """Richardson steps at the inverse roots of the Chebyshev polynomial of degree two."""
    low, high = SPECTRUM
    middle, spread = (high + low) / 2, (high - low) / 2 * math.sqrt(0.5)
    return 1 / (middle + spread), 1 / (middle - spread)


class Level(NamedTuple):
    """K on one grid (links with a halo), the inverse of its diagonal, and the way to the next."""

    links: Links
    inverse: Array
    weights: tuple[Weights, ...]


class Step(NamedTuple):
    """Which axis is coarsened, and how many cells it has before."""

    axis: int
    cells: int


class Hierarchy(eqx.Module):
    """K on every grid. `cycle` is one V-cycle, symmetric and positive semidefinite."""

    levels: tuple[Level, ...]
    looped: Level | None  # stacked along a leading axis
    coarsest: tuple[Array, Array]  # J and p with K⁺ ≈ J diag(p) Jᵀ, one cell grounded
    alive: Array
    steps: tuple[tuple[Step, ...], ...] = eqx.field(static=True)
    looped_shape: tuple[int, ...] = eqx.field(static=True)
    dense_shape: tuple[int, ...] = eqx.field(static=True)
    periodic: bool = eqx.field(static=True)

    @property
    def dtype(self) -> np.dtype:
        """The precision of the cycle."""
        return self.coarsest[0].dtype

    def cycle(self, residual: Array) -> Array:
        """An approximation of K⁺ residual; axes before those of the grid are independent."""
        return self._down(0, residual)

    def _down(self, depth: int, b: Array) -> Array:
        if depth == len(self.levels):
            return self._looped(b)
        level, steps = self.levels[depth], self.steps[depth]
        x, r = self._start(level, b)
        coarse = self._down(depth + 1, self._restrict(level, steps, r))
        return self._relax_again(level, b, self._correct(level, steps, x, coarse))

    def _looped(self, b: Array) -> Array:
        if self.looped is None:
            return self._dense(b)
        dim, shape = len(self.looped_shape), self.looped_shape
        steps = tuple(Step(axis, n) for axis, n in enumerate(shape))

        def down(b: Array, level: Level) -> tuple[Array, tuple[Array, Array]]:
            x, r = self._start(level, b)
            return enlarged(self._restrict(level, steps, r), shape), (b, x)

        def up(e: Array, stored: tuple[Level, Array, Array]) -> tuple[Array, None]:
            level, b, x = stored
            half = cropped(e, tuple(n // 2 for n in shape))
            return self._relax_again(level, b, self._correct(level, steps, x, half)), None

        coarse, (bs, xs) = lax.scan(down, enlarged(b, shape), self.looped)
        e = enlarged(self._dense(cropped(coarse, self.dense_shape)), shape)
        e, _ = lax.scan(up, e, (self.looped, bs, xs), reverse=True)
        return cropped(e, b.shape[b.ndim - dim :])

    def _dense(self, b: Array) -> Array:
        J, p = self.coarsest
        flat = b.reshape(*b.shape[: b.ndim - len(self.dense_shape)], -1)
        return ((p * (flat @ J)) @ J.T).reshape(b.shape)

    def _start(self, level: Level, b: Array) -> tuple[Array, Array]:
        """Two smoothing steps from zero, and the residual they leave."""
        first, second = _smoothing_steps()

        def relax(level: Level, b: Array) -> Array:
            x = first * level.inverse * b
            return x + second * level.inverse * (b - laplacian(level.links, x, self.periodic))

        def residual(level: Level, b: Array, x: Array) -> Array:
            return b - laplacian(level.links, x, self.periodic)

        x = isolated(self.alive, relax, level, b)
        return x, isolated(self.alive, residual, level, b, x)

    def _relax_again(self, level: Level, b: Array, x: Array) -> Array:
        """The same steps in reverse order, from x: the transpose of the first two."""
        steps = jnp.asarray(_smoothing_steps()[::-1], b.dtype)
        correct = lambda x: level.inverse * (b - laplacian(level.links, x, self.periodic))
        return lax.fori_loop(0, 2, lambda i, x: x + steps[i] * correct(x), x)

    def _restrict(self, level: Level, steps: Sequence[Step], r: Array) -> Array:
        """Pᵀr, down to the next grid."""

        def down(weights: tuple[Weights, ...], r: Array) -> Array:
            for w, step in zip(weights, steps, strict=True):
                r = restrict(w, step.axis, dimension(level.links), r, self.periodic)
            return r

        return isolated(self.alive, down, level.weights, r)

    def _correct(self, level: Level, steps: Sequence[Step], x: Array, e: Array) -> Array:
        """x + Pe, with e on the next grid."""

        def up(weights: tuple[Weights, ...], x: Array, e: Array) -> Array:
            for w, step in zip(weights[::-1], steps[::-1], strict=True):
                e = prolong(w, step.axis, dimension(level.links), step.cells, e, self.periodic)
            return x + e

        return isolated(self.alive, up, level.weights, x, e)


def build_hierarchy(
    conductances: Sequence[Array], spacing: Sequence[float], periodic: bool, dtype: np.dtype
) -> Hierarchy:
    """The hierarchy for links to the nearest neighbours along each axis.

    `conductances[i][r]` joins r and r + eᵢ; across the upper boundary it is zero, or leads round to
    the first cell. The cycle runs in `dtype`; set-up runs in the precision of the conductances.
    """
    alive = conductances[0].ravel()[0] >= 0
    links: Links = nearest_links(conductances)
    shape, widths = conductances[0].shape, list(spacing)
    looped_cells = max(LOOPED_CELLS, LOOPED_SHARE * math.prod(shape))
    levels, steps = [], []
    while math.prod(shape) > (DENSE_CELLS if periodic else looped_cells) or (
        math.prod(shape) > DENSE_CELLS and len(strong_axes(shape, widths)) < len(shape)
    ):
        axes = strong_axes(shape, widths)
        if not axes:
            break
        level, links = _next_level(alive, links, axes, periodic, dtype)
        levels.append(level)
        steps.append(tuple(Step(axis, shape[axis]) for axis in axes))
        shape = tuple(-(-n // 2) if axis in axes else n for axis, n in enumerate(shape))
        widths = [2 * h if axis in axes else h for axis, h in enumerate(widths)]

    looped, looped_shape = None, shape
    depth = 0
    while math.prod(shape) > DENSE_CELLS and not periodic:
        depth, shape = depth + 1, tuple(-(-n // 2) for n in shape)
    if depth:
        looped_shape = tuple(n + n % 2 for n in looped_shape)
        axes = tuple(range(len(shape)))

        def descend(links: Links, _: None) -> tuple[dict[Offset, Array], Level]:
            level, coarse = _next_level(alive, links, axes, periodic, dtype)
            return {o: enlarged(c, looped_shape) for o, c in coarse.items()}, level

        first = _all_offsets(links, looped_shape)
        links, looped = lax.scan(descend, first, length=depth)
        links = {o: cropped(c, shape) for o, c in links.items()}
    coarsest = jax.tree.map(lambda x: x.astype(dtype), _grounded_inverse(links))
    return Hierarchy(
        tuple(levels), looped, coarsest, alive, tuple(steps), looped_shape, shape, periodic
    )


def strong_axes(shape: Sequence[int], widths: Sequence[float]) -> tuple[int, ...]:
    """The axes worth coarsening: long ones whose coupling 1/h² is near that of the strongest."""
    long = [axis for axis, n in enumerate(shape) if n > SHORTEST_AXIS]
    finest = min((widths[axis] for axis in long), default=1.0)
    return tuple(axis for axis in long if STRONG * widths[axis] ** 2 <= finest**2)


def _next_level(
    alive: Array, links: Links, axes: Sequence[int], periodic: bool, dtype: np.dtype
) -> tuple[Level, Links]:
    def finish(links: Links) -> tuple[Links, Array]:
        padded = {o: c.astype(dtype) for o, c in padded_links(links, periodic).items()}
        diagonal = degrees(padded)
        positive = diagonal > 0
        return padded, jnp.where(positive, 1 / jnp.where(positive, diagonal, 1), 0)

    padded, inverse = isolated(alive, finish, dict(links))
    weights = []
    for axis in axes:
        step = lambda links, axis=axis: coarsen(links, axis, periodic)
        links, new = isolated(alive, step, dict(links))
        weights.append(Weights(*(w.astype(dtype) for w in new)))
    return Level(padded, inverse, tuple(weights)), links


def _all_offsets(links: Links, shape: tuple[int, ...]) -> dict[Offset, Array]:
    """The links enlarged to `shape`, with zeros for offsets that only coarse grids have."""
    dim = len(shape)
    zeros = jnp.zeros(shape, next(iter(links.values())).dtype)
    offsets = [o for o in np.ndindex(*(3,) * dim) if o > (1,) * dim]
    every = [tuple(i - 1 for i in o) for o in offsets]
    return {o: enlarged(links[o], shape) if o in links else zeros for o in every}


def _grounded_inverse(links: Links) -> tuple[Array, Array]:
    """J and p of the inverse on the coarsest grid, with its heaviest cell grounded."""
    shape = next(iter(links.values())).shape
    flat = jnp.concatenate([link.ravel() for link in links.values()])
    table = jnp.tensordot(flat, _incidence(shape, tuple(links)).astype(flat.dtype), 1)
    degree = jnp.sum(table, axis=1)
    grounded = jnp.arange(len(table)) == jnp.argmax(degree)
    return dominant_factor(table, jnp.where(grounded, degree, 0.0))


def _incidence(shape: tuple[int, ...], offsets: tuple[Offset, ...]) -> np.ndarray:
    """(links, k, k): 1 where a link joins two different cells."""
    k = math.prod(shape)
    cells = np.arange(k).reshape(shape)
    joined = np.zeros((len(offsets), k, k, k), np.int8)
    for number, offset in enumerate(offsets):
        neighbours = np.roll(cells, minus(offset), range(len(shape))).ravel()
        joined[number, np.arange(k), np.arange(k), neighbours] = 1
    joined = joined + joined.swapaxes(-1, -2)
    joined[..., np.arange(k), np.arange(k)] = 0
    return joined.reshape(-1, k, k)


def enlarged(values: Array, shape: tuple[int, ...]) -> Array:
    """Zeros appended along the grid axes, up to `shape`."""
    lead = values.ndim - len(shape)
    width = [(0, n - m) for n, m in zip(shape, values.shape[lead:], strict=True)]
    return jnp.pad(values, [(0, 0)] * lead + width)


def cropped(values: Array, shape: tuple[int, ...]) -> Array:
    """The first cells along the grid axes, down to `shape`."""
    return values[..., *(slice(n) for n in shape)]
