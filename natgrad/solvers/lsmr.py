"""LSMR: the bidiagonalisation of Golub and Kahan as pure functions, and the solver.

As in `cg.py`, a step is given the products and is otherwise arithmetic.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..core.compiled import loop
from ..core.operators import axpy, dot, norm, pick, scale
from ..core.outcomes import Status, find_reason, was_taken
from ..errors import InputError
from .base import Parts, Solution, System
from .cg import UNSEEN, KrylovSolver, PreparedSystem, Stop, make_solution, scale_gradient
from .preconditioners import Product, Recycled


class LSMR(KrylovSolver):
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

    Args:
        tolerance: Relative residual at which to stop; None for 10⁻⁶, 0 for a fixed count.
        max_iterations: The most iterations of one direction.
        preconditioner: As for `CG`; none by default.
    """

    def __check_init__(self):
        if isinstance(self.preconditioner, Recycled):
            raise InputError(
                "preconditioner",
                "Recycled takes its pairs from conjugate gradients, which LSMR does not make",
                "CG, or another preconditioner",
            )

    @property
    def uses(self) -> Parts:
        return ("factor",)

    def solve(self, prepared: PreparedSystem, damping: Array) -> Solution:
        system, g = prepared.system, prepared.system.gradient
        assert isinstance(system, System)
        assert system.factor is not None
        factor, root = system.factor, jnp.sqrt(damping).astype(g.dtype)
        precondition = self.precondition(prepared, damping.astype(g.dtype))

        def step(state: LSMRState) -> LSMRState:
            image = system.push(state.v)
            y = (factor.mv(image), root * system.rows(state.v).astype(g.dtype))
            beta, u = _normalise(axpy(-state.alpha, state.u, y), state.alpha.dtype)
            rows = root * system.rows_transposed(u[1]).astype(g.dtype)
            q = axpy(-beta, state.q, system.pull(factor.rmv(u[0])) + rows)
            v = jnp.where(state.plain, q, precondition(q))
            new = rotate(state, image, beta, u, q, v, prepared.stop)
            unseen = ~was_taken(new.reason)  # or a root of what M leaves, which is negative noise
            late = new.softness <= new.floor * new.stiffness
            again = unseen & (late | ~new.plain) & (new.iterations < prepared.stop.max_iterations)
            known = jnp.where(new.plain, new.stiffness, 0.0)  # as in `cg.settle`
            return pick(again, fresh._replace(iterations=new.iterations, stiffness=known), new)

        fresh = start(system, jnp.asarray)  # M = I
        state = start(system, precondition)._replace(plain=jnp.asarray(self.preconditioner is None))
        state = loop(lambda state: state.reason == Status.OK.code, step, state)
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
    stiffness: Array  # the largest ‖Yh‖/‖h‖ met
    softness: Array  # the smallest along which a step was taken
    scale: Array
    plain: Array  # whether M is left out
    iterations: Array
    reason: Array

    @property
    def relative_residual(self) -> Array:
        return jnp.abs(self.zeta_bar)


def start(system: System, precondition: Product) -> LSMRState:
    """η = 0, and the start of the bidiagonalisation.

    The bidiagonalisation starts from u₁ = −b/‖b‖ where there is a b with Yᵀb = ∂_θ f. Where the
    gradient has a part that no b accounts for it starts from v₁ = −∂_θ f/‖∂_θ f‖ instead, with
    α₁ = 0 and u₁ = 0: the same recurrence, then with the bidiagonalisation's second form, and the
    same Krylov space, for any right-hand side of the normal equations. What G amplifies beyond
    1/eps is then noise, or a part of the gradient that G does not see: a breakdown, after
    which η is the shortest of least residual.
    """
    scale, unit, reason = scale_gradient(system.gradient)
    size, q, v = _normalise_in(unit, precondition(unit))
    scale = scale * size
    assert system.factor is not None
    flat, motion = jnp.zeros_like(unit), system.zero_motion()
    none, one = jnp.zeros_like(scale), jnp.ones_like(scale)
    eps = jnp.finfo(unit.dtype).eps
    u, alpha, floor = (system.factor.zero(), flat), none, (UNSEEN * eps) ** 0.5 * one
    if system.whitened is not None:
        floor, whitened = 10 * eps * one, (system.whitened, flat)
        length = norm(whitened).astype(scale.dtype)
        u = axpy(-1.0 / jnp.where(length > 0, length, 1.0), whitened, u)
        alpha = scale / jnp.where(length > 0, length, 1.0)
    return LSMRState(
        *(flat, motion, u, q, v, flat, flat, motion, motion),
        *(alpha, alpha, none, one, one, one, none, jnp.where(scale > 0, one, 0)),
        *(none, jnp.full_like(scale, jnp.inf), floor.astype(scale.dtype)),
        *(none, jnp.full_like(scale, jnp.inf), scale),
        *(jnp.asarray(True), jnp.zeros((), jnp.int32), reason),
    )


@jax.jit
def rotate(
    old: LSMRState, image: PyTree, beta: Array, u: PyTree, q: Array, v: Array, stop: Stop
) -> LSMRState:
    """The rotations and the new iterate, once the products are made.

    M enters by products alone, as in Arridge, Betcke and Harhanen, Inverse Problems 30 (2014).
    """
    eps = jnp.finfo(old.eta.dtype).eps
    alpha, q, v = _normalise_in(q, v)
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
    size = jnp.linalg.norm(h)  # ‖Yh‖ = rho
    quotient = rho / jnp.where(size > 0, size, 1.0)
    stiffness, least = jnp.maximum(old.stiffness, quotient), jnp.minimum(old.softness, quotient)
    unseen = (least <= old.floor * stiffness) | (rho_bar <= old.floor * largest)
    count = old.iterations + 1
    reason = find_reason(
        (~jnp.isfinite(rho + alpha), Status.NOT_FINITE),
        (unseen, Status.BREAKDOWN),
        (jnp.abs(zeta_bar) <= jnp.maximum(stop.tolerance, eps), Status.CONVERGED),
        (count >= stop.max_iterations, Status.MAX_ITERATIONS),
    )
    new = old._replace(
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
        stiffness=stiffness,
        softness=least,
        iterations=count,
        reason=reason,
    )
    # h is what Y does not see of the gradient
    along = -(old.eta @ h) / jnp.where(size > 0, size, 1.0) ** 2
    settled = old._replace(
        stiffness=stiffness,
        eta=axpy(along, h, old.eta),
        motion=axpy(along, Zh, old.motion),
        iterations=count,
        reason=reason,
    )
    return pick(was_taken(reason), new, settled)


def _normalise_in(q: Array, v: Array) -> tuple[Array, Array, Array]:
    """√⟨q, v⟩ for v = Mq, and both divided by it."""
    length = jnp.sqrt(q @ v)
    safe = jnp.where(length == 0, 1.0, length)
    return length, q / safe, v / safe


def _normalise(x: PyTree, dtype: DTypeLike) -> tuple[Array, PyTree]:
    """‖x‖, and x divided by it."""
    length = jnp.sqrt(dot(x, x)).astype(dtype)
    return length, scale(1.0 / jnp.where(length > 0, length, 1.0), x)
