"""Packages that natgrad does not depend on."""

import importlib
from typing import Any

from ..errors import InputError


def imported(argument: str, package: str) -> Any:
    """The package, or an `InputError` about `argument` that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        what = f"{package} is not installed"
        raise InputError(argument, what, f'pip install "natgrad[{package}]"') from error
