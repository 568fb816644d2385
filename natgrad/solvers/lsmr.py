"""LSMR: the bidiagonalisation of Golub and Kahan as pure functions, and the solver.

As in `cg.py`, a step calls the products it is given and is otherwise arithmetic.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import loop
from ..core.operators import axpy, dot, norm, pick, scale
from ..core.outcomes import Counts, Status
from ..core.settings import Number, count, setting
from ..errors import InputError
from .base import MatrixFreeSolver, Solution
from .cg import (
    Precondition,
    PreparedSystem,
    Stop,
    find_stop,
    first_reason,
    make_solution,
    right_hand_side,
)
from .preconditioners import Preconditioner, Recycled, as_preconditioner
from .system import LinearSystem, System


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

    def prepare(self, system: LinearSystem) -> "PreparedSystem":
        return PreparedSystem.of(system, self.preconditioner)

    def spent(self, system: LinearSystem) -> Counts:
        return Counts() if self.preconditioner is None else self.preconditioner.spent(system)

    def aim(self, prepared: "PreparedSystem", b: PyTree, g: Array) -> "PreparedSystem":
        return prepared.aim(g)

    def solve(self, prepared: "PreparedSystem", damping: Array) -> Solution:
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
        stop = find_stop(self, system)
        step = lambda state: lsmr_step(state, forward, backward, precondition, stop)
        state = loop(lambda state: state.reason == Status.OK.code, step, start)
        condition = jnp.maximum(state.largest / state.smallest, 1.0)
        return make_solution(state, condition)


class LSMRState(NamedTuple):
    """LSMR after some steps, in the notation of Fong and Saunders; a name with Z is Z times it.

    With a preconditioner M the vectors v are orthonormal in the inner product of M⁻¹, v = Mq.
    """

    eta: Array
    motion: PyTree
    u: PyTree
    q: Array
    v: Array
    h: Array
    h_bar: Array
    Zh: PyTree
    Zh_bar: PyTree
    alpha: Array
    alpha_bar: Array
    theta: Array
    rho: Array
    rho_bar: Array
    c_bar: Array
    s_bar: Array
    zeta_bar: Array  # ‖(G + λD) η + ∂_θ f‖ in the norm of M, with a sign
    largest: Array
    smallest: Array
    floor: Array  # of the singular values met, relative to the largest
    scale: Array
    iterations: Array
    reason: Array

    @property
    def relative_residual(self) -> Array:
        return jnp.abs(self.zeta_bar)


def lsmr_start(
    gradient: Array,
    whitened: PyTree | None,
    zero: PyTree,
    motion: PyTree,
    precondition: Precondition,
) -> LSMRState:
    """η = 0; `zero` is that of Y's range, `motion` that of the state's tangents.

    The bidiagonalisation starts from u₁ = −b/‖b‖ where there is a b with Yᵀb = ∂_θ f. Where the
    gradient has a part that no b accounts for it starts from v₁ = −∂_θ f/‖∂_θ f‖ instead, with
    α₁ = 0 and u₁ = 0: the same recurrence, then with the bidiagonalisation's second form, and the
    same Krylov space, for any right-hand side of the normal equations. What G amplifies beyond
    1/eps is then noise, or a part of the gradient that G does not see: a breakdown.
    """
    scale, unit, reason = right_hand_side(gradient)
    size, q, v = _normalised_in(unit, precondition(unit))
    scale = scale * size
    none, one = jnp.zeros_like(scale), jnp.ones_like(scale)
    eps = jnp.finfo(gradient.dtype).eps
    u, alpha, floor = zero, none, eps**0.5 * one
    if whitened is not None:
        floor = 10 * eps * one
        length = norm(whitened).astype(scale.dtype)
        u = axpy(-1.0 / jnp.where(length > 0, length, 1.0), whitened, zero)
        alpha = scale / jnp.where(length > 0, length, 1.0)
    flat = jnp.zeros_like(gradient)
    return LSMRState(
        *(flat, motion, u, q, v, flat, flat, motion, motion),
        *(alpha, alpha, none, one, one, one, none, jnp.where(scale > 0, one, 0)),
        *(none, jnp.full_like(scale, jnp.inf), floor.astype(scale.dtype), scale),
        *(jnp.zeros((), jnp.int32), reason),
    )


def lsmr_step(
    state: LSMRState,
    forward: Callable[[Array], tuple[PyTree, PyTree]],
    backward: Callable[[PyTree], Array],
    precondition: Precondition,
    stop: Stop,
) -> LSMRState:
    """One step of LSMR: `forward(v)` returns Zv and Yv, `backward(u)` returns Yᵀu.

    M enters by products alone, as in Arridge, Betcke and Harhanen, Inverse Problems 30 (2014).
    """
    image, y = forward(state.v)
    beta, u = _normalised(axpy(-state.alpha, state.u, y), state.alpha.dtype)
    q = axpy(-beta, state.q, backward(u))
    return _lsmr_update(state, image, beta, u, q, precondition(q), stop)


@jax.jit
def _lsmr_update(
    old: LSMRState, image: PyTree, beta: Array, u: PyTree, q: Array, v: Array, stop: Stop
) -> LSMRState:
    """The rotations and the new iterate, once the products are made."""
    eps = jnp.finfo(old.eta.dtype).eps
    alpha, q, v = _normalised_in(q, v)
    back = -old.theta / old.rho
    h, Zh = axpy(back, old.h, old.v), axpy(back, old.Zh, image)

    rho = jnp.hypot(old.alpha_bar, beta)
    safe = jnp.where(rho > 0, rho, 1.0)
    c, s = old.alpha_bar / safe, beta / safe
    theta = s * alpha
    theta_bar, rho_temp = old.s_bar * rho, old.c_bar * rho
    rho_bar = jnp.hypot(rho_temp, theta)
    safe_bar = jnp.where(rho_bar > 0, rho_bar, 1.0)
    c_bar, s_bar = rho_temp / safe_bar, theta / safe_bar
    zeta, zeta_bar = c_bar * old.zeta_bar, -s_bar * old.zeta_bar

    combine = -theta_bar * rho / (old.rho * old.rho_bar)
    h_bar, Zh_bar = axpy(combine, old.h_bar, h), axpy(combine, old.Zh_bar, Zh)
    length = zeta / (safe * safe_bar)
    largest = jnp.maximum(old.largest, jnp.maximum(rho, rho_bar))
    count = old.iterations + 1
    reason = first_reason(
        (~jnp.isfinite(rho + alpha), Status.NOT_FINITE),
        (jnp.minimum(rho, rho_bar) <= old.floor * largest, Status.BREAKDOWN),
        (jnp.abs(zeta_bar) <= jnp.maximum(stop.tolerance, eps), Status.CONVERGED),
        (count >= stop.max_iterations, Status.MAX_ITERATIONS),
    )
    new = LSMRState(
        eta=axpy(length, h_bar, old.eta),
        motion=axpy(length, Zh_bar, old.motion),
        u=u,
        q=q,
        v=v,
        h=h,
        h_bar=h_bar,
        Zh=Zh,
        Zh_bar=Zh_bar,
        alpha=alpha,
        alpha_bar=c * alpha,
        theta=theta,
        rho=rho,
        rho_bar=rho_bar,
        c_bar=c_bar,
        s_bar=s_bar,
        zeta_bar=zeta_bar,
        largest=largest,
        smallest=jnp.minimum(old.smallest, rho_bar),
        floor=old.floor,
        scale=old.scale,
        iterations=count,
        reason=reason,
    )
    taken = (reason != Status.NOT_FINITE.code) & (reason != Status.BREAKDOWN.code)
    return pick(taken, new, old._replace(iterations=count, reason=reason))


def _normalised_in(q: Array, v: Array) -> tuple[Array, Array, Array]:
    """√⟨q, v⟩ for v = Mq, and both divided by it."""
    length = jnp.sqrt(q @ v)
    safe = jnp.where(length == 0, 1.0, length)
    return length, q / safe, v / safe


def _normalised(x: PyTree, dtype: Any) -> tuple[Array, PyTree]:
    length = jnp.sqrt(dot(x, x)).astype(dtype)
    return length, scale(1.0 / jnp.where(length > 0, length, 1.0), x)
