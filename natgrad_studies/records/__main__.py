"""`python -m natgrad_studies.records`: the study with the standard library's parser alone.

The command `natgrad study records` does the same with tyro; this one runs where only natgrad's own
dependencies are.
"""

import argparse
from dataclasses import fields, replace
from typing import Any, get_args, get_origin, get_type_hints

from .settings import PRESETS, Settings


def run(**changes: Any) -> list[dict[str, Any]]:
    """The study with a preset (`preset="full"`) and changes of it; the numbers of every run.

    ```python
    run(preset="full", problems=("burgers",), seeds=(0,), seconds=30.0, output=Path("out"))
    ```
    """
    from ..running import prepare_process, run_study

    settings = replace(PRESETS[changes.get("preset", "small")], **changes)
    prepare_process()
    say = lambda line: print(line, flush=True)
    page, result = run_study(settings, say)
    say(f"report: {page}")
    return result.numbers()["runs"]


def parse(arguments: list[str] | None = None) -> dict[str, Any]:
    """The changes that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m natgrad_studies.records")
    hints = get_type_hints(Settings)
    for entry in fields(Settings):
        hint = hints[entry.name]
        several, inner = get_origin(hint) is tuple, get_args(hint)
        kind = inner[0] if inner else hint  # of tuple[X, ...] and of X | None
        choices = inner if entry.name == "preset" else None
        parser.add_argument(
            f"--{entry.name.replace('_', '-')}",
            type=str if choices else kind,
            nargs="+" if several else None,
            choices=choices,
            default=argparse.SUPPRESS,
        )
    found = vars(parser.parse_args(arguments))
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}


if __name__ == "__main__":
    given = parse()
    try:
        run(**given)
    except ValueError as error:  # input that is at fault, or a folder: one line
        from natgrad import InputError
        from natgrad.report import FolderError

        if not isinstance(error, (InputError, FolderError)):
            raise
        raise SystemExit(f"records: {error}") from None
