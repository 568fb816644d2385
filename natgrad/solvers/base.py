"""What a solver is, and what it is given: Y, b and r, or a system as products.

Every solver works in two halves: what does not depend on λ, then the rest.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..core.compiled import each
from ..core.operators import Structure, dot
from ..core.outcomes import Counts, Status
from ..core.settings import Public
from ..errors import InputError
from ..models.base import Products
from ..parameters import ParameterOperator

LOST_IN_G, LOST_IN_Y = 1e-15, 1e-26  # a λ below this share of trace(G) is lost in rounding
Parts = tuple[Literal["gram", "factor"], ...]  # a metric's operators: its A, its L


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


class Trail(NamedTuple):
    """The way by which conjugate gradients came to η: a polygon that starts at 0, corner by corner.

    The rows of `parts` are its sides, zero where there are fewer. They are conjugate, so that the
    quadratic model of the metric is known everywhere on it: side j adds `gains[j]` both to
    −⟨∂_θ f, η⟩ and to ⟨η, (G + λD) η⟩. `products` has the inner products ⟨·, D ·⟩ of the sides.
    """

    parts: Array
    gains: Array
    products: Array

    @property
    def length(self) -> Array:
        """‖η‖_D at the end."""
        return jnp.sqrt(jnp.sum(self.products))

    def follow(self, radius: Array) -> tuple[Array, Array, Array, Array]:
        """η where the trail first leaves ‖η‖_D ≤ `radius`, or its end: Steihaug's solution.

        With its length, −⟨∂_θ f, η⟩ and ⟨η, (G + λD) η⟩ there.
        """
        corner = jnp.tril(jnp.ones_like(self.products), -1)  # the sides before each
        before = jnp.sum(corner @ self.products * corner, axis=1)
        along = jnp.sum(corner * self.products, axis=1)
        square = jnp.diag(self.products)
        room = jnp.maximum(radius.astype(square.dtype) ** 2 - before, 0.0)
        inside = before + 2 * along + square <= radius.astype(square.dtype) ** 2
        inside = jnp.cumprod(inside).astype(bool)
        # the positive root of ‖side‖² w² + 2⟨before, side⟩ w = room, without cancellation
        root = jnp.sqrt(along**2 + square * room)
        nearer = jnp.where(along > 0, room / (along + root), (root - along) / square)
        share = jnp.clip(jnp.where(square > 0, nearer, 0.0), 0.0, 1.0)
        first = ~inside & jnp.append(True, inside[:-1])
        weight = jnp.where(inside, 1.0, jnp.where(first, share, 0.0)).astype(square.dtype)
        length = jnp.sqrt(jnp.maximum(weight @ self.products @ weight, 0.0))
        return weight @ self.parts, length, weight @ self.gains, weight**2 @ self.gains


class Solution(NamedTuple):
    """η with its diagnosis, Zη where the solver has carried it along, and the solver's memory.

    `trail` is how η was come by, from a solver that was given a radius.
    """

    eta: Array
    info: SolveInfo
    motion: PyTree | None = None
    memory: Any = None
    trail: Trail | None = None


class Solver(Public, eqx.Module):
    """Finds η with (G + λD) η = −∂_θ f, G = YᵀY, of minimum norm where that is singular.

    A solver is a `DenseSolver`, which receives the matrix Y, or a `MatrixFreeSolver`, which
    receives products with it. Either works in two halves: `prepare` does what does not depend on
    λ, `solve` the rest, so that another λ at the same θ costs little.
    """

    EXAMPLE: ClassVar[str] = "ng.CG()"
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

    def factorise(self, prepared: Any, damping: Array) -> Any:
        """`prepared` with what all solves for this λ share, where there is something to keep."""
        return prepared

    @abc.abstractmethod
    def solve(self, prepared: Any, damping: Array) -> tuple[Array, SolveInfo]:
        """η for this λ."""


class InformationSolver(DenseSolver):
    """A dense solver to which G and ∂_θ f are enough: it is given these where there is a choice.

    A metric may have G more accurately, or more cheaply, than Y.
    """

    @abc.abstractmethod
    def prepare_information(self, G: Array, gradient: Array, k: int, Y: Array | None = None) -> Any:
        """As `prepare`, from G = YᵀY for a Y of k rows, and ∂_θ f = Yᵀb + r; Y if it is there."""


class Gram(eqx.Module):
    """A = LᵀL, with what it needs as leaves."""

    _product: Callable[[PyTree], PyTree]

    def __init__(self, A: lx.AbstractLinearOperator):
        self._product = eqx.filter_closure_convert(A.mv, A.in_structure())

    @eqx.filter_jit  # by itself, where the loop around it is not compiled
    def mv(self, zeta: PyTree) -> PyTree:
        """Aζ."""
        return self._product(zeta)


class Factor(eqx.Module):
    """L and Lᵀ as leaves: one closure holds what both need, and the unused half costs nothing."""

    _both: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    _in: Structure = eqx.field(static=True)
    _out: Structure = eqx.field(static=True)

    def __init__(self, L: lx.AbstractLinearOperator):
        self._in, self._out = Structure(L.in_structure()), Structure(L.out_structure())
        both = lambda x, y: (L.mv(x), L.T.mv(y))
        self._both = eqx.filter_closure_convert(both, L.in_structure(), L.out_structure())

    @eqx.filter_jit
    def mv(self, zeta: PyTree) -> PyTree:
        """Lζ."""
        return self._both(zeta, self.zero())[0]

    @eqx.filter_jit
    def rmv(self, y: PyTree) -> PyTree:
        """Lᵀy."""
        return self._both(self._in.zeros(), y)[1]

    def zero(self) -> PyTree:
        """The zero of L's range."""
        return self._out.zeros()


