"""Acoustic waves: a propagator with Born and adjoint products, surveys, recorded shots, models."""

from .data_metrics import DataWasserstein
from .densities import Shifted, Softplus
from .misfits import TraceWasserstein
from .model import Acoustic
from .recorded import Shots
from .slowness import squared_slowness, velocity_of
from .survey import Survey
from .synthetic import coarsened, faulted_layers, folded_layers, salt_body, smoothed
from .velocity_files import load_velocity
from .wavelets import low_pass, ricker

__all__ = [
    "Acoustic",
    "DataWasserstein",
    "Shifted",
    "Shots",
    "Softplus",
    "Survey",
    "TraceWasserstein",
    "coarsened",
    "faulted_layers",
    "folded_layers",
    "load_velocity",
    "low_pass",
    "ricker",
    "salt_body",
    "smoothed",
    "squared_slowness",
    "velocity_of",
]
