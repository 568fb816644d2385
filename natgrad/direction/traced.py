"""One direction as a pure function of its arguments, for `jit`, `vmap` and `grad`."""

import dataclasses
import re
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from ..errors import InputError
from ..parameters import flatten
from ..problem import Problem, differentiate_loss
from ..solvers.base import SolveInfo
from .linearise import choose, linearise
from .local import Setup
from .matrix_free import MatrixFree

NO_RULE = re.compile("differentia|jvp", re.IGNORECASE)  # JAX, of what has no derivative


class Along(eqx.Module):
    """θ ↦ ⟨g, θ⟩, whose gradient is g."""

    gradient: Array

    def __call__(self, theta: PyTree) -> Array:
        return self.gradient @ flatten(theta)[0]


class Found(NamedTuple):
    """f, ∂_θ f and η, flat, with λ, what solver and metric report, and ⟨∂_ρ f, A⁻¹∂_ρ f⟩."""

    loss: Array
    gradient: Array
    eta: Array
    damping: Array
    info: SolveInfo
    report: Any
    energy: Array


@eqx.filter_custom_jvp
def solve_traced(setup: Setup) -> Found:
    """The direction at θ. Its derivative follows from the equation, whatever the solver,

        (G + λD) dη = −d[(G + λD) η + ∂_θ f]   with η held on the right,

    one more solve with the same matrix, which must not be singular.
    """
    local, rule = linearise(setup), setup.damping
    damping = rule.strength(jnp.asarray(rule.initial), local.trace, local.gradient.size)
    eta, info, *_ = local.solve(damping)
    report = {name: x for name, x in local.report.items() if not isinstance(x, str)}
    info = info._replace(counts=local.counts.plus(*info.counts))
    found = Found(local.loss, local.gradient, eta, damping, info, report, local.energy)
    return jax.tree.map(jnp.asarray, found)


@solve_traced.def_jvp
def _differentiate(primals: tuple[Setup], tangents: tuple[Any]) -> tuple[Found, Any]:
    (setup,), (change,) = primals, tangents
    model, rule = setup.problem.model, setup.damping
    if model.solves:
        kind = type(model).__name__
        what = f"the direction of a {kind}, a model behind an equation, has no derivative here"
        raise InputError("model", what, "jit and vmap, or a model that is a function in JAX")
    if choose(setup)[0] is MatrixFree and rule.trace_samples:
        what = "is relative to an estimate of trace G, which has no derivative"
        raise InputError("damping", what, "AbsoluteDamping(λ), or a direct solver")
    found = solve_traced(setup)
    try:
        _, (loss, gradient, left) = eqx.filter_jvp(
            lambda setup: _measure(setup, found.eta), (setup,), (change,)
        )
    except (ValueError, NotImplementedError, TypeError) as error:
        if not NO_RULE.search(str(error)):
            raise
        what = f"the model or the metric has no derivative ({str(error).splitlines()[0]})"
        raise InputError("metric", what, "jit and vmap, or another elliptic solver") from error

    def solve(_: Any, b: Array) -> Array:
        problem = Problem(model, objective=Along(b))
        aimed = linearise(dataclasses.replace(setup, problem=problem))
        return -aimed.solve(found.damping).eta

    times = lambda v: _apply(setup, v, found.damping)
    eta = -jax.lax.custom_linear_solve(times, left, solve, symmetric=True)
    nothing = jax.tree.map(lambda x: None, found)
    return found, nothing._replace(loss=loss, gradient=gradient, eta=eta)


def _measure(setup: Setup, eta: Array) -> tuple[Array, Array, Array]:
    """f, ∂_θ f and (G + λD) η + ∂_θ f for a given η, by products that JAX can differentiate."""
    flat, unravel = flatten(setup.theta)
    state = lambda v: setup.problem.model(unravel(v))
    rho, pull = jax.vjp(state, flat)
    loss, covector, direct = differentiate_loss(setup.problem, setup.theta, rho)
    gradient = jnp.zeros_like(flat) if direct is None else direct
    gradient = gradient if covector is None else gradient + pull(covector)[0]
    damping = jnp.zeros_like(loss)
    if setup.damping.damps:
        trace = jnp.zeros_like(loss)
        if setup.damping.trace_samples:
            one = lambda e: e @ _apply(setup, e, jnp.zeros_like(loss))
            trace = jnp.sum(jax.vmap(one)(jnp.eye(flat.size, dtype=flat.dtype)))
        damping = setup.damping.strength(jnp.asarray(setup.damping.initial), trace, flat.size)
    return loss, gradient, gradient + _apply(setup, eta, damping)


def _apply(setup: Setup, v: Array, damping: Array) -> Array:
    """(G + λD) v."""
    flat, unravel = flatten(setup.theta)
    state = lambda v: setup.problem.model(unravel(v))
    rho, pull = jax.vjp(state, flat)
    assert setup.metric is not None
    motion = jax.jvp(state, (flat,), (v.astype(flat.dtype),))[1]
    product = pull(setup.metric.at(rho).gram.mv(motion))[0]
    D = setup.damping.operator
    return product + damping.astype(flat.dtype) * (v if D is None else D.apply(v))
