"""The problem at one θ, ready for any λ: what every way to put it together has in common."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..core.outcomes import STATUSES, Counts, Status
from ..errors import InputError
from ..metrics.base import Geometry, Metric, Report
from ..models.base import Evaluation, Products
from ..parameters import Bounds, flatten
from ..problem import LossDerivatives, Problem
from ..result import Info
from ..solvers.base import LOST_IN_G, Solution, SolveInfo, Solver
from .damping import Damping, Undamped


class Setup(eqx.Module):
    """What is put together at θ.

    Without a metric the direction is the plain gradient, or with a solver Newton's. `known` and
    `memory` are for the linearisation alone: an evaluation of the model at θ, and what the solver
    remembers of earlier iterations. `radius` and `enough` are for the solve, and for solvers that
    can tell of the way to η: how far the model is trusted, and the decrease that the run asks for.
    """

    problem: Problem
    theta: PyTree
    metric: Metric | None = None
    solver: Solver | None = None
    damping: Damping = Undamped()
    bounds: Bounds | None = None
    known: Evaluation | None = None
    memory: PyTree = None
    radius: Array | None = None
    enough: Array | None = None


class Responder(NamedTuple):
    """The η that answers a tangent ζ of the state: −(G + λD)⁻¹ ZᵀAζ, with the products it took.

    `respond` is given ζ, `carry` a v, for ζ = Zv. `evaluations` of the model were spent before.
    """

    respond: Callable[[PyTree], tuple[Array, Counts]]
    carry: Callable[[Array], tuple[Array, Counts]]
    evaluations: int = 0


class Local(eqx.Module):
    """f, ∂_θ f and the system (G + λD) η = −∂_θ f at one θ, prepared so that any λ is cheap.

    Subclasses differ in how G is had: `Dense` from the columns of Z, `ByRows` from its rows,
    `MatrixFree` from products, `PlainGradient` has G = I, and `Hessian` is Newton's system. Each
    has `prepare(setup)`, `_solve` for one λ, `aim` for another right-hand side, and `curvature`.

    `free` is 0 for parameters held by bounds, None without bounds. `energy` is ⟨∂_ρ f, A⁻¹∂_ρ f⟩
    where that is known, else NaN. `counts` has the propagations spent so far, `resolution` is the
    smallest λ that is worth asking for, as a share of trace(G).
    """

    # what is of no use once steps were tried and numbers are on the host
    system: ClassVar[tuple[str, ...]] = (
        *("setup", "gradient_norm", "energy", "free", "trace", "counts", "report"),
    )
    multiplies: ClassVar[bool] = True  # whether a solve calls the model

    rho: eqx.AbstractVar[PyTree | None]  # the state, where it was kept
    products: eqx.AbstractVar[Products | None]  # those that gave the gradient, where kept
    solver: eqx.AbstractVar[Solver | None]  # None for the plain gradient

    setup: Setup
    loss: Array
    gradient: Array
    gradient_norm: Array
    energy: Array
    free: Array | None
    trace: Array
    counts: Counts
    report: Report
    resolution: float = eqx.field(static=True, default=LOST_IN_G, kw_only=True)

    @classmethod
    @abc.abstractmethod
    def prepare(cls, setup: Setup) -> "Local":
        """Everything that does not depend on λ."""

    @abc.abstractmethod
    def _solve(self, damping: Array) -> Solution:
        """η for this λ."""

    def solve(self, damping: Array) -> Solution:
        """η for this λ; compiled, unless it takes products with a model outside JAX."""
        on_host = self.setup.problem.model.on_host and self.multiplies
        return (self._solve if on_host else eqx.filter_jit(self._solve))(damping)

    def factorise(self, damping: Array) -> "Local":
        """This system with the factors for one λ, where several solves would share them."""
        return self

    def aim(self, image: PyTree, gradient: Array) -> "Local":
        """The same G with `gradient` = Yᵀ`image` in place of ∂_θ f."""
        raise InputError("order", "there are no tangents of a state to answer to", "order=1")

    def responder(self, damping: Array) -> Responder:
        """The answers of θ to tangents of the state, by the factors that η was found with."""
        metric = self.setup.metric
        assert metric is not None
        products, evaluations = self.products, 0
        if products is None:
            flat, unravel = flatten(self.setup.theta)
            model = self.setup.problem.model
            known = Evaluation(self.rho) if model.starts_from_state else None
            products = model.products(unravel, flat, known)
            evaluations = products.evaluations
        L = metric.at(products.rho).factor

        def respond(zeta: PyTree) -> tuple[Array, Counts]:
            image = L.mv(zeta)
            return self.answer(image, products.pull(L.T.mv(image)), damping, adjoint=1)

        def carry(v: Array) -> tuple[Array, Counts]:
            eta, counts = respond(products.push(v))
            return eta, counts.plus(linearised=1)

        return Responder(respond, carry, evaluations)

    def answer(
        self, image: PyTree, gradient: Array, damping: Array, adjoint: int = 0
    ) -> tuple[Array, Counts]:
        """−(G + λD)⁻¹ `gradient` for `gradient` = Yᵀ`image`, and the products spent on it."""
        held = self.hold(gradient.astype(self.gradient.dtype))
        found = self.aim(image, held).solve(damping)
        return found.eta, found.info.counts.plus(adjoint=adjoint)

    def hold(self, vector: Array) -> Array:
        """The vector on the parameters that may move, zero on those held by bounds."""
        return vector if self.free is None else vector * self.free

    def curvature(self, solution: Solution) -> tuple[Array, int]:
        """⟨Zη, ∇²f Zη⟩ (+ ηᵀ∇²R η), and the products spent on it: none where Zη came with η.

        For an objective of θ it is the second derivative along η.
        """
        problem = self.setup.problem
        if problem.objective is not None:
            return _curve_loss(problem, self.setup.theta, solution.eta, None), 1
        if solution.motion is not None:
            moved = self.rho, solution.motion
            found = _curve_loss(problem, self.setup.theta, solution.eta, moved)
            # a recycled direction was made without Zη, in the units of G
            recycled = solution.info.reason == Status.RECYCLED.code
            last = getattr(solution.memory, "last", None)
            share = 1.0 if last is None else jnp.where(last.share > 0, last.share, 1.0)
            return jnp.where(recycled, -(self.gradient @ solution.eta) / share, found), 0
        products = self.products
        if products is None:
            flat, unravel = flatten(self.setup.theta)
            products = problem.model.products(unravel, flat)
        moved = products.rho, products.push(solution.eta)
        return _curve_loss(problem, self.setup.theta, solution.eta, moved), 1

    def describe(
        self,
        info: SolveInfo,
        damping: Any,
        finite: Any,
        reach: Any,
        seen: tuple[Counts, Report] | None = None,
    ) -> Info:
        """The solve as a user reads it, in one transfer from the device.

        `reach` is −⟨∂_θ f, η⟩/⟨∂_ρ f, A⁻¹∂_ρ f⟩; `seen` are counts and report, where all of these
        are on the host.
        """
        if seen is None:
            given = info, damping, finite, reach, self.counts, self.report
            info, damping, finite, reach, counts, report = jax.device_get(given)
        else:
            counts, report = seen
        status = STATUSES[int(info.reason)]
        if status is Status.OK and info.rank_deficient:
            status = Status.RANK_DEFICIENT
        if not finite:
            status = Status.NOT_FINITE
        if any(n.split(".")[-1] == "converged" and not value for n, value in report.items()):
            status = Status.METRIC_NOT_CONVERGED
        spent = (int(a) + int(b) for a, b in zip(counts, info.counts, strict=True))
        return Info(
            solver="gradient" if self.solver is None else type(self.solver).__name__,
            rank=None if np.isnan(info.rank) else int(info.rank),
            condition=float(info.condition),
            damping=float(damping),
            status=status,
            iterations=int(info.iterations),
            counts=Counts(*spent),
            residual=float(info.residual),
            truncation=float(info.truncation),
            reachable=float(reach),
            metric={n: v if isinstance(v, str) else float(v) for n, v in report.items()},
        )


def measure_energy(
    geometry: Geometry,
    derivatives: LossDerivatives,
    whitened: Array | None = None,
    leftover: Array | None = None,
) -> Array:
    """⟨∂_ρ f, A⁻¹∂_ρ f⟩ on tangents, where that is all of the gradient and easily had; else NaN.

    It is ‖b‖² for the shortest b with Lᵀb = ∂_ρ f, which need not be the `whitened` one at hand;
    `leftover` is what that one leaves of the gradient.
    """
    unknown = jnp.full((), jnp.nan)
    if derivatives.covector is None or derivatives.direct is not None:
        return unknown
    if whitened is not None and geometry.whitens_shortest:
        return jnp.where(jnp.any(leftover != 0), jnp.nan, whitened @ whitened)
    if geometry.diagonal is None:
        return unknown
    parts = jax.tree.map(lambda c, a: jnp.sum(c**2 / a), derivatives.covector, geometry.diagonal)
    return jnp.sum(jnp.stack(jax.tree.leaves(parts)))


@eqx.filter_jit
def _curve_loss(
    problem: Problem, theta: PyTree, eta: Array, moved: tuple[PyTree, PyTree] | None
) -> Array:
    """The second derivative of the loss along Zη at ρ, and of what sees θ directly along η."""
    flat, unravel = flatten(theta)

    def differentiate_twice(function: Callable[[PyTree], Array], x: PyTree, v: PyTree) -> Array:
        _, product = jax.jvp(jax.grad(function), (x,), (v,))
        return ravel_pytree(v)[0] @ ravel_pytree(product)[0]

    if problem.objective is not None:
        return differentiate_twice(lambda v: problem.objective(unravel(v)), flat, eta)
    assert moved is not None
    curvature = differentiate_twice(problem.loss, *moved)
    if problem.regulariser is not None:
        curvature += differentiate_twice(lambda v: problem.regulariser(unravel(v)), flat, eta)
    return curvature
