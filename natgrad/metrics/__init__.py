"""Metrics on states, each given by its factor L."""

from .base import Geometry, Metric
from .combine import Blocks, WrappedGeometry
from .diagonal import L2, FisherRao
from .matrix import FactorMetric, MatrixMetric
from .sobolev import HomogeneousSobolev, Sobolev
from .transport import Mobility, Wasserstein

__all__ = [
    "L2",
    "Blocks",
    "FactorMetric",
    "FisherRao",
    "Geometry",
    "HomogeneousSobolev",
    "MatrixMetric",
    "Metric",
    "Mobility",
    "Sobolev",
    "Wasserstein",
    "WrappedGeometry",
]
