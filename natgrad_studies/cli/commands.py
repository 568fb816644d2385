"""The commands. natgrad, and with it JAX, is imported by those that need it, when they run.

A command is a dataclass: its fields are the arguments, its docstring and EXAMPLES the help, and
`run(output)` does it. `study` stands apart because its arguments are those of the study named.
"""

import io
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from tyro.conf import Positional, arg

from ..comparing import BASELINE, NAME, CompareSettings, run_comparison
from ..registry import COMPARABLE, KEYS, STUDIES, Study, study_of
from ..settings import fill, input_error, read_toml, unknown
from .output import Output, UsageError

S = TypeVar("S")
FOLDER = "(default: results/compare-STUDY)"
PROBLEM = f"The study whose problem it is: {', '.join(COMPARABLE)}."
UNSET = arg(help_behavior_hint="")  # the help says what an empty tuple stands for


# --- study ---------------------------------------------------------------------------------------

STUDY_SUMMARY = "Run a study."
STUDY_EXAMPLES = (
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
        _run_study(self.settings, output)


def starting_settings(study: Study, preset: str | None, config: str | None) -> Any:
    """What flags start from: the preset, the one named in the file by default, and the file."""
    values = {} if config is None else read_toml(Path(config))
    name = preset or values.get("preset", next(iter(study.presets)))
    if name not in study.presets:
        where = "" if preset or config is None else f"{config}: "
        raise UsageError(where + unknown("preset", str(name), list(study.presets)))
    return fill(study.presets[name], values | {"preset": name}, str(config))


def _run_study(settings: Any, output: Output) -> None:
    """Run the study into its folder, or resume it; print its tables and where the page is."""
    study = study_of(settings)
    settings.check()
    study.import_beside(settings)
    output.line(f"{study.name}, preset {settings.preset}, into {settings.output}")
    with _computing(study.name, settings, output):
        from ..running import run_study

        page, result = run_study(settings, lambda line: output.line(f"  {line}"))
    tables = study.load("page").summary(result)
    for table in tables:
        output.table(table)
    output.done(
        study=study.name,
        preset=settings.preset,
        output=settings.output,
        report=page,
        results=settings.output / "results.json",
        tables=tables,
    )


@contextmanager
def _computing(name: str, settings: Any, output: Output) -> Iterator[None]:
    """Get ready to compute; say how to resume after a stop, and report errors of the disk."""
    from natgrad.report import FolderError, ResultFolder

    from ..running import prepare_process

    folder = ResultFolder(settings.output)
    again = f"natgrad resume {shlex.quote(str(settings.output))}"
    output.go_on = lambda: again if folder.holds(name, settings) else None
    prepare_process()
    try:
        yield
    except BrokenPipeError:  # of stdout, not of the folder
        raise
    except FolderError as error:
        raise FolderError(f"{error}. Try: --output results/NAME") from error
    except OSError as error:  # the disk is full, or the folder is gone
        what = f"{error.filename or settings.output}: {error.strerror or error}"
        raise input_error("output", what, "another folder, or more space") from error


# --- the other commands --------------------------------------------------------------------------


@dataclass(frozen=True)
class Compare:
    """Run several metrics on a study's problem under one budget, and see which wins.

    In darcy and waveform-inversion the metrics have the study's own solvers and step rules. As
    studies, gaussian-mixture and poisson-pinn repeat the paper's steps, which differ from metric to
    metric; here all metrics have one rule, so that only the metric differs.
    """

    EXAMPLES: ClassVar = (
        "natgrad compare gaussian-mixture",
        "natgrad compare darcy --metrics L2 H1 LBFGS --propagations 200",
        "natgrad compare poisson-pinn --metrics L2 LM3 --seconds 20 --config run.toml",
    )

    study: Positional[Annotated[str, arg(metavar="STUDY", help=PROBLEM)]]
    metrics: Annotated[tuple[str, ...], UNSET] = ()
    """Keys of the study's metrics (natgrad list), and LBFGS; all of them by default."""
    solvers: Annotated[tuple[str, ...], UNSET] = ()
    """Some of auto, cholesky, qr, pivoted-qr, svd, kernel, cg, lsmr; the study's by default."""
    iterations: int | None = None
    """Iterations that every run may spend. Without any budget, the study's own applies."""
    propagations: int | None = None
    """Propagations of the model that every run may spend."""
    seconds: float | None = None
    """Seconds that every run may spend, without compiling."""
    preset: Annotated[str | None, arg(help_behavior_hint="(default: the study's first)")] = None
    """The preset of the study's settings (natgrad list)."""
    config: Path | None = None
    """A TOML file with settings of the study."""
    output: Annotated[Path | None, arg(help_behavior_hint=FOLDER)] = None
    """Folder for the report, the numbers and the checkpoints."""
    json: bool = False
    """Print one JSON object on stdout, and progress on stderr."""

    def run(self, output: Output) -> None:
        """Run the comparison and print which metric wins."""
        if self.study not in STUDIES:
            raise UsageError(unknown("study", self.study, COMPARABLE))
        config = None if self.config is None else str(self.config)
        of = starting_settings(STUDIES[self.study], self.preset, config)
        budget = (self.iterations, self.propagations, self.seconds)
        folder = self.output or Path(f"results/compare-{self.study}")
        settings = CompareSettings(*(self.study, of, self.metrics, self.solvers), *budget, folder)
        _run_comparison(settings, output)


def _run_comparison(settings: CompareSettings, output: Output) -> None:
    """Run the comparison, or resume it; print its tables and where the page is."""
    settings.check()
    output.line(f"metrics on {settings.study}, into {settings.output}")
    with _computing(NAME, settings, output):
        page, comparison = run_comparison(settings, lambda line: output.line(f"  {line}"))
    tables = [comparison.table(), comparison.winners()]
    for table in tables:
        output.table(table)
    output.line(comparison.verdict())
    for name, why in comparison.failures.items():
        output.line(f"{name} could not run: {why}")
    output.done(
        study=settings.study,
        output=settings.output,
        report=page,
        winners=comparison.leaders,
        could_not_run=dict(comparison.failures),
        tables=[tables[0], _split_cells(tables[1])],
    )


def _split_cells(table: Any) -> Any:
    """The table with its cells "name (amount)" in two columns, so that JSON has the number."""
    split = lambda cell: cell.removesuffix(")").rpartition(" (")[::2]
    header = [part for name in table.header[1:] for part in (name, f"{name} of the budget")]
    rows = [[row[0], *(part for cell in row[1:] for part in split(cell))] for row in table.rows]
    return replace(table, header=[table.header[0], *header], rows=rows)


@dataclass(frozen=True)
class Resume:
    """Continue a run that was stopped, or write the report of a finished one again."""

    EXAMPLES: ClassVar = ("natgrad resume results/waveform-inversion",)

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run: the --output of its study or comparison."""
    json: bool = False
    """Print one JSON object on stdout, and progress on stderr."""

    def run(self, output: Output) -> None:
        """Read the settings from the folder and run the study with them."""
        folder = self.run_folder
        if not folder.is_dir():
            raise UsageError(f"there is no folder {str(folder)!r}")
        from natgrad.report import MARKER, ResultFolder

        name, values = ResultFolder(folder).origin()
        marker = str(folder / MARKER)
        if name == NAME:
            compared = CompareSettings.restore(values, marker)
            return _run_comparison(replace(compared, output=folder), output)
        if name not in STUDIES:
            raise UsageError(f"{marker}: {unknown('study', name, list(STUDIES))}")
        settings = fill(STUDIES[name].first_preset, values, marker)
        _run_study(replace(settings, output=folder), output)


@dataclass(frozen=True)
class Report:
    """Combine runs in one self-contained HTML file."""

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
            raise input_error("RUN", "is missing", "natgrad report results/demo")
        from natgrad.report import write_report

        output.done(report=write_report(self.runs, self.output))


@dataclass(frozen=True)
class Listing:
    """List the studies."""

    EXAMPLES: ClassVar = ("natgrad list", "natgrad list --json")

    json: bool = False
    """Print one JSON object on stdout."""

    def run(self, output: Output) -> None:
        """Print a line about each study, its presets and its metrics."""
        compared = {name: [*STUDIES[name].metrics, BASELINE] for name in COMPARABLE}
        studies = [
            {"name": study.name, "about": study.about, "presets": list(study.presets)}
            | {"metrics": compared.get(study.name, [])}
            for study in STUDIES.values()
        ]
        keys = {key: KEYS[key] for offered in compared.values() for key in offered}
        if not output.as_json:
            for study in STUDIES.values():
                output.line(f"{study.name}  {study.about}")
                output.line(f"  presets: {', '.join(study.presets)}")
                if study.metrics:
                    output.line(f"  compare: {', '.join(compared[study.name])}")
            output.line("keys of compare")
            for key, meaning in keys.items():
                output.line(f"  {key:8}{meaning}")
        output.done(studies=studies, keys=keys)


@dataclass(frozen=True)
class Completion:
    """Print a script for a shell that completes commands, studies and flags."""

    EXAMPLES: ClassVar = (
        'eval "$(natgrad completion bash)"',
        "natgrad completion zsh > ~/.zfunc/_natgrad",
        "natgrad completion fish > ~/.config/fish/completions/natgrad.fish",
    )

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """The shell."""
    json: bool = False
    """Print one JSON object on stdout, with the script in it."""

    def run(self, output: Output) -> None:
        """Print what the parser of the arguments makes of itself."""
        from .parsing import read_arguments

        script = io.StringIO()
        with redirect_stdout(script), suppress(SystemExit):
            read_arguments(["--tyro-write-completion", self.shell, "-"])
        if not output.as_json:
            output.line(script.getvalue().rstrip())
        output.done(shell=self.shell, script=script.getvalue())


COMMANDS: dict[str, Any] = {
    "compare": Compare,
    "resume": Resume,
    "report": Report,
    "list": Listing,
    "completion": Completion,
}
