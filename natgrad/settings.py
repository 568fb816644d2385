"""Numeric settings as array leaves, so that a new value does not compile a new program."""

import equinox as eqx
import jax
import numpy as np
from jax import Array

from .errors import InputError

Number = Array | np.ndarray | float


def number(value: Number, name: str, *, positive: bool = False) -> Array:
    """A finite scalar ≥ 0 (or > 0) in double precision, cast to the problem's when used."""
    if isinstance(value, jax.Array):  # a traced or device value: shape and sign are the caller's
        return value
    scalar = np.asarray(value)
    if scalar.shape != () or scalar.dtype.kind not in "fiu":
        raise InputError(name, f"{value!r} is not a real number", f"{name}=1.0")
    if not np.isfinite(scalar) or scalar < 0 or (positive and scalar == 0):
        wanted = "positive" if positive else "nonnegative"
        raise InputError(name, f"{float(scalar)} is not finite and {wanted}", f"{name}=1.0")
    return scalar.astype(np.float64)  # pyright: ignore[reportReturnType]


def setting(name: str, default: float | None = None, *, positive: bool = False):
    """A dataclass field that holds a `number`."""
    convert = lambda value: number(value, name, positive=positive)
    if default is None:
        return eqx.field(converter=convert)
    return eqx.field(converter=convert, default=default)
