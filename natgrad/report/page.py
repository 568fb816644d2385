"""One HTML page that needs nothing but itself: text, tables and embedded figures."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CSS = """
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5a6370; --paper: #ffffff;
  --line: #d9dee5; --band: #f4f6f9; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #a3acb9; --paper: #16191e;
  --line: #363c46; --band: #1f242b; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 64rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .6rem 0; }
.lead { font-size: 1.08rem; color: var(--soft); }
figure { margin: 1.3rem 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); }
figcaption, .caption { color: var(--soft); font-size: .92rem; max-width: 52rem; }
figcaption { margin-top: .5rem; }
.caption { margin: 1.2rem 0 .4rem; }
.scroll { overflow-x: auto; margin: 0 0 1.2rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .75rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { background: var(--band); border-bottom: 2px solid var(--line); }
nav a { color: var(--accent); margin-right: 1rem; display: inline-block; }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--accent); }
@media (max-width: 40rem) { body { font-size: .95rem; } th, td { padding: .3rem .45rem; } }
"""


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


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: paragraphs (plain strings), tables and figures."""

    title: str
    parts: Sequence[str | Table | Figure]

    def html(self, anchor: str) -> str:
        """The section with an anchor for the list of contents."""
        inner = "".join(
            f"<p>{html.escape(part)}</p>" if isinstance(part, str) else part.html()
            for part in self.parts
        )
        return f'<section id="{anchor}"><h2>{html.escape(self.title)}</h2>{inner}</section>'


@dataclass(frozen=True)
class Page:
    """A report: a lead paragraph, sections, and the settings and versions that made it."""

    title: str
    lead: str
    sections: Sequence[Section]
    settings: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The whole document."""
        anchors = [f"part-{number}" for number in range(1, len(self.sections) + 1)]
        links = "".join(
            f'<a href="#{anchor}">{html.escape(section.title)}</a>'
            for anchor, section in zip(anchors, self.sections, strict=True)
        )
        body = "".join(
            section.html(anchor) for anchor, section in zip(anchors, self.sections, strict=True)
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_CSS}</style></head><body>"
            f'<h1>{html.escape(self.title)}</h1><p class="lead">{html.escape(self.lead)}</p>'
            f"<nav>{links}</nav>{body}{_details('Settings', self.settings)}"
            f"{_details('Versions', self.versions)}</body></html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the document to `path`."""
        path.write_text(self.html(), encoding="utf-8")
        return path


def _details(title: str, entries: dict[str, object] | dict[str, str]) -> str:
    if not entries:
        return ""
    table = Table(("", title.lower()), [(str(k), str(v)) for k, v in entries.items()])
    return f"<details><summary>{title}</summary>{table.html()}</details>"
