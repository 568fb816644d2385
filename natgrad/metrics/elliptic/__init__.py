"""The equations Kφ = ζ under the metrics, solved directly, by transforms or by iteration."""

from .elimination import BlockInverse, eliminate, gather, slab_order
from .spectral import sine_transform, sobolev_symbol

__all__ = ["BlockInverse", "eliminate", "gather", "sine_transform", "slab_order", "sobolev_symbol"]
