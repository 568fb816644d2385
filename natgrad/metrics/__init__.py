"""Metrics on states, each given by its factor L."""

from ..core.operators import AdjointOperator
from .base import FlatMetric, Geometry, Metric
from .combine import Blocks, WrappedGeometry
from .diagonal import L2, FisherRao
from .elliptic.equation import Elliptic
from .matrix import FactorMetric, MatrixMetric
from .sobolev import HomogeneousSobolev, Sobolev
from .transport import Mobility, Wasserstein

__all__ = [
    "L2",
    "AdjointOperator",
    "Blocks",
    "Elliptic",
    "FactorMetric",
    "FisherRao",
    "FlatMetric",
    "Geometry",
    "HomogeneousSobolev",
    "MatrixMetric",
    "Metric",
    "Mobility",
    "Sobolev",
    "Wasserstein",
    "WrappedGeometry",
]
