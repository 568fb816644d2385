"""What a command prints: lines and tables for people, or one JSON object on stdout."""

import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..stopping import check_ending


class UsageError(ValueError):
    """Arguments that make no command; the message says why in one line."""


class Output:
    """With `as_json` stdout gets one object and nothing else; lines go to stderr."""

    def __init__(self, as_json: bool):
        self.as_json, self._is_done = as_json, False
        self.go_on: Callable[[], str | None] = lambda: None
        """The command that resumes the run after a stop, asked for when it is needed."""

    def line(self, text: str) -> None:
        """A line of text, at once, unless the program is to end."""
        check_ending()
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def table(self, table: Any) -> None:
        """A `Table` of natgrad's reports; in JSON it is part of the object."""
        if self.as_json:
            return
        if not sys.stdout.isatty():  # no width to keep to
            print(table.text(), end="\n\n", flush=True)
            return
        from rich.console import Console
        from rich.table import Table

        printed = Table(title=table.caption, title_justify="left", title_style="dim")
        for position, name in enumerate(table.header):
            justify = "left" if position == 0 else "right"
            printed.add_column(name, justify=justify, overflow="fold")
        for row in table.rows:
            printed.add_row(*row)
        Console().print(printed)

    def done(self, **found: Any) -> None:
        """The object; for people, where the report is."""
        self._is_done = True
        if self.as_json:
            print(json.dumps(found, ensure_ascii=False, default=_plain), flush=True)
        elif "report" in found:
            self.line(f"report: {found['report']}")

    def error(self, message: str) -> None:
        """What is wrong with the input, in one line."""
        line = " ".join(message.split())
        if self.as_json:
            self.done(error=line)
        else:
            print(f"natgrad: error: {line}", file=sys.stderr, flush=True)

    def warning(self, message: Warning | str, *where: Any) -> None:
        """In the place of `warnings.showwarning`: a line, without the code it comes from."""
        line = " ".join(str(message).split())
        print(f"natgrad: warning: {line}", file=sys.stderr, flush=True)

    def stopped(self) -> None:
        """That a signal ended the run, and how to go on; nothing where all was done by then."""
        if self._is_done:
            return
        if (progress := sys.modules.get("natgrad.descent.progress")) is not None:
            progress.BOARD.close()  # threads that are left would keep it open
        command = self.go_on()
        line = "stopped" if command is None else f"stopped; resume with: {command}"
        print(line, file=sys.stderr, flush=True)
        self.done(error=line)


def _plain(value: Any) -> Any:
    """A path as text; a table with its numbers as numbers, and None where it has a dash."""
    if isinstance(value, Path):
        return str(value)
    table = dataclasses.asdict(value)
    return table | {"rows": [[_read(cell) for cell in row] for row in table["rows"]]}


def _read(cell: str) -> str | float | None:
    """What a cell says.

    >>> _read("1,337"), _read("5.84e+01"), _read("–"), _read("L²")
    (1337, 58.4, None, 'L²')
    """
    for kind in (int, float):
        with suppress(ValueError):
            return kind(cell.replace(",", "").replace("−", "-"))
    return None if cell in ("–", "") else cell
