"""Errors and warnings: every message names the argument, what was wrong and what to try."""

import difflib
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn


class InputError(ValueError):
    """A mistake in what the caller passed in; failures of algorithms are values instead.

    Args:
        argument: Name of the argument at fault.
        problem: What is wrong with it.
        advice: What to try instead.
    """

    def __init__(self, argument: str, problem: str, advice: str):
        self.argument = argument
        super().__init__(f"{argument}: {problem}. Try: {advice}.")


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
    what = f"is no argument of {function.__name__}"
    others = f"one of {', '.join(known)}" if known else "no arguments"
    raise InputError(name, what, near[0] if near else others)


_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Emit a `PrecisionWarning` the first time `key` is seen in this process."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, PrecisionWarning, stacklevel=3)


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
