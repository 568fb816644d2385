"""The least-squares problem from a dense Z: Y = LZ or G = YᵀY, factorised."""

import dataclasses
import math
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import PyTree

from ..core.compiled import jit_forwarding
from ..core.dense import in_row_order
from ..core.outcomes import Counts
from ..parameters import find_free, flatten
from ..problem import differentiate_loss
from ..solvers.base import DenseSolver, InformationSolver, Solution
from .local import Local, Setup, measure_energy


class Factorised(Local):
    """A system that a `DenseSolver` has prepared.

    `triangle` is the F of D = FᵀF: the solver works in the coordinates Fη, where D is the identity.
    ρ and the columns of Z are kept where each column is a solve with a PDE, so that Zη costs none.
    """

    system: ClassVar[tuple[str, ...]] = (*Local.system, "prepared", "triangle")
    multiplies: ClassVar[bool] = False

    solver: DenseSolver
    prepared: Any
    triangle: Array | None
    rho: PyTree | None = None
    columns: PyTree | None = None
    products: ClassVar[None] = None

    def _solve(self, damping: Array) -> Solution:
        eta, info = self.solver.solve(self.prepared, damping)
        if self.triangle is not None:
            eta = solve_triangular(self.triangle, eta)
        motion = None
        if self.columns is not None:
            push = lambda Z: jnp.tensordot(eta.astype(Z.dtype), Z, 1)
            motion = jax.tree.map(push, self.columns)
        return Solution(eta.astype(self.gradient.dtype), info, motion)

    def factorise(self, damping: Array) -> "Factorised":
        return dataclasses.replace(self, prepared=self.solver.factorise(self.prepared, damping))

    def aim(self, image: PyTree, gradient: Array) -> "Factorised":
        dtype = self.trace.dtype  # that of Y
        b, g = ravel_pytree(image)[0], gradient
        if self.triangle is not None:
            g = to_coordinates(gradient, self.triangle)
        prepared = self.solver.aim(self.prepared, b.astype(dtype), g.astype(dtype))
        return dataclasses.replace(self, prepared=prepared)


class Dense(Factorised):
    """The system from the columns of Z."""

    @classmethod
    def prepare(cls, setup: Setup) -> "Dense":
        flat, unravel = flatten(setup.theta)
        rho, columns, counts = setup.problem.model.jacobian(unravel, flat, setup.known)
        return _assemble(dataclasses.replace(setup, known=None), rho, columns, counts)


@jit_forwarding
def _assemble(setup: Setup, rho: PyTree, columns: PyTree, counts: Counts) -> Dense:
    """The factorised least-squares problem, from ρ and the columns of Z."""
    flat, _ = flatten(setup.theta)
    metric, chooser = setup.metric, setup.solver
    assert metric is not None
    assert chooser is not None
    geometry = metric.at(rho)
    Zt = jax.vmap(lambda column: ravel_pytree(column)[0])(columns)
    # of another geometry, because what is made under eval_shape must not be kept
    whitened = jax.tree.leaves(jax.eval_shape(lambda rho: metric.at(rho).whiten(rho), rho))
    k = sum(math.prod(leaf.shape) for leaf in whitened)  # the rows of Y
    solver = cast(DenseSolver, chooser.choose(k, flat.size, setup.damping.damps))
    derivatives = differentiate_loss(setup.problem, setup.theta, rho)
    loss, c, direct = derivatives
    if c is None:
        assert direct is not None
        gradient, counts = direct, counts.plus(forward=1, adjoint=1)
        b, r = jnp.zeros(k, whitened[0].dtype), gradient
        energy = measure_energy(geometry, derivatives)
    else:
        gradient = Zt @ ravel_pytree(c)[0]
        b = ravel_pytree(geometry.whiten(c))[0]
        r = jnp.zeros(len(Zt), Zt.dtype)  # Zᵀ(c − Lᵀb)
        if geometry.annihilates:
            rest = ravel_pytree(geometry.remainder(c))[0]
            r = Zt @ rest
            # G† amplifies r by the square of the condition number: noise must not pass for signal
            noise = 4 * jnp.finfo(Zt.dtype).eps * jnp.sqrt(rest.size)
            r = jnp.where(jnp.abs(r) > noise * (jnp.abs(Zt) @ jnp.abs(rest)), r, 0.0)
        energy = measure_energy(geometry, derivatives, b, r)
        if direct is not None:
            gradient, r = gradient + direct, r + direct

    D, free = setup.damping.operator, None
    triangle = None if D is None else D.triangle()
    if setup.bounds is not None:
        free = find_free(flat, gradient, setup.bounds, loss)
        r, gradient = r * free, gradient * free
        triangle = None if triangle is None else restrict_triangle(triangle, free)
    if isinstance(solver, InformationSolver):
        G, report = geometry.information(columns)
        G = G if free is None else G * free * free[:, None]
        slope = gradient
        if triangle is not None:
            G = to_coordinates(to_coordinates(G, triangle).T, triangle)
            slope = to_coordinates(gradient, triangle)
        prepared, trace = solver.prepare_information(G, slope.astype(G.dtype), k), jnp.trace(G)
    else:
        Yt, report = geometry.image(columns)
        Yt = Yt if free is None else Yt * free[:, None]
        if triangle is not None:
            Yt, r = to_coordinates(Yt, triangle), to_coordinates(r, triangle)
        dtype = jnp.result_type(Yt, b, r)
        Yt, b, r = Yt.astype(dtype), b.astype(dtype), r.astype(dtype)
        prepared, trace = solver.prepare(Yt.T, b, r), jnp.sum(Yt**2)
    gradient = gradient.astype(flat.dtype)
    kept = setup.problem.model.solves
    return Dense(
        setup=setup,
        loss=loss,
        gradient=gradient,
        gradient_norm=jnp.linalg.norm(gradient),
        energy=energy,
        free=free,
        trace=trace,
        counts=counts.plus(),
        report=geometry.report() | report,
        solver=solver,
        prepared=prepared,
        triangle=triangle,
        rho=rho if kept else None,
        columns=columns if kept else None,
    )


def to_coordinates(rows: Array, triangle: Array) -> Array:
    """F⁻ᵀ rows, for the triangle F of D = FᵀF: in the coordinates Fη, D is the identity."""
    return solve_triangular(triangle, in_row_order(rows), trans="T")


def restrict_triangle(triangle: Array, free: Array) -> Array:
    """The triangle of D on the parameters that may move, of the identity on those held."""
    both = free[:, None] * free
    return jnp.linalg.cholesky(both * (triangle.T @ triangle) + jnp.diag(1 - free)).T
