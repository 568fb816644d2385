"""The interactive plots of the report: objective, similarity, and the model on its way."""

import numpy as np

from natgrad.report import Curves, Frames, Series

from .figures import LINES
from .results import StudyResult
from .runs import Run


def convergence(result: StudyResult) -> list[Curves]:
    """Objective and similarity of every run."""
    costs = (
        "a gradient costs two propagations, a natural gradient two more for each step of conjugate "
        "gradients, a step one."
    )
    return [
        Curves(
            [_series(run, run.loss) for run in result.runs],
            "objective over the start's",
            f"The objective; {costs}",
        ),
        Curves(
            [_series(run, run.similarity) for run in result.runs],
            "SSIM",
            "Structural similarity to the true model.",
            log=False,
        ),
    ]


def velocities(result: StudyResult) -> Frames:
    """The model of every run on its way, beside the true one."""
    experiment = result.experiment
    width, depth = np.array(experiment.true.shape) * experiment.spacing / 1000
    upright = lambda velocity: velocity.T / 1000
    return Frames.of(
        {
            run.method.name: [
                (f"{spent} propagations", upright(velocity)) for spent, velocity in run.frames
            ]
            for run in result.runs
        },
        "The velocity on the way from the start, beside the true one.",
        reference=("true", upright(experiment.true)),
        limits=(experiment.true.min() / 1000, experiment.true.max() / 1000),
        extent=(0.0, float(width), float(depth), 0.0),
        unit="velocity, km/s",
        x_label="distance, km",
        y_label="depth, km",
    )


def _series(run: Run, values: np.ndarray) -> Series:
    x = {"propagations": run.propagations, "iterates": np.arange(len(values))}
    return Series(run.method.name, values, x, *LINES[run.method.key])
