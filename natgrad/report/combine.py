"""Reports put together from runs on disk: folders of studies and saved results."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..comparison import Comparison
from ..core.archive import replace_file
from ..descent.stop import Budget
from ..errors import InputError
from ..result import Result, is_result, load_result, saved_where
from .comparison_page import comparison_page
from .document import document, is_ours
from .folder import FolderError
from .page import Page
from .result_page import result_page
from .stored import NAME, load_page

TITLE = "natgrad report"


@dataclass(frozen=True)
class Report:
    """Several pages in one document, each of them a chapter."""

    title: str
    pages: Sequence[Page]

    def html(self) -> str:
        """The whole document, with one style sheet and one script."""
        names = [f"run-{number}" for number in range(1, len(self.pages) + 1)]
        contents = "".join(
            f'<li><a href="#{name}">{html.escape(page.title)}</a></li>'
            for name, page in zip(names, self.pages, strict=True)
        )
        chapters = "".join(
            f'<article id="{name}">{page.body(f"{name}-", level=2)}</article>'
            for name, page in zip(names, self.pages, strict=True)
        )
        heading = f"<h1>{html.escape(self.title)}</h1>"
        return document(self.title, f"{heading}<nav><ol>{contents}</ol></nav>{chapters}")


def combined(pages: Sequence[Page], title: str) -> Report:
    """Pages as chapters of one document; `.html()` gives it."""
    if not pages:
        raise InputError("pages", "there are none", "at least one page")
    return Report(title, list(pages))


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """One HTML file of several runs, put together without computing anything again.

    A run is the folder of a study, a file by `result.save`, or a folder of such folders and files.
    Saved results are also drawn in common plots where there are several. An existing file is
    overwritten only if it is a page of ours.
    """
    _check_output(output)
    found = [place for run in runs for place in _places(Path(run))]
    if not found:
        raise InputError("runs", "there are none", "folders of studies, or files by `result.save`")
    names = _names(found)
    results = {name: load_result(at) for name, at in zip(names, found, strict=True) if at.is_file()}
    pages = [_page(name, at, results) for name, at in zip(names, found, strict=True)]
    pages = _told_apart(pages, names)
    if len(results) > 1:
        page = comparison_page(Comparison(results, Budget()))
        pages.insert(0, replace(page, versions={}, machine={}))  # those of now made no run
    document = pages[0] if len(pages) == 1 else combined(pages, TITLE)
    try:
        replace_file(output, document.html().encode("utf-8"))
    except OSError as error:
        raise FolderError(f"cannot write to {output}: {error.strerror}") from error
    return output


def _check_output(output: Path) -> None:
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError("output", f"{output} is no name of a page", "a path that ends in .html")
    try:
        if output.is_dir():
            raise FolderError(f"{output} is a folder, not a file")
        if output.exists() and not is_ours(output):
            raise FolderError(f"{output} is not a page of natgrad; choose another name")
    except OSError as error:
        raise FolderError(f"cannot read {output}: {error.strerror}") from error


def _places(run: Path) -> list[Path]:
    """Folders with a page, or the file of a result."""
    if run.is_file() or (run / NAME).exists():
        return [run]
    if not run.is_dir():
        raise InputError("runs", f"there is no {run}", "the folder of a study, or a saved result")
    inner = [page.parent for page in run.glob(f"*/{NAME}")]
    inner += [file for file in run.glob("*.npz") if is_result(file)]
    if not inner:
        problem = f"{run} holds no {NAME}, nor folders with one, nor saved results"
        raise InputError("runs", problem, "the folder of a study that has ended")
    return sorted(inner)


def _names(found: Sequence[Path]) -> list[str]:
    """The last part of each path, with the folder before it where that is not enough."""
    whole = [path.resolve() for path in found]
    short = [path.stem if path.is_file() else path.name for path in whole]
    repeated = {name for name, count in Counter(short).items() if count > 1}
    names = [
        f"{path.parent.name}/{name}" if name in repeated else name
        for name, path in zip(short, whole, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InputError("runs", f"{twice} is there twice", "each run once, under its own name")
    return names


def _page(name: str, place: Path, results: dict[str, Result]) -> Page:
    if name not in results:
        return load_page(place)
    return replace(result_page(results[name], name), **saved_where(place))


def _told_apart(pages: Sequence[Page], names: Sequence[str]) -> list[Page]:
    """Pages of one study get the names of their folders."""
    titles = Counter(page.title for page in pages)
    return [
        replace(page, title=f"{page.title}: {name}") if titles[page.title] > 1 else page
        for page, name in zip(pages, names, strict=True)
    ]
