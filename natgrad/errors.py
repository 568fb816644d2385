"""Errors and warnings: every message names the argument, what was wrong and what to try."""

import difflib
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class InputError(ValueError):
    """A mistake in what the caller passed in; failures of algorithms are values instead.

    Args:
        argument: Name of the argument at fault.
        problem: What is wrong with it.
        advice: What to try instead.
    """

    def __init__(self, argument: str, problem: str, advice: str):
        self.argument, self._parts = argument, (argument, problem, advice)
        super().__init__(f"{argument}: {problem}. Try: {advice}.")

    def __reduce__(self) -> tuple[Any, ...]:  # on its way from one process to another
        return type(self), self._parts, vars(self)


def name_kind(value: Any) -> str:
    """The class of a value with its article: "an int", "a str", "an L2"."""
    name = type(value).__name__
    name = "array" if name in ("ArrayImpl", "ndarray") else name
    return f"{'an' if re.match('[AEIOaeio]|[FHLMNRSX][A-Z0-9]', name) else 'a'} {name}"


def count_some(some: int, of: int, what: str) -> str:
    """How many of something, as the subject of a sentence: "1 of its 4 points is"."""
    return f"{some} of its {of} {what} {'is' if some == 1 else 'are'}"


class PeerError(RuntimeError):
    """Another process of a run over several has died or cannot be reached."""


class PrecisionWarning(UserWarning):
    """A result will carry fewer digits than the method can give."""


def refuse_unknown(names: Iterable[str], function: Callable) -> NoReturn:
    """Raise `InputError` for keywords that a function does not know, with the nearest it does."""
    parameters = inspect.signature(function).parameters.values()
    name, known = next(iter(names)), [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    near = difflib.get_close_matches(name, known, 1) or [k for k in known if name in k]
    if "method" in known and name in ("metric", "solver", "damping", "step", "order", "momentum"):
        near = ["ng.NaturalGradient(metric, solver=..., damping=..., step=...) as the method"]
    elif "stop" in known and re.search("iteration|propagation|second|tolerance|budget", name):
        near = ["stop=ng.Stop(iterations=..., propagations=..., seconds=..., gradient=...)"]
    elif "folder" in known and name == "checkpoint":
        near = ['folder="runs", which has the checkpoint of every run']
    what = f"is no argument of {function.__name__}"
    others = f"one of {', '.join(known)}" if known else "no arguments"
    raise InputError(name, what, near[0] if near else others)


# What JAX says of a function that it cannot differentiate; what that means, and what to try.
_WITHOUT = {
    r"custom_vjp function|'custom_lin'": (
        "a function with jax.custom_vjp has no forward derivatives",
        'jax.custom_jvp in its place, or ng.models.Explicit(function, mode="reverse")',
    ),
    r"callbacks do not support JVP": (
        "code outside JAX that it calls has no derivatives",
        "ng.ExternalModel(forward, jvp, vjp), or jax.custom_jvp around the call",
    ),
    r"Reverse-mode differentiation does not work": (
        "a while loop has no reverse derivatives",
        "lax.scan, or lax.fori_loop with a fixed number of steps",
    ),
}


def find_missing_derivative(error: BaseException, order: int = 1) -> InputError | None:
    """What JAX says of a function that it cannot differentiate, as a refusal; of others None."""
    if isinstance(error, (NotImplementedError, TypeError, ValueError)):
        for words, (what, advice) in _WITHOUT.items():
            if re.search(words, str(error)) and not isinstance(error, InputError):
                if order == 1 or what.endswith("no derivatives"):
                    return InputError("problem", what, advice)
                what = f"{order} takes derivatives that are not there: {what}"
                return InputError("order", what, f"order=1, or {advice}")
    return None


@contextmanager
def explain_derivatives() -> Iterator[None]:
    """Refuse what JAX cannot differentiate inside."""
    try:
        yield
    except Exception as error:
        if refused := find_missing_derivative(error):
            raise refused from error
        raise


_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Emit a `PrecisionWarning` the first time `key` is seen in this process."""
    if key not in _warned:
        _warned.add(key)
        warn_user(message, PrecisionWarning)


# The packages that a call of natgrad passes through on its way to a warning.
_INSIDE = ("natgrad", "equinox", "jax", "jaxlib", "contextlib", "functools")


def warn_user(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the line that called natgrad, however deep inside this is."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


# Packages whose distribution or whose extra of natgrad has another name.
_DISTRIBUTIONS = {"skfem": "scikit-fem"}
_EXTRAS = {
    **{"skfem": "fem", "pyamg": "fem", "segyio": "segy"},
    **dict.fromkeys(("matplotlib", "rich", "tyro"), "studies"),
}


def import_optional(package: str, argument: str | None = None) -> Any:
    """The package; an `InputError` that says how to install it where that is missing.

    `argument` is what the caller passed that needs the package; without it the error is about the
    package itself.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        package = package.partition(".")[0]
        name, extra = _DISTRIBUTIONS.get(package, package), _EXTRAS.get(package, package)
        what = "is not installed" if argument is None else f"{name} is not installed"
        raise InputError(argument or name, what, f'pip install "natgrad[{extra}]"') from error
