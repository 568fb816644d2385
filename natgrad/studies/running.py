"""What every study does: compute, write the numbers, draw, write the page."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..report.folder import ResultFolder, machine
from ..report.page import Page
from ..report.stored import save_page
from ..report.style import figure_style

Say = Callable[[str], None]


def run_study(
    name: str,
    settings: Any,
    say: Say,
    *,
    compute: Callable[[Any, Say], Any],
    draw: Callable[[Any, Path], dict[str, Path]],
    page: Callable[[Any, dict[str, Path]], Page],
    resumes: bool = False,
) -> tuple[Path, Any]:
    """Run a study into `settings.output`; returns the report's path and all results.

    The numbers are on disk before anything is drawn. A study that `resumes` goes on from what is
    in the folder, which must then have been made with the same settings.
    """
    settings.check()
    folder = ResultFolder(settings.output)
    folder.claim(name, settings, same=resumes)
    result = compute(settings, say)
    folder.write("results.json", result.numbers())
    say("drawing")
    with figure_style():
        drawn = draw(result, folder.figures)
    built = dataclasses.replace(page(result, drawn), machine=machine())
    return save_page(built, folder.path), result
