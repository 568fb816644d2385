"""Physics losses: residuals at collocation points, fixed or drawn anew."""

from .collocation import Collocation, Residual, derivative, laplacian
from .resampling import Resampled

__all__ = ["Collocation", "Resampled", "Residual", "derivative", "laplacian"]
