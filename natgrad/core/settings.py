"""Arguments, checked; numeric settings are array leaves, so that a new value compiles nothing."""

import dataclasses
import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.core
import numpy as np
from jax import Array

from ..errors import InputError

Number = Array | np.ndarray | float
Module = TypeVar("Module", bound=eqx.Module)


def check_instance(name: str, value: Any, kind: type, advice: str | None = None) -> None:
    """Raise `InputError` unless the argument is an instance of the class."""
    if isinstance(value, kind):
        return
    what = f"is a {type(value).__name__}"
    wanted = advice or f"an instance of a {kind.__name__}"
    if isinstance(value, type):
        what = f"is the class {value.__name__}"
        if issubclass(value, kind):  # and what it takes at least
            given = inspect.signature(value).parameters.values()
            needed = [p.name for p in given if p.default is p.empty or p.name == "grid"]
            wanted = f"ng.{value.__name__}({', '.join(needed)})"
    raise InputError(name, what, wanted)


def refuse_unknown(names: Any, function: Callable) -> NoReturn:
    """Raise `InputError` for keywords that a function does not know, with the nearest it does."""
    name, known = next(iter(names)), [*inspect.signature(function).parameters][:-1]
    near = difflib.get_close_matches(name, known, 1, 0.7)
    if "method" in known and name in ("metric", "solver", "damping", "step", "order", "momentum"):
        near = ["ng.NaturalGradient(metric, solver=..., damping=..., step=...) as the method"]
    elif "stop" in known and re.search("iteration|propagation|second|tolerance|budget", name):
        near = ["stop=ng.Stop(iterations=..., propagations=..., seconds=..., gradient=...)"]
    what = f"is no argument of {function.__name__}"
    raise InputError(name, what, near[0] if near else f"one of {', '.join(known)}")


def replace_fields(module: Module, **values: Any) -> Module:
    """The same module with other values of some fields, whatever its constructor takes."""
    made = object.__new__(type(module))
    for field in dataclasses.fields(module):
        value = values.get(field.name, getattr(module, field.name))
        object.__setattr__(made, field.name, value)
    return made


def check_number(
    value: Number,
    name: str,
    *,
    positive: bool = False,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> Array:
    """A finite scalar ≥ 0 (or > 0) in double precision, cast to the problem's when used.

    An `optional` one may be None, which stays None.
    """
    if isinstance(value, jax.core.Tracer) or (optional and value is None):
        return value  # pyright: ignore[reportReturnType]
    scalar = np.asarray(value)
    if scalar.shape != () or scalar.dtype.kind not in "fiu":
        raise InputError(name, f"{value!r} is not a real number", f"{name}=1.0")
    if not np.isfinite(scalar) or scalar < 0 or (positive and scalar == 0):
        wanted = "positive" if positive else "nonnegative"
        raise InputError(name, f"{float(scalar)} is not finite and {wanted}", f"{name}=1.0")
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
            raise InputError(name, f"{value!r} is no positive integer", f"{name}={default}")
        return scalar.astype(np.int32)  # pyright: ignore[reportReturnType]

    return eqx.field(converter=convert, default=default)


def check_integer(value: int, name: str, least: int, example: int | None = None) -> int:
    """An integer ≥ `least` that is structure (a rank, a number of samples, a seed), as an `int`.

    Raises `InputError` for anything else, with `example` as the advice.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        advice = f"{name}={max(least, 1) if example is None else example}"
        raise InputError(name, f"{value!r} is no integer ≥ {least}", advice)
    return int(value)
