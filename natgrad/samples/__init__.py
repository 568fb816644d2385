"""Point clouds: metrics and a loss for states given by samples xᵢ = T_θ(zᵢ), with no grid."""

from .energy_distance import EnergyDistance
from .fisher_rao import FisherRao
from .sobolev import Sobolev
from .wasserstein import Wasserstein

__all__ = ["EnergyDistance", "FisherRao", "Sobolev", "Wasserstein"]
