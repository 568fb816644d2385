"""A preconditioner from the conjugate gradients of the iterations before."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from .preconditioners import Preconditioner, Product, check_positive
from .system import LinearSystem


class Pairs(NamedTuple):
    """The last directions d of conjugate gradients with their images Gd, as rows of two rings.

    `count` is how many there have ever been; the newest is in row `count` − 1 modulo the length.
    """

    directions: Array
    images: Array
    count: Array

    def record(self, direction: Array, image: Array) -> "Pairs":
        """These pairs and one more, which takes the place of the oldest."""
        row = self.count % len(self.directions)
        put = lambda ring, x: jax.lax.dynamic_update_index_in_dim(ring, x, row, 0)
        return Pairs(put(self.directions, direction), put(self.images, image), self.count + 1)


class Recycled(Preconditioner):
    """M from the pairs (d, Gd) that conjugate gradients met in earlier iterations of a run.

    G changes little from one iteration to the next, so its action on the last `pairs` directions
    is known before the first product: M is the inverse that the BFGS update builds from
    them, y = Gd + λDd, oldest first. It is exact on the directions of the last iteration, if G is
    the same. It starts from M₀ = ⟨d, d⟩/⟨d, y⟩ of the newest pair: conjugate gradients find the
    large eigenvalues first, so what is unknown is about as soft as the last direction found, and
    ⟨d, y⟩/⟨y, y⟩, usual in L-BFGS, is smaller. The default of `CG` in `ng.minimize`; there is
    nothing to recycle in a single direction.

    ```python
    ng.CG(max_iterations=5, preconditioner=ng.Recycled(pairs=20))
    ```

    Cost: no products with Z; 4 · pairs · p operations an iteration, 2 · pairs · p numbers.
    Reference: Morales and Nocedal, Automatic preconditioning by limited memory quasi-Newton
    updating, SIAM J. Optim. 10 (2000).
    """

    pairs: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        check_positive("pairs", self.pairs)

    def memory(self, size: int, dtype: Any) -> Pairs:
        """No pairs yet."""
        ring = jnp.zeros((self.pairs, size), dtype)
        return Pairs(ring, ring, jnp.zeros((), jnp.int32))

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
        return lambda r: _two_loops(directions, images, prepared.count, r)


@eqx.filter_jit
def _two_loops(directions: Array, images: Array, count: Array, r: Array) -> Array:
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
    squares = jnp.sum(directions[newest] ** 2)
    scale = jnp.where(usable[newest], squares * weight[newest], 1.0)

    def forth(z: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        row, alpha = step
        return z + (alpha - weight[row] * (images[row] @ z)) * directions[row], None

    return jax.lax.scan(forth, scale * q, (rows[::-1], alphas[::-1]))[0]
