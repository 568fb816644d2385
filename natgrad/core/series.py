"""Taylor series of a function along a curve, with all coefficients in one array.

Nested `jax.jvp`s double a program with every order. Here each operation is replaced once by one on
stacks of coefficients: a product with constants acts on the whole stack, a product of two series is
one convolution, a function of one number a polynomial in what varies.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

# Linear in all operands that vary, whatever is constant among the others: a choice, an index.
_LINEAR = {
    *("add", "sub", "neg", "add_any", "copy", "convert_element_type", "reduce_precision"),
    *("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "rev", "real", "imag"),
    *("slice", "dynamic_slice", "gather", "concatenate", "pad", "select_n", "reduce_sum", "cumsum"),
}
_BILINEAR = {"mul", "dot_general"}
_CALLS = {"jit", "pjit", "closed_call"}


class _Series:
    """x₀, x₁, … in x₀ + x₁τ + …, along a new leading axis."""

    def __init__(self, stack: Array):
        self.stack = stack


def expand(function: Callable[[Array], PyTree], stack: Array) -> PyTree:
    """The coefficients of function(x₀ + x₁τ + … + xₙτⁿ) up to τⁿ, along a new leading axis.

    >>> expand(jnp.exp, jnp.array([0.0, 1.0, 0.0]))
    Array([1. , 1. , 0.5], dtype=float32)

    Cost: at most (n + 1)² times that of the function; operations without a rule 2ⁿ times their own.
    Reference: Griewank and Walther, Evaluating Derivatives, SIAM 2008, chapter 13.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(stack[0])
    found = _evaluate(closed.jaxpr, closed.consts, [_Series(stack)])
    leaves = [_lift(x, len(stack)) for x in found]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)


def _evaluate(jaxpr: Any, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
    read = lambda v: v.val if hasattr(v, "val") else known[v]
    for equation in jaxpr.eqns:
        found = _apply(equation, [read(v) for v in equation.invars])
        known |= zip(equation.outvars, found, strict=True)
    return [read(v) for v in jaxpr.outvars]


def _apply(equation: Any, values: list[Any]) -> list[Any]:
    """The results of one operation: a series each, or a constant."""
    name, primitive, params = equation.primitive.name, equation.primitive, equation.params

    def run(*arrays: Any) -> list[Array]:
        settings = primitive.get_bind_params(params)  # with functions before it in older JAX
        functions, settings = settings if isinstance(settings, tuple) else ((), settings)
        found = primitive.bind(*functions, *arrays, **settings)
        return list(found) if primitive.multiple_results else [found]

    varying = [isinstance(x, _Series) for x in values]
    if not any(varying):
        return run(*values)
    if name in _CALLS:
        inner = params["jaxpr" if "jaxpr" in params else "call_jaxpr"]
        return _evaluate(inner.jaxpr, inner.consts, values)
    if not any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in equation.outvars):
        return run(*(x.stack[0] if isinstance(x, _Series) else x for x in values))
    order = len(next(x.stack for x in values if isinstance(x, _Series))) - 1
    both = all(varying)
    if name in _LINEAR or (name in _BILINEAR and not both):
        lifts = name in _LINEAR and not both
        floats = [jnp.issubdtype(jnp.result_type(v.aval), jnp.inexact) for v in equation.invars]
        moving = [s or (lifts and f) for s, f in zip(varying, floats, strict=True)]
        stacks = [_lift(x, order + 1) if m else x for x, m in zip(values, moving, strict=True)]
        found = jax.vmap(run, in_axes=[0 if m else None for m in moving])(*stacks)
        return [_Series(x) for x in found]
    if name == "mul":
        return [_Series(_multiply(*(x.stack for x in values)))]
    if name == "dot_general":
        return [_Series(_contract(params, *(x.stack for x in values)))]
    if name == "div":
        return [_Series(_divide(*(_lift(x, order + 1) for x in values)))]
    if name in _FACTORS:
        (x,), y = (v.stack for v in values), run(values[0].stack[0])[0]
        return [_Series(_compose(y, _FACTORS[name](y, x[0], order, params.get("y")), x))]
    return _differentiate(run, values, order)


def _lift(x: Any, length: int) -> Array:
    """The stack of a series, or of a constant."""
    if isinstance(x, _Series):
        return x.stack
    return _pad(jnp.asarray(x)[None], 0, length - 1)


def _pad(stack: Array, before: int, after: int) -> Array:
    sides = [(before, after, 0), *((0, 0, 0),) * (stack.ndim - 1)]
    return jax.lax.pad(stack, jnp.zeros((), stack.dtype), sides)


def _toeplitz(y: Array) -> Array:
    """yⱼ₋ᵢ at [i, j], zero for i > j."""
    n = len(y)
    places = n - 1 + np.arange(n) - np.arange(n)[:, None]
    return _pad(y, n - 1, 0).at[places].get(mode="promise_in_bounds")


