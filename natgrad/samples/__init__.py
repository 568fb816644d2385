"""Point clouds: metrics and a loss for states given by samples xᵢ = T_θ(zᵢ), with no grid."""

from .energy_distance import EnergyDistance
from .metrics import FisherRao, Sobolev, Wasserstein

__all__ = ["EnergyDistance", "FisherRao", "Sobolev", "Wasserstein"]
