"""Models θ ↦ ρ(θ) and their derivatives Z = ∂ρ/∂θ."""

from ..core.outcomes import Counts
from .base import Evaluation, Model, Products, check_model
from .explicit import Explicit, Sourcewise, as_model
from .external import ExternalModel
from .factorisations import SparseLU
from .implicit import ImplicitModel
from .pointwise import Part, Pointwise, RowModel

__all__ = [
    "Counts",
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
