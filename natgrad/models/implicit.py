"""Models given by a constraint h(ρ, θ) = 0: products by the implicit function theorem."""

import dataclasses
from collections.abc import Callable, Collection
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..core.compiled import each, loop
from ..core.operators import axpy, negate, norm, pick
from ..core.outcomes import Counts
from ..core.selection import Selected, Selection
from ..core.settings import check_instance
from ..core.sharding import InParts
from ..errors import InputError, name_kind
from .base import Evaluation, Loss, Model, SecondOrder, Unravel, form_columns
from .explicit import DEFAULT_MEMORY
from .external import call_named, check_function, to_numpy
from .factorisations import Factorisation, Unsolvable
from .implicit_products import (
    Constraint,
    HoistedSolves,
    ImplicitProducts,
    Kept,
    Solves,
    call_solves,
    compile_solves,
    differentiate_implicitly_twice,
)

RESIDUAL_LIMIT = 1e-4
TOLERANCE, ACCEPTED, MAX_STEPS, MAX_HALVINGS = 1e-10, 1e-7, 50, 10  # of Newton's method
ROUNDING = 100.0  # a residual of so many eps cannot be improved
FACTORISATION = 6.0  # in solves for the state, about as in benchmarks/bench_darcy.py


def _observe_all(field: PyTree) -> PyTree:
    return field


def _default_to_all(observe: Callable[[PyTree], PyTree] | None) -> Callable[[PyTree], PyTree]:
    return _observe_all if observe is None else observe


def _freeze(tags: Collection[object] | object) -> frozenset[object] | object:
    return frozenset(tags) if isinstance(tags, (tuple, set, frozenset, list)) else tags


