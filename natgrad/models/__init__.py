"""Models θ ↦ ρ(θ) and their derivatives Z = ∂ρ/∂θ."""

from .checks import check_model
from .explicit import Explicit, Pointwise, as_model
from .products import Products

__all__ = ["Explicit", "Pointwise", "Products", "as_model", "check_model"]
