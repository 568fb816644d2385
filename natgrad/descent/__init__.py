"""The loop and its parts: methods, steps, stops, checkpoints, progress."""

from ..result import Progress
from .methods import LinearMethod, Method, Record, State
from .progress import BOARD, Watch, label_runs, show_busy, show_run
from .run import HeldOut
from .steps import Outcome, Path, Step, Trial

__all__ = [
    "BOARD",
    "HeldOut",
    "LinearMethod",
    "Method",
    "Outcome",
    "Path",
    "Progress",
    "Record",
    "State",
    "Step",
    "Trial",
    "Watch",
    "label_runs",
    "show_busy",
    "show_run",
]
