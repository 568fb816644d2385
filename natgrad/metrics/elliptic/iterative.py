"""Solves of Kφ = ζ by preconditioned conjugate gradients: multigrid, or a sparse factorisation."""

import math
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax

from .divergence import (
    Divergence,
    Factor,
    Links,
    Solution,
    degrees,
    laplacian,
    nearest_links,
    pad_links,
)
from .multigrid import Hierarchy, build_hierarchy, call_isolated
from .sparse_direct import sparse_solve

Precision = Literal["double", "mixed", "single"]

# Right-hand sides are taken together up to this many cells in all: on a CPU what fits its cache,
# on an accelerator what fills it.
CELLS_AT_ONCE_ON_CPU, CELLS_AT_ONCE = 2**15, 2**23


class SparseInverse(eqx.Module):
    """A sparse direct solve on the host as a preconditioner: exact but for the contrast of K."""

    conductances: tuple[Array, ...]
    periodic: bool = eqx.field(static=True)
    on_host: ClassVar[bool] = True  # where all right-hand sides are solved for in one call

    def cycle(self, residual: Array) -> Array:
        """K⁺ residual."""
        return sparse_solve(self.conductances, residual, self.periodic).astype(residual.dtype)


class IterativeFactor(Factor):
    """K = BBᵀ, solved by conjugate gradients in difference form.

    `solve` returns K⁺ζ with the mass of ζ removed, and the mean of φ, in proportion to the diagonal
    of K, so that it is symmetric and leaves the tails of a density alone. Where the iteration ends
    short of the tolerance φ is NaN: a direction that is not one must not pass for one.
    """

    B: Divergence
    links: Links  # with a halo, divided by `scale`
    scale: Array
    alive: Array
    preconditioner: Hierarchy | SparseInverse
    tolerance: float = eqx.field(static=True)
    max_iterations: int = eqx.field(static=True)

    def solve(self, zeta: Array) -> Array:
        return self.solution(zeta).phi

    def solution(self, zeta: Array, tolerance: float | None = None) -> Solution:
        """φ with the iterations and the error of each right-hand side, some at a time."""
        tolerance = max(self.tolerance, tolerance or 0.0)
        dim = len(self.B.spacing)
        shape, lead = zeta.shape[zeta.ndim - dim :], zeta.shape[: zeta.ndim - dim]
        columns = zeta.reshape(-1, *shape)
        cells = CELLS_AT_ONCE_ON_CPU if jax.default_backend() == "cpu" else CELLS_AT_ONCE
        together = max(1, cells // math.prod(shape))
        if together >= len(columns) or self.preconditioner.on_host:
            found = self._solve_together(columns, tolerance)
        else:
            some = lambda stack: self._solve_together(stack, tolerance)
            found = _in_stacks(some, columns, together)
        return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), found)

    def _solve_together(self, zeta: Array, tolerance: float) -> Solution:
        dim, dtype = len(self.B.spacing), next(iter(self.links.values())).dtype
        axes = tuple(range(-dim, 0))
        share = degrees(self.links)
        share = share / jnp.sum(share)
        peak = jnp.max(jnp.abs(zeta), axes, keepdims=True)
        unit = (zeta / jnp.where(peak > 0, peak, 1.0)).astype(dtype)
        unit = unit - share * jnp.sum(unit, axes, keepdims=True)

        def product(phi: Array) -> Array:
            one = lambda links, phi: laplacian(links, phi, self.B.periodic)
            return call_isolated(self.alive, one, self.links, phi)

        @jax.jit  # so that it is traced once, for the solve and for its transpose
        def iterate(zeta: Array) -> tuple[Array, tuple[Array, ...]]:
            M, most = self.preconditioner.cycle, self.max_iterations
            found = preconditioned_cg(product, M, zeta, dim, tolerance, most)
            return found.phi, found[1:]

        # differentiable as the solution of a linear equation, not through the iteration
        solve = lambda _, zeta: iterate(zeta)
        phi, found = lax.custom_linear_solve(product, unit, solve, symmetric=True, has_aux=True)
        iterations, error, converged = found
        phi = phi - jnp.sum(share * phi, axes, keepdims=True)
        phi = jnp.where(converged.reshape(peak.shape), phi, jnp.nan)
        phi = phi.astype(zeta.dtype) * (peak / self.scale.astype(zeta.dtype))
        return Solution(phi, iterations, error, converged)


