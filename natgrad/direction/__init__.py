"""The problem at one θ as a solver sees it: model, metric and solver put together."""

from .damping import Damping, RelativeDamping, Undamped
from .local import Local, Setup

__all__ = ["Damping", "Local", "RelativeDamping", "Setup", "Undamped"]
