"""The metrics on the values of the network on the grid: ours, and the authors'."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import (
    L2,
    Blocks,
    Euclidean,
    FactorMetric,
    FisherRao,
    Grid,
    HomogeneousSobolev,
    Metric,
    Sobolev,
    Wasserstein,
)
from natgrad.models.pointwise import Part, RowModel

from ..appendix_b import CollocatedSobolev, CollocatedTransport
from .clipped import Clipped
from .equation import Network, Points

LEAST = 0.1


def mean_part(grid: Grid) -> Metric:
    """⟨ζ, ζ⟩ = (∫ζ dx)²/|Ω|: the length in L² of the mean of ζ.

    Ḣ¹, Ḣ⁻¹ and W₂ do not see it. Left free, the mean of the network follows whatever the damping
    leaves of a gradient that a tiny eigenvalue divides, and a run stands still for long.
    """
    volume = grid.cell_volume * grid.size
    return FactorMetric(jnp.full((1, grid.size), grid.cell_volume / np.sqrt(volume)))


def our_metrics(grid: Grid) -> dict[str, Metric]:
    """On all points as cells, with zero flux at the boundary; the homogeneous ones see the mean.

    The values are used as they are, neither shifted nor normalised: the network starts near 3 and
    the solution lies in [1, 5]. On its way the network may go lower; values below `LEAST` count as
    `LEAST` in FR and W₂.
    """
    mean = mean_part(grid)
    return {
        "GD": Euclidean(),
        "L2": L2(grid),
        "FR": Clipped(FisherRao(grid), LEAST),
        "H1": Sobolev(grid, 1),
        "dotH1": HomogeneousSobolev(grid, 1) + mean,
        "Hm1": Sobolev(grid, -1),
        "dotHm1": HomogeneousSobolev(grid, -1) + mean,
        "W2": Clipped(Wasserstein(grid), LEAST) + mean,
    }


def authors_metrics(points: Points) -> dict[str, Metric]:
    """The operators of the authors' code, on a state with the blocks "inside" and "boundary".

    They are sums over points, without the volume of a cell. With C the central differences of the
    interior, zero outside, and L = CᵀC inside and the identity on the boundary: H¹ is I + L, Ḣ¹ is
    L, H⁻¹ and Ḣ⁻¹ are their inverses. W₂ is (Cᵀ diag(ρ, ρ) C)⁻¹ on a state that is the interior.
    """
    grid, count = points.inner_grid, len(points.boundary)
    per_point = 1 / grid.cell_volume
    edge = Grid(0.0, float(count), count)  # cells of volume 1
    pair = lambda inside, boundary: Blocks(inside=per_point * inside, boundary=boundary)
    return {
        "GD": Euclidean(),
        "L2": pair(L2(grid), L2()),
        "FR": pair(FisherRao(grid), FisherRao(edge)),
        "H1": pair(CollocatedSobolev(grid, 1), 2.0 * L2()),
        "dotH1": pair(CollocatedSobolev(grid, 1, homogeneous=True), L2()),
        "Hm1": pair(CollocatedSobolev(grid, -1), 0.5 * L2()),
        "dotHm1": pair(CollocatedSobolev(grid, -1, homogeneous=True), L2()),
        "W2": per_point * CollocatedTransport(grid),
    }


class InsideAndBoundary(RowModel):
    """The network on the interior, shaped as a grid, and on the boundary."""

    network: Network
    inside: Array  # of shape (n, n, 2)
    boundary: Array
    memory: int = 2**30

    def parts(self) -> dict[str, Part]:
        return {
            "inside": Part(self.network, self.inside.reshape(-1, 2)),
            "boundary": Part(self.network, self.boundary),
        }

    def shaped(self, arrays: dict[str, Array]) -> dict[str, Array]:
        shape = self.inside.shape[:-1]
        return {"inside": arrays["inside"].reshape(shape), "boundary": arrays["boundary"]}