def iterative_factor(
    B: Divergence,
    preconditioner: Literal["multigrid", "sparse"],
    *,
    tolerance: float,
    precision: Precision = "double",
    max_iterations: int = 200,
) -> IterativeFactor:
    """K with its preconditioner set up.

    `precision="mixed"` runs the V-cycle in single precision and the iteration around it in that
    of the weights, "single" both in single, "double" both in that of the weights. A tolerance
    below what rounding allows is raised to that.
    """
    conductances, dtype = B.conductances, B.weights[0].dtype
    scale = jnp.max(jnp.stack([jnp.max(c) for c in conductances]))
    conductances = tuple(c / scale for c in conductances)
    outer = jnp.float32 if precision == "single" else dtype
    inner = dtype if precision == "double" else jnp.float32
    if preconditioner == "multigrid":
        coarse = [c.astype(inner) for c in conductances]
        M = build_hierarchy(coarse, B.spacing, B.periodic, jnp.dtype(inner))
    else:
        M = SparseInverse(conductances, B.periodic)
    links = pad_links(nearest_links([c.astype(outer) for c in conductances]), B.periodic)
    # Rounding φ alone leaves an error of 0.1 to 0.5 eps n in the energy norm, n cells on a side.
    attainable = 2 * float(jnp.finfo(outer).eps) * max(conductances[0].shape)
    alive = conductances[0].ravel()[0] >= 0
    tolerance = max(tolerance, attainable)
    return IterativeFactor(B, links, scale, alive, M, tolerance, max_iterations)


def _in_stacks(function: Callable[[Array], Solution], columns: Array, size: int) -> Solution:
    """`function` on stacks of `size` columns, the last one filled up with zeros."""
    count = -(-len(columns) // size)
    filler = jnp.zeros((count * size - len(columns), *columns.shape[1:]), columns.dtype)
    stacks = jnp.concatenate([columns, filler]).reshape(count, size, *columns.shape[1:])
    found = lax.map(function, stacks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: len(columns)], found)


class _State(NamedTuple):
    phi: Array
    residual: Array
    search: Array
    energy: Array  # ⟨r, Mr⟩ before the last update
    first: Array  # ⟨ζ, Mζ⟩
    iterations: Array
    nearly: Array  # the next residual should be small enough: see whether it truly is
    finished: Array
    count: Array


def preconditioned_cg(
    product: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    zeta: Array,
    dim: int,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    """φ with Kφ = ζ, ζ in the range of K; axes before the last `dim` are independent.

    Ends when ⟨r, Mr⟩ ≤ tolerance² ⟨ζ, Mζ⟩ for every right-hand side. With M ≈ K⁺ these are the
    squared energy norms of the error and of the solution, the ones in which a transport metric
    measures. Rounding can drive the updated residual to zero where ζ − Kφ is not small at all, so
    once the rate of convergence predicts the end, the residual is computed anew and has the last
    word. One more update follows, whose direction is there already: the error that is reported is
    an upper estimate.

    Cost: one product and one preconditioner per iteration, one product more at the end, and five
    vectors. Reference: Saad, Iterative Methods for Sparse Linear Systems (2003), ch. 9.
    """
    axes = tuple(range(-dim, 0))
    inner = lambda x, y: jnp.sum(x * y, axes, keepdims=True)
    squared = jnp.asarray(tolerance, zeta.dtype) ** 2

    def going(state: _State) -> Array:
        return (state.count < max_iterations) & ~jnp.all(state.finished)

    def iterate(state: _State) -> _State:
        anew = lambda: jnp.where(state.nearly, zeta - product(state.phi), state.residual)
        residual = lax.cond(jnp.any(state.nearly), anew, lambda: state.residual)
        z = precondition(residual)
        energy = inner(residual, z)
        first = jnp.where(state.count == 0, energy, state.first)
        rate = jnp.where(state.count == 0, 0.0, energy / _or_one(state.energy))
        search = z + rate * state.search
        image = product(search)
        curvature = inner(search, image)
        usable = ~state.finished & (curvature > 0)
        alpha = jnp.where(usable, energy / _or_one(curvature), 0.0)
        wanted = squared * first
        small = jnp.abs(energy) <= wanted
        expected = jnp.abs(energy) * jnp.minimum(jnp.abs(rate), 1.0)
        return _State(
            state.phi + alpha * search,
            residual - alpha * image,
            search,
            jnp.where(state.finished, state.energy, energy),
            first,
            state.iterations + ~state.finished,
            jnp.where(state.count == 0, energy == 0, expected <= wanted),
            state.finished | (state.nearly & small) | ~jnp.isfinite(energy),
            state.count + 1,
        )

    one = jnp.ones_like(inner(zeta, zeta))
    zeros, no = jnp.zeros_like(zeta), jnp.zeros(one.shape, bool)
    none = jnp.zeros(one.shape, jnp.int32)
    start = _State(zeros, zeta, zeros, one, one, none, no, no, jnp.zeros((), jnp.int32))
    end = lax.while_loop(going, iterate, start)
    error = jnp.sqrt(jnp.abs(end.energy) / _or_one(end.first))  # NaN if M is not positive
    converged = end.finished & (error <= tolerance)
    scalars = jax.tree.map(lambda x: jnp.squeeze(x, axes), (end.iterations, error, converged))
    return Solution(end.phi, *scalars)


def _or_one(x: Array) -> Array:
    return jnp.where(x == 0, 1.0, x)
