"""Checks of a model before anything is compiled: shapes, dtypes, and what they depend on."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from ..core.compiled import traced
from ..errors import InputError


def check_model(model: Callable[[PyTree], PyTree], theta: PyTree) -> PyTree:
    """The shapes of the state at θ; `InputError` unless they are real, floating and not empty."""
    try:
        structure = jax.eval_shape(model, theta)
    except jax.errors.ConcretizationTypeError as error:
        raise InputError(
            "model",
            "its shape or control flow depends on the values of theta, so it cannot be traced",
            "a state of one fixed shape, with jnp.where or lax.cond in place of Python's if",
        ) from error
    except jax.errors.TracerArrayConversionError as error:
        raise InputError(
            "model",
            "calls NumPy, or other code outside JAX, so it cannot be traced",
            "jax.numpy in its place, or ng.ExternalModel(forward, jvp, vjp)",
        ) from error
    return check_state(structure)


def check_state(structure: PyTree) -> PyTree:
    """The shapes of a state; `InputError` unless they are real, floating and not empty."""
    leaves = jax.tree.leaves(structure)
    if not leaves or any(math.prod(leaf.shape) == 0 for leaf in leaves):
        raise InputError("model", "the state has no entries", "a state with at least one value")
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise InputError(
                "model",
                f"the state is complex ({leaf.dtype}), and metrics here are real",
                "a state of real and imaginary parts, jnp.stack([z.real, z.imag])",
            )
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(
                "model",
                f"the state has dtype {leaf.dtype}, which has no derivative",
                "a floating-point state",
            )
        if jnp.finfo(leaf.dtype).bits < 32:
            raise InputError(
                "model",
                f"the state is in half precision ({leaf.dtype}), too little for a solve",
                "state.astype(jnp.float32), or better float64",
            )
    return structure


def check_parameters(theta: PyTree, flat: Array) -> None:
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
    if not traced(flat) and not np.all(np.isfinite(np.asarray(flat))):
        raise InputError("theta", "has entries that are not finite", "a finite starting point")
