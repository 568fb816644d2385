"""The kernel form, for more parameters than data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve

from ..core.dense import (
    accurate_product,
    factor_damped,
    gram_outer,
    rank_tolerance,
    solve_and_estimate,
)
from ..core.randomised import from_sketch, orthonormalise
from ..core.settings import check_integer
from .base import DenseSolver, SolveInfo


class _Dual(NamedTuple):
    Y: Any  # an array, or what has its shape, dtype, `Y @ v` and `Y.T @ u`
    K: Array
    b: Array
    r: Array | None
    factor: tuple[Array, Array] | None = None  # of K + λI for one λ, and whether it holds
    aimed: bool = False  # then a diagnosis has been made


class Kernel(DenseSolver):
    """η = −Yᵀ(YYᵀ + λI)⁻¹ b: the same direction from a k × k matrix, cheaper for p > k.

    The part r that b leaves over is added as (G + λI)⁻¹r = (r − Yᵀ(K + λI)⁻¹Yr)/λ, or as
    Yᵀ(K†)²Yr without damping; the first form cancels, and loses about as many digits of that part
    as λ is orders of magnitude below K. If K + λI is numerically singular its eigenvalues give the
    minimum-norm solution, and `info.status` says "rank_deficient".

    Cost: pk² (symmetric product) + k³/3. Reference: the push-through identity.
    """

    def prepare(self, Y: Array, b: Array, r: Array | None) -> _Dual:
        return _Dual(Y, gram_outer(Y), b, r)

    def prepare_kernel(self, Y: Any, K: Array, b: Array, r: Array | None) -> _Dual:
        """As `prepare`, from K = YYᵀ and a Y of which only products are there; r is 0 if None."""
        return _Dual(Y, K, b, r)

    def aim(self, prepared: _Dual, b: Array, g: Array) -> _Dual:
        return prepared._replace(b=b, r=None, aimed=prepared.factor is not None)

    def factorise(self, prepared: _Dual, damping: Array) -> _Dual:
        tolerance = rank_tolerance(prepared.Y)
        return prepared._replace(factor=factor_damped(prepared.K, damping, tolerance))

    def solve(self, prepared: _Dual, damping: Array) -> tuple[Array, SolveInfo]:
        if prepared.factor is None:
            prepared = self.factorise(prepared, damping)
        assert prepared.factor is not None
        Y, K, b, r, _, aimed = prepared
        factor, ok = prepared.factor
        k, p = Y.shape
        shifted = K + damping * jnp.eye(k, dtype=K.dtype)
        tolerance = rank_tolerance(Y)
        columns = jnp.stack([b] if r is None else [b, Y @ r], axis=1)

        def combine(found: Array, again: Callable[[Array], Array]) -> Array:
            """η from K⁻¹b, K⁻¹Yr and K⁻²Yr, with the damped K: one product with Yᵀ for all."""
            if r is None:
                return -transposed_product(Y, found[:, 0])
            inside, lifted = found.T
            twice = jax.lax.cond(damping > 0, jnp.zeros_like, again, lifted)
            divisor = jnp.where(damping > 0, damping, 1.0)
            beside = jnp.where(damping > 0, r / divisor, 0.0)
            through = inside + jnp.where(damping > 0, -lifted / divisor, twice)
            return -transposed_product(Y, through) - beside

        def regular(_: None) -> tuple[Array, ...]:
            again = lambda x: cho_solve((factor, True), x)
            if aimed:
                found, condition = again(columns), jnp.full((), jnp.nan, K.dtype)
            else:
                found, condition = solve_and_estimate(factor.T, columns)
            seen = jnp.sum(jnp.any(shifted != 0, axis=0))
            return combine(found, again), seen, condition, (seen < p) & (damping == 0)

        def deficient(_: None) -> tuple[Array, ...]:
            values, vectors = jnp.linalg.eigh(shifted)
            kept = values > tolerance * values[-1]
            inverse = jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0)
            again = lambda x: vectors @ (inverse * (vectors.T @ x).T).T
            smallest, rank = jnp.min(jnp.where(kept, values, jnp.inf)), jnp.sum(kept)
            return combine(again(columns), again), rank, jnp.sqrt(values[-1] / smallest), rank < p

        eta, *seen = jax.lax.cond(ok, regular, deficient, None)
        return eta, SolveInfo(*seen)


def transposed_product(Y: Any, v: Array) -> Array:
    """Yᵀv; for an array as v Y, which reads it by rows."""
    return v @ Y if isinstance(Y, Array) else Y.T @ v


class _Sketch(NamedTuple):
    Y: Array
    vectors: Array  # U, orthonormal columns
    values: Array  # Λ, falling
    b: Array
    r: Array


class NystromKernel(DenseSolver):
    """η = −Yᵀ(K̂ + λI)⁻¹ b with K̂ = UΛUᵀ ≈ YYᵀ from `rank` random combinations of its columns.

    What K̂ does not see is divided by its smallest eigenvalue λ_r as well as by λ, so that a λ far
    below the rest of the spectrum shortens the step there instead of blowing it up:

        (K̂ + λI)⁻¹ → U(Λ + λ)⁻¹Uᵀ + (I − UUᵀ)/(λ_r + λ).

    For redrawn batches, where an exact direction of a sample is worth less than many
    samples; exact for `rank` ≥ k. `info.truncation` is √(λ_r/λ₁).

    ```python
    ng.NaturalGradient(metric, solver=ng.NystromKernel(rank=200), damping=1e-8)
    ```

    Cost: 4kp·rank, against k²p of `Kernel`, and 10k·rank². Reference: Frangella, Tropp and Udell,
    SIAM J. Matrix Anal. Appl. 44 (2023); for physics-informed networks Guzmán-Cordero et al.,
    arXiv:2505.12149.

    Args:
        rank: Number of random combinations.
        seed: Seed of the random numbers.
    """

    rank: int = eqx.field(static=True)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_integer(self.rank, "rank", 1)
        check_integer(self.seed, "seed", 0)

    def prepare(self, Y: Array, b: Array, r: Array) -> _Sketch:
        k = len(Y)
        rank = min(self.rank, k)
        key = jax.random.key(self.seed)
        sketch = orthonormalise(jax.random.normal(key, (rank, k), Y.dtype))
        images = accurate_product(accurate_product(sketch, Y), Y.T)
        vectors, values = from_sketch(sketch, images)
        return _Sketch(Y, vectors, values, b, r)

    def aim(self, prepared: _Sketch, b: Array, g: Array) -> _Sketch:
        return prepared._replace(b=b, r=jnp.zeros_like(g))

    def solve(self, prepared: _Sketch, damping: Array) -> tuple[Array, SolveInfo]:
        Y, U, values, b, r = prepared
        kept = values > rank_tolerance(Y) * values[0]
        smallest = jnp.min(jnp.where(kept, values, jnp.inf))
        shifted = jnp.where(kept, values, smallest) + damping
        # without damping and with all of the spectrum there is nothing beside it
        beside = jnp.where(jnp.all(kept) & (len(values) < len(Y)) | (damping > 0), 1.0, 0.0)
        rest = beside / (smallest + damping)
        inverse = jnp.where(kept, 1.0 / shifted, rest)

        def apply(x: Array) -> Array:
            inside = accurate_product(U.T, x)
            return accurate_product(U, inverse * inside) + rest * (x - accurate_product(U, inside))

        # r through Y: −Yr/λ, or (YYᵀ)†Yr without damping
        image, divisor = accurate_product(Y, r), jnp.where(damping > 0, damping, 1.0)
        b = b + jnp.where(damping > 0, -image / divisor, apply(image))
        eta = -accurate_product(Y.T, apply(b)) - jnp.where(damping > 0, r / divisor, 0.0)
        rank = jnp.sum(kept)
        condition = jnp.sqrt((values[0] + damping) / (smallest + damping))
        truncation = jnp.sqrt(smallest / values[0])
        deficient = (rank < len(r)) & (damping == 0)
        return eta, SolveInfo(rank, condition, deficient, truncation=truncation)
