"""The transport equation −∇·(a∇φ) = ζ on a grid, and how it is solved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ...core.compiled import can_call_back
from ...core.settings import Public
from ...errors import InputError
from ...grids import Grid
from ..base import Report, grid_axes
from .divergence import Divergence, Factor, Solution
from .elimination import EliminationFactor, eliminate
from .iterative import Precision, iterative_factor
from .line import LineFactor
from .sparse_direct import available_backend

Method = Literal["line", "elimination", "sparse", "multigrid"]
METHODS = ("auto", *get_args(Method))

# Flops up to which elimination is the first choice: it compiles fast and is exact. On a GPU its
# steps are launched one after the other, and multigrid is faster on all but the smallest grids
# (benchmarks/bench_direction.py).
ELIMINATION_FLOPS, ELIMINATION_FLOPS_ON_GPU = 1e8, 1e6


@dataclass(frozen=True)
class Elliptic(Public):
    """The solver of the elliptic equation under a transport metric, for k cells.

    | method | set-up | each right-hand side | for |
    |---|---|---|---|
    | `"line"` | none | O(k), by cumulative sums | one dimension |
    | `"elimination"` | O(k b²), b cells across | O(k b) | small grids, any contrast |
    | `"sparse"` | O(k^1.5) on the host | O(k log k) | many right-hand sides in 2D, on a CPU |
    | `"multigrid"` | O(k) | O(k), 5 to 15 iterations | everything else |

    `"auto"` chooses by dimension, size, device and the number of right-hand sides, where that is
    known; `info.metric["elliptic"]` says which.

    `tolerance` is the relative error of G: products with L are solved to it, a dense G (solver
    `Cholesky`) only to its square root, because there the error enters squared. It is raised to
    what rounding of φ allows, about n·eps for n cells on a side. More than `max_iterations` is a
    failure: φ, and with it η, is NaN, and `info.status` is "metric_not_converged".

    `precision="mixed"` runs the multigrid cycles in single precision inside an iteration in that
    of the state: as accurate and up to 1.5 times faster, but it does not converge where mass has
    to cross a near-vacuum between islands of density. `"single"` runs both in single precision,
    for errors of G near 1e-9.

    `on_host=False` keeps `"auto"` from factorising on the host, as over several devices.

    ```python
    ng.Wasserstein(grid, elliptic=ng.metrics.Elliptic("multigrid", precision="single"))
    ```

    Args:
        method: One of the table, or "auto".
        tolerance: Relative error of G.
        precision: "double", "mixed" or "single".
        max_iterations: The most iterations of one solve.
        on_host: Whether "auto" may factorise on the host.
    """

    method: Literal["auto"] | Method = "auto"
    tolerance: float = 1e-12
    precision: Precision = "double"
    max_iterations: int = 200
    on_host: bool = True

    def __post_init__(self):
        if self.method not in METHODS:
            raise InputError("method", f"{self.method!r} is unknown", f"one of {METHODS}")
        if self.precision not in ("double", "mixed", "single"):
            raise InputError(
                "precision", f"{self.precision!r} is unknown", "'double', 'mixed' or 'single'"
            )
        if not 0 < self.tolerance < 1:
            raise InputError("tolerance", f"{self.tolerance!r} is not in (0, 1)", "1e-12")
        if not self.max_iterations >= 1:
            raise InputError("max_iterations", f"{self.max_iterations!r} is below 1", "200")

    def choose(self, shape: Sequence[int], columns: int | None = None) -> Method:
        """The method for a grid of this shape, and `columns` right-hand sides if known."""
        if self.method == "line" and len(shape) > 1:
            raise InputError("method", "'line' is for one dimension", "'multigrid'")
        if self.method == "sparse" and not can_call_back():
            raise InputError("method", "'sparse' needs a second CPU for the host", "'multigrid'")
        if self.method != "auto":
            return self.method
        if len(shape) == 1:
            return "line"
        k = math.prod(shape)
        across = k // max(shape)
        few = ELIMINATION_FLOPS_ON_GPU if jax.default_backend() == "gpu" else ELIMINATION_FLOPS
        if 10 / 3 * k * across**2 <= few:
            return "elimination"
        if columns is not None and self.on_host and _sparse_pays(shape, columns):
            return "sparse"
        return "multigrid"

    def factorise(self, method: Method, B: Divergence) -> Factor:
        """K = BBᵀ set up for `method`."""
        if method == "line":
            return LineFactor(B)
        if method == "elimination":
            inverse = eliminate(B.conductances, (B.periodic,) * len(B.spacing))
            return EliminationFactor(B, inverse)
        return iterative_factor(
            B,
            method,
            tolerance=self.tolerance,
            precision=self.precision,
            max_iterations=self.max_iterations,
        )


def _sparse_pays(shape: Sequence[int], columns: int) -> bool:
    """A rule of thumb: one factorisation costs as much as some tens of multigrid solves."""
    if jax.default_backend() != "cpu" or len(shape) > 2 or not can_call_back():
        return False
    return columns >= (16 if available_backend() == "cholmod" else 48) and max(shape) <= 600


class TransportEquation(eqx.Module):
    """Kφ = √w Pζ at one mobility a: K = BBᵀ is −∇·(a∇φ), w the cell volume.

    Pζ = ζ − a Σζ/Σa removes the mass of ζ along a, because transport conserves mass.
    """

    a: Array
    factor: Factor
    root: float = eqx.field(static=True)  # √w

    def source(self, zeta: Array) -> Array:
        """√w Pζ."""
        return self.root * (zeta - self.a * (jnp.sum(zeta) / jnp.sum(self.a)))

    def source_transpose(self, phi: Array) -> Array:
        """√w Pᵀφ, with Pᵀφ = φ − Σ(aφ)/Σa."""
        return self.root * (phi - jnp.sum(self.a * phi) / jnp.sum(self.a))


def divergence_at(grid: Grid, a: Array) -> Divergence:
    """B v = −∇·(√a v), with the arithmetic mean of a on faces; a may have batch axes in front."""
    periodic = grid.boundary == "periodic"

    def mean(axis: int) -> Array:
        if periodic:
            return 0.5 * (a + jnp.roll(a, -1, axis))
        n, place = a.shape[axis], axis % a.ndim
        lower = jax.lax.slice_in_dim(a, 0, n - 1, axis=place)
        return 0.5 * (lower + jax.lax.slice_in_dim(a, 1, n, axis=place))

    weights = tuple(jnp.sqrt(mean(axis)) for axis in grid_axes(grid))
    return Divergence(weights, grid.spacing, periodic)


def report_solution(method: Method, solution: Solution) -> Report:
    """What `info.metric` says of the elliptic solves."""
    if method not in ("multigrid", "sparse"):
        return {"elliptic": method}
    finite = jnp.all(jnp.isfinite(solution.error))
    return {
        "elliptic": method,
        "elliptic_iterations": jnp.max(solution.iterations),
        "elliptic_error": jnp.where(finite, jnp.max(solution.error), jnp.nan),
        "converged": jnp.all(solution.converged),
    }
