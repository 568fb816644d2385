"""`natgrad study NAME`: run a study with settings from a preset, a file and flags."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from natgrad.errors import InputError
from natgrad.report import ResultFolder

from ..program_cache import keep_programs
from ..registry import Study, study_of
from ..suggestions import unknown
from ..toml_files import read_toml
from ..typed import filled
from .output import Output, UsageError

S = TypeVar("S")
SUMMARY = "Run a study."
EXAMPLES = (
    "natgrad study poisson-pinn --preset demo --output results/pinn",
    "natgrad study poisson-pinn --config run.toml --points 30",
    "natgrad study darcy --methods L2 LBFGS --json",
)


@dataclass(frozen=True)
class RunStudy(Generic[S]):
    """The defaults are the preset's; a file changes some of them, and flags those of both."""

    settings: S
    config: Path | None = None
    """A TOML file with settings, such as the settings.toml that every run writes."""
    json: bool = False
    """Print one JSON object on stdout, and progress on stderr."""

    def run(self, output: Output) -> None:
        """Check the settings and run the study with them."""
        execute(study_of(self.settings), self.settings, output)


def starting_settings(study: Study, preset: str | None, config: str | None) -> Any:
    """What flags start from: the preset, the one named in the file by default, and the file."""
    values = {} if config is None else read_toml(Path(config))
    named = preset or values.get("preset", next(iter(study.presets)))
    if named not in study.presets:
        where = "" if preset or config is None else f"{config}: "
        raise UsageError(where + unknown("preset", str(named), list(study.presets)))
    return filled(study.presets[named], values | {"preset": named}, str(config))


def execute(study: Study, settings: Any, output: Output) -> None:
    """Run the study, or go on with it, into its folder; print its tables and where the page is."""
    settings.check()
    folder = ResultFolder(settings.output)
    again = f"natgrad resume {shlex.quote(str(settings.output))}"
    output.go_on = lambda: again if folder.holds(study.name, settings) else None
    output.line(f"{study.name}, preset {settings.preset}, into {settings.output}")
    ready_to_compute()
    with disk_errors(settings.output):
        page, result = study.part("study", "run")(settings, lambda line: output.line(f"  {line}"))
    tables = study.part("tables", "summary")(result)
    for table in tables:
        output.table(table)
    if not output.as_json:
        output.line(f"report: {page}")
    output.done(
        study=study.name,
        preset=settings.preset,
        output=settings.output,
        report=page,
        results=folder.path / "results.json",
        tables=tables,
    )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A disk that is full, or a folder that is gone, is said in one line."""
    try:
        yield
    except BrokenPipeError:  # of stdout, not of the folder
        raise
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror or error}"
        raise InputError("output", what, "another folder, or more space") from error


def ready_to_compute() -> None:
    """Switch on the double precision that studies need, the cache, and the display of runs."""
    import jax

    from natgrad.descent.progress import BOARD

    jax.config.update("jax_enable_x64", True)
    keep_programs()
    BOARD.asked = True
