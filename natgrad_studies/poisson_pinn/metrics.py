"""The metrics on the values of the network on the grid: ours, and the authors'."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.models import Part, RowModel

from .. import methods as shared
from ..appendix_b import CollocatedSobolev, CollocatedTransport

LEAST = 0.1


class ClippedMetric(ng.metrics.Metric):
    """g at max(ρ, least), defined for every ρ.

    A network that is to become positive need not be so on its way. Where only positive values are
    admissible a line search walks up to the first zero and stays there: every further step is cut
    to nothing by one point. Here values below `least` count as `least` in the metric, and the steps
    are free.
    """

    metric: ng.metrics.Metric
    least: float

    def at(self, rho: Array) -> ng.metrics.Geometry:
        return _ClippedGeometry(self, rho)

    def restricted(self, selection: Any) -> ng.metrics.Metric:
        return ClippedMetric(self.metric.restricted(selection), self.least)

    def check_structure(self, state: Any) -> None:
        self.metric.check_structure(state)


class _ClippedGeometry(ng.metrics.WrappedGeometry):
    """That at the raised values, with the share of them that were."""

    metric: ClippedMetric

    def __init__(self, metric: ClippedMetric, rho: Array):
        least = jnp.asarray(metric.least, rho.dtype)
        super().__init__(metric, rho, metric.metric.at(jnp.maximum(rho, least)))
        self.whitens_shortest = self.inner.whitens_shortest

    def report(self) -> Any:
        raised = jnp.mean((self.rho < self.metric.least).astype(self.rho.dtype))
        return {**self.inner.report(), "clipped": raised}


def mean_part(grid: ng.Grid) -> ng.metrics.Metric:
    """⟨ζ, ζ⟩ = (∫ζ dx)²/|Ω|: the length in L² of the mean of ζ.

    Ḣ¹, Ḣ⁻¹ and W₂ do not see it. Left free, the mean of the network follows whatever the damping
    leaves of a gradient that a tiny eigenvalue divides, and a run stands still for long.
    """
    volume = grid.cell_volume * grid.size
    return ng.FactorMetric(jnp.full((1, grid.size), grid.cell_volume / np.sqrt(volume)))


def our_metrics(grid: ng.Grid) -> dict[str, ng.metrics.Metric | None]:
    """On all points as cells, with zero flux at the boundary; the homogeneous ones see the mean.

    The values are used as they are, neither shifted nor normalised: the network starts near 3 and
    the solution lies in [1, 5]. On its way the network may go lower; values below `LEAST` count as
    `LEAST` in FR and W₂.
    """
    mean, known = mean_part(grid), {key: make(grid) for key, make in shared.METRICS.items()}
    return {
        "GD": None,
        **known,
        "FR": ClippedMetric(known["FR"], LEAST),
        "dotH1": known["dotH1"] + mean,
        "dotHm1": known["dotHm1"] + mean,
        "W2": ClippedMetric(known["W2"], LEAST) + mean,
    }


def authors_metrics(grid: ng.Grid, count: int) -> dict[str, ng.metrics.Metric | None]:
    """The operators of the authors' code, on a state with the blocks "inside" and "boundary".

    The inside is a grid of nodes with zero around it; `count` are the points of the boundary.

    They are sums over points, without the volume of a cell. With C the central differences of the
    interior, zero outside, and L = CᵀC inside and the identity on the boundary: H¹ is I + L, Ḣ¹ is
    L, H⁻¹ and Ḣ⁻¹ are their inverses. W₂ is (Cᵀ diag(ρ, ρ) C)⁻¹ on a state that is the interior.
    """
    per_point = 1 / grid.cell_volume
    edge = ng.Grid(0.0, float(count), count)  # cells of volume 1
    pair = lambda inside, boundary: ng.Blocks(inside=per_point * inside, boundary=boundary)
    return {
        "GD": None,
        "L2": pair(ng.L2(grid), ng.L2()),
        "FR": pair(ng.FisherRao(grid), ng.FisherRao(edge)),
        "H1": pair(CollocatedSobolev(grid, 1), 2.0 * ng.L2()),
        "dotH1": pair(CollocatedSobolev(grid, 1, homogeneous=True), ng.L2()),
        "Hm1": pair(CollocatedSobolev(grid, -1), 0.5 * ng.L2()),
        "dotHm1": pair(CollocatedSobolev(grid, -1, homogeneous=True), ng.L2()),
        "W2": per_point * CollocatedTransport(grid),
    }


class InsideAndBoundary(RowModel):
    """The network on the interior, shaped as a grid, and on the boundary."""

    network: Callable[[Any, Array], Array]
    inside: Array  # of shape (n, n, 2)
    boundary: Array
    memory: int = 2**30

    def parts(self) -> dict[str, Part]:
        return {
            "inside": Part(self.network, self.inside.reshape(-1, 2)),
            "boundary": Part(self.network, self.boundary),
        }

    def as_state(self, arrays: dict[str, Array]) -> dict[str, Array]:
        shape = self.inside.shape[:-1]
        return {"inside": arrays["inside"].reshape(shape), "boundary": arrays["boundary"]}
