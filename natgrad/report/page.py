"""One HTML page that needs nothing but itself: text, tables, figures and interactive plots."""

import base64
import dataclasses
import hashlib
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..comparison import Table
from ..core.archive import replace_file
from .plots import Curves, Frames, Paths

GENERATOR = '<meta name="generator" content="natgrad '
HEAD_CHARACTERS = 1000  # where the generator is looked for
SCRIPTS = ("drawing", "stage", "plots", "page")


@dataclass(frozen=True)
class Figure:
    """A PNG with its caption; `alt` says in a phrase what is to be seen."""

    path: Path
    caption: str
    alt: str

    def html(self) -> str:
        """The image embedded as a data address."""
        data = base64.b64encode(self.path.read_bytes()).decode("ascii")
        image = f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{html.escape(self.caption)}</figcaption></figure>"


Part = str | Table | Figure | Curves | Paths | Frames


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: paragraphs (plain strings), tables, figures, plots.

    A `folded` section shows its heading only, until a reader opens it.
    """

    title: str
    parts: Sequence[Part]
    folded: bool = False

    def html(self, anchor: str, level: int = 2, first: bool = False) -> str:
        """The section with an anchor; the first of a page has plots beside tables."""
        inner = "".join(
            _part_html(part, f"{anchor}-{number}") for number, part in enumerate(self.parts, 1)
        )
        heading = f"<h{level}>{html.escape(self.title)}</h{level}>"
        if self.folded:
            return (
                f'<details class="section" id="{anchor}"><summary>{heading}</summary>'
                f'<div class="parts">{inner}</div></details>'
            )
        kind = ' class="first"' if first else ""
        return f'<section id="{anchor}"{kind}>{heading}<div class="parts">{inner}</div></section>'


def _part_html(part: Part, name: str) -> str:
    if isinstance(part, str):
        return f"<p>{html.escape(part)}</p>"
    if isinstance(part, Table):
        return _table_html(part)
    return part.html() if isinstance(part, Figure) else part.html(name)


def _table_html(table: Table) -> str:
    """A table that scrolls sideways on a narrow screen; the script sorts it by a column."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    caption = f'<p class="caption">{html.escape(table.caption)}</p>' if table.caption else ""
    return (
        f'<div class="table"><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{caption}</div>"
    )


@dataclass(frozen=True)
class Page:
    """A lead paragraph, sections, and the settings, versions and machine behind them.

    The first section is the summary: its first sentence says who won, and a plot stands beside a
    table on a wide screen.

    ```python
    from natgrad.report import Page, Section, Table
    table = Table(("method", "loss"), [("L²", "0.1"), ("W₂", "0.01")])
    Page("Two methods", "W₂ wins.", [Section("Losses", [table])]).write(Path("page.html"))
    ```
    """

    title: str
    lead: str
    sections: Sequence[Section]
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def anchors(self, prefix: str = "") -> list[str]:
        """Of the sections; `prefix` keeps those of several pages apart."""
        return [f"{prefix}part-{number}" for number in range(1, len(self.sections) + 1)]

    def contents(self, prefix: str = "") -> str:
        """The list of contents."""
        entries = zip(self.anchors(prefix), self.sections, strict=True)
        return list_links([(anchor, section.title, "") for anchor, section in entries])

    def body(self, prefix: str = "", level: int = 1) -> str:
        """All but the document around it."""
        sections = "".join(
            section.html(anchor, level + 1, first=number == 0)
            for number, (anchor, section) in enumerate(
                zip(self.anchors(prefix), self.sections, strict=True)
            )
        )
        return (
            f"<h{level}>{html.escape(self.title)}</h{level}>"
            f'<p class="lead">{html.escape(self.lead)}</p>{sections}'
            f"{_details('Settings', self.settings)}{_details('Versions', self.versions)}"
            f"{_details('Machine', self.machine)}"
        )

    def html(self) -> str:
        """The whole document."""
        return build_document(self.title, self.contents(), self.body())

    def write(self, path: Path) -> Path:
        """Write the document to `path`; what is no text, as in names of files, becomes "?"."""
        replace_file(path, self.html().encode("utf-8", "replace"))
        return path


def list_links(entries: Sequence[tuple[str, str, str]]) -> str:
    """A list of links from (anchor, title, list inside)."""
    links = (
        f'<li><a href="#{to}">{html.escape(title)}</a>{more}</li>' for to, title, more in entries
    )
    return f"<ul>{''.join(links)}</ul>"


def _details(title: str, entries: Mapping[str, Any]) -> str:
    if not entries:
        return ""
    rows = [(name, _phrase(value)) for name, value in plain(dict(entries)).items()]
    table = _table_html(Table(("", title.lower()), rows))
    return f"<details><summary>{title}</summary>{table}</details>"


def _phrase(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{name} {_phrase(entry)}" for name, entry in value.items()]
    return (", ".join(map(_phrase, value)) or "none") if isinstance(value, list) else str(value)


def build_document(title: str, contents: str, body: str) -> str:
    """The HTML document around a body, with its one style sheet and its one script.

    Its policy lets the browser run this script alone, and load nothing.
    """
    from .. import __version__

    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{GENERATOR}{__version__}"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{_text('style.css')}</style></head><body>"
        f'<nav aria-label="contents">{contents}</nav><main>{body}</main>'
        f"<script>{script}</script></body></html>\n"
    )


def is_page(path: Path) -> bool:
    """Whether natgrad wrote this HTML file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return GENERATOR in file.read(HEAD_CHARACTERS)


def _script() -> str:
    """All scripts as one, in one block."""
    parts = "\n".join(_text(f"script/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n{{\n{parts}}}\n'


@cache
def _text(name: str) -> str:
    return resources.files("natgrad.report").joinpath(name).read_text(encoding="utf-8")


def plain(value: Any) -> Any:
    """The value in JSON's types: lists for arrays, dicts for dataclasses, None for NaN and ∞."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, bool)):
        return value
    array = np.asarray(value)
    if array.ndim:
        return plain(array.tolist())
    entry = array.item()
    return None if isinstance(entry, float) and not math.isfinite(entry) else entry
