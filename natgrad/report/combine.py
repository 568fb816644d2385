"""Several runs in one document: folders of studies and saved results, put together from disk."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..comparison import Comparison
from ..core.archive import read_kind, reading, replace_file
from ..descent.stop import Stop
from ..errors import InputError, warn_user
from ..result import KIND, Result, load_origin, load_result
from .folder import PAGE, FolderError, load_page
from .page import Page, build_document, is_page, list_links
from .runs import BUDGETS, comparison_page, result_page

TITLE = "natgrad report"


@dataclass(frozen=True)
class Report:
    """Several pages in one document, each a chapter of it."""

    title: str
    pages: Sequence[Page]

    def __post_init__(self) -> None:
        if not self.pages:
            raise InputError("pages", "there are none", "at least one page")

    def html(self) -> str:
        """The whole document, with one style sheet and one script."""
        names = [f"run-{number}" for number in range(1, len(self.pages) + 1)]
        contents = list_links(
            [
                (name, page.title, page.contents(f"{name}-"))
                for name, page in zip(names, self.pages, strict=True)
            ]
        )
        chapters = "".join(
            f'<article id="{name}">{page.body(f"{name}-", level=2)}</article>'
            for name, page in zip(names, self.pages, strict=True)
        )
        heading = f"<h1>{html.escape(self.title)}</h1>"
        return build_document(self.title, contents, heading + chapters)


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write one HTML file of several runs, without computing anything again.

    A run is the folder of a study, a file by `result.save`, or a folder of such folders and files.
    Where there are several saved results, they are also compared in common plots. An existing file
    is overwritten only if natgrad wrote it.

    ```python
    write_report([Path("results/pinn"), Path("run.npz")], Path("report.html"))
    ```
    """
    _check_output(output)
    found = [place for run in runs for place in _places(Path(run))]
    if not found:
        raise InputError("runs", "there are none", "folders of studies, or files by `result.save`")
    results: dict[str, Result] = {}
    named: dict[str, Page] = {}
    for name, place in zip(_names(found), found, strict=True):
        try:
            named[name] = _load(name, place, results)
        except InputError as error:
            if place in map(Path, runs) or len(found) == 1:
                raise
            warn_user(f"{place} is left out. {error}")
    if not named:
        raise InputError("runs", "none of them can be read", "those of the warnings one by one")
    pages = _with_own_titles(list(named.values()), list(named))
    if len(results) > 1:
        pages.insert(0, _beside_each_other(results))
    document = pages[0] if len(pages) == 1 else Report(TITLE, pages)
    try:
        replace_file(output, document.html().encode("utf-8", "replace"))
    except OSError as error:
        raise FolderError(f"cannot write to {output}: {error.strerror}") from error
    return output


def _beside_each_other(results: dict[str, Result]) -> Page:
    """Runs in common plots; who won is said only if all began at the same loss."""
    page = comparison_page(Comparison(results, Stop()))
    short, *rest = page.sections
    starts = [float(result.history["loss"][0]) for result in results.values()]
    if max(starts) - min(starts) > 1e-6 * max(map(abs, starts)):
        told = "These runs began at different losses: they differ in their problem or start."
        short = replace(short, parts=[told, *short.parts[1:]])
        rest = [section for section in rest if section.title != BUDGETS]
    lead = f"Saved runs side by side: {', '.join(results)}."
    # the present versions, machine and budget are not those of the runs
    return replace(page, lead=lead, sections=[short, *rest], settings={}, versions={}, machine={})


def _check_output(output: Path) -> None:
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError("output", f"{output} is no name of a page", "a path that ends in .html")
    try:
        if output.is_dir():
            raise FolderError(f"{output} is a folder, not a file")
        if output.exists() and not is_page(output):
            raise FolderError(f"{output} is not a page of natgrad; choose another name")
    except OSError as error:
        raise FolderError(f"cannot read {output}: {error.strerror}") from error


def _places(run: Path) -> list[Path]:
    """The folders with a page, and the files of results, that are meant."""
    if run.is_file() or (run / PAGE).exists():
        return [run]
    if not run.is_dir():
        raise InputError("runs", f"there is no {run}", "the folder of a study, or a saved result")
    inner = [page.parent for page in run.glob(f"*/{PAGE}")]
    inner += [file for file in run.glob("*.npz") if _is_result(file)]
    if not inner:
        problem = f"{run} holds no {PAGE}, nor folders with one, nor saved results"
        raise InputError("runs", problem, "the folder of a study that has ended")
    return sorted(inner)


def _is_result(file: Path) -> bool:
    try:
        return read_kind(file) == KIND
    except InputError:  # a damaged one, which is told of when it is read
        return True


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


def _load(name: str, place: Path, results: dict[str, Result]) -> Page:
    """The page of a folder, or of a saved result, which is put among the results."""
    if not place.is_file():
        return load_page(place)
    with reading(place, KIND):
        result = load_result(place)
        page = replace(result_page(result, name), **load_origin(place))
    results[name] = result
    return page


def _with_own_titles(pages: Sequence[Page], names: Sequence[str]) -> list[Page]:
    """Pages of the same title get the names of their folders as well."""
    titles = Counter(page.title for page in pages)
    return [
        replace(page, title=f"{page.title}: {name}") if titles[page.title] > 1 else page
        for page, name in zip(pages, names, strict=True)
    ]
