"""The state of h(ρ, θ) = 0: one linear solve for an affine h, else Newton's method."""

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..control import loop
from ..linalg.trees import axpy, norm
from .host import from_numpy, named, to_numpy
from .implicit_products import Kept, linear_solves

if TYPE_CHECKING:
    from .implicit import ImplicitModel

PyTree = Any

TOLERANCE, ACCEPTED, MAX_STEPS, MAX_HALVINGS = 1e-10, 1e-7, 50, 10


class _Iterate(NamedTuple):
    field: PyTree
    residual: PyTree
    size: Array  # ‖h‖
    steps: Array
    stalled: Array


def solve_state(model: "ImplicitModel", theta: PyTree, start: PyTree) -> Kept:
    """The field with h(field, θ) = 0, from `start`; NaN where it was not found.

    Newton's method with ρ ← ρ − t (∂_ρh)⁻¹h, t halved from 1 until ‖h‖ falls. It ends at
    ‖h‖ ≤ 1e-10 · max(‖h(0)‖, ‖h(start)‖), or when no step decreases ‖h‖; what it has then counts
    as found below 1e-7. The same loop runs compiled, with lineax, and on the host, with the user's
    factorisation. (The root finders of optimistix are compiled only and take no preconditioner.)

    Reference: Kelley, Solving Nonlinear Equations with Newton's Method (2003).
    """
    h = lambda field: _residual(model, field, theta)
    first = h(start)
    if model.linear:
        step, factor = _newton_direction(model, start, theta, first)
        return Kept(axpy(jnp.ones(()), step, start), factor)
    scale = jnp.maximum(norm(first), norm(h(jax.tree.map(jnp.zeros_like, start))))

    def going(it: _Iterate) -> Array:
        return (it.size > TOLERANCE * scale) & (it.steps < MAX_STEPS) & ~it.stalled

    def step(it: _Iterate) -> _Iterate:
        direction, _ = _newton_direction(model, it.field, theta, it.residual)
        point = lambda t: axpy(t, direction, it.field)
        shorter = lambda trial: (trial[0] / 2, norm(h(point(trial[0] / 2))), trial[2] + 1)
        worse = lambda trial: ~(trial[1] < it.size) & (trial[2] < MAX_HALVINGS)
        one = jnp.ones_like(it.size)
        t, size, _ = loop(worse, shorter, (one, norm(h(point(one))), jnp.zeros((), int)))
        better = size < it.size
        field = jax.tree.map(lambda a, b: jnp.where(better, a, b), point(t), it.field)
        size = jnp.where(better, size, it.size)
        return _Iterate(field, h(field), size, it.steps + 1, ~better)

    begin = _Iterate(start, first, norm(first), jnp.zeros((), int), jnp.asarray(False))
    found = loop(going, step, begin)
    success = found.size <= ACCEPTED * scale
    return Kept(jax.tree.map(lambda x: jnp.where(success, x, jnp.nan), found.field))


def _newton_direction(
    model: "ImplicitModel", field: PyTree, theta: PyTree, h: PyTree
) -> tuple[PyTree, Any]:
    """−(∂_ρh)⁻¹h, and the factorisation on the host that served."""
    minus = jax.tree.map(jnp.negative, h)
    if model.factorise is None:
        return linear_solves(model, field, theta)[0](minus), None
    factor = model.factorised(field, theta)
    x = named("solve of the factorisation", factor.solve, to_numpy(minus))
    return from_numpy("solve", x, field), factor


@eqx.filter_jit
def _residual(model: "ImplicitModel", field: PyTree, theta: PyTree) -> PyTree:
    return model.residual(field, theta)
