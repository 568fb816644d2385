"""The interactive plots of the report: losses of every run."""

import numpy as np

from natgrad.report import Curves, Series

from .figures import LINES
from .results import StudyResult
from .runs import Run


def convergence(result: StudyResult) -> Curves:
    """Losses of all methods on all points."""
    return Curves(
        [_series(run, LINES[run.method.key][1]) for run in result.runs.values()],
        "loss",
        "Loss against iterations and against CPU seconds without compiling.",
    )


def batches(result: StudyResult) -> Curves:
    """The same methods on all points and on mini-batches."""
    whole = [result.runs[key] for key in result.batched if key in result.runs]
    return Curves(
        [
            *(_series(run, "-") for run in whole),
            *(_series(run, "-.") for run in result.batched.values()),
        ],
        "loss on all points",
        "Mini-batches (dash-dotted) and the same methods on all points.",
    )


def _series(run: Run, dash: str) -> Series:
    x = {"iterations": np.arange(len(run.losses)), "CPU seconds": run.seconds}
    return Series(run.method.name, run.losses, x, LINES[run.method.key][0], dash)
