"""The command line: `natgrad study NAME [--preset demo|paper] [settings]` and `natgrad list`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, NoReturn

import tyro
from rich.console import Console

from .program_cache import keep_programs
from .report.folder import FolderError
from .studies.registry import STUDIES, Study


@dataclass(frozen=True)
class List:
    """List the studies."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 2 the input is at fault."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["study"] and len(arguments) > 1 and not arguments[1].startswith("-"):
        _check_study(arguments[1])
    command = _parse(arguments)
    if isinstance(command, List):
        _list()
    else:
        _study(command.study)


def _parse(arguments: list[str]) -> Any:
    """The command as a dataclass; a study's settings start from the preset that was named."""
    preset = _preset(arguments)
    studies = tyro.extras.subcommand_type_from_defaults(
        {
            name: study.presets.get(preset, next(iter(study.presets.values())))
            for name, study in STUDIES.items()
        },
        {name: study.about for name, study in STUDIES.items()},
        prefix_names=False,
    )
    study: Any = make_dataclass("Study", [("study", studies)], frozen=True)
    commands: Any = (
        Annotated[study, tyro.conf.subcommand("study", description="Run a study.")]
        | Annotated[List, tyro.conf.subcommand("list", description="List the studies.")]
    )  # pyright: ignore[reportOperatorIssue]
    return tyro.cli(
        commands,
        prog="natgrad",
        description="Natural gradient descent in the metric of your choice: studies.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _preset(arguments: list[str]) -> str | None:
    """The value of --preset, wanted before parsing because it sets the other defaults."""
    for position, argument in enumerate(arguments):
        if argument.startswith("--preset="):
            return argument.partition("=")[2]
        if argument == "--preset" and position + 1 < len(arguments):
            return arguments[position + 1]
    return None


def _check_study(name: str) -> None:
    if name not in STUDIES:
        _fail(f"unknown study {name!r}; choose one of: {', '.join(STUDIES)}")


def _list() -> None:
    console = Console()
    for study in STUDIES.values():
        console.print(f"[bold]{study.name}[/bold]  {study.about}", soft_wrap=True)
        console.print(f"  presets: {', '.join(study.presets)}")


def _study(settings: Any) -> None:
    from .errors import InputError

    console = Console()
    study = next(s for s in STUDIES.values() if type(settings) in map(type, s.presets.values()))
    try:
        settings.check()
        console.print(
            f"{study.name}, preset {settings.preset}, into {settings.output}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        run, summary = _load(study)
        with console.status("computing"):
            report, result = run(settings, lambda line: console.print(f"  {line}"))
    except (FolderError, InputError) as error:
        _fail(str(error))
    for table in summary(result):
        _print_table(console, table)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


def _load(study: Study) -> tuple[Any, Any]:
    """Import what computes; switch on the double precision that studies need, and the cache."""
    import jax

    jax.config.update("jax_enable_x64", True)
    keep_programs()
    return study.load()


def _print_table(console: Console, table: Any) -> None:
    from rich.table import Table

    printed = Table(title=table.caption, title_justify="left", title_style="dim")
    for position, name in enumerate(table.header):
        printed.add_column(name, justify="left" if position == 0 else "right")
    for row in table.rows:
        printed.add_row(*row)
    console.print(printed)


def _fail(message: str) -> NoReturn:
    print(f"natgrad: error: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
