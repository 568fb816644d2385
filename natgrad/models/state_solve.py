"""The state of h(ρ, θ) = 0: one linear solve for an affine h, else Newton's method."""

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..control import loop
from ..errors import InputError
from ..linalg.trees import axpy, norm
from .host import from_numpy, named, to_numpy
from .implicit_products import Kept, linear_solves

if TYPE_CHECKING:
    from .implicit import ImplicitModel

PyTree = Any

TOLERANCE, ACCEPTED, MAX_STEPS, MAX_HALVINGS = 1e-10, 1e-7, 50, 10
ROUNDING = 100.0  # a residual of so many eps cannot be improved


class _Iterate(NamedTuple):
    field: PyTree
    residual: PyTree
    size: Array  # ‖h‖
    steps: Array
    stalled: Array


def solve_state(model: "ImplicitModel", theta: PyTree, start: PyTree) -> Kept:
    """The field with h(field, θ) = 0, from `start`; NaN where it was not found.

    Newton's method with ρ ← ρ − t (∂_ρh)⁻¹h, t halved from 1 until ‖h‖ falls. It ends at
    ‖h‖ ≤ 1e-10 of the larger of ‖h(start)‖ and the terms of the equation there (`residual_sizes`),
    or when no step decreases ‖h‖; what it has then counts as found below 1e-7. (In single precision
    the two limits are 1e-5 and 1e-2.) The same loop runs compiled, with lineax, and on the host,
    with the user's factorisation. (The root finders of optimistix are compiled only and take no
    preconditioner.)

    Reference: Kelley, Solving Nonlinear Equations with Newton's Method (2003).
    """
    h = lambda field: _residual(model, field, theta)
    first = h(start)
    if model.linear:
        step, factor = _newton_direction(model, start, theta, first)
        return Kept(axpy(jnp.ones(()), step, start), factor)
    scale = jnp.maximum(*residual_sizes(model, start, theta))
    least = ROUNDING * jnp.finfo(scale.dtype).eps
    enough, accepted = jnp.maximum(TOLERANCE, least), jnp.maximum(ACCEPTED, 1e3 * least)

    def going(it: _Iterate) -> Array:
        return (it.size > enough * scale) & (it.steps < MAX_STEPS) & ~it.stalled

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
    success = found.size <= accepted * scale
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


def as_field(model: "ImplicitModel", field: PyTree, theta: PyTree) -> PyTree:
    """A field that the user gave, as arrays in the precision of h, which must have its shapes."""
    field = jax.tree.map(jnp.asarray, field)
    h = named("residual", eqx.filter_eval_shape, model.residual, field, theta)
    shapes = lambda tree: [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]
    if shapes(h) != shapes(field) or jax.tree.structure(h) != jax.tree.structure(field):
        raise InputError(
            "residual",
            f"has shape {shapes(h)} where the state of the equation has {shapes(field)}",
            "as many equations as unknowns, in the same structure",
        )
    return jax.tree.map(lambda x, like: x.astype(jnp.result_type(x, like)), field, h)


@eqx.filter_jit
def residual_sizes(model: "ImplicitModel", field: PyTree, theta: PyTree) -> tuple[Array, Array]:
    """‖h‖ at a field, and what to compare it with: the terms of the equation, whichever is finite.

    These are ‖h(0)‖, the right-hand side of a linear equation, and ‖∂_ρh ρ‖, its left-hand side.
    """
    zero = jax.tree.map(jnp.zeros_like, field)
    h, image = jax.jvp(lambda u: model.residual(u, theta), (field,), (field,))
    terms = jnp.stack([norm(model.residual(zero, theta)), norm(image)])
    return norm(h), jnp.max(jnp.where(jnp.isfinite(terms), terms, 0.0))


@eqx.filter_jit
def _residual(model: "ImplicitModel", field: PyTree, theta: PyTree) -> PyTree:
    return model.residual(field, theta)
