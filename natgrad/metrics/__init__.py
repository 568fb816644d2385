"""Metrics on states, each given by its factor L."""

from .base import Metric
from .blocks import Blocks
from .fisher_rao import FisherRao
from .l2 import L2, Euclidean
from .matrix import FactorMetric, MatrixMetric
from .newton import Newton
from .sobolev import HomogeneousSobolev, Sobolev
from .transport import Mobility
from .wasserstein import Wasserstein

__all__ = [
    "L2",
    "Blocks",
    "Euclidean",
    "FactorMetric",
    "FisherRao",
    "HomogeneousSobolev",
    "MatrixMetric",
    "Metric",
    "Mobility",
    "Newton",
    "Sobolev",
    "Wasserstein",
]
