"""`natgrad report RUN...`: one page from the pages of several runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from natgrad.errors import InputError

from .output import Output


@dataclass(frozen=True)
class Report:
    """Put runs together in one HTML file that needs nothing but itself."""

    EXAMPLES: ClassVar = (
        "natgrad report results/demo",
        "natgrad report results/pinn results/darcy --output both.html",
    )

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN [RUN ...]")]] = ()
    """Folders of studies, files of saved results, or folders that hold such."""
    output: Path = Path("report.html")
    """The file to write."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self, output: Output) -> None:
        """Write the page."""
        if not self.runs:
            raise InputError("RUN", "is missing", "natgrad report results/demo")
        from natgrad.report import write_report

        page = write_report(self.runs, self.output)
        if not output.as_json:
            output.line(f"report: {page}")
        output.done(report=page)
