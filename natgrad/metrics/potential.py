"""Metrics that measure a tangent by its potential: transport and dual Sobolev norms.

‖ζ‖² = ⟨Sζ, φ⟩ with Kφ = Sζ, K = EᵀE. On a grid and on a mesh S, E and K are made differently, by
finite volumes and by finite elements; what follows from them is the same and is written here.
"""

import abc
import math
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array

from ..core.dense import accurate_product, gram
from ..core.operators import AdjointOperator
from .base import Geometry, Metric, PyTree, Report, positive_operator
from .elliptic.divergence import Fluxes, Solution
from .elliptic.equation import Elliptic, Method, report_solution
from .elliptic.iterative import CELLS_AT_ONCE

ChooseMethod = Callable[[int | None], Method]


class Inverse(Protocol):
    """K = EᵀE set up for solves; b, φ and the fluxes may have axes before those of the state."""

    def solve(self, zeta: Array) -> Array:
        """φ = K†b."""
        ...

    def flows(self, zeta: Array, tolerance: float | None = None) -> tuple[Fluxes, Solution]:
        """Eφ for φ = K†b, and that φ with the diagnosis of its solve."""
        ...

    def pseudo_inverse(self, zeta: Array) -> Fluxes:
        """E K†b."""
        ...

    def pseudo_inverse_transpose(self, fluxes: Fluxes) -> Array:
        """K†Eᵀv."""
        ...


class PotentialEquation(Protocol):
    """Kφ = Sζ at one function."""

    @property
    def factor(self) -> Inverse:
        """K."""
        ...

    def source(self, zeta: Array) -> Array:
        """Sζ, for one tangent."""
        ...

    def source_transpose(self, phi: Array) -> Array:
        """Sᵀφ."""
        ...


class PotentialMetric(Metric):
    """A metric with an elliptic equation to solve."""

    elliptic: eqx.AbstractVar[Elliptic]


class PotentialGeometry(Geometry):
    """L = E K†S and A = SᵀK†S, for each function of a batch.

    The equation is set up once for all products with L and with A. Many tangents at once come with
    a set-up of their own, which may depend on their number; it is made inside the loop over the
    functions, so that only one is held at a time.
    """

    metric: PotentialMetric
    whitens_shortest = True
    iterates_by: ClassVar[tuple[Method, ...]]  # the methods whose φ has an error worth squaring
    in_turn: ClassVar[bool]  # whether large functions are taken one after the other

    def __init__(self, metric: PotentialMetric, rho: Array, dimension: int, method: ChooseMethod):
        """The last `dimension` axes of ρ are one function.

        `method` says how the equation is solved, for a number of right-hand sides if it is known.
        """
        super().__init__(metric, rho)
        self.lead, self.method = rho.ndim - dimension, method

    @abc.abstractmethod
    def set_up(self, rho: Array, method: Method) -> PyTree:
        """What is worth keeping of the equation at one function: arrays only."""

    def equation(self, set_up: PyTree) -> PotentialEquation:
        """The equation at one function."""
        return set_up

    @cached_property
    def kept(self) -> PyTree:
        """What `set_up` gives at each function, for the products with L and with A."""
        method = self.method(None)
        return self.each(method, lambda rho: self.set_up(rho, method), self.rho)

    @cached_property
    def factor(self) -> lx.AbstractLinearOperator:
        method, set_up = self.method(None), self.kept

        def flows(set_up: PyTree, zeta: Array) -> Fluxes:
            equation = self.equation(set_up)
            return equation.factor.pseudo_inverse(equation.source(zeta))

        def transpose(set_up: PyTree, fluxes: Fluxes) -> Array:
            equation = self.equation(set_up)
            return equation.source_transpose(equation.factor.pseudo_inverse_transpose(fluxes))

        mv = lambda zeta: self.each(method, flows, set_up, zeta)
        rmv = lambda fluxes: self.each(method, transpose, set_up, fluxes)
        return AdjointOperator(mv, rmv, self.rho, jax.eval_shape(mv, self.rho))

    @cached_property
    def gram(self) -> lx.AbstractLinearOperator:
        method, set_up = self.method(None), self.kept

        def product(set_up: PyTree, zeta: Array) -> Array:
            equation = self.equation(set_up)
            return equation.source_transpose(equation.factor.solve(equation.source(zeta)))

        return positive_operator(lambda zeta: self.each(method, product, set_up, zeta), self.rho)

    def image(self, columns: Array) -> tuple[Array, Report]:
        p, method = len(columns), self.method(len(columns))

        def one(rho: Array, columns: Array) -> tuple[Fluxes, Solution]:
            equation = self.equation(self.set_up(rho, method))
            fluxes, solution = equation.factor.flows(jax.vmap(equation.source)(columns))
            return fluxes, solution._replace(phi=None)

        fluxes, solution = self.each(method, one, self.rho, jnp.moveaxis(columns, 0, self.lead))
        rows = [jnp.moveaxis(flux, self.lead, 0).reshape(p, -1) for flux in fluxes]
        return jnp.concatenate(rows, axis=1), report_solution(method, solution)

    def information(self, columns: Array) -> tuple[Array, Report]:
        """G = ΦᵀB + BᵀΦ − ΦᵀKΦ for the potentials Φ of B = SZ: second order in their error.

        With Φ = K†B + X the three terms leave −XᵀKX, so that an iteration stopped at 1e-6 gives G
        to 1e-12. Direct methods have no such error and take G = YᵀY.
        """
        p, method = len(columns), self.method(len(columns))
        if method not in self.iterates_by:
            return super().information(columns)
        tolerance = math.sqrt(self.metric.elliptic.tolerance)

        def one(rho: Array, columns: Array) -> tuple[Array, Solution]:
            equation = self.equation(self.set_up(rho, method))
            b = jax.vmap(equation.source)(columns)
            fluxes, solution = equation.factor.flows(b, tolerance)
            half = accurate_product(solution.phi.reshape(p, -1), b.reshape(p, -1).T)
            squares = sum(gram(flux.reshape(p, -1).T) for flux in fluxes)
            return half + half.T - squares, solution._replace(phi=None)

        G, solution = self.each(method, one, self.rho, jnp.moveaxis(columns, 0, self.lead))
        return jnp.sum(G.reshape(-1, p, p), axis=0), report_solution(method, solution)

    def each(self, method: Method, function: Callable[..., PyTree], *stacks: PyTree) -> PyTree:
        """`function` for each function of the batch and what belongs to it.

        Side by side, or where an iteration solves the equation, as many at once as fill an
        accelerator, and one after the other on a CPU: side by side every function is iterated on
        until the slowest has converged.
        """
        lead, batch = self.lead, self.rho.shape[: self.lead]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[lead:]), stacks)
        if math.prod(batch) == 1:
            found = function(*jax.tree.map(lambda x: x[0], flat))
            return jax.tree.map(lambda x: jnp.asarray(x).reshape(*batch, *jnp.shape(x)), found)
        if self.in_turn and method in self.iterates_by:
            largest = max(leaf[0].size for leaf in jax.tree.leaves(flat))
            some = None if jax.default_backend() == "cpu" else max(1, CELLS_AT_ONCE // largest)
            found = jax.lax.map(lambda arguments: function(*arguments), flat, batch_size=some)
        else:
            found = jax.vmap(function)(*flat)
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)
