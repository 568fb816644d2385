"""Acoustic waves: a propagator with Born and adjoint products, surveys, wavelets."""

from .model import Acoustic
from .recorded import Shots
from .slowness import squared_slowness, velocity_of
from .survey import Survey
from .wavelets import low_pass, ricker

__all__ = [
    "Acoustic",
    "Shots",
    "Survey",
    "low_pass",
    "ricker",
    "squared_slowness",
    "velocity_of",
]
