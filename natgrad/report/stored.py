"""A page as data: `page.json` beside the HTML, so that reports can be put together later."""

import json
from pathlib import Path
from typing import Any

from ..errors import InputError
from .curves import Curves
from .folder import plain
from .frames import Frames
from .page import Figure, Page, Part, Section, Table
from .paths import Paths

NAME = "page.json"
VERSION = 1
PLOTS = {"curves": Curves, "paths": Paths, "frames": Frames}
RECORDS = ("settings", "versions", "machine")


def save_page(page: Page, folder: Path) -> Path:
    """Write `page.json` and `index.html` into the folder; returns the path of the latter.

    Figures are kept by their path in the folder.
    """
    content = {
        "natgrad": "page",
        "version": VERSION,
        "title": page.title,
        "lead": page.lead,
        "sections": [
            {"title": section.title, "parts": [_data(part, folder) for part in section.parts]}
            for section in page.sections
        ],
        **{name: dict(getattr(page, name)) for name in RECORDS},
    }
    text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    return page.write(folder / "index.html")


def load_page(folder: Path) -> Page:
    """The page that `save_page` has written into a folder, or `InputError` that says why not."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["natgrad"] != "page" or content["version"] > VERSION:
            found = f"{content['natgrad']}, version {content['version']}"
            problem = f"{path} is a {found}, not a page up to version {VERSION}"
            raise InputError("folder", problem, "a newer natgrad")
        sections = [
            Section(entry["title"], [_restored(part, folder) for part in entry["parts"]])
            for entry in content["sections"]
        ]
        records = {name: content[name] for name in RECORDS}
        return Page(content["title"], content["lead"], sections, **records)
    except InputError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        problem = f"there is no {path}"
        raise InputError("folder", problem, "the folder of a study that has ended") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{path} is damaged or something else ({type(error).__name__}: {error})"
        raise InputError("folder", problem, "running the study again") from error


def _data(part: Part, folder: Path) -> dict[str, Any]:
    if isinstance(part, str):
        return {"kind": "text", "text": part}
    if isinstance(part, Table):
        rows = [list(row) for row in part.rows]
        return {"kind": "table", "header": part.header, "rows": rows, "caption": part.caption}
    if isinstance(part, Figure):
        path = part.path.relative_to(folder).as_posix()
        return {"kind": "figure", "path": path, "caption": part.caption, "alt": part.alt}
    kind = next(kind for kind, plot in PLOTS.items() if isinstance(part, plot))
    return {"kind": kind, **part.data()}


def _restored(data: dict[str, Any], folder: Path) -> Part:
    fields = {key: value for key, value in data.items() if key != "kind"}
    if data["kind"] == "text":
        return str(fields["text"])
    if data["kind"] == "table":
        rows = [[str(cell) for cell in row] for row in fields["rows"]]
        return Table(**{**fields, "rows": rows})
    if data["kind"] == "figure":
        return Figure(**{**fields, "path": _figure(folder, fields["path"])})
    plot = PLOTS[data["kind"]].restored(fields)
    plot.data()  # fails here, not when the page is written, if a number is none
    return plot


def _figure(folder: Path, name: str) -> Path:
    """A file of the folder itself: a page must not bring in others."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ValueError(f"no figure {name}")
    return path
