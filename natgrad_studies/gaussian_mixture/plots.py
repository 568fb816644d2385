"""The interactive plots of the report: paths over the landscape, and losses."""

import numpy as np

from natgrad.report import Curves, Landscape, Paths, Series, Track

from ..one_mean import START
from .colours import LINES
from .figures import LEVELS
from .fit import Fit
from .fit_figures import FLOOR
from .results import StudyResult


def paths(result: StudyResult) -> Paths:
    """All methods from the paper's start."""
    land = result.landscape
    return Paths(
        [
            Track(
                entry.method.name,
                entry.path.path,
                *LINES[entry.method.key],
                losses=entry.path.losses / land.weight,
            )
            for entry in result.methods
        ],
        "The paths of all methods over the level sets of f; the slider follows them step by step, "
        "with f beside each name.",
        Landscape.of(land.axis, land.axis, land.values / land.weight, LEVELS),
        {"start": START, "global minimum": land.minimum},
        "μ₁",
        "μ₂",
    )


def losses(result: StudyResult) -> Curves:
    """f of every method from the paper's start."""
    land = result.landscape
    return Curves(
        [
            Series(
                entry.method.name,
                entry.path.losses / land.weight,
                {"iterations": np.arange(len(entry.path.losses))},
                *LINES[entry.method.key],
            )
            for entry in result.methods
        ],
        "f, as a plain sum",
        "Loss against iterations from (5, 3).",
        log=False,
        levels={
            "plateau": land.plateau_loss / land.weight,
            "global minimum": land.minimum_loss / land.weight,
        },
    )


def fit_losses(fits: list[Fit]) -> Curves:
    """The losses of the fit with all parameters free."""
    return Curves(
        [
            Series(
                fit.contestant.name,
                np.maximum(fit.relative, FLOOR),
                {
                    "iterations": np.arange(len(fit.relative)),
                    "seconds": fit.seconds,
                    "propagations": fit.propagations,
                },
                *LINES[fit.contestant.key],
            )
            for fit in fits
        ],
        "loss / initial loss",
        "Loss against iterations, against seconds on this machine without compiling, and against "
        "evaluations of the model and of its derivatives.",
    )
