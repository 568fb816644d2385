"""What the study computes, and the results file made from it."""

from dataclasses import dataclass
from typing import Any

from natgrad.report import versions

from .inversion import Inversion
from .posterior import Posterior
from .runs import Run
from .settings import Settings

NAME = "darcy"
RIVALS = ("LBFGS", "LBFGS_long")


@dataclass(frozen=True)
class VariantResult:
    """All runs on the data of one variant."""

    inversion: Inversion
    runs: list[Run]
    posterior: Posterior | None

    def __getitem__(self, key: str) -> Run:
        return next(run for run in self.runs if run.method.key == key)

    def get(self, key: str) -> Run | None:
        """The run of a method, if it is among them."""
        return next((run for run in self.runs if run.method.key == key), None)

    def with_prior(self, white: bool) -> list[Run]:
        """The runs that know of the prior, or those that do not."""
        knows = lambda run: run.method.white or run.method.key == "L2_damped"
        return [run for run in self.runs if knows(run) == white]

    def rival(self, white: bool) -> Run | None:
        """The L-BFGS that reached the noise with the fewest propagations."""
        found = [r for r in self.with_prior(white) if r.method.entrant in RIVALS and r.reached]
        return min(found, key=lambda run: run.total, default=None)

    def best(self, white: bool) -> Run | None:
        """The natural gradient that reached the noise with the fewest propagations."""
        others = (*RIVALS, "GD", "Newton")
        found = [r for r in self.with_prior(white) if r.method.entrant not in others and r.reached]
        return min(found, key=lambda run: run.total, default=None)

    def numbers(self) -> dict[str, Any]:
        """What the results file holds."""
        data = self.inversion.data
        return {
            "observations": data.observed.size,
            "noise": data.noise,
            "model_error_over_noise": data.model_error,
            "runs": {run.method.key: run.numbers() for run in self.runs},
            "posterior": None if self.posterior is None else self.posterior.numbers(),
        }


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    variants: dict[str, VariantResult]
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {
            "study": NAME,
            "settings": self.settings,
            "versions": versions(),
            "seconds": self.seconds,
            "variants": {name: variant.numbers() for name, variant in self.variants.items()},
        }
