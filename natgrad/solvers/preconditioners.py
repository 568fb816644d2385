"""Preconditioners for the matrix-free solvers: approximations of (G + λD)⁻¹ as products."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from ..core.compiled import each
from ..core.dense import accurate_product
from ..core.outcomes import Counts
from ..core.randomised import nystrom
from ..core.settings import Public, check_integer
from ..core.sparse import as_lineax_operator, is_scipy
from ..errors import InputError, name_kind
from .base import LinearSystem, Parts, System

Product = Callable[[Array], Array]


class Preconditioner(Public, eqx.Module):
    """M ≈ (G + λD)⁻¹, symmetric and positive definite; set up at θ, then applied for any λ."""

    uses: ClassVar[Parts] = ()  # what is needed of the metric besides what the solver uses

    def prepare(self, system: LinearSystem) -> tuple[Any, Counts]:
        """Everything that does not depend on λ, and the products with Z that it took."""
        return None, Counts()

    @abc.abstractmethod
    def product(self, prepared: Any, system: LinearSystem, damping: Array) -> Product:
        """r ↦ M r for this λ."""


class Diagonal(Preconditioner):
    """M = 1/(diag G + λ), with the diagonal estimated from m adjoint products.

    diag(YᵀY) is the mean of (Yᵀξ)² over random signs ξ. Each entry is a mean of squares, hence
    positive, with a relative standard deviation of at most √(2/m). It helps where parameters have
    different scales; a smoothing G (an inverse problem) has little in its diagonal.

    ```python
    ng.CG(preconditioner=ng.solvers.Diagonal(samples=16))
    ```

    Cost: m adjoint products a direction. Reference: Bekas, Kokiopoulou and Saad, Appl. Numer.
    Math. 57 (2007), for estimates of a diagonal.

    Args:
        samples: Number m of adjoint products.
        seed: Seed of the random signs.
    """

    uses: ClassVar[Parts] = ("factor",)

    samples: int = eqx.field(static=True, default=8)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_integer(self.samples, "samples", 1, example=8)

    def prepare(self, system: LinearSystem) -> tuple[Array, Counts]:
        if not isinstance(system, System) or system.factor is None:
            raise InputError("preconditioner", "Diagonal needs a factor Y", "Recycled or Nystrom")
        factor = system.factor

        def sample(key: Array) -> Array:
            leaves, treedef = jax.tree.flatten(factor.zero())
            keys = jax.random.split(key, len(leaves))
            signs = [
                jax.random.rademacher(key, leaf.shape, leaf.dtype)
                for key, leaf in zip(keys, leaves, strict=True)
            ]
            return system.pull(factor.rmv(jax.tree.unflatten(treedef, signs))) ** 2

        keys = jax.random.split(jax.random.key(self.seed), self.samples)
        return jnp.mean(each(sample, keys), axis=0), Counts(adjoint=self.samples)

    def product(self, prepared: Array, system: LinearSystem, damping: Array) -> Product:
        diagonal = prepared + damping
        floor = jnp.finfo(diagonal.dtype).eps * jnp.max(diagonal)
        scale = 1.0 / jnp.where(floor > 0, jnp.maximum(diagonal, floor), 1.0)
        return lambda r: scale * r


class Nystrom(Preconditioner):
    """M from the leading eigenpairs G ≈ UΛUᵀ of a randomised Nyström approximation.

    M = (λ_r + λ) U (Λ + λ)⁻¹ Uᵀ + I − UUᵀ, with λ_r the smallest eigenvalue kept: what is left to
    iterate on has about the condition number (λ_r + λ)/λ. It needs damping, and a rank near the
    number of eigenvalues above λ.

    ```python
    ng.CG(preconditioner=ng.solvers.Nystrom(rank=20))
    ```

    Cost: `rank` linearised and as many adjoint products a direction, and rank · p numbers.
    Reference: Frangella, Tropp and Udell, SIAM J. Matrix Anal. Appl. 44 (2023).

    Args:
        rank: Number of eigenpairs.
        seed: Seed of the random numbers.
    """

    rank: int = eqx.field(static=True, default=20)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_integer(self.rank, "rank", 1, example=8)

    def prepare(self, system: LinearSystem) -> tuple[tuple[Array, Array], Counts]:
        g, key = system.gradient, jax.random.key(self.seed)
        rank = min(self.rank, g.size)
        found = nystrom(lambda eta: system.information(eta)[1], g.size, rank, key, g.dtype)
        return found, Counts(linearised=rank, adjoint=rank)

    def product(
        self, prepared: tuple[Array, Array], system: LinearSystem, damping: Array
    ) -> Product:
        U, values = prepared
        # M stays positive definite where G is singular and there is no damping
        floor = jnp.finfo(values.dtype).eps ** jnp.where(damping > 0, 1.0, 0.5)
        shifted = jnp.maximum(values + damping, floor.astype(values.dtype) * values[0])
        weights = shifted[-1] / jnp.where(shifted > 0, shifted, 1.0) - 1.0
        weights = jnp.where(shifted > 0, weights, 0.0)
        return lambda r: r + accurate_product(U, weights * accurate_product(U.T, r))


class Given(Preconditioner):
    """M as a lineax operator on θ, an array: `preconditioner=operator` makes this of it."""

    operator: lx.AbstractLinearOperator

    def product(self, prepared: None, system: LinearSystem, damping: Array) -> Product:
        theta = self.operator.in_structure()

        def apply(r: Array) -> Array:
            product = self.operator.mv(r.reshape(theta.shape).astype(theta.dtype))
            return ravel_pytree(product)[0].astype(r.dtype)

        return apply


def as_preconditioner(value: Any) -> Preconditioner | None:
    """A preconditioner as it is; an operator M on θ, of lineax or of SciPy, wrapped."""
    if value is None or isinstance(value, Preconditioner):
        return value
    value = as_lineax_operator(value) if is_scipy(value) else value
    if not isinstance(value, lx.AbstractLinearOperator):
        raise InputError(
            "preconditioner",
            f"is {name_kind(value)}",
            "None, Recycled(), Diagonal(), Nystrom(), or a lineax operator near (G + λD)⁻¹",
        )
    return Given(value)


HELD, FEWEST, MOST = 512 * 2**20, 20, 200  # bytes for pairs, and how many there are then
LEVEL = 0.9  # the slope that may be left after a step, relative to the one before it


class Visit(NamedTuple):
    """Where an iteration was, and whether the step to it went as the pairs had told.

    `known` is whether it was anywhere yet. G is `share` times the Gauss–Newton matrix of the loss
    there, or nothing like it if that is 0.
    """

    theta: Array
    gradient: Array
    known: Array
    served: Array
    share: Array


class Pairs(NamedTuple):
    """The last directions d with their images Gd, as rows of two rings.

    `count` is how many there have ever been; the newest is in row `count` − 1 modulo the length.
    `last` is there where steps are recorded as well as the directions of conjugate gradients.
    """

    directions: Array
    images: Array
    count: Array
    last: Visit | None

    @partial(jax.jit, donate_argnums=0)
    def record(self, direction: Array, image: Array, usable: Array) -> "Pairs":
        """These pairs and, if it is usable, one more, which takes the place of the oldest.

        The rings are written where they lie: a caller who needs these pairs again copies them.
        """
        row, (directions, images) = self.count % len(self.directions), self[:2]
        return self._replace(
            directions=directions.at[row].set(jnp.where(usable, direction, directions[row])),
            images=images.at[row].set(jnp.where(usable, image, images[row])),
            count=self.count + usable,
        )

    def arrive(self, theta: Array, gradient: Array, share: Array) -> "Pairs":
        """These pairs and the secant of the step to θ, where steps are recorded.

        G is `share` times the Gauss–Newton matrix of the loss, or nothing like it if that is 0.
        """
        return self if self.last is None else _arrive(self, theta, gradient, share)

    def forget_step(self) -> "Pairs":
        """The same for another right-hand side, to which the last step says nothing."""
        if self.last is None:
            return self
        return self._replace(last=self.last._replace(served=jnp.zeros((), bool)))


@jax.jit
def _arrive(pairs: Pairs, theta: Array, gradient: Array, share: Array) -> Pairs:
    last = pairs.last
    assert last is not None
    gradient = gradient.astype(theta.dtype)
    step, change = theta - last.theta, gradient - last.gradient
    before, after = last.gradient @ step, gradient @ step
    rounding = jnp.finfo(theta.dtype).eps * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    share = share.astype(last.share.dtype)
    convex = last.known & (share > 0) & (step @ change > rounding)
    pairs = pairs.record(step, share * change, convex)
    served = convex & (jnp.abs(after) <= LEVEL * jnp.abs(before))
    return pairs._replace(last=Visit(theta, gradient, jnp.ones((), bool), served, share))


class Recycled(Preconditioner):
    """M from the pairs (d, Gd) that conjugate gradients met in earlier iterations of a run.

    G changes little from one iteration to the next, so its action on the last `pairs` directions
    is known before the first product: M is the inverse that the BFGS update builds from
    them, y = Gd + λDd, oldest first. It is exact on the directions of the last iteration, if G is
    the same. It starts from M₀ = ⟨d, d⟩/⟨d, y⟩ of the newest pair: conjugate gradients find the
    large eigenvalues first, so what is unknown is about as soft as the last direction found, and
    ⟨d, y⟩/⟨y, y⟩, usual in L-BFGS, is smaller. The default of `CG` in `ng.minimize`; there is
    nothing to recycle in a single direction.

    Where the metric is that of the loss, up to a factor, as `L2` for least squares, M also learns
    from every step s of the run, whose y is the change of ∂_θ f, and `CG` makes products only where
    M has not served: in the first iteration, and after a step that did not level the slope along
    it, |⟨∂_θ f₊, s⟩| ≤ 0.9 |⟨∂_θ f, s⟩|. The others take η = −M ∂_θ f ("recycled"), and a step
    costs no more than one of L-BFGS: it *is* one of L-BFGS, started and repaired by G, with
    M₀ = ⟨s, y⟩/⟨y, y⟩. With another metric such steps would leave its geometry for that of the
    loss. No step is recorded in mini-batches, as two gradients are then of two functions, nor for a
    `CG` with a tolerance, which every direction is to be solved to, nor for a model that factorises
    at each new θ, where a step costs more than its products, nor with `secants=False`.

    By default as many `pairs` are kept as fit into 512 MiB, from 20 to 200.

    ```python
    ng.CG(max_iterations=5, preconditioner=ng.solvers.Recycled(pairs=20, secants=False))
    ```

    Cost: no products with Z; 4 · pairs · p operations an iteration, 2 · pairs · p numbers.
    Reference: Morales and Nocedal, Automatic preconditioning by limited memory quasi-Newton
    updating, SIAM J. Optim. 10 (2000), and for steps of both kinds in turn, Enriched methods for
    large-scale unconstrained optimization, Comput. Optim. Appl. 21 (2002).

    Args:
        pairs: The most pairs that are kept; None for as many as fit.
        secants: Whether steps of the run are learnt from.
    """

    pairs: int | None = eqx.field(static=True, default=None)
    secants: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if self.pairs is not None:
            check_integer(self.pairs, "pairs", 1, example=8)

    def memory(self, size: int, dtype: DTypeLike, batches: bool = False) -> Pairs:
        """No pairs yet."""
        rows = self.pairs
        if rows is None:
            rows = HELD // (2 * size * jnp.dtype(dtype).itemsize)
            rows = min(max(rows, FEWEST), MOST)
        ring, no = jnp.zeros((rows, size), dtype), jnp.zeros((), bool)
        steps = self.secants and not batches
        zero, none = jnp.zeros(size, dtype), jnp.zeros((), dtype)
        last = Visit(zero, zero, no, no, none) if steps else None
        return Pairs(ring, jnp.zeros_like(ring), jnp.zeros((), jnp.int32), last)

    def product(self, prepared: None, system: LinearSystem, damping: Array) -> Product:
        pairs: Pairs | None = system.memory
        if pairs is None:
            return lambda r: r
        directions, images = system.mask(pairs.directions), system.mask(pairs.images)
        images = images + damping * jax.vmap(system.damp)(directions)
        # then the newest pair is a step, not the softest direction
        hard = jnp.zeros((), bool) if pairs.last is None else pairs.last.share > 0
        known = curvatures(directions, images, pairs.count)  # once for all products
        return lambda r: two_loops(directions, images, pairs.count, hard, r, known)


Known = tuple[Array, Array]  # ⟨d, Gd⟩ of all pairs, and which of them are there and convex


@jax.jit
def curvatures(directions: Array, images: Array, count: Array) -> Known:
    """⟨d, Gd⟩ of all pairs, and which of them are there and convex."""
    curvature = jnp.sum(directions * images, axis=1)
    sizes = jnp.linalg.norm(directions, axis=1) * jnp.linalg.norm(images, axis=1)
    convex = curvature > jnp.finfo(directions.dtype).eps * sizes
    return curvature, convex & (jnp.arange(len(directions)) < count)


@jax.jit
def two_loops(
    directions: Array,
    images: Array,
    count: Array,
    hard: Array | bool,
    r: Array,
    known: Known | None = None,
) -> Array:
    """The BFGS inverse of the pairs times r, by the two-loop recursion of Nocedal (1980).

    `known` are the `curvatures` of the pairs. A CPU takes the pairs that are there one after the
    other. On other devices each would be several programs to launch: they solve with the triangle
    of all ⟨d_i, Gd_j⟩ instead, the same in exact arithmetic (Byrd, Nocedal and Schnabel, Math.
    Program. 63, 1994).
    """
    curvature, usable = curvatures(directions, images, count) if known is None else known
    newest = (count - 1) % len(directions)
    weight = jnp.where(usable, 1.0 / jnp.where(usable, curvature, 1.0), 0.0)
    stiff = curvature[newest] / jnp.where(usable[newest], jnp.sum(images[newest] ** 2), 1.0)
    soft = jnp.sum(directions[newest] ** 2) * weight[newest]
    scale = jnp.where(usable[newest], jnp.where(hard, stiff, soft), 1.0)
    length, there = len(directions), jnp.minimum(count, len(directions))

    def pair_by_pair(directions: Array, images: Array) -> Array:
        def back(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            q, alphas = carry
            row = (newest - i) % length
            alpha = weight[row] * (directions[row] @ q)
            return q - alpha * images[row], alphas.at[row].set(alpha)

        q, alphas = jax.lax.fori_loop(0, there, back, (r, jnp.zeros_like(weight)))

        def forth(i: Array, z: Array) -> Array:
            row = (newest + 1 - there + i) % length
            return z + (alphas[row] - weight[row] * (images[row] @ z)) * directions[row]

        return jax.lax.fori_loop(0, there, forth, scale * q)

    def by_triangle(directions: Array, images: Array) -> Array:
        # Rα = Sr, z₀ = M₀(r − Yᵀα), Rᵀw = Dα − Yz₀, and z₀ + Sᵀw, with D the diagonal of R, the
        # upper triangle of SYᵀ, and the pairs as rows of S and Y, oldest first.
        order = (count + jnp.arange(length)) % length
        used = weight[order] > 0
        S = jnp.where(used[:, None], directions[order], 0.0)
        Y = jnp.where(used[:, None], images[order], 0.0)
        diagonal = 1.0 / jnp.where(used, weight[order], 1.0)
        R = jnp.triu(accurate_product(S, Y.T), 1) + jnp.diag(diagonal)
        alpha = jax.scipy.linalg.solve_triangular(R, accurate_product(S, r))
        z = scale * (r - accurate_product(alpha, Y))
        rest = diagonal * alpha - accurate_product(Y, z)
        w = jax.scipy.linalg.solve_triangular(R, rest, trans=1)
        return z + accurate_product(w, S)

    forms = {"cpu": pair_by_pair, "default": by_triangle}
    return jax.lax.platform_dependent(directions, images, **forms)
