"""Matrix-free solvers: conjugate gradients on G, and LSMR on Y. Nothing k × p is formed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import loop
from ..core.operators import pick, scale
from ..core.outcomes import Counts
from ..core.settings import Number, count, setting
from ..errors import InputError
from .base import BREAKDOWN, NOT_FINITE, RUNNING, MatrixFreeSolver, Solution, SolveInfo
from .bidiagonalisation import LSMRState, lsmr_start, lsmr_step
from .preconditioners import Preconditioner, Recycled, as_preconditioner
from .recurrences import (
    ConjugateGradients,
    Product,
    Stop,
    cg_start,
    cg_step,
    descending,
    without_products,
)
from .system import LinearSystem, System


class CG(MatrixFreeSolver):
    """Conjugate gradients on (G + λD) η = −∂_θ f, Gv = Zᵀ(A(Zv)): the paper's Algorithm 3.

    Stops when the residual falls below `tolerance` · ‖∂_θ f‖ or after `max_iterations`;
    `tolerance=0` makes that a fixed count. With `forcing=True` the tolerance follows the run,
    max(`tolerance`, min(½, √(‖∂_θ f‖/‖∂_θ f(θ₀)‖))): few products far from the minimum, more near
    it. Stopped at any step, η descends and ⟨η, (G + λD) η⟩ = −⟨∂_θ f, η⟩.

    Zη is carried along, so that `ModelStep` needs no further product. `info.status` is
    "converged", "max_iterations", "breakdown" (a curvature that is not positive: without damping,
    a gradient with a part that G does not see) or "not_finite"; η is then the last good iterate.
    "recycled" is a direction without products, see `Recycled`.

    ```python
    ng.minimize(problem, theta, metric=ng.L2(grid), solver=ng.CG(max_iterations=10), damping=1e-3)
    ```

    Cost: one linearised and one adjoint product and one with A per iteration; memory for four
    vectors like θ and one like ρ besides what the model stores. The condition number is that
    of Y squared, as in `Cholesky`; the iterations grow with that of Y.

    Reference: Algorithm 3 of the paper; Hestenes and Stiefel 1952; for the forcing term Eisenstat
    and Walker 1996, and Nocedal and Wright, Numerical Optimization, section 7.1.
    """

    tolerance: Number = setting("tolerance", 1e-6, below=1.0)
    max_iterations: Number = count("max_iterations", 200)
    forcing: bool = eqx.field(static=True, default=False)
    preconditioner: Preconditioner | None = eqx.field(
        converter=as_preconditioner, default=Recycled()
    )

    @property
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        return ("gram", *_uses(self.preconditioner))

    def initial_memory(self, size: int, dtype: Any, batches: bool = False) -> Any:
        M = self.preconditioner
        return M.memory(size, dtype, batches) if isinstance(M, Recycled) else None

    def arrived(self, memory: Any, theta: Array, gradient: Array) -> Any:
        return memory if memory is None else memory.arrived(theta, gradient)

    def prepare(self, system: LinearSystem) -> "_Prepared":
        return _Prepared.of(system, self.preconditioner)

    def spent(self, system: LinearSystem) -> Counts:
        return Counts() if self.preconditioner is None else self.preconditioner.spent(system)

    def aimed(self, prepared: "_Prepared", b: PyTree, g: Array) -> "_Prepared":
        return prepared.aimed(g)

    def solve(self, prepared: "_Prepared", damping: Array) -> Solution:
        system = prepared.system
        damping = damping.astype(system.gradient.dtype)
        precondition = prepared.product(damping)
        stop = _stop(self, system)

        def step(carry: tuple[ConjugateGradients, Any]) -> tuple[ConjugateGradients, Any]:
            state, pairs = carry
            d = state.direction
            image, undamped, curvature = system.information(d)
            damped = system.damp(d)
            product = Product(
                image, undamped + damping * damped, curvature + damping * (d @ damped)
            )
            new = cg_step(state, lambda _: product, precondition, stop)
            if pairs is not None:
                taken = (new.reason != BREAKDOWN) & (new.reason != NOT_FINITE)
                pairs = pick(taken, pairs.record(d, undamped), pairs)
            return new, pairs

        start = cg_start(system.gradient, system.zero_motion(), precondition)
        recycles = isinstance(self.preconditioner, Recycled)
        memory = system.memory if recycles else None
        if memory is not None and memory.last is not None:
            start = without_products(start, memory.last.served)
        state, memory = loop(lambda carry: carry[0].reason == RUNNING, step, (start, memory))
        if system.indefinite:
            state = descending(state)
        return _solution(state, jnp.nan, memory)


class LSMR(MatrixFreeSolver):
    """LSMR on the least-squares problem ‖Yη + b‖² + λ‖Cη‖² → min, D = CᵀC.

    In exact arithmetic it minimises the residual of (G + λD) η = −∂_θ f over the Krylov space in
    which `CG` minimises the energy, so the residual falls monotonically; it works with Y and
    never with its square. Where the whitened gradient leaves something over (an objective of θ, a
    regulariser, a metric that gives some tangent length zero) the bidiagonalisation starts from
    the gradient instead of from b, which costs nothing more and solves the same equation.

    `info.condition` is a lower bound for that of Y with its damping. Settings and statuses are
    those of `CG`; a `ParameterDamping` must be a matrix or a diagonal, since C is needed.

    ```python
    ng.natural_gradient(problem, theta, metric=ng.Sobolev(grid, 1), solver=ng.LSMR(1e-10))
    ```

    Cost: one linearised and one adjoint product and one each with L and Lᵀ per iteration; memory
    for four vectors like θ, three like ρ and one like Lρ.

    Reference: Fong and Saunders, SIAM J. Sci. Comput. 33 (2011); for the two starts of the
    bidiagonalisation Paige and Saunders, ACM Trans. Math. Softw. 8 (1982).
    """

    tolerance: Number = setting("tolerance", 1e-6, below=1.0)
    max_iterations: Number = count("max_iterations", 200)
    forcing: bool = eqx.field(static=True, default=False)
    preconditioner: Preconditioner | None = eqx.field(converter=as_preconditioner, default=None)

    def __check_init__(self):
        if isinstance(self.preconditioner, Recycled):
            raise InputError(
                "preconditioner",
                "Recycled takes its pairs from conjugate gradients, which LSMR does not make",
                "CG, or another preconditioner",
            )

    @property
    def uses(self) -> tuple[Literal["gram", "factor"], ...]:
        return ("factor",)

    def prepare(self, system: LinearSystem) -> "_Prepared":
        return _Prepared.of(system, self.preconditioner)

    def spent(self, system: LinearSystem) -> Counts:
        return Counts() if self.preconditioner is None else self.preconditioner.spent(system)

    def aimed(self, prepared: "_Prepared", b: PyTree, g: Array) -> "_Prepared":
        return prepared.aimed(g)

    def solve(self, prepared: "_Prepared", damping: Array) -> Solution:
        system, g = prepared.system, prepared.system.gradient
        assert isinstance(system, System)
        assert system.factor is not None
        factor, root = system.factor, jnp.sqrt(damping).astype(g.dtype)
        precondition = prepared.product(damping.astype(g.dtype))

        def forward(v: Array) -> tuple[PyTree, PyTree]:
            image = system.push(v)
            return image, (factor.mv(image), root * system.rows(v).astype(g.dtype))

        def backward(u: PyTree) -> Array:
            y, rows = u
            return system.pull(factor.rmv(y)) + root * system.rows_transposed(rows).astype(g.dtype)

        nothing, motion = jnp.zeros_like(g), system.zero_motion()
        whitened = None if system.whitened is None else (system.whitened, nothing)
        start = lsmr_start(g, whitened, (factor.zero(), nothing), motion, precondition)
        stop = _stop(self, system)
        step = lambda state: lsmr_step(state, forward, backward, precondition, stop)
        state = loop(lambda state: state.reason == RUNNING, step, start)
        condition = jnp.maximum(state.largest / state.smallest, 1.0)
        return _solution(state, condition)


class _Prepared(eqx.Module):
    """The system, and the preconditioner as it was set up there."""

    system: LinearSystem
    preconditioner: Preconditioner | None
    setup: Any

    @classmethod
    def of(cls, system: LinearSystem, preconditioner: Preconditioner | None) -> "_Prepared":
        setup = None if preconditioner is None else preconditioner.prepare(system)
        return cls(system, preconditioner, setup)

    def aimed(self, g: Array) -> "_Prepared":
        """The same with another right-hand side, of which no whitened form is known."""
        system = eqx.tree_at(lambda s: s.gradient, self.system, g)
        if isinstance(system, System):
            system = replace(system, whitened=None)
        if system.memory is not None:
            system = replace(system, memory=system.memory.elsewhere())
        return replace(self, system=system)

    def product(self, damping: Array) -> Callable[[Array], Array]:
        """r ↦ M r, on the parameters that may move."""
        if self.preconditioner is None:
            return lambda r: r
        product = self.preconditioner.product(self.setup, self.system, damping)
        free = self.system.free
        return product if free is None else lambda r: free * product(r)


def _uses(preconditioner: Preconditioner | None) -> tuple[Literal["gram", "factor"], ...]:
    return () if preconditioner is None else preconditioner.uses


def _stop(solver: CG | LSMR, system: LinearSystem) -> Stop:
    tolerance = jnp.asarray(solver.tolerance, system.gradient.dtype)
    if solver.forcing:
        tolerance = jnp.maximum(tolerance, jnp.minimum(0.5, jnp.sqrt(system.progress)))
    return Stop(tolerance, jnp.asarray(solver.max_iterations))


def _solution(
    state: ConjugateGradients | LSMRState,
    condition: Array | float,
    memory: Any = None,
) -> Solution:
    steps = state.iterations
    info = SolveInfo(
        rank=jnp.nan,
        condition=condition,
        rank_deficient=False,
        iterations=steps,
        residual=state.relative_residual,
        reason=state.reason,
        counts=Counts(linearised=steps, adjoint=steps),
    )
    return Solution(state.scale * state.eta, info, scale(state.scale, state.motion), memory)