class LinearSystem(eqx.Module):
    """(G + λD) η = −∂_θ f with G as a product, set up once for each θ.

    Parameters held by bounds do not take part: every vector is zero there (`free` is 1 elsewhere).
    `memory` is what the solver asked to keep from the iteration before, None in a single direction.
    `energy` is a bound of −⟨∂_θ f, η⟩, NaN where none is known, `overhead` the cost of an iteration
    besides its products, of which a linearised and an adjoint one are the unit.
    """

    indefinite: ClassVar[bool] = False  # whether G may have negative eigenvalues

    gradient: Array
    free: Array | None = None
    parameter: ParameterOperator | None = None
    memory: Any = None
    energy: Array | float = float("nan")
    overhead: float = eqx.field(static=True, default=1.0)

    @abc.abstractmethod
    def information(self, eta: Array) -> tuple[PyTree, Array, Array]:
        """Zη (or None), Gη and ⟨η, Gη⟩: one linearised and one adjoint product."""

    @abc.abstractmethod
    def zero_motion(self) -> PyTree:
        """The zero of what `information` gives first."""

    @abc.abstractmethod
    def trace(self, samples: int) -> Array:
        """An estimate of trace G from this many products, seeded."""

    def damp(self, eta: Array) -> Array:
        """Dη."""
        if self.parameter is None:
            return eta
        return self.mask(self.parameter.apply(self.mask(eta))).astype(self.gradient.dtype)

    def mask(self, eta: Array) -> Array:
        """η on the parameters that may move, and zero on the others."""
        return eta if self.free is None else eta * self.free


