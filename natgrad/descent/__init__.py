"""The loop and its parts: methods, steps, stops, checkpoints, progress."""

from .methods import Method, Record, State
from .steps import Outcome, Path, Step, Trial

__all__ = ["Method", "Outcome", "Path", "Record", "State", "Step", "Trial"]
