"""The transport equation −∇·(a∇φ) = ζ on a grid: its schemes, and how it is solved."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ...core.compiled import can_call_back
from ...errors import InputError
from ...grids import Grid
from ..base import Report, grid_axes
from .block_qr import block_qr, truncated_inverse
from .elimination import block_elimination
from .iterative import Precision, iterative_factor
from .line import LineFactor
from .sparse_direct import available_backend
from .stencils import (
    Factor,
    Solution,
    Stencil,
    cell_shape,
    collocated_central,
    collocated_forward,
    collocated_fourth_order,
    remove_null_component,
    staggered_neumann,
    staggered_periodic,
)

Method = Literal["line", "elimination", "sparse", "multigrid"]
METHODS = ("auto", *get_args(Method))

# Flops up to which elimination is the first choice: it compiles fast and is exact.
ELIMINATION_FLOPS = 1e8

TransportScheme = Literal["staggered", "collocated", "forward", "fourth_order"]
COLLOCATED = {
    "collocated": collocated_central,
    "forward": collocated_forward,
    "fourth_order": collocated_fourth_order,
}


@dataclass(frozen=True)
class Elliptic:
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
    ng.Wasserstein(grid, elliptic=ng.Elliptic("multigrid", precision="single"))
    ```
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
        if 10 / 3 * k * across**2 <= ELIMINATION_FLOPS:
            return "elimination"
        if columns is not None and self.on_host and _sparse_pays(shape, columns):
            return "sparse"
        return "multigrid"

    def factorise(
        self, method: Method, stencils: Sequence[Stencil], weights: Sequence[Array]
    ) -> Factor:
        """K = BBᵀ for staggered stencils, set up for `method`."""
        if method == "line":
            return LineFactor(tuple(stencils), tuple(weights))
        if method == "elimination":
            return factorise(stencils, weights, method="elimination")
        return iterative_factor(
            stencils,
            weights,
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


@dataclass(frozen=True)
class TransportEquation:
    """B v = −∇·(√a v) and K = BBᵀ for a mobility a on `grid`, in one of the schemes of `Mobility`.

    Static and hashable: a is always an argument.
    """

    grid: Grid
    scheme: TransportScheme
    elliptic: Elliptic

    def __post_init__(self):
        if self.scheme != "staggered" and self.scheme not in COLLOCATED:
            raise InputError(
                "scheme", f"{self.scheme!r} is unknown", f"one of {('staggered', *COLLOCATED)}"
            )
        if self.scheme == "staggered" and self.grid.boundary == "dirichlet":
            raise InputError(
                "grid",
                "transport conserves mass, so it needs a zero-flux or a periodic boundary",
                'Grid(..., boundary="neumann") or boundary="periodic"',
            )
        if self.scheme != "staggered" and self.grid.boundary == "periodic":
            raise InputError(
                "scheme",
                "the schemes of appendix B.1 take zero outside the grid, not periodic values",
                "a neumann or dirichlet grid, or scheme='staggered'",
            )
        if not isinstance(self.elliptic, Elliptic):
            raise InputError("elliptic", f"is {self.elliptic!r}", 'ng.Elliptic("multigrid")')
        if self.scheme != "staggered" and self.elliptic.method != "auto":
            raise InputError("elliptic", "is for the staggered scheme", "Elliptic()")
        self.elliptic.choose(self.grid.shape)

    @property
    def stencils(self) -> tuple[Stencil, ...]:
        """One difference stencil for each axis."""
        if self.scheme != "staggered":
            return tuple(COLLOCATED[self.scheme](h) for h in self.grid.spacing)
        if self.grid.boundary == "periodic":
            return tuple(staggered_periodic(h) for h in self.grid.spacing)
        return tuple(staggered_neumann(h) for h in self.grid.spacing)

    @property
    def annihilates(self) -> bool:
        """Whether some ζ has no flux: mass, or the mean of a sublattice without outflow."""
        odd_central = self.scheme in ("collocated", "fourth_order") and all(
            n % 2 for n in self.grid.shape
        )
        return self.scheme == "staggered" or odd_central

    def weights(self, a: Array) -> tuple[Array, ...]:
        """√a at the flux positions: on faces by the arithmetic mean, or at the points."""
        if self.scheme != "staggered":
            return (jnp.sqrt(a),) * self.grid.dimension
        return tuple(
            jnp.sqrt(_face_mean(a, axis, self.grid.boundary == "periodic"))
            for axis in grid_axes(self.grid)
        )

    def project(self, a: Array, zeta: Array) -> Array:
        """P ζ = ζ − a Σζ/Σa; the paper's schemes lose only the mean of a class without outflow."""
        if self.scheme != "staggered":
            return remove_null_component(self.stencils, zeta)
        return zeta - a * (jnp.sum(zeta) / jnp.sum(a))

    def project_transpose(self, a: Array, phi: Array) -> Array:
        """Pᵀφ = φ − Σ(aφ)/Σa."""
        if self.scheme != "staggered":
            return remove_null_component(self.stencils, phi)
        return phi - jnp.sum(a * phi) / jnp.sum(a)

    def method(self, columns: int | None = None) -> Method | None:
        """How the equation is solved; None for the schemes with a factorisation of their own."""
        if self.scheme != "staggered":
            return None
        return self.elliptic.choose(self.grid.shape, columns)

    def factor(self, method: Method | None, a: Array) -> Factor:
        """K at one a, set up."""
        if method is not None:
            return self.elliptic.factorise(method, self.stencils, self.weights(a))
        deficient = self.scheme == "fourth_order" and self.annihilates
        truncated = "truncated" if deficient else None
        return factorise(self.stencils, self.weights(a), method=truncated)


