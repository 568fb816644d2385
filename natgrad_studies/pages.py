"""What the pages of the studies share: tables from entries and columns."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from natgrad.report import Table


def tabulate(
    entries: Iterable[Any], columns: Mapping[str, Callable[[Any], Any]], caption: str
) -> Table:
    """A row for each entry, a column for each header and what it says of an entry; None is "–"."""
    cell = lambda value: "–" if value is None else str(value)
    rows = [tuple(cell(column(entry)) for column in columns.values()) for entry in entries]
    return Table(tuple(columns), rows, caption)
