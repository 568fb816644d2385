"""W₂ at the starting point, discretised in two ways: which G is right, and why one is not."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from natgrad import Problem, Wasserstein, information_matrix
from natgrad.metrics import Metric

from ..appendix_b import CollocatedTransport
from ..mixtures import START, VARIANCE, cell_grid, isotropic, paper_grid, problem_on

PARITIES = ((0, 0), (0, 1), (1, 0), (1, 1))  # of the indices (i, j) counted from zero


@dataclass(frozen=True)
class TransportComparison:
    """G(5, 3) by both schemes, with what explains the difference."""

    collocated: np.ndarray
    parity: dict[str, float]
    coupling: float
    staggered: np.ndarray
    refinement: dict[int, np.ndarray]
    feasible_bound: np.ndarray

    def numbers(self) -> dict[str, object]:
        """The comparison as the results file has it."""
        return {
            "G_collocated": self.collocated,
            "G_xx_collocated_by_parity_of_ij_from_1": self.parity,
            "coupling_between_parities": self.coupling,
            "G_staggered": self.staggered,
            "G_staggered_by_cells_per_side": self.refinement,
            "upper_bound_from_a_feasible_field": self.feasible_bound,
            "upper_bound_for_any_mu": 0.2,
        }


def compare_schemes(points: int, refinement: tuple[int, ...]) -> TransportComparison:
    """Evaluate both metrics at (5, 3)."""
    grid = paper_grid(points)
    problem, metric = problem_on(grid), CollocatedTransport(grid)
    mu = jnp.array(START)
    blocks = np.asarray(_parity_blocks(problem, mu, metric))  # (4, 2, 4, 2)
    collocated = blocks.sum(axis=(0, 2))
    names = [f"i {_odd(i)}, j {_odd(j)}" for i, j in PARITIES]
    diagonal = [float(blocks[b, 0, b, 0]) for b in range(4)]
    off = [abs(blocks[b, 0, c, 0]) for b in range(4) for c in range(4) if b != c]
    by_cells = {
        n: np.asarray(information_matrix(_cells(n)[0], mu, metric=_cells(n)[1]))
        for n in sorted({*refinement, points})
    }
    return TransportComparison(
        collocated=collocated,
        parity=dict(zip(names, diagonal, strict=True)),
        coupling=float(max(off)),
        staggered=by_cells[points],
        refinement=by_cells,
        feasible_bound=np.asarray(_feasible_bound(mu)),
    )


def _odd(index: int) -> str:
    return "odd" if index % 2 == 0 else "even"  # counted from one, as in the paper


def _cells(n: int) -> tuple[Problem, Wasserstein]:
    grid = cell_grid(n)
    return problem_on(grid), Wasserstein(grid)


@eqx.filter_jit
def _parity_blocks(problem: Problem, mu: Array, metric: Metric) -> Array:
    """⟨L M_b ζᵢ, L M_c ζⱼ⟩ with M_b the restriction to one parity sublattice.

    Their sum over b and c is G. Blocks with b ≠ c vanish where BBᵀ does not couple the
    sublattices.
    """
    rho = problem.model(mu)
    columns = jnp.moveaxis(jax.jacfwd(problem.model)(mu), -1, 0)
    i, j = np.indices(rho.shape)
    masks = jnp.asarray(np.stack([(i % 2 == a) & (j % 2 == b) for a, b in PARITIES]), rho.dtype)
    parts = masks[:, None] * columns[None]
    L = metric.factor(rho)
    flat = jax.lax.map(lambda zeta: ravel_pytree(L.mv(zeta))[0], parts.reshape(-1, *rho.shape))
    return (flat @ flat.T).reshape(4, 2, 4, 2)


def _feasible_bound(mu: Array, points: int = 400) -> Array:
    """∫ (0.2 N_μ)²/ρ dx ≤ 0.2, an upper bound on both diagonal entries of W₂'s G on the plane.

    Moving μ along eᵢ is done by the flux 0.2 N_μ eᵢ, that is by v = 0.2 N_μ eᵢ/√ρ; W₂ takes the
    cheapest v.
    """
    grid = cell_grid(points)
    part = 0.2 * isotropic(grid.points, mu, VARIANCE)
    rho = part + 0.8 * isotropic(grid.points, jnp.array([4.0, 3.0]), VARIANCE)
    return grid.integral(part**2 / rho)
