"""Acoustic waves: a propagator with Born and adjoint products, surveys, wavelets."""

from .model import Acoustic
from .survey import Survey
from .wavelets import low_pass, ricker

__all__ = ["Acoustic", "Survey", "low_pass", "ricker"]
