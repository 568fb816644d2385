"""The folder that a study writes: its settings, its numbers, its figures and its page."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.archive import replace_file
from ..errors import InputError
from ..result import versions
from .page import Figure, Page, Part, Section, Table, plain
from .plots import Curves, Frames, Paths

MARKER = "settings.json"
PAGE = "page.json"
VERSION = 2  # of page.json
PLOTS = {"curves": Curves, "paths": Paths, "frames": Frames}
RECORDS = ("settings", "versions", "machine")


class FolderError(ValueError):
    """A folder or file that cannot, or must not, be written; the message says why in one line."""


class ResultFolder:
    """A folder with `settings.json`, `results.json`, `figures/`, `page.json` and `index.html`.

    The settings are written first: a folder that has them is the result of a study, finished or
    not; `figures/` is there where a study draws any. The same study with the same settings may
    write to it again; anything else is refused.

    ```python
    folder = ResultFolder(Path("results/mine"))
    folder.claim("my study", settings)  # a dataclass
    folder.write("results.json", {"loss": losses})
    save_page(page, folder.path)
    ```
    """

    def __init__(self, path: Path):
        self.path = path
        self.figures = path / "figures"

    def claim(self, study: str, settings: Any) -> None:
        """Create the folder and write the settings, or raise `FolderError`.

        A folder of another study, or of other settings, is refused: the study would go on from
        parts that it did not make.
        """
        if self._in_use():
            self._check_same(study, plain(settings))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write(
                MARKER,
                {
                    "natgrad": versions()["natgrad"],
                    "study": study,
                    "settings": dataclasses.asdict(settings),
                },
            )
        except OSError as error:
            raise FolderError(f"cannot write to {self.path}: {error.strerror}") from error

    @contextmanager
    def claimed(self, study: str, settings: Any) -> Iterator[None]:
        """Claim the folder for what happens inside; given back if the input is refused there.

        A folder in which something was computed is kept.
        """
        existed, in_use = self.path.exists(), self._in_use()
        self.claim(study, settings)
        try:
            yield
        except InputError:
            files = [path for path in self.path.rglob("*") if path.is_file()]
            if not in_use and {path.stem for path in files} <= {"settings"}:
                for path in self.path.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                if not existed:
                    self.path.rmdir()
            raise

    def _in_use(self) -> bool:
        if not os.path.lexists(self.path):
            return False
        if not self.path.is_dir():
            raise FolderError(f"{self.path} is a file, not a folder")
        try:
            return any(self.path.iterdir())
        except OSError as error:
            raise FolderError(f"cannot read {self.path}: {error.strerror}") from error

    def _check_same(self, study: str, settings: dict[str, Any]) -> None:
        if not (self.path / MARKER).exists():
            raise FolderError(
                f"{self.path} holds files that are not a natgrad result; choose another folder"
            )
        found_study, found = self.origin()
        if found_study != study:
            raise FolderError(
                f"{self.path} holds a result of the study {found_study!r}, not {study!r}"
            )
        other = [
            name for name in settings if name != "output" and found.get(name) != settings[name]
        ]
        if other:
            name = other[0]
            raise FolderError(
                f"{self.path} holds a run with {name} = {found.get(name)}, not {settings[name]}; "
                "choose another folder, or delete that one"
            )

    def origin(self) -> tuple[str, dict[str, Any]]:
        """The study that claimed the folder, and its settings in JSON's types.

        Raises `FolderError` where there is none.
        """
        marker = self.path / MARKER
        if not marker.exists():
            raise FolderError(f"{self.path} is not the folder of a run: it has no {MARKER}")
        try:
            content = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            raise FolderError(f"{marker} is damaged: {error}") from error
        if not isinstance(content, dict) or "natgrad" not in content:
            raise FolderError(f"{marker} is not one of natgrad's")
        study, settings = content.get("study"), content.get("settings")
        if not isinstance(study, str) or not isinstance(settings, dict):
            raise FolderError(f"{marker} is damaged: it names no study with settings")
        return study, settings

    def holds(self, study: str, settings: Any) -> bool:
        """Whether this study claimed the folder with these settings."""
        try:
            self._check_same(study, plain(settings))
        except FolderError:
            return False
        return True

    def write(self, name: str, content: Any) -> Path:
        """Write `content` as JSON; arrays become lists and numbers that are not finite null."""
        target = self.path / name
        text = json.dumps(plain(content), indent=1, ensure_ascii=False, allow_nan=False)
        replace_file(target, f"{text}\n".encode(errors="replace"))
        return target


def save_page(page: Page, folder: Path) -> Path:
    """Write `index.html` into the folder, and the page as data, `page.json`, beside it.

    Reports are put together from the latter. Figures must be files of the folder: the data has
    their paths in it. Returns the path of `index.html`.
    """
    content = {
        "natgrad": "page",
        "version": VERSION,
        "title": page.title,
        "lead": page.lead,
        "sections": [
            {
                "title": section.title,
                "parts": [_data(part, folder) for part in section.parts],
                "folded": section.folded,
            }
            for section in page.sections
        ],
        **{name: dict(getattr(page, name)) for name in RECORDS},
    }
    text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False)
    replace_file(folder / PAGE, f"{text}\n".encode(errors="replace"))
    return page.write(folder / "index.html")


def load_page(folder: Path) -> Page:
    """The page that `save_page` wrote into a folder; `InputError` where that cannot be read."""
    path = folder / PAGE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["natgrad"] != "page" or content["version"] != VERSION:
            found = f"{content['natgrad']}, version {content['version']}"[:100]
            problem = f"{path} is a {found}, not a page of version {VERSION}"
            raise InputError("folder", problem, f"natgrad resume {folder}, which writes it again")
        sections = [
            Section(
                entry["title"],
                [_from_data(part, folder) for part in entry["parts"]],
                entry["folded"],
            )
            for entry in content["sections"]
        ]
        records = {name: dict(content[name]) for name in RECORDS}
        page = Page(content["title"], content["lead"], sections, **records)
        page.html()  # what cannot be shown fails here, not when it is written
        return page
    except (FileNotFoundError, NotADirectoryError):
        problem = f"there is no {path}"
        raise InputError("folder", problem, "the folder of a study that has ended") from None
    except Exception as error:  # whatever is in that file
        if isinstance(error, InputError) and error.argument == "folder":
            raise
        said = f"{type(error).__name__}: {error}"[:200]
        problem = f"{path} is damaged or something else ({said})"
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


def _from_data(data: dict[str, Any], folder: Path) -> Part:
    fields = {key: value for key, value in data.items() if key != "kind"}
    if data["kind"] == "text":
        return str(fields["text"])
    if data["kind"] == "table":
        rows = [[str(cell) for cell in row] for row in fields["rows"]]
        return Table(**{**fields, "rows": rows})
    if data["kind"] == "figure":
        return Figure(**{**fields, "path": _figure(folder, fields["path"])})
    plot = PLOTS[data["kind"]].from_data(fields)
    plot.data()  # an entry that is not a number fails here, not when the page is written
    return plot


def _figure(folder: Path, name: str) -> Path:
    """The figure, if it is a file of the folder: a page must not bring in other files."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ValueError(f"no figure {name}")
    return path
