"""Inverses of diagonally dominant matrices without a subtraction, accurate in every entry."""

import jax.numpy as jnp
from jax import Array, lax

from ...core.dense import accurate_product

# Blocks up to this size are inverted pivot by pivot, larger ones by halves: smaller leaves run
# no faster and take longer to compile, larger ones spend their time in rank-one updates.
LEAF_SIZE = 32


def dominant_factor(links: Array, excess: Array) -> tuple[Array, Array]:
    """(J, p) with S⁻¹ = J diag(p) Jᵀ for S = diag(C1 + e) − C, C the links and e the excess.

    C is symmetric and nonnegative (its diagonal is ignored), e ≥ 0 joins a cell to what lies
    outside. Eliminating the first half of the cells turns the rest into a matrix of the same
    kind, with H = S₁₁⁻¹C₁₂,

        C₂₂ + C₂₁H,     e₂ + Hᵀe₁,     J₁₂ = H J₂₂,

    so with diagonals always recomputed from C and e there are only sums, products and quotients
    of nonnegative numbers: every entry is accurate, whatever the condition number. J is unit
    upper triangular with entries in [0, 1] (probabilities of a walk), which is what keeps a solve
    accurate where S⁻¹ is a huge constant plus something small: never multiply by S⁻¹ itself.
    A cell with no links or excess left has pivot 0 and gets p = 0, as in a pseudo-inverse.

    >>> J, p = dominant_factor(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.array([1.0, 0.0]))
    >>> J.tolist(), p.tolist()
    ([[1.0, 0.5], [0.0, 1.0]], [0.5, 2.0])

    Cost: (4/3)b³ flops for b cells, nearly all in matrix products. Reference: Grassmann, Taksar
    and Heyman (1985); Alfa, Xue and Ye, Math. Comp. 71 (2002).
    """
    size = excess.shape[0]
    if size <= LEAF_SIZE:
        return _dominant_factor_by_pivots(links, excess)
    half = size // 2
    across = links[:half, half:]
    first, p_first = dominant_factor(links[:half, :half], excess[:half] + jnp.sum(across, axis=1))
    harmonic = accurate_product(first * p_first, accurate_product(first.T, across))
    second, p_second = dominant_factor(
        links[half:, half:] + accurate_product(across.T, harmonic),
        excess[half:] + accurate_product(excess[:half], harmonic),
    )
    zeros = jnp.zeros((size - half, half), second.dtype)
    J = jnp.block([[first, accurate_product(harmonic, second)], [zeros, second]])
    return J, jnp.concatenate([p_first, p_second])


def _dominant_factor_by_pivots(links: Array, excess: Array) -> tuple[Array, Array]:
    """The same pivot by pivot. Above the diagonal, columns up to the pivot hold J, the later ones
    the hitting probabilities of eliminated cells and the links among the remaining ones."""
    size = excess.shape[0]
    index = jnp.arange(size)

    def eliminate(pivot, state):
        table, excess, inverses = state
        ahead = jnp.where(index > pivot, table[pivot], 0.0)
        total = excess[pivot] + jnp.sum(ahead)
        inverse = jnp.where(total > 0.0, 1.0 / jnp.where(total > 0.0, total, 1.0), 0.0)
        here = index == pivot
        reached = ahead * inverse
        table = jnp.where(here[:, None], reached, table + table[:, pivot][:, None] * reached)
        return table, excess + reached * excess[pivot], jnp.where(here, inverse, inverses)

    start = (links, excess, jnp.zeros_like(excess))
    table, _, inverses = lax.fori_loop(0, size, eliminate, start)
    return jnp.triu(table, 1) + jnp.eye(size, dtype=table.dtype), inverses
