"""Arguments, checked; numeric settings are array leaves, so that a new value compiles nothing."""

import dataclasses
import functools
import inspect
import math
import reprlib
from typing import Any, Self, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InputError, name_kind, refuse_unknown

Number = Array | np.ndarray | float
Module = TypeVar("Module", bound=eqx.Module)


class Public:
    """A class that users make: its constructor refuses keywords that it does not know.

    ```python
    ng.Stop(iteration=5)      # InputError: iteration: is no argument of Stop. Try: iterations.
    ```
    """

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = inspect.signature(cls).parameters if given else {}
        unknown = [name for name in given if name not in known]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            refuse_unknown(unknown, cls)
        return super().__new__(cls)


def check_instance(name: str, value: Any, kind: type, advice: str | None = None) -> None:
    """Raise `InputError` unless the argument is an instance; a class may have an `EXAMPLE`."""
    if isinstance(value, kind):
        return
    what, part = f"is {name_kind(value)}", kind.__name__.lower()
    wanted = advice or getattr(kind, "EXAMPLE", f"an instance of {kind.__name__}")
    if isinstance(getattr(value, part, None), kind):
        wanted = f"its .{part}"
    if isinstance(value, type):
        what = f"is the class {value.__name__}"
        if issubclass(value, kind):  # and what it takes at least
            given = inspect.signature(value).parameters.values()
            needed = [p.name for p in given if p.default is p.empty or p.name == "grid"]
            wanted = f"ng.{value.__name__}({', '.join(needed)})"
    raise InputError(name, what, wanted)


def replace_fields(module: Module, **values: Any) -> Module:
    """The same module with other values of some fields, whatever its constructor takes."""
    made = object.__new__(type(module))
    for field in dataclasses.fields(module):
        value = values.get(field.name, getattr(module, field.name))
        object.__setattr__(made, field.name, value)
    return made


def check_number(
    value: Number | None,
    name: str,
    *,
    positive: bool = False,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
    example: float = 1.0,
) -> Array:
    """A finite scalar ≥ 0 (or > 0) in double precision, cast to the problem's when used.

    An `optional` one may be None, which stays None.
    """
    if isinstance(value, jax.core.Tracer) or (optional and value is None):
        return value  # pyright: ignore[reportReturnType]
    scalar = np.asarray(None if isinstance(value, (list, tuple)) else value)
    if scalar.shape != () or (scalar.dtype.kind not in "fiu" and scalar.dtype != jnp.bfloat16):
        raise InputError(name, f"{value!r} is not a real number", f"{name}={example}")
    if not np.isfinite(scalar) or scalar < 0 or (positive and scalar == 0):
        wanted = "positive" if positive else "nonnegative"
        raise InputError(name, f"{float(scalar)} is not finite and {wanted}", f"{name}={example}")
    if not above < scalar < below:
        raise InputError(name, f"{float(scalar)} is out of range", f"{above} < {name} < {below}")
    return scalar.astype(np.float64)  # pyright: ignore[reportReturnType]


def setting(
    name: str,
    default: float | None = None,
    *,
    positive: bool = False,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
):
    """A dataclass field that holds a number, see `check_number`."""
    wanted = {"positive": positive, "above": above, "below": below, "optional": optional}
    convert = functools.partial(check_number, name=name, **wanted)
    if default is None and not optional:
        return eqx.field(converter=convert)
    return eqx.field(converter=convert, default=default)


def count(name: str, default: int):
    """A dataclass field that holds a positive integer, as an array leaf too."""

    def convert(value: Number | int) -> Array:
        if isinstance(value, jax.core.Tracer):
            return value  # pyright: ignore[reportReturnType]
        scalar = np.asarray(value)
        if scalar.shape != () or scalar.dtype.kind not in "iu" or scalar < 1:
            raise InputError(name, f"{value!r} is not a positive integer", f"{name}={default}")
        return scalar.astype(np.int32)  # pyright: ignore[reportReturnType]

    return eqx.field(converter=convert, default=default)


def check_reals(values: Any, name: str, advice: str) -> np.ndarray:
    """An array of real numbers in double precision, or `InputError`."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):  # rows of several lengths, or no numbers
        found = np.asarray(None)
    if found.dtype.kind not in "biuf" and found.dtype != jnp.bfloat16:
        raise InputError(name, f"{reprlib.repr(values)} holds no real numbers", advice)
    return found.astype(float)


def as_dtype(value: Any) -> np.dtype | None:
    """The type of numbers that is meant, or None if it is none."""
    try:
        return None if value is None else np.dtype(value)
    except (TypeError, ValueError, SyntaxError):  # of a string that NumPy parses
        return None


def check_integer(value: int, name: str, least: int, example: int | None = None) -> int:
    """An integer ≥ `least` that is structure (a rank, a number of samples, a seed), as an `int`.

    Raises `InputError` for anything else, with `example` as the advice.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        if isinstance(value, float) and value.is_integer() and value >= least:
            example = int(value)
        advice = f"{name}={max(least, 1) if example is None else example}"
        raise InputError(name, f"{value!r} is not an integer ≥ {least}", advice)
    return int(value)
