"""What a solver is: from Y, b and r, or from products with Y, to η, in two halves."""

import abc
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
from jax import Array
from jaxtyping import PyTree

from ..core.outcomes import Counts, Status
from ..errors import InputError
from .system import LinearSystem


class SolveInfo(NamedTuple):
    """What the solver saw: numerical rank, condition number of the (damped) Y, and how it went.

    Iterative solvers do not know the rank (NaN) but tell the relative residual of
    (G + λD) η = −∂_θ f, why they stopped (`reason`, the code of a `Status`; `OK` from a solver that
    does not iterate), and the products that they used. Low-rank solvers tell that residual too, and
    `truncation`, the largest singular value that they estimate to have cut, relative to the largest
    of all.
    """

    rank: Array | float
    condition: Array | float
    rank_deficient: Array | bool
    iterations: Array | int = 0
    residual: Array | float = float("nan")
    reason: Array | int = Status.OK.code
    counts: Counts = Counts()
    truncation: Array | float = float("nan")


class Solution(NamedTuple):
    """η with its diagnosis, Zη where the solver has carried it along, and the solver's memory."""

    eta: Array
    info: SolveInfo
    motion: PyTree | None = None
    memory: Any = None


class Solver(eqx.Module):
    """Finds η with (G + λD) η = −∂_θ f, G = YᵀY, of minimum norm where that is singular.

    A solver is a `DenseSolver`, which receives the matrix Y, or a `MatrixFreeSolver`, which
    receives products with it. Either works in two halves: `prepare` does what does not depend on
    λ, `solve` the rest, so that another λ at the same θ costs little.
    """

    name: ClassVar[str]  # as `info.solver` tells it

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.name = cls.__name__

    def choose(self, k: int, p: int, damped: bool) -> "Solver":
        """The solver to use for a k × p matrix Y: itself, unless it chooses among others."""
        return self

    def matrix_free(self, held: int, solves: int) -> "MatrixFreeSolver | None":
        """The solver to use without forming Z; None to form it, or what is made of its rows.

        That would hold `held` bytes, and take `solves` solves with a PDE.
        """
        return None

    def aim(self, prepared: Any, b: PyTree, g: Array) -> Any:
        """The same G with g = Yᵀb in place of ∂_θ f: what `solve` then gives is −(G + λD)⁻¹g."""
        name = type(self).__name__
        what = f"{name} does not solve for another right-hand side, as order and momentum need"
        raise InputError("solver", what, "Cholesky, Kernel or CG; or order=1 and momentum=0")


class DenseSolver(Solver):
    """Finds η with (G + λI) η = −(Yᵀb + r), from the matrix Y.

    b is the whitened ∂_ρ f, so that least-squares solvers work on Y alone and never square its
    condition number: η = −Y†b − G†r. r is what b leaves over, and vanishes on compatible tangents.
    """

    @abc.abstractmethod
    def prepare(self, Y: Array, b: Array, r: Array) -> Any:
        """Everything that does not depend on λ."""

    @abc.abstractmethod
    def solve(self, prepared: Any, damping: Array) -> tuple[Array, SolveInfo]:
        """η for this λ."""


class InformationSolver(DenseSolver):
    """A dense solver to which G and ∂_θ f are enough: it is given these where there is a choice.

    A metric may have G more accurately, or more cheaply, than Y.
    """

    @abc.abstractmethod
    def prepare_information(self, G: Array, gradient: Array, k: int) -> Any:
        """As `prepare`, from G = YᵀY for a Y of k rows, and ∂_θ f = Yᵀb + r."""


class MatrixFreeSolver(Solver):
    """Finds η with (G + λD) η = −∂_θ f from products with Z and with the metric."""

    @property
    @abc.abstractmethod
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        """Which of the metric's operators are set up at ρ: its "gram" A, its "factor" L."""

    def initial_memory(self, size: int, dtype: Any, batches: bool = False) -> Any:
        """What is carried from one iteration of a run to the next, before the first; or None.

        The system has it as `memory`, and the solution returns what it has become. With `batches`
        every iteration is about another function.
        """
        return None

    def arrive(self, memory: Any, theta: Array, gradient: Array) -> Any:
        """The memory at the θ of another iteration, with all of ∂_θ f there, bounds or not."""
        return memory

    @abc.abstractmethod
    def prepare(self, system: LinearSystem) -> Any:
        """Everything that does not depend on λ."""

    @abc.abstractmethod
    def solve(self, prepared: Any, damping: Array) -> Solution:
        """η for this λ."""

    def spent(self, system: LinearSystem) -> Counts:
        """The products that `prepare` uses; those of `solve` are in its `SolveInfo`."""
        return Counts()

    def matrix_free(self, held: int, solves: int) -> "MatrixFreeSolver":
        return self