def map_densities(
    method: Method | None, function: Callable[..., PyTree], *batched: PyTree
) -> PyTree:
    """`function` for each density of a batch: side by side, or in turn where one fills the device.

    Side by side, an iteration would run on every density until the slowest has converged.
    """
    if jax.tree.leaves(batched)[0].shape[0] == 1:
        alone = jax.tree.map(lambda x: x[0], batched)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(*alone))
    if method in ("multigrid", "sparse"):
        return jax.lax.map(lambda arguments: function(*arguments), batched)
    return jax.vmap(function)(*batched)


def report_solution(method: Method | None, solution: Solution) -> Report:
    """What `info.metric` says of the elliptic solves."""
    if method is None:
        return {}
    if method not in ("multigrid", "sparse"):
        return {"elliptic": method}
    finite = jnp.all(jnp.isfinite(solution.error))
    return {
        "elliptic": method,
        "elliptic_iterations": jnp.max(solution.iterations),
        "elliptic_error": jnp.where(finite, jnp.max(solution.error), jnp.nan),
        "converged": jnp.all(solution.converged),
    }


def _face_mean(a: Array, axis: int, periodic: bool) -> Array:
    n = a.shape[axis]
    if periodic:
        return 0.5 * (a + jnp.roll(a, -1, axis))
    lower = jax.lax.slice_in_dim(a, 0, n - 1, axis=axis % a.ndim)
    upper = jax.lax.slice_in_dim(a, 1, n, axis=axis % a.ndim)
    return 0.5 * (lower + upper)


def factorise(
    stencils: Sequence[Stencil],
    weights: Sequence[Array],
    *,
    method: str | None = None,
    tolerance: float | None = None,
) -> Factor:
    """Factorise K = BBᵀ for weights s_i at the flux positions of axis i.

    `method` is "elimination" (two-point stencils only), "qr" or "truncated"; None takes the
    first of these that applies. `tolerance` is the relative truncation of "truncated", by
    default the rounding error times the number of cells.

    >>> factor = factorise((staggered_neumann(1.0),), (jnp.ones(2),))
    >>> [flux.round(5).tolist() for flux in factor.pseudo_inverse(jnp.array([1.0, 0.0, -1.0]))]
    [[-1.0, -1.0]]
    """
    stencils, weights = tuple(stencils), tuple(weights)
    cell_shape(stencils, weights)
    is_graph = all(s.is_two_point and (s.gap == 1 or not s.wrap) for s in stencils)
    if method is None:
        method = "elimination" if is_graph else "qr"
    if method == "elimination" and not is_graph:
        raise ValueError("elimination needs two-point stencils; use method='qr'")
    if method == "elimination":
        return block_elimination(stencils, weights)
    if method == "qr":
        return block_qr(stencils, weights)
    if method == "truncated":
        return truncated_inverse(stencils, weights, tolerance)
    raise ValueError(f"unknown method {method!r}: use 'elimination', 'qr' or 'truncated'")
