"""`natgrad compare STUDY`: several metrics on the problem of a study, under one budget."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from natgrad.report import ResultFolder

from ..comparing import NAME, CompareSettings, run
from ..registry import STUDIES
from ..suggestions import unknown
from .output import Output, UsageError
from .study import disk_errors, ready_to_compute, starting_settings


@dataclass(frozen=True)
class Compare:
    """Run several metrics on the problem of a study under one budget, and see which wins."""

    EXAMPLES: ClassVar = (
        "natgrad compare gaussian-mixture",
        "natgrad compare darcy --metrics L2 H1 LBFGS --propagations 200",
        "natgrad compare poisson-pinn --metrics L2 LM3 --seconds 20 --config run.toml",
    )

    study: Positional[Annotated[str, arg(metavar="STUDY")]]
    """The study whose problem it is."""
    metrics: tuple[str, ...] = ()
    """Keys of the study's metrics (natgrad list), and LBFGS; all of them by default."""
    solvers: tuple[str, ...] = ()
    """Some of auto, cholesky, qr, pivoted-qr, svd, kernel, cg, lsmr; the study's by default."""
    iterations: int | None = None
    """Iterations that every run may spend. Without any budget it is the study's."""
    propagations: int | None = None
    """Propagations of the model that every run may spend."""
    seconds: float | None = None
    """Seconds that every run may spend, without compiling."""
    preset: str | None = None
    """The preset of the study's settings."""
    config: Path | None = None
    """A TOML file with settings of the study."""
    output: Path = Path("results/compare")
    """Folder for the report, the numbers and the checkpoints."""
    json: bool = False
    """Print one JSON object on stdout, and progress on stderr."""

    def run(self, output: Output) -> None:
        """Run the comparison and print who wins."""
        if self.study not in STUDIES:
            raise UsageError(unknown("study", self.study, list(STUDIES)))
        config = None if self.config is None else str(self.config)
        of = starting_settings(STUDIES[self.study], self.preset, config)
        budget = (self.iterations, self.propagations, self.seconds)
        execute(
            CompareSettings(self.study, of, self.metrics, self.solvers, *budget, self.output),
            output,
        )


def execute(settings: CompareSettings, output: Output) -> None:
    """Run the comparison, or go on with it; print its tables and where the page is."""
    settings.check()
    folder = ResultFolder(settings.output)
    again = f"natgrad resume {shlex.quote(str(settings.output))}"
    output.go_on = lambda: again if folder.holds(NAME, settings) else None
    output.line(f"metrics on {settings.study}, into {settings.output}")
    ready_to_compute()
    with disk_errors(settings.output):
        page, comparison = run(settings, lambda line: output.line(f"  {line}"))
    tables = [comparison.table(), comparison.winners()]
    for table in tables:
        output.table(table)
    for name, why in comparison.failures.items():
        output.line(f"{name} could not run: {why}")
    if not output.as_json:
        output.line(f"report: {page}")
    output.done(**_object(settings, page, comparison, tables))


def _object(settings: CompareSettings, page: Path, comparison: Any, tables: list[Any]) -> dict:
    return {
        "study": settings.study,
        "output": settings.output,
        "report": page,
        "winners": comparison.leaders,
        "could_not_run": dict(comparison.failures),
        "tables": tables,
    }