class System(LinearSystem):
    """(G + λD) η = −∂_θ f with G = ZᵀAZ, A = LᵀL, as products; set up once for each θ.

    Of the metric's operators those that the solver uses are there, `gram` or `factor` or both.
    `whitened` is a b with Yᵀb = ∂_θ f, or None where the whitened gradient leaves something over.
    """

    products: Products = eqx.field(kw_only=True)
    gram: Gram | None = None
    factor: Factor | None = None
    whitened: PyTree | None = None

    def push(self, eta: Array) -> PyTree:
        """Zη: one linearised propagation."""
        return self.products.push(self.mask(eta))

    def pull(self, xi: PyTree) -> Array:
        """Zᵀξ: one adjoint propagation."""
        return self.mask(self.products.pull(xi)).astype(self.gradient.dtype)

    def zero_motion(self) -> PyTree:
        return jax.tree.map(jnp.zeros_like, self.products.rho)

    def rows(self, eta: Array) -> Array:
        """Cη, with D = CᵀC."""
        return eta if self.parameter is None else self.parameter.root(self.mask(eta))

    def rows_transposed(self, y: Array) -> Array:
        """Cᵀy."""
        return y if self.parameter is None else self.mask(self.parameter.root_transposed(y))

    def information(self, eta: Array) -> tuple[PyTree, Array, Array]:
        """Zη, Gη and ⟨η, Gη⟩: the paper's Algorithm 2."""
        image = self.push(eta)
        if self.gram is not None:
            covector = self.gram.mv(image)
        else:
            assert self.factor is not None
            covector = self.factor.rmv(self.factor.mv(image))
        return image, self.pull(covector), dot(image, covector).astype(eta.dtype)

    def trace(self, samples: int) -> Array:
        """Hutchinson's estimate of trace G: the mean of ⟨Zx, AZx⟩ over signs x, seeded.

        Cost: one linearised product a sample. Its standard deviation is at most trace(G)·√(2/m)
        for m samples, and far less where many eigenvalues contribute.
        """
        g = self.gradient

        def sample(key: Array) -> Array:
            image = self.push(jax.random.rademacher(key, g.shape, g.dtype))
            if self.factor is not None:
                image = self.factor.mv(image)
                return dot(image, image).astype(g.dtype)
            assert self.gram is not None
            return dot(image, self.gram.mv(image)).astype(g.dtype)

        return jnp.mean(each(sample, jax.random.split(jax.random.key(0), samples)))


class HessianSystem(LinearSystem):
    """Newton's system: G is the Hessian of the loss."""

    indefinite: ClassVar[bool] = True

    # products whose sum is that with the Hessian
    parts: tuple[Callable[[Array], Array], ...] = eqx.field(kw_only=True)

    def information(self, eta: Array) -> tuple[None, Array, Array]:
        eta = self.mask(eta)
        products = [part(eta) for part in self.parts]
        product = self.mask(sum(products[1:], products[0])).astype(eta.dtype)
        return None, product, eta @ product

    def zero_motion(self) -> None:
        return None

    def trace(self, samples: int) -> Array:
        g = self.gradient
        sample = lambda key: self.information(jax.random.rademacher(key, g.shape, g.dtype))[2]
        mean = jnp.mean(each(sample, jax.random.split(jax.random.key(0), samples)))
        return jnp.maximum(mean, 0.0)


class MatrixFreeSolver(Solver):
    """Finds η with (G + λD) η = −∂_θ f from products with Z and with the metric.

    A solver that `keeps_trail` is given a radius in runs whose step rule has one, as a third
    argument of `solve`, and as a fourth the predicted decrease that is enough, or None. Its
    solution has the trail to η, and it may stop where that leaves the radius or is enough.

    What `initial_memory` returns is carried from one iteration of a run to the next: None, or a
    pytree with a method `arrive(theta, gradient, share)`, which gives the memory at the θ of
    another iteration from all of ∂_θ f there, bounds or not; G is `share` times the Gauss–Newton
    matrix of the loss, or not like it where that is 0. The system has it as `memory`, and the
    solution returns what it has become.
    """

    keeps_trail: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def uses(self) -> Parts:
        """Which of the metric's operators are set up at ρ: its "gram" A, its "factor" L."""

    def initial_memory(self, size: int, dtype: DTypeLike, batches: bool = False) -> Any:
        """The memory before the first iteration; with `batches` each is about another function."""
        return None

    @abc.abstractmethod
    def prepare(self, system: LinearSystem) -> tuple[Any, Counts]:
        """Everything that does not depend on λ, and the products spent on it."""

    @abc.abstractmethod
    def solve(self, prepared: Any, damping: Array) -> Solution:
        """η for this λ; the products spent on it are in its `SolveInfo`."""

    def matrix_free(self, held: int, solves: int) -> "MatrixFreeSolver":
        return self
