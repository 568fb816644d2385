"""What the study computes, and the results file made from it."""

from dataclasses import dataclass
from typing import Any

from natgrad.report import versions

from .experiment import Experiment
from .runs import Run
from .settings import Settings

NAME = "waveform-inversion"


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    experiment: Experiment
    runs: list[Run]
    device: str
    seconds: float

    def get(self, key: str) -> Run | None:
        """The run of a method, if it is among them."""
        return next((run for run in self.runs if run.method.key == key), None)

    @property
    def best(self) -> Run:
        """The run that ended with the smallest loss."""
        return min(self.runs, key=lambda run: float(run.loss[-1]))

    @property
    def start_similarity(self) -> float:
        return self.experiment.similarity(self.experiment.start)

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {
            "study": NAME,
            "settings": self.settings,
            "versions": versions(),
            "device": self.device,
            "seconds": self.seconds,
            "start_ssim": self.start_similarity,
            "runs": {run.method.key: run.numbers() for run in self.runs},
        }
