"""Parameters as one flat vector: flattening, bounds."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .core.compiled import is_traced
from .errors import InputError


class Bounds(NamedTuple):
    """Box bounds on the flattened parameters."""

    lower: Array
    upper: Array


def find_free(flat: Array, gradient: Array, bounds: Bounds | None) -> Array:
    """1 for parameters that may move, 0 for those that a descent would push out of the box."""
    if bounds is None:
        return jnp.ones_like(flat)
    held = ((flat <= bounds.lower) & (gradient > 0)) | ((flat >= bounds.upper) & (gradient < 0))
    return jnp.where(held, 0.0, 1.0).astype(flat.dtype)


def flatten(theta: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """The floating-point arrays of θ as one vector, and the way back; other leaves are kept."""
    parameters, rest = eqx.partition(theta, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    return flat, lambda vector: eqx.combine(unravel(vector.astype(flat.dtype)), rest)


@eqx.filter_jit
def unflatten(theta: PyTree, vector: Array) -> PyTree:
    """The vector in the structure of θ, in one program instead of one for each array."""
    return flatten(theta)[1](vector)


def strengthen(theta: PyTree) -> PyTree:
    """θ with strongly typed parameters: weakly typed ones would compile every program twice."""
    settle = lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_inexact_array(x) else x
    return jax.tree.map(settle, theta)


def as_bounds(bounds: tuple[PyTree, PyTree] | Bounds | None, theta: PyTree) -> Bounds | None:
    """Bounds as a user gives them, checked, on the flattened parameters."""
    if bounds is None or isinstance(bounds, Bounds):
        return bounds
    if not (isinstance(bounds, tuple) and len(bounds) == 2):
        raise InputError("bounds", f"{bounds!r} is not a pair", "(lower, upper)")
    flat, _ = flatten(theta)
    lower, upper = _like(bounds[0], theta, flat, -np.inf), _like(bounds[1], theta, flat, np.inf)
    if is_traced((flat, lower, upper)):
        return Bounds(lower, upper)  # nothing can be said of values that are not there yet
    if bool(jnp.any(jnp.isnan(lower) | jnp.isnan(upper))):
        raise InputError("bounds", "have entries that are not numbers", "None for no bound")
    if bool(jnp.any(lower > upper)):
        raise InputError("bounds", "a lower bound exceeds its upper bound", "lower ≤ upper")
    if bool(jnp.any((flat < lower) | (flat > upper))):
        raise InputError("theta0", "lies outside the bounds", "jnp.clip(theta0, lower, upper)")
    return Bounds(lower, upper)


def _like(bound: PyTree, theta: PyTree, flat: Array, unbounded: float) -> Array:
    """A bound on the flattened parameters: from None, a number, or a pytree like θ."""
    if bound is None:
        return jnp.full_like(flat, unbounded)
    if np.ndim(bound) == 0 and isinstance(bound, (int, float, np.number, np.ndarray, jax.Array)):
        return jnp.full_like(flat, bound)
    spread = lambda t, b: None if t is None else jnp.broadcast_to(jnp.asarray(b, t.dtype), t.shape)
    parameters = eqx.filter(theta, eqx.is_inexact_array)
    try:
        return flatten(jax.tree.map(spread, parameters, bound, is_leaf=lambda x: x is None))[0]
    except (ValueError, TypeError) as error:
        raise InputError("bounds", "do not have the structure of theta", "a scalar") from error


def check_parameters(flat: Array) -> None:
    """At least one real parameter, finite as far as its value is known."""
    if flat.size == 0:
        raise InputError(
            "theta",
            "holds no floating-point array, so there is nothing to optimise (p = 0)",
            "jnp.asarray(theta, dtype=float)",
        )
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        raise InputError("theta", "is complex", "real and imaginary parts as two arrays")
    if jnp.finfo(flat.dtype).bits < 32:
        raise InputError("theta", f"is in half precision ({flat.dtype})", "float32 or float64")
    if not is_traced(flat) and not np.all(np.isfinite(np.asarray(flat))):
        raise InputError("theta", "has entries that are not finite", "a finite starting point")
