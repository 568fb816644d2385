"""One HTML page that needs nothing but itself: text, tables, figures and plots."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .curves import Curves
from .document import document
from .folder import plain
from .frames import Frames
from .paths import Paths


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


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the same object is printed in the terminal."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def text(self) -> str:
        """For a terminal: the first column to the left, the others to the right."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = lambda row: [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        printed = ["  ".join((row[0].ljust(widths[0]), *padded(row))).rstrip() for row in lines]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([*filter(None, [self.caption]), printed[0], rule, *printed[1:]])

    def html(self) -> str:
        """A table that scrolls sideways on a narrow screen."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        caption = f'<p class="caption">{html.escape(self.caption)}</p>' if self.caption else ""
        return (
            f'{caption}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


Part = str | Table | Figure | Curves | Paths | Frames


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: paragraphs (plain strings) and other parts."""

    title: str
    parts: Sequence[Part]

    def html(self, anchor: str, level: int = 2) -> str:
        """The section with an anchor for the list of contents."""
        inner = "".join(
            _part(part, f"{anchor}-{number}") for number, part in enumerate(self.parts, 1)
        )
        heading = f"<h{level}>{html.escape(self.title)}</h{level}>"
        return f'<section id="{anchor}">{heading}{inner}</section>'


def _part(part: Part, name: str) -> str:
    if isinstance(part, str):
        return f"<p>{html.escape(part)}</p>"
    return part.html() if isinstance(part, (Table, Figure)) else part.html(name)


@dataclass(frozen=True)
class Page:
    """A report: a lead paragraph, sections, and the settings, versions and machine behind it."""

    title: str
    lead: str
    sections: Sequence[Section]
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def body(self, prefix: str = "", level: int = 1) -> str:
        """All but the document around it; `prefix` keeps the anchors of several pages apart."""
        anchors = [f"{prefix}part-{number}" for number in range(1, len(self.sections) + 1)]
        links = "".join(
            f'<a href="#{anchor}">{html.escape(section.title)}</a>'
            for anchor, section in zip(anchors, self.sections, strict=True)
        )
        sections = "".join(
            section.html(anchor, level + 1)
            for anchor, section in zip(anchors, self.sections, strict=True)
        )
        return (
            f"<h{level}>{html.escape(self.title)}</h{level}>"
            f'<p class="lead">{html.escape(self.lead)}</p><nav>{links}</nav>{sections}'
            f"{_details('Settings', self.settings)}{_details('Versions', self.versions)}"
            f"{_details('Machine', self.machine)}"
        )

    def html(self) -> str:
        """The whole document."""
        return document(self.title, self.body())

    def write(self, path: Path) -> Path:
        """Write the document to `path`."""
        path.write_text(self.html(), encoding="utf-8")
        return path


def _details(title: str, entries: Mapping[str, Any]) -> str:
    if not entries:
        return ""
    rows = [(name, _told(value)) for name, value in plain(dict(entries)).items()]
    return f"<details><summary>{title}</summary>{Table(('', title.lower()), rows).html()}</details>"


def _told(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{name} {_told(entry)}" for name, entry in value.items()]
    return (", ".join(map(_told, value)) or "none") if isinstance(value, list) else str(value)
