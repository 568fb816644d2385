"""natgrad: natural gradient descent for PDE-based optimisation, in the metric of your choice.

The names are those of `public.py`. They are imported when the first of them is used, so that the
command line can print its help without JAX.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import public
    from .public import *  # noqa: F403

    __all__: list[str] = []
    __all__ += public.__all__

__version__ = "0.1.0"
MODULES = ("fem", "plot", "samples", "waves")  # public too, imported one by one


class _Package(ModuleType):
    """`natgrad.minimize` is the function, also after its module of that name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in ("compare", "minimize")):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """A public name, the first time it is used."""
    if name in MODULES:
        return import_module(f".{name}", __name__)
    public = import_module(".public", __name__)
    names = getattr(public, "__all__", None)  # None while it is being imported
    if names is not None:
        globals().update({known: getattr(public, known) for known in names}, __all__=names)
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), *MODULES})
