"""Acoustic waves: a propagator with Born and adjoint products, surveys, recorded shots, models."""

from .acoustic import Acoustic, WaveModel, squared_slowness, velocity_of
from .data_metrics import DataWasserstein, Shifted, Softplus
from .misfits import TraceWasserstein
from .survey import Shots, Survey, low_pass, ricker
from .synthetic import coarsened, faulted_layers, folded_layers, salt_body, smoothed
from .velocity_files import load_velocity

__all__ = [
    "Acoustic",
    "DataWasserstein",
    "Shifted",
    "Shots",
    "Softplus",
    "Survey",
    "TraceWasserstein",
    "WaveModel",
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
