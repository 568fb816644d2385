"""Models θ ↦ ρ(θ) and their derivatives Z = ∂ρ/∂θ."""

from .base import Evaluation, Model
from .checks import check_model
from .explicit import Explicit, as_model
from .external import ExternalModel
from .factorisations import SparseLU
from .implicit import ImplicitModel
from .pointwise import Part, Pointwise, RowModel
from .products import Products
from .sourcewise import Sourcewise

__all__ = [
    "Evaluation",
    "Explicit",
    "ExternalModel",
    "ImplicitModel",
    "Model",
    "Part",
    "Pointwise",
    "Products",
    "RowModel",
    "Sourcewise",
    "SparseLU",
    "as_model",
    "check_model",
]
