"""Metrics on unstructured meshes, by finite elements (`pip install natgrad[fem]`)."""

from .metrics import L2, HomogeneousSobolev, Sobolev, Wasserstein
from .space import Space

__all__ = ["L2", "HomogeneousSobolev", "Sobolev", "Space", "Wasserstein"]
