"""A preconditioner from the conjugate gradients, and the steps, of the iterations before."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..linalg.trees import pick
from .preconditioners import Preconditioner, Product, check_positive
from .system import LinearSystem

LEVEL = 0.9  # the slope that may be left after a step, relative to the one before it


class Visited(NamedTuple):
    """Where an iteration was, and whether the step to it went as the pairs had told.

    `known` is whether it was anywhere yet.
    """

    theta: Array
    gradient: Array
    known: Array
    served: Array


class Pairs(NamedTuple):
    """The last directions d with their images Gd, as rows of two rings.

    `count` is how many there have ever been; the newest is in row `count` − 1 modulo the length.
    `last` is there where steps are recorded as well as the directions of conjugate gradients.
    """

    directions: Array
    images: Array
    count: Array
    last: Visited | None

    def record(self, direction: Array, image: Array) -> "Pairs":
        """These pairs and one more, which takes the place of the oldest."""
        row = self.count % len(self.directions)
        put = lambda ring, x: jax.lax.dynamic_update_index_in_dim(ring, x, row, 0)
        return self._replace(
            directions=put(self.directions, direction),
            images=put(self.images, image),
            count=self.count + 1,
        )

    def arrived(self, theta: Array, gradient: Array) -> "Pairs":
        """These pairs and the secant of the step to θ, where steps are recorded."""
        return self if self.last is None else _arrived(self, theta, gradient)

    def elsewhere(self) -> "Pairs":
        """The same for another right-hand side, to which the last step says nothing."""
        if self.last is None:
            return self
        return self._replace(last=self.last._replace(served=jnp.zeros((), bool)))


@jax.jit
def _arrived(pairs: Pairs, theta: Array, gradient: Array) -> Pairs:
    last = pairs.last
    assert last is not None
    gradient = gradient.astype(theta.dtype)
    step, change = theta - last.theta, gradient - last.gradient
    before, after = last.gradient @ step, gradient @ step
    rounding = jnp.finfo(theta.dtype).eps * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    convex = last.known & (step @ change > rounding)
    pairs = pick(convex, pairs.record(step, change), pairs)
    served = convex & (jnp.abs(after) <= LEVEL * jnp.abs(before))
    return pairs._replace(last=Visited(theta, gradient, jnp.ones((), bool), served))


class Recycled(Preconditioner):
    """M from the pairs (d, Gd) that conjugate gradients met in earlier iterations of a run.

    G changes little from one iteration to the next, so its action on the last `pairs` directions
    is known before the first product: M is the inverse that the BFGS update builds from
    them, y = Gd + λDd, oldest first. It is exact on the directions of the last iteration, if G is
    the same. It starts from M₀ = ⟨d, d⟩/⟨d, y⟩ of the newest pair: conjugate gradients find the
    large eigenvalues first, so what is unknown is about as soft as the last direction found, and
    ⟨d, y⟩/⟨y, y⟩, usual in L-BFGS, is smaller. The default of `CG` in `ng.minimize`; there is
    nothing to recycle in a single direction.

    With `secants=True` M also learns from every step s of the run, whose y is the change of ∂_θ f,
    and `CG` makes products only where M has not served: in the first iteration, and after a step
    that did not level the slope along it, |⟨∂_θ f₊, s⟩| ≤ 0.9 |⟨∂_θ f, s⟩|. The others take
    η = −M ∂_θ f ("recycled"), and a step costs no more than one of L-BFGS: it *is* one of L-BFGS,
    started and repaired by G, with M₀ = ⟨s, y⟩/⟨y, y⟩. That is for many parameters, costly
    propagations, and a metric whose G is near the Hessian of the loss, such as `L2` for least
    squares: with another the steps leave its geometry for that of the loss. Keep many pairs. In
    mini-batches no step is recorded, as two gradients are then of two functions.

    ```python
    ng.CG(max_iterations=5, preconditioner=ng.Recycled(pairs=20))
    ng.CG(max_iterations=2, preconditioner=ng.Recycled(pairs=80, secants=True))
    ```

    Cost: no products with Z; 4 · pairs · p operations an iteration, 2 · pairs · p numbers.
    Reference: Morales and Nocedal, Automatic preconditioning by limited memory quasi-Newton
    updating, SIAM J. Optim. 10 (2000), and for steps of both kinds in turn, Enriched methods for
    large-scale unconstrained optimization, Comput. Optim. Appl. 21 (2002).
    """

    pairs: int = eqx.field(static=True, default=20)
    secants: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_positive("pairs", self.pairs)

    def memory(self, size: int, dtype: Any, batches: bool = False) -> Pairs:
        """No pairs yet."""
        ring, no = jnp.zeros((self.pairs, size), dtype), jnp.zeros((), bool)
        steps = self.secants and not batches
        last = Visited(jnp.zeros(size, dtype), jnp.zeros(size, dtype), no, no) if steps else None
        return Pairs(ring, ring, jnp.zeros((), jnp.int32), last)

    def prepare(self, system: LinearSystem) -> Pairs | None:
        return system.memory

    def product(self, prepared: Pairs | None, system: LinearSystem, damping: Array) -> Product:
        if prepared is None:
            return lambda r: r
        directions, images = prepared.directions, prepared.images
        if system.free is not None:
            directions, images = directions * system.free, images * system.free
        damped = jax.vmap(system.damp)(directions)
        images = images + damping * damped
        hard = prepared.last is not None  # the newest pair is a step, not the softest direction
        return lambda r: _two_loops(directions, images, prepared.count, hard, r)


@eqx.filter_jit
def _two_loops(directions: Array, images: Array, count: Array, hard: bool, r: Array) -> Array:
    """The BFGS inverse of the pairs times r, by the two-loop recursion of Nocedal (1980)."""
    length, eps = len(directions), jnp.finfo(r.dtype).eps
    rows = (count - 1 - jnp.arange(length)) % length  # from the newest
    curvature = jnp.sum(directions * images, axis=1)
    sizes = jnp.linalg.norm(directions, axis=1) * jnp.linalg.norm(images, axis=1)
    usable = (curvature > eps * sizes) & (jnp.arange(length) < count)
    weight = jnp.where(usable, 1.0 / jnp.where(usable, curvature, 1.0), 0.0)

    def back(q: Array, row: Array) -> tuple[Array, Array]:
        alpha = weight[row] * (directions[row] @ q)
        return q - alpha * images[row], alpha

    q, alphas = jax.lax.scan(back, r, rows)
    newest = rows[0]
    squares = lambda x: jnp.sum(x[newest] ** 2)
    known = curvature[newest] / squares(images) if hard else squares(directions) * weight[newest]
    scale = jnp.where(usable[newest], known, 1.0)

    def forth(z: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        row, alpha = step
        return z + (alpha - weight[row] * (images[row] @ z)) * directions[row], None

    return jax.lax.scan(forth, scale * q, (rows[::-1], alphas[::-1]))[0]
