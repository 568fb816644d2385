"""Errors and warnings: every message names the argument, what was wrong and what to try."""

import importlib
import warnings
from typing import Any


class InputError(ValueError):
    """A mistake in what the caller passed in; failures of algorithms are values instead."""

    def __init__(self, argument: str, problem: str, advice: str):
        self.argument = argument
        super().__init__(f"{argument}: {problem}. Try: {advice}.")


class PeerError(RuntimeError):
    """Another process of a run over several has died or cannot be reached."""


class PrecisionWarning(UserWarning):
    """A result will carry fewer digits than the method can give."""


_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Emit a `PrecisionWarning` the first time `key` is seen in this process."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, PrecisionWarning, stacklevel=3)


def imported(argument: str, package: str, extra: str | None = None) -> Any:
    """The package, or an `InputError` about `argument` that says how to install it.

    The package comes with an `extra` of natgrad, by default the one of its name.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        what = f"{package.partition('.')[0]} is not installed"
        raise InputError(argument, what, f'pip install "natgrad[{extra or package}]"') from error


def not_installed(package: str) -> InputError:
    """What to say where a package is needed; the extra of natgrad has its name."""
    return InputError(package, "is not installed", f'pip install "natgrad[{package}]"')
