"""Metrics on states, each given by its factor L."""

from .base import Metric
from .combine import Blocks
from .diagonal import L2, FisherRao
from .matrix import FactorMetric, MatrixMetric
from .sobolev import HomogeneousSobolev, Sobolev
from .transport import Mobility, Wasserstein

__all__ = [
    "L2",
    "Blocks",
    "FactorMetric",
    "FisherRao",
    "HomogeneousSobolev",
    "MatrixMetric",
    "Metric",
    "Mobility",
    "Sobolev",
    "Wasserstein",
]
