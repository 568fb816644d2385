"""Metrics on states, each given by its factor L."""

from .base import Geometry, Metric
from .combine import Blocks, WrappedGeometry
from .diagonal import L2, Euclidean, FisherRao
from .matrix import FactorMetric, MatrixMetric
from .newton import Newton
from .sobolev import HomogeneousSobolev, Sobolev
from .transport import Mobility, Wasserstein

__all__ = [
    "L2",
    "Blocks",
    "Euclidean",
    "FactorMetric",
    "FisherRao",
    "Geometry",
    "HomogeneousSobolev",
    "MatrixMetric",
    "Metric",
    "Mobility",
    "Newton",
    "Sobolev",
    "Wasserstein",
    "WrappedGeometry",
]
