"""Physics losses: residuals at collocation points, and what they are written and solved with."""

from .collocation import Collocation, Residual, derivative, laplacian
from .embeddings import fourier_features, periodic, vanishing
from .resampling import Resampled
from .shapes import Ball, Box, Shape, Sphere, Union

__all__ = [
    "Ball",
    "Box",
    "Collocation",
    "Resampled",
    "Residual",
    "Shape",
    "Sphere",
    "Union",
    "derivative",
    "fourier_features",
    "laplacian",
    "periodic",
    "vanishing",
]
