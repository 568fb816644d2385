"""Models θ ↦ ρ(θ) and their derivatives Z = ∂ρ/∂θ."""

from .base import Evaluation, Model
from .checks import check_model
from .explicit import Explicit, Pointwise, as_model
from .external import ExternalModel
from .factorisations import SparseLU
from .implicit import ImplicitModel
from .products import Products
from .sourcewise import Sourcewise

__all__ = [
    "Evaluation",
    "Explicit",
    "ExternalModel",
    "ImplicitModel",
    "Model",
    "Pointwise",
    "Products",
    "Sourcewise",
    "SparseLU",
    "as_model",
    "check_model",
]
