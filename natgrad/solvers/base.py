"""What a solver is: from Y, b and r to η, in two halves so that a new λ costs little."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jax import Array


class SolveInfo(NamedTuple):
    """What the solver saw: numerical rank, condition number of the (damped) Y, and how it went."""

    rank: Array
    condition: Array
    rank_deficient: Array
    iterations: Array | int = 0


class Solver(eqx.Module):
    """Finds η with (G + λI) η = −(Yᵀb + r), G = YᵀY, of minimum norm where that is singular.

    b is the whitened ∂_ρ f, so that least-squares solvers work on Y alone and never square its
    condition number: η = −Y†b − G†r. r is what b leaves over, and vanishes on compatible tangents.
    """

    @abc.abstractmethod
    def prepare(self, Y: Array, b: Array, r: Array) -> Any:
        """Everything that does not depend on λ."""

    @abc.abstractmethod
    def solve(self, prepared: Any, damping: Array) -> tuple[Array, SolveInfo]:
        """η for this λ."""

    def choose(self, k: int, p: int, damped: bool) -> "Solver":
        """The solver to use for a k × p matrix Y: itself, unless it chooses among others."""
        return self

    @property
    def name(self) -> str:
        """How the solver is called in `info`."""
        return type(self).__name__