def _multiply(x: Array, y: Array) -> Array:
    """Σᵢ xᵢ yⱼ₋ᵢ for each j."""
    if len(x) == 1:
        return x * y
    return jnp.sum(x[:, None] * _toeplitz(y), axis=0)


def _contract(params: dict[str, Any], x: Array, y: Array) -> Array:
    """As `_multiply`, of matrices: one product, with the sum over i among those it contracts."""
    (left, right), (batch, other) = params["dimension_numbers"]
    shift = lambda dims, *first: (*first, *(d + 1 for d in dims))
    numbers = ((shift(left, 0), shift(right, 0)), (shift(batch), shift(other)))
    settings = params | {"dimension_numbers": numbers}
    product = lambda a, b: jax.lax.dot_general_p.bind(a, b, **settings)
    if x.size < y.size:
        return jax.vmap(product, (1, None))(_toeplitz(x), y)
    return jax.vmap(product, (None, 1))(x, _toeplitz(y))


def _divide(x: Array, y: Array) -> Array:
    quotient: list[Array] = []
    for k in range(len(x)):
        known = [y[k - j] * q for j, q in enumerate(quotient)]
        quotient.append((x[k] - sum(known)) / y[0])
    return jnp.stack(quotient)


def _compose(y: Array, factors: list[Array], x: Array) -> Array:
    """f(x) = Σₘ f⁽ᵐ⁾(x₀)/m! (x − x₀)ᵐ, from y = f(x₀) and the factors before the powers."""
    ahead = power = x[1:]
    terms = []
    for m, factor in enumerate(factors):
        if m > 0:
            power = _multiply(ahead[:-m], power[:-1])
        terms.append(_pad(factor * power, m, 0))
    return jnp.concatenate([y[None], sum(terms[1:], terms[0])])


def _by_rate(*rate: float) -> Callable[..., list[Array]]:
    """For an f with f′ = r(f), a polynomial: f⁽ᵐ⁾/m! = r qₘ with q₁ = 1, qₘ₊₁ = (r qₘ)′/(m + 1)."""

    def factors(y: Array, x: Array, order: int, power: Any) -> list[Array]:
        r, q, found = np.polynomial.Polynomial(rate), np.polynomial.Polynomial([1.0]), []
        slope = _evaluate_polynomial(rate, y)
        for m in range(1, order + 1):
            found.append(slope * _evaluate_polynomial(q.coef, y) if m > 1 else slope)
            q = (r * q).deriv() / (m + 1)
        return found

    return factors


def _evaluate_polynomial(coefficients: Sequence[float], y: Array) -> Array:
    total = jnp.full_like(y, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * y if c == 0 else total * y + float(c)
    return total


def _of_wave(shift: int) -> Callable[..., list[Array]]:
    """For sin (0) and cos (1), whose derivatives are each other."""

    def factors(y: Array, x: Array, order: int, power: Any) -> list[Array]:
        other = jnp.sin(x) if shift else jnp.cos(x)
        cycle = (y, -other, -y, other) if shift else (y, other, -y, -other)
        return [cycle[m % 4] / math.factorial(m) for m in range(1, order + 1)]

    return factors


def _of_power(y: Array, x: Array, order: int, power: int | None) -> list[Array]:
    """For xᵃ with a whole number a, or x²."""
    a = 2 if power is None else power
    found, binomial = [], 1.0
    for m in range(1, order + 1):
        binomial *= (a - m + 1) / m
        found.append(jnp.zeros_like(x) if binomial == 0 else binomial * x ** (a - m))
    return found


_FACTORS = {
    "tanh": _by_rate(1.0, 0.0, -1.0),
    "logistic": _by_rate(0.0, 1.0, -1.0),
    "exp": _by_rate(0.0, 1.0),
    "sin": _of_wave(0),
    "cos": _of_wave(1),
    "integer_pow": _of_power,
    "square": _of_power,
}


def _differentiate(run: Callable[..., list[Array]], values: list[Any], order: int) -> list[Any]:
    """The same by nested derivatives, for any operation."""
    zero, one = jnp.zeros(()), jnp.ones(())
    at = lambda x, tau: _follow(x.stack, tau) if isinstance(x, _Series) else x
    moves = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
    functions = lambda tau: [[x for x in run(*(at(v, tau) for v in values)) if moves(x)]]

    def extend(lower: Callable[[Array], list[list[Array]]], n: int) -> Any:
        def all_orders(tau: Array) -> list[list[Array]]:
            known, slopes = jax.jvp(lower, (tau,), (one,))
            return [*known, [x / n for x in slopes[-1]]]

        return all_orders

    for n in range(1, order + 1):
        functions = extend(functions, n)
    found = iter(zip(*functions(zero), strict=True))
    still = run(*(at(v, zero) for v in values))
    return [_Series(jnp.stack(next(found))) if moves(x) else x for x in still]


def _follow(stack: Array, tau: Array) -> Array:
    """x₀ + x₁τ + …, by Horner's rule, which is smooth at τ = 0."""
    total = stack[-1]
    for coefficient in stack[-2::-1]:
        total = coefficient + tau.astype(total.dtype) * total
    return total
