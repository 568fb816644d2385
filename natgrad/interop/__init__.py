"""Links to other libraries. Each library is imported when its link is used, not with natgrad.

| library | names |
|---|---|
| SciPy, lineax | `as_linear_operator`, `as_lineax_operator` |
| both, of a problem | `information_operator`, `information_factor` |
| lineax | `as_lineax_solver` |
| optax | `scale_by_natural_gradient` |
| optimistix | `NaturalDescent`, `NaturalGradientDescent` |
| PyTorch | `TorchModel` |
| deepwave, devito | `Deepwave`, `Devito` |
"""

import importlib
from typing import TYPE_CHECKING, Any

from ..core.sparse import as_linear_operator, as_lineax_operator
from ..direction.information import information_factor, information_operator
from .deepwave import Deepwave
from .devito import Devito
from .lineax import as_lineax_solver
from .optax import scale_by_natural_gradient
from .torch import TorchModel

if TYPE_CHECKING:
    from .optimistix import NaturalDescent, NaturalGradientDescent

__all__ = [
    "Deepwave",
    "Devito",
    "NaturalDescent",
    "NaturalGradientDescent",
    "TorchModel",
    "as_linear_operator",
    "as_lineax_operator",
    "as_lineax_solver",
    "information_factor",
    "information_operator",
    "scale_by_natural_gradient",
]


def __getattr__(name: str) -> Any:
    """The classes of optimistix: they inherit from its own, so that naming one imports it."""
    if name in ("NaturalDescent", "NaturalGradientDescent"):
        return getattr(importlib.import_module(".optimistix", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
