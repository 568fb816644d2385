"""What the study computes, and the results file made from it."""

from dataclasses import asdict, dataclass
from typing import Any

from natgrad.report import versions

from .claims import Claim, claims
from .pinn import Pinn
from .runs import Run
from .settings import METRICS, RESIDUAL, Settings

NAME = "poisson-pinn"


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    pinn: Pinn
    start_loss: float
    start_error: float
    runs: dict[str, Run]
    batched: dict[str, Run]
    seconds: float

    @property
    def best(self) -> Run:
        """The run with the lowest loss of all."""
        return min(self.runs.values(), key=lambda run: run.final)

    def best_of(self, keys: tuple[str, ...]) -> Run | None:
        """The run with the lowest loss among these methods."""
        found = [self.runs[key] for key in keys if key in self.runs]
        return min(found, key=lambda run: run.final, default=None)

    @property
    def best_metric(self) -> Run | None:
        """The best natural gradient in a metric on values."""
        return self.best_of(METRICS[1:])

    @property
    def best_residual(self) -> Run | None:
        """The best method on residuals."""
        return self.best_of(RESIDUAL)

    @property
    def claims(self) -> list[Claim]:
        """What the paper says, and whether it holds here."""
        return claims(self.runs)

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        return {
            "study": NAME,
            "settings": self.settings,
            "versions": versions(),
            "seconds": self.seconds,
            "parameters": self.pinn.parameters,
            "start": {"loss": self.start_loss, "relative_error": self.start_error},
            "runs": {key: run.numbers() for key, run in self.runs.items()},
            "mini_batches": {key: run.numbers() for key, run in self.batched.items()},
            "claims_of_the_paper": [asdict(claim) for claim in self.claims],
        }
