"""One multigrid cycle for graph Laplacians on tensor grids, a symmetric preconditioner.

A V-cycle: Chebyshev smoothing of degree two before and after, operator-dependent coarsening along
the strongly coupled axes, and a direct solve on the coarsest grid. The error shrinks by about 30 in
each cycle under conjugate gradients, on any number of cells, with smooth conductances of any
contrast.

Coarsening is that of Galerkin, along one axis: every other cell is kept. A cell o that is dropped
lies between a kept cell below and one above and takes their mean, weighted by how strongly it is
linked to each layer,

    φ_o = w₋ φ_below + w₊ φ_above,   w₋ : w₊ = Σ links to the layer below : above,  w₋ + w₊ = 1,

which follows jumps of the conductances, as one-dimensional elimination does. The coarse operator
PᵀKP is again a graph Laplacian and is computed link by link: a fine link of conductance c whose
ends differ by Σ_A q_A Φ_A, Σ q_A = 0, has the energy

    c (Σ_A q_A Φ_A)² = −c Σ_{A<B} q_A q_B (Φ_A − Φ_B)²,

so it adds −c q_A q_B to the coarse link AB. Coarsening one axis after the other gives the usual
2ᵈ-fold coarsening in any dimension from this one step.

Large levels are written out one by one. The small ones, which cost nothing to run but as much as
any other to compile, share one padded shape and one compiled loop.

Cost: set-up and cycle both O(k). Reference: Trottenberg, Oosterlee and Schüller, Multigrid (2001);
Dendy, J. Comput. Phys. 48 (1982), for the interpolation.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import PyTree

from .divergence import (
    Links,
    Offset,
    degrees,
    dimension,
    laplacian,
    nearest_links,
    opposite,
    pad_links,
    shift,
    unit,
)
from .elimination import dominant_factor

DENSE_CELLS = 32  # solved directly
LOOP_CELLS = 6000  # levels up to this size share one loop,
LOOP_SHARE = 1 / 64  # and so do levels up to this share of the finest
SHORTEST_AXIS = 4  # shorter ones are not coarsened while others are longer
STRONG = 0.25  # axes with at least this share of the strongest coupling are coarsened together
LOW, HIGH = 0.4, 2.0  # the part of the spectrum of D⁻¹K that smoothing damps
ROOT = (HIGH - LOW) / 2 * math.sqrt(0.5)
# Richardson steps at the inverse roots of the Chebyshev polynomial of degree two.
SMOOTHING_STEPS = 1 / ((HIGH + LOW) / 2 + ROOT), 1 / ((HIGH + LOW) / 2 - ROOT)


class Weights(NamedTuple):
    """w₋ and w₊ of the dropped cells; w₋ = 1 and w₊ = 0 where a cell has no links."""

    below: Array
    above: Array


class Level(eqx.Module):
    """K on one grid (links with a halo), the inverse of its diagonal, and the way to the next.

    `cells` has, for each axis that is coarsened in turn, its number and how many cells it has.
    """

    links: Links
    inverse: Array
    weights: tuple[Weights, ...]
    cells: tuple[tuple[int, int], ...] = eqx.field(static=True)


class Hierarchy(eqx.Module):
    """K on every grid. `cycle` is one V-cycle, symmetric and positive semidefinite."""

    on_host: ClassVar[bool] = False

    levels: tuple[Level, ...]
    loop: Level | None  # stacked along a leading axis
    coarsest: tuple[Array, Array]  # J and p with K⁺ ≈ J diag(p) Jᵀ, one cell grounded
    alive: Array
    loop_shape: tuple[int, ...] = eqx.field(static=True)
    dense_shape: tuple[int, ...] = eqx.field(static=True)
    periodic: bool = eqx.field(static=True)

    def cycle(self, residual: Array) -> Array:
        """An approximation of K⁺ residual; axes before those of the grid are independent."""
        b = residual.astype(self.coarsest[0].dtype)
        return self._down(0, b).astype(residual.dtype)

    def _down(self, depth: int, b: Array) -> Array:
        if depth == len(self.levels):
            return self._run_loop(b)
        level = self.levels[depth]
        x, r = self._start(level, b)
        coarse = self._down(depth + 1, self._restrict(level, r))
        return self._relax_again(level, b, self._correct(level, x, coarse))

    def _run_loop(self, b: Array) -> Array:
        if self.loop is None:
            return self._dense(b)
        dim, shape = len(self.loop_shape), self.loop_shape

        def down(b: Array, level: Level) -> tuple[Array, tuple[Array, Array]]:
            x, r = self._start(level, b)
            return pad_to(self._restrict(level, r), shape), (b, x)

        def up(e: Array, stored: tuple[Level, Array, Array]) -> tuple[Array, None]:
            level, b, x = stored
            half = crop_to(e, tuple(n // 2 for n in shape))
            return self._relax_again(level, b, self._correct(level, x, half)), None

        coarse, (bs, xs) = lax.scan(down, pad_to(b, shape), self.loop)
        e = pad_to(self._dense(crop_to(coarse, self.dense_shape)), shape)
        e, _ = lax.scan(up, e, (self.loop, bs, xs), reverse=True)
        return crop_to(e, b.shape[b.ndim - dim :])

    def _dense(self, b: Array) -> Array:
        J, p = self.coarsest
        flat = b.reshape(*b.shape[: b.ndim - len(self.dense_shape)], -1)
        return ((p * (flat @ J)) @ J.T).reshape(b.shape)

    def _start(self, level: Level, b: Array) -> tuple[Array, Array]:
        """Two smoothing steps from zero, and the residual they leave."""
        first, second = SMOOTHING_STEPS

        def relax(level: Level, b: Array) -> Array:
            x = first * level.inverse * b
            return x + second * level.inverse * self._residual(level, b, x)

        x = call_isolated(self.alive, relax, level, b)
        residual = lambda level, b, x: self._residual(level, b, x)
        return x, call_isolated(self.alive, residual, level, b, x)

    def _relax_again(self, level: Level, b: Array, x: Array) -> Array:
        """The same steps in reverse order, from x: the transpose of the first two."""
        steps = jnp.asarray(SMOOTHING_STEPS[::-1], b.dtype)
        correct = lambda x: level.inverse * self._residual(level, b, x)
        return lax.fori_loop(0, 2, lambda i, x: x + steps[i] * correct(x), x)

    def _residual(self, level: Level, b: Array, x: Array) -> Array:
        return b - laplacian(level.links, x, self.periodic)

    def _restrict(self, level: Level, r: Array) -> Array:
        """Pᵀr, down to the next grid."""

        def down(weights: tuple[Weights, ...], r: Array) -> Array:
            for w, (axis, _) in zip(weights, level.cells, strict=True):
                r = restrict(w, axis, dimension(level.links), r, self.periodic)
            return r

        return call_isolated(self.alive, down, level.weights, r)

    def _correct(self, level: Level, x: Array, e: Array) -> Array:
        """x + Pe, with e on the next grid."""

        def up(weights: tuple[Weights, ...], x: Array, e: Array) -> Array:
            for w, (axis, n) in zip(weights[::-1], level.cells[::-1], strict=True):
                e = prolong(w, axis, dimension(level.links), n, e, self.periodic)
            return x + e

        return call_isolated(self.alive, up, level.weights, x, e)


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
    loop_cells = max(LOOP_CELLS, LOOP_SHARE * math.prod(shape))
    levels = []
    while math.prod(shape) > (DENSE_CELLS if periodic else loop_cells) or (
        math.prod(shape) > DENSE_CELLS and len(strong_axes(shape, widths)) < len(shape)
    ):
        axes = strong_axes(shape, widths)
        if not axes:
            break
        level, links = _next_level(alive, links, axes, periodic, dtype)
        levels.append(level)
        shape = tuple(-(-n // 2) if axis in axes else n for axis, n in enumerate(shape))
        widths = [2 * h if axis in axes else h for axis, h in enumerate(widths)]

    loop, loop_shape = None, shape
    depth = 0
    while math.prod(shape) > DENSE_CELLS and not periodic:
        depth, shape = depth + 1, tuple(-(-n // 2) for n in shape)
    if depth:
        loop_shape = tuple(n + n % 2 for n in loop_shape)
        axes = tuple(range(len(shape)))

        def descend(links: Links, _: None) -> tuple[dict[Offset, Array], Level]:
            level, coarse = _next_level(alive, links, axes, periodic, dtype)
            return {o: pad_to(c, loop_shape) for o, c in coarse.items()}, level

        first = _all_offsets(links, loop_shape)
        links, loop = lax.scan(descend, first, length=depth)
        links = {o: crop_to(c, shape) for o, c in links.items()}
    coarsest = jax.tree.map(lambda x: x.astype(dtype), _grounded_inverse(links, periodic))
    return Hierarchy(tuple(levels), loop, coarsest, alive, loop_shape, shape, periodic)


def strong_axes(shape: Sequence[int], widths: Sequence[float]) -> tuple[int, ...]:
    """The axes worth coarsening: long ones whose coupling 1/h² is near that of the strongest."""
    long = [axis for axis, n in enumerate(shape) if n > SHORTEST_AXIS]
    finest = min((widths[axis] for axis in long), default=1.0)
    return tuple(axis for axis in long if STRONG * widths[axis] ** 2 <= finest**2)


def _next_level(
    alive: Array, links: Links, axes: Sequence[int], periodic: bool, dtype: np.dtype
) -> tuple[Level, Links]:
    def finish(links: Links) -> tuple[Links, Array]:
        padded = {o: c.astype(dtype) for o, c in pad_links(links, periodic).items()}
        diagonal = degrees(padded)
        positive = diagonal > 0
        return padded, jnp.where(positive, 1 / jnp.where(positive, diagonal, 1), 0)

    padded, inverse = call_isolated(alive, finish, dict(links))
    shape, weights = next(iter(links.values())).shape, []
    for axis in axes:
        step = lambda links, axis=axis: coarsen(links, axis, periodic)
        links, new = call_isolated(alive, step, dict(links))
        weights.append(Weights(*(w.astype(dtype) for w in new)))
    return Level(padded, inverse, tuple(weights), tuple((a, shape[a]) for a in axes)), links


def _all_offsets(links: Links, shape: tuple[int, ...]) -> dict[Offset, Array]:
    """The links enlarged to `shape`, with zeros for offsets that only coarse grids have."""
    zeros = jnp.zeros(shape, next(iter(links.values())).dtype)
    every = [o for o in itertools.product((-1, 0, 1), repeat=len(shape)) if o > (0,) * len(shape)]
    return {o: pad_to(links[o], shape) if o in links else zeros for o in every}


def _grounded_inverse(links: Links, periodic: bool) -> tuple[Array, Array]:
    """J and p of the inverse on the coarsest grid, with its heaviest cell grounded."""
    link = next(iter(links.values()))
    cells = jnp.eye(link.size, dtype=link.dtype).reshape(-1, *link.shape)
    K = laplacian(pad_links(links, periodic), cells, periodic).reshape(link.size, -1)
    table = jnp.where(jnp.eye(link.size, dtype=bool), 0.0, -K)
    degree = jnp.sum(table, axis=1)
    grounded = jnp.arange(len(table)) == jnp.argmax(degree)
    return dominant_factor(table, jnp.where(grounded, degree, 0.0))


def pad_to(values: Array, shape: tuple[int, ...]) -> Array:
    """Zeros appended along the grid axes, up to `shape`."""
    lead = values.ndim - len(shape)
    width = [(0, n - m) for n, m in zip(shape, values.shape[lead:], strict=True)]
    return jnp.pad(values, [(0, 0)] * lead + width)


def crop_to(values: Array, shape: tuple[int, ...]) -> Array:
    """The first cells along the grid axes, down to `shape`."""
    return values[..., *(slice(n) for n in shape)]


def coarsen(links: Links, axis: int, periodic: bool) -> tuple[dict[Offset, Array], Weights]:
    """The links of PᵀKP and the weights of P, for every other cell along `axis` kept.

    >>> links = {(1,): jnp.array([1.0, 1.0, 3.0, 1.0, 0.0])}
    >>> coarse, weights = coarsen(links, 0, periodic=False)
    >>> coarse[(1,)].tolist(), weights.below.tolist()
    ([0.5, 0.75, 0.0], [0.5, 0.75, 1.0])
    """
    dim = dimension(links)
    here, up = (0,) * dim, unit(axis, dim)
    at = lambda values, offset: shift(values, offset, periodic)
    across, along = _orient(links, axis, periodic)
    kept = {t: split(c, axis, dim)[0] for t, c in across.items()}
    dropped = {t: split(c, axis, dim)[1] for t, c in across.items()}
    leave = {t: split(c, axis, dim)[0] for t, c in along.items()}  # from a kept cell upwards
    arrive = {t: split(c, axis, dim)[1] for t, c in along.items()}  # from a dropped cell upwards
    direct = {}  # from the last kept cell of an odd circle to the first
    if periodic and next(iter(links.values())).shape[axis - dim] % 2:
        m = next(iter(leave.values())).shape[axis - dim]
        last = (jnp.arange(m) == m - 1).reshape([m if i == axis else 1 for i in range(dim)])
        direct = {t: jnp.where(last, c, 0.0) for t, c in leave.items()}
        leave = {t: jnp.where(last, 0.0, c) for t, c in leave.items()}
    weights = _weights(leave, arrive, periodic)
    below, above = weights

    coarse: dict[Offset, Array] = {}

    def add(c: Array, q: Mapping[Offset, Array | float]) -> None:
        """The coarse links of a fine one whose ends differ by Σ q_A Φ_A."""
        for A, B in itertools.combinations(sorted(q), 2):
            offset = tuple(b - a for a, b in zip(A, B, strict=True))
            share = at(-c * q[A] * q[B], opposite(A))
            coarse[offset] = coarse[offset] + share if offset in coarse else share

    upwards = lambda t: tuple(a + b for a, b in zip(up, t, strict=True))
    mean_at = lambda t: {t: at(below, t), upwards(t): at(above, t)}  # φ of the dropped cell at t
    mean = {here: -below, up: -above}
    for t, c in kept.items():
        add(c, {here: -1.0, t: 1.0})
    for t, c in dropped.items():
        add(c, mean | mean_at(t))
    for t, c in leave.items():
        add(c, {here: -above, up: above} if t == here else {here: -1.0, **mean_at(t)})
    for t, c in arrive.items():
        add(c, {here: -below, up: below} if t == here else {**mean, upwards(t): 1.0})
    for t, c in direct.items():
        add(c, {here: -1.0, upwards(t): 1.0})
    return coarse, weights


def _orient(
    links: Links, axis: int, periodic: bool
) -> tuple[dict[Offset, Array], dict[Offset, Array]]:
    """Links within a layer and links to the next layer, by their offsets across the axis."""
    across: dict[Offset, Array] = {}
    along: dict[Offset, Array] = {}
    for offset, c in links.items():
        if offset[axis] < 0:
            offset, c = opposite(offset), shift(c, opposite(offset), periodic)
        t = tuple(0 if i == axis else o for i, o in enumerate(offset))
        (along if offset[axis] else across)[t] = c
    return across, along


def _weights(leave: dict[Offset, Array], arrive: dict[Offset, Array], periodic: bool) -> Weights:
    # Coarse links can be negative, their sum over a layer only by rounding.
    downward = sum(shift(c, opposite(t), periodic) for t, c in leave.items())
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
    down = opposite(unit(axis, dim))
    return kept + weights.below * dropped + shift(weights.above * dropped, down, periodic)


def prolong(weights: Weights, axis: int, dim: int, n: int, coarse: Array, periodic: bool) -> Array:
    """P of a coarse vector, to n cells along `axis`."""
    above = shift(coarse, unit(axis, dim), periodic)
    dropped = weights.below * coarse + weights.above * above
    axis += coarse.ndim - dim
    shape = (*coarse.shape[:axis], 2 * coarse.shape[axis], *coarse.shape[axis + 1 :])
    both = jnp.stack([coarse, dropped], axis + 1).reshape(shape)
    return lax.slice_in_dim(both, 0, n, 1, axis)


def call_isolated(alive: Array, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """`function(*arguments)`, neither fused with what comes before nor with what follows.

    On the CPU, XLA drops optimisation barriers before it fuses, and then recomputes a stencil at
    every point where the next one reads it: two in a row run several times slower and take far
    longer to compile. A conditional is a border that it respects. `alive` must be true at run time
    without the compiler knowing (a scalar computed from data); where it is false the result is NaN.
    On other devices the barrier works.
    """
    function = jax.jit(function)  # so that it is traced once for both

    def conditional(alive: Array, *arguments: PyTree) -> PyTree:
        shapes = jax.eval_shape(function, *arguments)
        invalid = lambda *_: jax.tree.map(lambda s: jnp.full(s.shape, jnp.nan, s.dtype), shapes)
        return lax.cond(alive, function, invalid, *arguments)

    def barrier(alive: Array, *arguments: PyTree) -> PyTree:
        return lax.optimization_barrier(function(*lax.optimization_barrier(arguments)))

    return lax.platform_dependent(alive, *arguments, cpu=conditional, default=barrier)
