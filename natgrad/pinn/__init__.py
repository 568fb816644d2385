"""Physics losses: residuals at collocation points, and what they are written and solved with."""

from .collocation import Collocation, Residual, derivative, laplacian
from .embeddings import fourier_features, periodic, vanishing
from .marching import March, march
from .resampling import Resampled, residual_adaptive
from .shapes import Ball, Box, Shape, Sphere, Union
from .staging import Staged, Stages, stages
from .weights import Balanced, Causal, Weighting

__all__ = [
    "Balanced",
    "Ball",
    "Box",
    "Causal",
    "Collocation",
    "March",
    "Resampled",
    "Residual",
    "Shape",
    "Sphere",
    "Staged",
    "Stages",
    "Union",
    "Weighting",
    "derivative",
    "fourier_features",
    "laplacian",
    "march",
    "periodic",
    "residual_adaptive",
    "stages",
    "vanishing",
]
