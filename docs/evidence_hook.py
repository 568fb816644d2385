"""A hook of mkdocs: tables of measurements come from the files of `make evidence`.

    <!-- evidence: transport.solves columns=method; n; CPU s where=n=560|1120 -->

becomes the table `solves` of `evidence/transport.json`, with these columns and rows, and a line
below it with the command, the commit, the date and the machine. Tables with the same columns are
joined by `+`, and a name in parentheses then stands in place of the first cell:

    <!-- evidence: skipped.runs (least squares) + skipped_bands.runs (continuation) -->

Nothing is shown of a comment `<!-- from: transport.solves, published -->`: it names the tables that
hold the numbers of its paragraph, for the test that looks them up.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "evidence"
DIRECTIVE = re.compile(r"^<!-- evidence: (.+?)(?: columns=(.+?))?(?: where=(.+?))? -->$", re.M)
SOURCE = re.compile(r"^(\w+)\.(.+?)(?: \((.+)\))?$")
EXPONENT = re.compile(r"[\d.]+e-\d+")  # which a browser would break at its sign
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Table = dict[str, Any]


def on_page_markdown(markdown: str, **_: Any) -> str:
    return DIRECTIVE.sub(lambda found: shown(*found.groups()), markdown)


@cache
def evidence(part: str) -> dict[str, Any]:
    """All that a file holds."""
    return json.loads((FOLDER / f"{part}.json").read_text(encoding="utf-8"))


def table(part: str, name: str) -> Table:
    """One of its tables."""
    tables = {table["name"]: table for table in evidence(part)["tables"]}
    if name not in tables:
        raise KeyError(f"no table {name} in docs/evidence/{part}.json, only {', '.join(tables)}")
    return tables[name]


def named(sources: str) -> list[tuple[str, str, str | None]]:
    """Part, table and the first cell of each source of a directive."""
    found = [SOURCE.match(source.strip()) for source in sources.split("+")]
    if not all(found):
        raise KeyError(f"{sources!r} does not name tables, such as transport.solves")
    return [match.groups() for match in found if match]


def shown(sources: str, columns: str | None, where: str | None) -> str:
    """The table in Markdown, and what it comes from; the way to get it where it is not there."""
    rows, header, origins = [], [], []
    if missing := [part for part, *_ in named(sources) if not (FOLDER / f"{part}.json").exists()]:
        return f"*Not run yet: `{to_run(missing[0])}`.*"
    for part, name, first in named(sources):
        header, found = chosen(table(part, name), columns, where)
        rows += [[first, *row[1:]] if first else row for row in found]
        origins.append(origin(part))
    lines = [header, ["---"] * len(header), *([written(cell) for cell in row] for row in rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n{text}\n\n<small>{'<br>'.join(dict.fromkeys(origins))}</small>\n"


def to_run(part: str) -> str:
    """The command that makes the file of a part."""
    name = part.removesuffix("_gpu")
    return f"make evidence{' MACHINE=gpu' if name != part else ''} PARTS={name}"


def chosen(table: Table, columns: str | None, where: str | None) -> tuple[list[str], list[list]]:
    """The columns and rows that a directive asks for; an unknown column is a KeyError."""
    names = table["columns"]

    def at(name: str) -> int:
        if (count := names.count(name)) != 1:
            what = f"{count} columns" if count else "no column"
            raise KeyError(f"{what} {name!r} in {table['name']}: {'; '.join(names)}")
        return names.index(name)

    wanted = [at(n.strip()) for n in columns.split(";")] if columns else list(range(len(names)))
    pairs = [pair.strip().split("=", 1) for pair in where.split(";")] if where else []
    conditions = [(at(name), value.split("|")) for name, value in pairs]
    kept = [
        [row[column] for column in wanted]
        for row in table["rows"]
        if all(str(row[column]) in values for column, values in conditions)
        and any(row[column] != "" for column in wanted[1:] or wanted)  # not what was left out
    ]
    if not kept:
        raise KeyError(f"no row of {table['name']} has {where}")
    return [names[column] for column in wanted], kept


def written(cell: str | float | None) -> str:
    """Numbers to three digits, as text."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return EXPONENT.sub(r'<span class="number">\g<0></span>', cell.replace("|", "\\|"))
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell == 0 or 1e-3 <= abs(cell) < 1e5:
        digits = max(0, 3 - len(f"{abs(cell):.0f}")) if abs(cell) >= 1 else None
        text = f"{cell:.3g}" if digits is None else f"{cell:,.{digits}f}"
        return text.replace("-", "−")
    mantissa, exponent = f"{cell:.1e}".split("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(SUPERSCRIPT)}".replace("-", "−")


def origin(part: str) -> str:
    """Command, commit, date and machine, with the file."""
    found = evidence(part)
    commit, *changes = found["commit"].split(" ", 1)
    machine = found["machine"]
    cores = f"{machine['cores']} core{'s' if machine['cores'] > 1 else ''} of {machine['CPU']}"
    said = [f"`{found['command']}`", f"commit {' '.join([commit[:7], *changes])}"]
    said += [found["date"].split()[0], machine.get("GPU", cores)]
    return f"{', '.join(said)}, [all digits](evidence/{part}.json)"