class ImplicitModel(Model):
    """The state is the solution ρ of h(ρ, θ) = 0, or what is observed of it.

    Products follow from the implicit function theorem, one linear solve each,

        Zη = −(∂_ρh)⁻¹ ∂_θh η,        Zᵀξ = −(∂_θh)ᵀ (∂_ρh)⁻ᵀ ξ,

    with the derivatives of `residual` taken by JAX and ∂_ρh not formed.

    - `residual(rho, theta)` is h, written in JAX, with the shape of ρ.
    - `solve(theta)` returns ρ. Without it Newton's method starts from `initial`, an array like ρ
      or a function of θ (zeros will do for a linear equation).
    - `linear=True` says that h is affine in ρ, so that one linear solve finds the state. As for any
      state, the residual that is left is looked at in every iteration of a run.
    - `observe(rho)` is what the model returns of ρ, written in JAX: values at receivers, say.

    The linear solves are, either

    - compiled, by a lineax solver: `linear_solver` (GMRES to 1e-10 by default; `lx.LU()` forms and
      factorises ∂_ρh once for each θ), `tags` that lineax should know of ∂_ρh (such as
      `lx.positive_semidefinite_tag` for `lx.CG`), and `preconditioner(rho, theta)`, a lineax
      operator near (∂_ρh)⁻¹. Right-hand sides are scaled to a largest entry of 1, for absolute
      tolerances; a solve that fails makes the state or the direction NaN, and that a status. Or
    - on the host: `factorise(rho, theta)`, called with NumPy arrays, returns an object with
      `solve(b)` and `solve_transposed(b)` for b like ρ, such as `ng.models.SparseLU(matrix)`. It is
      made once for each θ, and again for each step of Newton's method on a nonlinear h. Where it
      raises `numpy.linalg.LinAlgError`, as `SparseLU` does on a singular matrix, there is no
      state: an input error at the start of a run, and a rejected step later. If the object has the
      attribute `leading_axes = True`, it may be given many b at once, stacked along a new first
      axis.

    ```python
    # −u″ + e^θ u = 1 on a periodic line
    h = lambda u, theta: jnp.exp(theta) * u - 1.0 - jnp.roll(u, 1) + 2 * u - jnp.roll(u, -1)
    model = ng.ImplicitModel(h, initial=jnp.zeros(32), linear=True)
    ```

    Cost: one solve for the state, and one for each product. A dense Z takes min(p, k) solves, many
    right-hand sides at once. Reference: section 3.3 of the paper, Algorithm 2; Plessix, A review of
    the adjoint-state method, Geophys. J. Int. 167 (2006).

    Args:
        residual: h(ρ, θ), written in JAX.
        solve: θ ↦ ρ, where you have a solver of your own.
        initial: Where Newton's method starts: an array, or a function of θ.
        linear: Whether h is affine in ρ.
        observe: ρ ↦ what the model returns.
        linear_solver: A lineax solver for the compiled solves.
        tags: What lineax should know of ∂_ρh.
        preconditioner: `preconditioner(rho, theta)`, a lineax operator near (∂_ρh)⁻¹.
        factorise: `factorise(rho, theta)`, for solves on the host.
    """

    solves: ClassVar[bool] = True
    rechecks: ClassVar[bool] = True

    residual: Callable[[PyTree, PyTree], PyTree]
    solve: Callable[[PyTree], PyTree] | None = None
    _: dataclasses.KW_ONLY
    initial: PyTree | Callable[[PyTree], PyTree] = None
    linear: bool = eqx.field(static=True, default=False)
    observe: Callable[[PyTree], PyTree] = eqx.field(default=None, converter=_default_to_all)
    linear_solver: lx.AbstractLinearSolver = lx.GMRES(
        rtol=1e-10, atol=1e-10, restart=50, stagnation_iters=3
    )
    tags: frozenset[object] | object = eqx.field(static=True, default=(), converter=_freeze)
    preconditioner: Callable[[PyTree, PyTree], lx.AbstractLinearOperator] | None = None
    factorise: Callable[[PyTree, PyTree], Factorisation] | None = eqx.field(
        static=True, default=None
    )

    def __check_init__(self):
        if self.solve is None and self.initial is None:
            what = "is None and there is no initial guess for Newton's method"
            raise InputError("solve", what, "a function theta -> rho, or initial=jnp.zeros(shape)")
        solver, wanted = self.linear_solver, lx.AbstractLinearSolver
        check_instance("linear_solver", solver, wanted, "lx.GMRES(...) or lx.LU()")
        for name in ("residual", "solve", "observe", "preconditioner"):
            function = getattr(self, name)
            if not callable(function) and (function is not None or name == "residual"):
                raise InputError(name, f"{name_kind(function)} is not callable", "a function")
        if self.factorise is not None:
            check_function("factorise", self.factorise)

    def __call__(self, theta: PyTree) -> PyTree:
        return self.evaluate(theta).rho

    def evaluate(self, theta: PyTree) -> Evaluation:
        if self.solve is not None:
            kept = Kept(as_field(self, call_named("solve", self.solve, theta), theta))
        else:
            start = self.initial
            start = call_named("initial", start, theta) if callable(start) else start
            kept = solve_state(self, theta, as_field(self, start, theta))
        return Evaluation(_call("observe", self.observe, kept.field), kept)

    def make_solves(self, kept: Kept, theta: PyTree) -> Solves:
        """Solves with ∂_ρh at a field: compiled, or by the user's factorisation."""
        if self.factorise is None:
            return compile_solves(self, kept.field, theta)
        if kept.factor is not None:
            return call_solves(kept.factor)
        try:
            factor = call_named("factorise", self.factorise, to_numpy(kept.field), to_numpy(theta))
        except np.linalg.LinAlgError:
            return call_solves(Unsolvable())
        for method in ("solve", "solve_transposed"):
            if not callable(getattr(factor, method, None)):
                what = f"returns {name_kind(factor)} without a method {method}"
                advice = "ng.models.SparseLU(matrix), or an object with solve and solve_transposed"
                raise InputError("factorise", what, advice)
        return call_solves(factor)

    def products(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> ImplicitProducts:
        theta, evaluations = unravel(flat), int(known is None)
        rho, kept = self.evaluate(theta) if known is None else known
        solves = self.make_solves(kept, theta)
        if not self.on_host:
            solves = HoistedSolves.of(solves, kept.field)
        return ImplicitProducts(rho, evaluations, Constraint(self, theta, kept.field), solves)

    def jacobian(
        self, unravel: Unravel, flat: Array, known: Evaluation | None = None
    ) -> tuple[PyTree, PyTree, Counts]:
        products = self.products(unravel, flat, known)
        p, k = flat.size, sum(leaf.size for leaf in jax.tree.leaves(products.rho))
        if self.on_host and p <= k:
            return products.rho, products.columns(), Counts(products.evaluations, p, 0)
        chunk = max(1, DEFAULT_MEMORY // (50 * (k + p) * flat.dtype.itemsize))
        in_chunks = lambda function, xs: jax.lax.map(function, xs, batch_size=chunk)
        columns, counts = form_columns(products, flat, each if self.on_host else in_chunks)
        return products.rho, columns, counts

    def second_order(
        self, unravel: Unravel, flat: Array, known: Evaluation | None, loss: Loss
    ) -> SecondOrder:
        return differentiate_implicitly_twice(self, unravel, flat, known, loss)

    def restricted(self, selection: Selection) -> "ImplicitModel":
        """The whole field is solved for, and the selection observed of it."""
        return eqx.tree_at(lambda model: model.observe, self, Selected(self.observe, selection))

    def check(self, theta: PyTree, known: Evaluation) -> None:
        """The residual must vanish at the state that was found."""
        left, scale, bend = map(float, measure_residual(self, known.kept.field, theta))
        if not np.isfinite(left):
            raise InputError(
                "solve" if self.solve is not None else "residual",
                "found no finite state at theta: the solve failed, or ∂h/∂ρ is singular there",
                "another starting point, a better linear_solver or preconditioner, or a constraint "
                "that fixes what the equation leaves free",
            )
        if self.linear and self.solve is None and not bend <= RESIDUAL_LIMIT * scale:
            what = f"the residual is not affine in rho: it bends by {bend / scale:.2g} of its terms"
            raise InputError("linear", what, "linear=False")
        if left > RESIDUAL_LIMIT * scale:
            what = f"leaves a residual of {left / scale:.2g} relative to the terms of the equation"
            advice = "a tighter tolerance; or is residual another equation than the one solved?"
            raise InputError("solve" if self.solve is not None else "linear_solver", what, advice)

    def distributed(self, mesh: Mesh) -> Model:
        """ρ and h in parts; the linear solves follow."""
        super().distributed(mesh)
        return eqx.tree_at(lambda model: model.residual, self, InParts(self.residual, mesh))

    @property
    def on_host(self) -> bool:
        return self.factorise is not None

    @property
    def overhead(self) -> float:
        return 1.0 if self.factorise is None else 1.0 + FACTORISATION / 2


_call = eqx.filter_jit(call_named)


class _Iterate(NamedTuple):
    field: PyTree
    residual: PyTree
    size: Array  # ‖h‖
    steps: Array
    stalled: Array


def solve_state(model: ImplicitModel, theta: PyTree, start: PyTree) -> Kept:
    """The field with h(field, θ) = 0, from `start`; NaN where it was not found.

    Newton's method with ρ ← ρ − t (∂_ρh)⁻¹h, t halved from 1 until ‖h‖ falls. It ends at
    ‖h‖ ≤ 1e-10 of the larger of ‖h(start)‖ and the terms of the equation there, or when no step
    decreases ‖h‖; what it has then counts as found below 1e-7. (In single precision the two limits
    are 1e-5 and 1e-2.) The same loop runs compiled, with lineax, and on the host, with the user's
    factorisation. (The root finders of optimistix are compiled only and take no preconditioner.)

    Reference: Kelley, Solving Nonlinear Equations with Newton's Method (2003).
    """
    h = lambda field: _call("residual", model.residual, field, theta)
    first = h(start)
    if model.linear:
        solve, _, factor = model.make_solves(Kept(start), theta)
        return Kept(axpy(jnp.ones(()), solve(negate(first)), start), factor)
    scale = jnp.maximum(*measure_residual(model, start, theta)[:2])
    least = ROUNDING * jnp.finfo(scale.dtype).eps
    enough, accepted = jnp.maximum(TOLERANCE, least), jnp.maximum(ACCEPTED, 1e3 * least)

    def going(it: _Iterate) -> Array:
        return (it.size > enough * scale) & (it.steps < MAX_STEPS) & ~it.stalled

    def step(it: _Iterate) -> _Iterate:
        direction = model.make_solves(Kept(it.field), theta).solve(negate(it.residual))
        point = lambda t: axpy(t, direction, it.field)
        shorter = lambda trial: (trial[0] / 2, norm(h(point(trial[0] / 2))), trial[2] + 1)
        worse = lambda trial: ~(trial[1] < it.size) & (trial[2] < MAX_HALVINGS)
        one = jnp.ones_like(it.size)
        t, size, _ = loop(worse, shorter, (one, norm(h(point(one))), jnp.zeros((), int)))
        better = size < it.size
        field = pick(better, point(t), it.field)
        size = jnp.where(better, size, it.size)
        return _Iterate(field, h(field), size, it.steps + 1, ~better)

    begin = _Iterate(start, first, norm(first), jnp.zeros((), int), jnp.asarray(False))
    found = loop(going, step, begin)
    success = found.size <= accepted * scale
    return Kept(jax.tree.map(lambda x: jnp.where(success, x, jnp.nan), found.field))


def as_field(model: ImplicitModel, field: PyTree, theta: PyTree) -> PyTree:
    """A copy of the user's field, as arrays in the precision of h, which must have its shapes."""
    field = jax.tree.map(jnp.array, field)
    h = call_named("residual", eqx.filter_eval_shape, model.residual, field, theta)
    shapes = lambda tree: [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]
    if shapes(h) != shapes(field) or jax.tree.structure(h) != jax.tree.structure(field):
        what = f"has shape {shapes(h)} where the state of the equation has {shapes(field)}"
        raise InputError("residual", what, "as many equations as unknowns, in the same structure")
    return jax.tree.map(lambda x, like: x.astype(jnp.result_type(x, like)), field, h)


@eqx.filter_jit
def measure_residual(
    model: ImplicitModel, field: PyTree, theta: PyTree
) -> tuple[Array, Array, Array]:
    """‖h‖ at a field, what to compare it with, and ‖h − h(0) − ∂_ρh ρ‖, which is 0 for a linear h.

    The scale is the larger term of the equation, of those that are finite: ‖h(0)‖, the right-hand
    side of a linear equation, and ‖∂_ρh ρ‖, its left-hand side.
    """
    h, image = jax.jvp(lambda u: model.residual(u, theta), (field,), (field,))
    first = model.residual(jax.tree.map(jnp.zeros_like, field), theta)
    terms = jnp.stack([norm(first), norm(image)])
    bend = norm(jax.tree.map(lambda a, b, c: a - b - c, h, first, image))
    return norm(h), jnp.max(jnp.where(jnp.isfinite(terms), terms, 0.0)), bend
