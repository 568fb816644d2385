"""Where a step leads: the direction with its momentum, and the curve that bends with the model.

Both are built from responses: the response to a tangent ζ of the state is the least-squares
solution of Zη = −ζ, with the damping and the factorisation of the natural gradient itself.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree
from numpy.polynomial import Polynomial

from ..core.outcomes import Counts
from ..direction.local import Local, Responder
from ..parameters import flatten
from ..solvers.base import Solution
from .steps import Path, offset

# The names of operations in JAX. Linear in all operands that vary, whatever is constant among the
# others: a choice, an index.
LINEAR = {
    *("add", "sub", "neg", "add_any", "copy", "convert_element_type", "reduce_precision"),
    *("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "rev", "real", "imag"),
    *("slice", "dynamic_slice", "gather", "concatenate", "split", "pad", "select_n"),
    *("reduce_sum", "cumsum"),
}
BILINEAR = {"mul", "dot_general"}
PRODUCT = ("dimension_numbers", "precision", "preferred_element_type")
CALLS = {"jit", "pjit", "closed_call"}
RATES = {"tanh": (1.0, 0.0, -1.0), "logistic": (0.0, 1.0, -1.0), "exp": (0.0, 1.0)}
SMOOTH = ("sin", "cos", "integer_pow", "square", *RATES)


def bend(
    local: Local,
    solution: Solution,
    damping: Array,
    order: int,
    momentum: Array | None,
    previous: Array | None,
) -> Path:
    """The path θ(τ) = θ + τη + τ²a₂ + … for the natural gradient η, found with this damping λ.

    With a momentum μ the damping pulls towards c = μ times the `previous` direction instead of
    towards zero, (G + λD)(η − c) = −∂_θ f − Gc, unless that would not descend.

    The coefficients make the state move straight ahead, ρ(θ(τ)) = ρ + τZη + O(τ^{q+1}) for the
    order q, as far as its tangent space reaches: with tₙ the n-th Taylor coefficient of ρ along the
    curve known so far,

        aₙ = argmin ‖L(tₙ + Z aₙ)‖² + λ‖aₙ‖².

    Order 2 is the geodesic acceleration of Levenberg–Marquardt. Where a coefficient is not well
    below the one before it, at the first length τ that the step tries, it and those after it are
    left out: a metric times a constant gives the same path.

    Cost: for each order n one solve with the factors that η was found with, one product Zᵀξ where
    the rows of Z are not at hand, and a Taylor series of ρ, which counts as 2ⁿ evaluations.
    Reference: Transtrum and Sethna, arXiv:1201.5885 (order 2).
    """
    responder = local.responder(damping)
    counts = Counts(forward=responder.evaluations)
    if momentum is not None:
        assert previous is not None
        solution, spent = _carry_momentum(local, solution, responder, momentum * previous)
        counts = counts.plus(*spent)
    if order == 1:
        return Path(local, solution, damping, counts=counts)
    flat, unravel = flatten(local.setup.theta)
    zeros = jnp.zeros((order - 1, flat.size), flat.dtype)
    start = jnp.concatenate([flat[None], solution.eta[None], zeros])

    def extend(n: Any, known: tuple[Array, Counts]) -> tuple[Array, Counts]:
        curve, counts = known
        state = expand(lambda v: local.setup.problem.model(unravel(v)), curve)
        coefficient, spent = responder.respond(jax.tree.map(lambda stack: stack[n], state))
        return curve.at[n].set(coefficient), counts.plus(*spent).plus(forward=2**n)

    # one program for all orders, at the price of the largest for each
    curve, counts = jax.lax.fori_loop(2, order + 1, extend, (start, counts.plus()))
    return Path(local, solution, damping, curve[1:], counts)


def _carry_momentum(
    local: Local, solution: Solution, responder: Responder, centre: Array
) -> tuple[Solution, Counts]:
    """η with the damping pulling towards `centre`; of its motion nothing is known then."""
    eta = solution.eta
    centre = local.hold(centre.astype(eta.dtype))
    answer, spent = responder.carry(centre)
    carried = eta + centre + answer
    eta = jnp.where(local.gradient @ carried < 0, carried, eta)  # else it would not descend
    return solution._replace(eta=eta, motion=None), spent


class _Series(NamedTuple):
    """x₀, x₁, … of x₀ + x₁τ + …"""

    terms: list[Array]


def expand(function: Callable[[Array], PyTree], curve: Array) -> PyTree:
    """The coefficients of function(x₀ + x₁τ + … + xₙτⁿ) up to τⁿ, along a new leading axis.

    Nested `jax.jvp`s double a program with every order. Here each operation is replaced by those on
    its coefficients: what is linear acts on each of them, a product of two series is a convolution,
    a function of one number is a polynomial in x − x₀. Stacks of coefficients would need fewer
    operations, but compile more slowly on a CPU: much of the program would concatenate them.

    >>> expand(jnp.exp, jnp.array([0.0, 1.0, 0.0]))
    Array([1. , 1. , 0.5], dtype=float32)

    Cost: at most (n + 1)² times that of the function; for an operation without a rule 2ⁿ times.
    Reference: Griewank and Walther, Evaluating Derivatives, SIAM 2008, chapter 13.
    """
    length = len(curve)

    def lift(x: Any) -> list[Any]:
        return x.terms if isinstance(x, _Series) else [x, *[jnp.zeros_like(x)] * (length - 1)]

    def apply(equation: Any, values: list[Any]) -> list[Any]:
        """The results of one operation: a series each, or a constant."""
        primitive, params = equation.primitive, equation.params
        name, varying = primitive.name, [isinstance(x, _Series) for x in values]

        def run(*arrays: Any) -> list[Array]:
            settings = primitive.get_bind_params(params)  # with functions before it in older JAX
            functions, settings = settings if isinstance(settings, tuple) else ((), settings)
            found = primitive.bind(*functions, *arrays, **settings)
            return list(found) if primitive.multiple_results else [found]

        if not any(varying):
            return run(*values)
        if name in CALLS:
            inner = params["jaxpr" if "jaxpr" in params else "call_jaxpr"]
            return evaluate(inner.jaxpr, inner.consts, values)
        moves = lambda v: jnp.issubdtype(v.aval.dtype, jnp.inexact)
        if not any(map(moves, equation.outvars)):
            return run(*(x.terms[0] if isinstance(x, _Series) else x for x in values))
        if name in LINEAR or (name in BILINEAR and not all(varying)):
            mapped = list(map(moves, equation.invars)) if name in LINEAR else varying
            terms = [lift(x) if m else [x] * length for x, m in zip(values, mapped, strict=True)]
            first, *later = zip(*terms, strict=True)
            found = [run(*first)]
            if params.get("fill_value"):  # of a gather, beyond the end: a constant, without a slope
                params = dict(params, fill_value=0)
            found += [run(*arrays) for arrays in later]
            return [_Series(list(result)) for result in zip(*found, strict=True)]
        if name in BILINEAR:
            x, y = (x.terms for x in values)
            kept = {name: params[name] for name in params if name in PRODUCT}
            if not kept:
                return [_Series(_convolve(x, y))]
            summed = math.prod(x[0].shape[i] for i in params["dimension_numbers"][0][0])
            return [_Series(_convolve(x, y, partial(jax.lax.dot_general, **kept), summed))]
        if name in SMOOTH:
            ((x,),) = values
            return [_Series(_compose(name, run(x[0])[0], x, params.get("y", 2)))]
        return _differentiate(run, values, length - 1)

    def evaluate(jaxpr: Any, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
        read = lambda v: v.val if hasattr(v, "val") else known[v]
        for equation in jaxpr.eqns:
            found = apply(equation, list(map(read, equation.invars)))
            known |= zip(equation.outvars, found, strict=True)
        return list(map(read, jaxpr.outvars))

    closed, shape = jax.make_jaxpr(function, return_shape=True)(curve[0])
    found = evaluate(closed.jaxpr, closed.consts, [_Series(list(curve))])
    stacks = [jnp.stack(lift(x)) for x in found]
    return jax.tree.unflatten(jax.tree.structure(shape), stacks)


def _convolve(
    x: Sequence[Array],
    y: Sequence[Array],
    product: Callable[..., Array] = jax.lax.mul,
    summed: int = 0,
) -> list[Array]:
    """Σᵢ xᵢ yⱼ₋ᵢ for each j; an entry of a product is a sum of `summed` numbers.

    The terms of a vector are joined to a matrix: a CPU has a library for products with matrices,
    and compiles code for each product with a vector.
    """
    count, wide = len(x), x[0].size > y[0].size
    term = lambda i, j: product(x[i], y[j - i])
    if min(x[0].size, y[0].size) == summed:
        large, joined = (x, jnp.stack(y)) if wide else (y, jnp.stack(x))
        some = lambda i: jax.lax.slice_in_dim(joined, 0, count - i)
        both = lambda i: (large[i], some(i)) if wide else (some(i), large[i])
        together = jax.vmap(product, (None, 0) if wide else (0, None))
        found = [together(*both(i)) for i in range(count)]
        term = lambda i, j: jax.lax.index_in_dim(found[i], j - i, keepdims=False)
    return [reduce(jax.lax.add, [term(i, j) for i in range(j + 1)]) for j in range(count)]


def _compose(name: str, y: Array, x: Sequence[Array], power: int) -> list[Array]:
    """The series f(x) = Σₘ f⁽ᵐ⁾(x₀)/m! (x − x₀)ᵐ of a function of one number, with y = f(x₀)."""
    orders, factors = range(1, len(x)), []
    if name in SMOOTH[:2]:
        other = jnp.cos(x[0]) if name == "sin" else -jnp.sin(x[0])
        factors = [(y, other, -y, -other)[m % 4] / math.factorial(m) for m in orders]
    elif name in SMOOTH[2:4]:
        binomial = 1.0
        for m in orders:
            binomial *= (power - m + 1) / m
            factors.append(binomial * x[0] ** (power - m) if binomial else jnp.zeros_like(y))
    else:  # f′ = r(f), a polynomial, and f⁽ᵐ⁾/m! = r qₘ with q₁ = 1, qₘ₊₁ = (r qₘ)′/(m + 1)
        rate, q = Polynomial(RATES[name]), Polynomial([1.0])
        slope = (1 - y) * (1 + y) if name == "tanh" else y * (1 - y) if len(rate) > 2 else y
        for m in orders:
            value = jnp.full_like(y, q.coef[-1])
            for c in map(float, q.coef[-2::-1]):  # which leave a float32 what it is
                value = value * y + c if c else value * y
            factors.append(slope * value if m > 1 else slope)
            q = (rate * q).deriv() / (m + 1)
    ahead = power_of = x[1:]
    total = [factors[0] * term for term in ahead]
    for m, factor in enumerate(factors[1:], 1):
        power_of = _convolve(ahead[:-m], power_of[:-1])
        more = [a + factor * b for a, b in zip(total[m:], power_of, strict=True)]
        total = total[:m] + more
    return [y, *total]


def _differentiate(run: Callable[..., list[Array]], values: list[Any], order: int) -> list[Any]:
    """The results of any operation, by nested derivatives."""
    one, moves = jnp.ones(()), lambda x: jnp.issubdtype(x.dtype, jnp.inexact)

    def at(tau: Array) -> list[Array]:
        follow = lambda x: x.terms[0] + offset(jnp.stack(x.terms[1:]), tau)
        return run(*(follow(x) if isinstance(x, _Series) else x for x in values))

    def extend(lower: Callable[[Array], list[list[Array]]], n: int) -> Any:
        def all_orders(tau: Array) -> list[list[Array]]:
            known, slopes = jax.jvp(lower, (tau,), (one,))
            return [*known, [x / n for x in slopes[-1]]]

        return all_orders

    functions: Any = lambda tau: [list(filter(moves, at(tau)))]
    for n in range(1, order + 1):
        functions = extend(functions, n)
    found = map(list, zip(*functions(jnp.zeros(())), strict=True))
    return [_Series(next(found)) if moves(x) else x for x in at(jnp.zeros(()))]
