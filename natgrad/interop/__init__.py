"""Links to other libraries; each imports its own when it is used."""

from ..core.sparse import as_linear_operator, as_lineax_operator
from ..direction.information import information_factor, information_operator
from .lineax import as_lineax_solver
from .optax import scale_by_natural_gradient
from .torch import TorchModel

__all__ = [
    "TorchModel",
    "as_linear_operator",
    "as_lineax_operator",
    "as_lineax_solver",
    "information_factor",
    "information_operator",
    "scale_by_natural_gradient",
]
