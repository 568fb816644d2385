"""What the study computes, and the results file made from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad.report import versions

from .descent import Basins, Descent, LargestStep
from .fit import DAMPING, Fit
from .landscape import ESCAPES, OUTCOMES, REACHES, UNDECIDED, Landscape
from .methods import Method
from .settings import Settings
from .transport import TransportComparison

NAME = "gaussian-mixture"


@dataclass(frozen=True)
class MethodResult:
    """Everything computed for one method on the paper's problem."""

    method: Method
    path: Descent
    field: np.ndarray
    steps: dict[str, LargestStep]
    local_limit: float
    basins: Basins
    matrices: np.ndarray  # G at the first iterates

    def numbers(self, weight: float) -> dict[str, object]:
        """What the results file holds; losses in the paper's convention f/w."""
        unit = self.method.paper_step / self.method.step
        path, area = self.path, self.basins
        return {
            "name": self.method.name,
            "paper_step": self.method.paper_step,
            "our_step": self.method.step,
            "outcome": OUTCOMES[path.outcome],
            "iterations": path.iterations,
            "first_iterate_outside": path.first_outside,
            "loss_rises": path.rises,
            "end": path.path[-1],
            "end_loss": path.losses[-1] / weight,
            "path": path.path,
            "losses": path.losses / weight,
            "eta_start": (path.path[1] - path.path[0]) / self.method.step,
            "G_start": self.matrices[0],
            "largest_monotone_step": {
                name: {
                    "step_in_the_papers_units": found.step * unit,
                    "bounded": found.bounded,
                    "outcome": OUTCOMES[found.run.outcome],
                    "iterations": found.run.iterations,
                }
                for name, found in self.steps.items()
            },
            "local_step_limit_at_minimum": self.local_limit * unit,
            "basins": {
                "reach": area.count(REACHES),
                "escape": area.count(ESCAPES),
                "undecided": area.count(UNDECIDED),
                "loss_rose": int(area.rose.sum()),
                "side": area.side,
                "outcome": area.outcome,
                "iterations": area.iterations,
            },
        }


@dataclass(frozen=True)
class FlooredRun:
    """The paper's W₂ scheme with a floor under the density: its path, and G at the start."""

    path: Descent
    matrix: np.ndarray

    def numbers(self, weight: float) -> dict[str, object]:
        """What the results file holds."""
        return {
            "outcome": OUTCOMES[self.path.outcome],
            "G_start": self.matrix,
            "path": self.path.path,
            "losses": self.path.losses / weight,
        }


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    landscape: Landscape
    methods: list[MethodResult]
    floored: FlooredRun | None
    transport: TransportComparison
    fits: list[Fit]
    seconds: dict[str, float]

    def __getitem__(self, key: str) -> MethodResult:
        return next(entry for entry in self.methods if entry.method.key == key)

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        weight = self.landscape.weight
        return {
            "study": NAME,
            "settings": self.settings,
            "versions": versions(),
            "seconds": self.seconds,
            "landscape": self.landscape.numbers(),
            "methods": {entry.method.key: entry.numbers(weight) for entry in self.methods},
            "w2_floored": None if self.floored is None else self.floored.numbers(weight),
            "transport": self.transport.numbers(),
            "fit": {
                "damping": DAMPING,
                "methods": {entry.contestant.key: entry.numbers() for entry in self.fits},
            },
        }
