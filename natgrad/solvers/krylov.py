"""Matrix-free solvers: conjugate gradients on G, and LSMR on Y. Nothing k × p is formed."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..counts import Counts
from ..linalg.trees import dot, scaled
from ..settings import Number, count, setting
from .base import RUNNING, MatrixFreeSolver, Solution, SolveInfo
from .recurrences import (
    ConjugateGradients,
    LSMRState,
    Stop,
    cg_start,
    cg_step,
    lsmr_start,
    lsmr_step,
)
from .system import System

PyTree = Any


class CG(MatrixFreeSolver):
    """Conjugate gradients on (G + λD) η = −∂_θ f, Gv = Zᵀ(A(Zv)): the paper's Algorithm 3.

    Stops when the residual falls below `tolerance` · ‖∂_θ f‖ or after `max_iterations`;
    `tolerance=0` makes that a fixed count. With `forcing=True` the tolerance follows the run,
    max(`tolerance`, min(½, √(‖∂_θ f‖/‖∂_θ f(θ₀)‖))): few products far from the minimum, more near
    it. Stopped at any step, η descends and ⟨η, (G + λD) η⟩ = −⟨∂_θ f, η⟩.

    Zη is carried along, so that `ModelStep` needs no further product. `info.status` is
    "converged", "max_iterations", "breakdown" (a curvature that is not positive: without damping,
    a gradient with a part that G does not see) or "not_finite"; η is then the last good iterate.

    ```python
    ng.minimize(problem, theta, metric=ng.L2(grid), solver=ng.CG(max_iterations=10), damping=1e-3)
    ```

    Cost: one linearised and one adjoint product and one with A per iteration; memory for four
    vectors like θ and one like ρ besides what the model stores. The condition number is that
    of Y squared, as in `Cholesky`; the iterations grow with that of Y.

    Reference: Algorithm 3 of the paper; Hestenes and Stiefel 1952; for the forcing term Eisenstat
    and Walker 1996, and Nocedal and Wright, Numerical Optimization, section 7.1.
    """

    uses: ClassVar[Literal["gram", "factor"]] = "gram"
    tolerance: Number = setting("tolerance", 1e-6, below=1.0)
    max_iterations: Number = count("max_iterations", 200)
    forcing: bool = eqx.field(static=True, default=False)

    def prepare(self, system: System) -> System:
        return system

    def solve(self, prepared: System, damping: Array) -> Solution:
        system = prepared
        assert system.gram is not None
        gram, damping = system.gram, damping.astype(system.gradient.dtype)

        def apply(d: Array) -> tuple[PyTree, Array, Array]:
            image, damped = system.push(d), system.damp(d)
            covector = gram(image)
            curvature = dot(image, covector).astype(d.dtype) + damping * (d @ damped)
            return image, system.pull(covector) + damping * damped, curvature

        stop = _stop(self, system)
        start = cg_start(system.gradient, system.zero_motion())
        state = _run(lambda state: cg_step(state, apply, stop), start)
        return _solution(state, jnp.nan)


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

    uses: ClassVar[Literal["gram", "factor"]] = "factor"
    tolerance: Number = setting("tolerance", 1e-6, below=1.0)
    max_iterations: Number = count("max_iterations", 200)
    forcing: bool = eqx.field(static=True, default=False)

    def prepare(self, system: System) -> System:
        return system

    def solve(self, prepared: System, damping: Array) -> Solution:
        system, g = prepared, prepared.gradient
        assert system.factor is not None
        factor, root = system.factor, jnp.sqrt(damping).astype(g.dtype)

        def forward(v: Array) -> tuple[PyTree, PyTree]:
            image = system.push(v)
            return image, (factor.mv(image), root * system.rows(v).astype(g.dtype))

        def backward(u: PyTree) -> Array:
            y, rows = u
            return system.pull(factor.rmv(y)) + root * system.rows_transposed(rows).astype(g.dtype)

        nothing = jnp.zeros_like(g)
        whitened = None if system.whitened is None else (system.whitened, nothing)
        start = lsmr_start(g, whitened, (factor.zero(), nothing), system.zero_motion())
        stop = _stop(self, system)
        state = _run(lambda state: lsmr_step(state, forward, backward, stop), start)
        return _solution(state, jnp.maximum(state.largest / state.smallest, 1.0))


def _stop(solver: CG | LSMR, system: System) -> Stop:
    tolerance = jnp.asarray(solver.tolerance, system.gradient.dtype)
    if solver.forcing:
        tolerance = jnp.maximum(tolerance, jnp.minimum(0.5, jnp.sqrt(system.progress)))
    return Stop(tolerance, jnp.asarray(solver.max_iterations))


def _run(step: Any, start: Any) -> Any:
    return jax.lax.while_loop(lambda state: state.reason == RUNNING, step, start)


def _solution(state: ConjugateGradients | LSMRState, condition: Array | float) -> Solution:
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
    return Solution(state.scale * state.eta, info, scaled(state.scale, state.motion))
