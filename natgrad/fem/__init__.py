"""Metrics on unstructured meshes, by finite elements (`pip install natgrad[fem]`)."""

from .sobolev import L2, HomogeneousSobolev, Sobolev
from .space import Space
from .wasserstein import Wasserstein

__all__ = ["L2", "HomogeneousSobolev", "Sobolev", "Space", "Wasserstein"]
