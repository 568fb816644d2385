"""The loop and its parts: methods, steps, stops, checkpoints, progress."""

from .methods import LinearMethod, Method, Record, State
from .steps import Outcome, Path, Step, Trial

__all__ = ["LinearMethod", "Method", "Outcome", "Path", "Record", "State", "Step", "Trial"]
