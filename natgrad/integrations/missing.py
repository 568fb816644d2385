"""The error for an optional package that is not there."""

from ..errors import InputError


def not_installed(package: str) -> InputError:
    """What to say where a package is needed; the extra of natgrad has its name."""
    return InputError(package, "is not installed", f'pip install "natgrad[{package}]"')
