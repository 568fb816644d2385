"""The interactive plots of the report: misfit and error of every run."""

import numpy as np

from natgrad.report import Curves, Series

from .figures import LINES
from .results import VariantResult
from .runs import Run


def convergence(variant: VariantResult) -> list[Curves]:
    """Misfit and error of m, without the prior and with it."""
    level = {"the noise": variant.inversion.settings.discrepancy}
    found = []
    for white, where in ((False, "without the prior"), (True, "with the prior")):
        runs = variant.with_prior(white)
        if not runs:
            continue
        misfit = [_series(run, run.misfit) for run in runs]
        error = [_series(run, run.error) for run in runs]
        ends = "the discrepancy principle stops a run at the noise."
        found += [
            Curves(misfit, "rms misfit over the noise", f"Misfit {where}; {ends}", levels=level),
            Curves(error, "error of m", f"Error of m {where}.", log=False),
        ]
    return found


def _series(run: Run, values: np.ndarray) -> Series:
    x = {"propagations": run.propagations, "iterations": np.arange(len(values))}
    return Series(run.method.name, values, x, *LINES[run.method.entrant])
