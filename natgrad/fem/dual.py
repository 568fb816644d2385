"""Metrics that measure a tangent by the potential it has: H⁻¹, Ḣ⁻¹ and W₂."""

import abc
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.sharding import Mesh

from ..core.dense import accurate_product, gram
from ..core.operators import AdjointOperator
from ..metrics.base import POSITIVE, Metric, PyTree, Report, on_one_host
from ..metrics.elliptic.equation import Elliptic, report_solution
from ..metrics.elliptic.stencils import Solution
from .equation import Energy, chosen, mass_solve
from .space import Space


class DualMetric(Metric):
    """‖ζ‖² = ∫ ζφ dx with EᵀE φ = M P ζ, so L = E (EᵀE)† M P, A = PᵀM (EᵀE)† M P.

    Pζ = ζ − ρ̂ ∫ζ dx / ∫ρ̂ dx removes the mass of a tangent along a carrier ρ̂, where the constants
    have no energy; else P = I. A covector is whitened by E M⁻¹c: LᵀE M⁻¹c = PᵀM M⁻¹c = Pᵀc,
    because what EᵀE annihilates, the constant, Pᵀ M annihilates too.
    """

    space: Space
    elliptic: Elliptic = eqx.field(static=True)

    @abc.abstractmethod
    def energy(self, rho: Array) -> Energy:
        """E at one state."""

    @abc.abstractmethod
    def carrier(self, rho: Array) -> Array | None:
        """What takes up the mass of a tangent, for one state; None where P = I."""

    def distributed(self, mesh: Mesh) -> Metric:
        raise on_one_host(self)

    def _source(self, rho: Array, zeta: Array) -> Array:
        """M P ζ, for any number of tangents at one state."""
        carrier = self.carrier(rho)
        if carrier is None:
            return self.space.mass(zeta)
        share = self.space.integral(zeta) / self.space.integral(carrier)
        return self.space.mass(zeta - share[..., None] * carrier)

    def _source_transpose(self, rho: Array, phi: Array) -> Array:
        """PᵀM φ."""
        return self._seen(rho, self.space.mass(phi))

    def _seen(self, rho: Array, c: Array) -> Array:
        """Pᵀc = c − M1 ⟨ρ̂, c⟩ / ∫ρ̂ dx."""
        carrier = self.carrier(rho)
        if carrier is None:
            return c
        ones = self.space.mass(jnp.ones_like(carrier))
        share = c @ carrier / self.space.integral(carrier)
        return c - share[..., None] * ones

    def _each(self, function: Callable[..., PyTree], *stacks: Array) -> PyTree:
        """`function` for each state of a batch and what belongs to it."""
        if stacks[0].ndim == 1:
            return function(*stacks)
        return jax.vmap(lambda *one: self._each(function, *one))(*stacks)

    def factor(self, rho: Array) -> lx.AbstractLinearOperator:
        def mv(zeta: Array) -> tuple[Array, ...]:
            def one(rho: Array, zeta: Array) -> tuple[Array, ...]:
                energy = self.energy(rho)
                return energy.factor(energy.solve(self._source(rho, zeta)))

            return self._each(one, rho, zeta)

        def rmv(parts: tuple[Array, ...]) -> Array:
            def one(rho: Array, *parts: Array) -> Array:
                energy = self.energy(rho)
                return self._source_transpose(rho, energy.solve(energy.factor_transpose(parts)))

            return self._each(one, rho, *parts)

        return AdjointOperator(mv, rmv, rho, jax.eval_shape(mv, rho))

    def gram(self, rho: Array) -> lx.AbstractLinearOperator:
        def one(rho: Array, zeta: Array) -> Array:
            potential = self.energy(rho).solve(self._source(rho, zeta))
            return self._source_transpose(rho, potential)

        product = lambda zeta: self._each(one, rho, zeta)
        return AdjointOperator(product, product, rho, rho, POSITIVE)

    def image(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        def one(rho: Array, columns: Array) -> tuple[tuple[Array, ...], Solution]:
            energy = self.energy(rho)
            solution = energy.solution(self._source(rho, columns))
            return energy.factor(solution.phi), solution._replace(phi=None)

        parts, solution = self._each(one, rho, self._stacked(rho, columns))
        p, batch = len(columns), rho.ndim - 1
        rows = [jnp.moveaxis(part, batch, 0).reshape(p, -1) for part in parts]
        return jnp.concatenate(rows, axis=1), report_solution(
            chosen(self.elliptic, self.space), solution
        )

    def information(self, rho: Array, columns: Array) -> tuple[Array, Report]:
        """By multigrid as `Mobility.information`: G = ΦᵀB + BᵀΦ − ΦᵀEᵀEΦ for B = M P Z.

        With Φ = (EᵀE)†B + X the three terms leave −XᵀEᵀEX, the error of Φ squared.
        """
        if chosen(self.elliptic, self.space) == "sparse":
            return super().information(rho, columns)
        p, tolerance = len(columns), math.sqrt(self.elliptic.tolerance)

        def one(rho: Array, columns: Array) -> tuple[Array, Solution]:
            energy, source = self.energy(rho), self._source(rho, columns)
            solution = energy.solution(source, tolerance)
            half = accurate_product(solution.phi, source.T)
            squares = sum(gram(part.reshape(p, -1).T) for part in energy.factor(solution.phi))
            return half + half.T - squares, solution._replace(phi=None)

        G, solution = self._each(one, rho, self._stacked(rho, columns))
        report = report_solution(chosen(self.elliptic, self.space), solution)
        return jnp.sum(G.reshape(-1, p, p), axis=0), report

    def whiten(self, rho: Array, c: Array) -> tuple[Array, ...]:
        one = lambda rho, c: self.energy(rho).factor(mass_solve(self.space, c))
        return self._each(one, rho, c)

    def remainder(self, rho: Array, c: Array) -> Array:
        return self._each(lambda rho, c: c - self._seen(rho, c), rho, c)

    def _stacked(self, rho: Array, columns: Array) -> Array:
        """Columns (p, *batch, k) as (*batch, p, k)."""
        return jnp.moveaxis(columns, 0, rho.ndim - 1)

    def check_structure(self, state: PyTree) -> None:
        self.space.check(state)
