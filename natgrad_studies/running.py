"""What every study does: compute, write the numbers, draw, write the page."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from natgrad.core.archive import replace_file
from natgrad.descent.progress import show_busy
from natgrad.plot import figure_style
from natgrad.report import Page, ResultFolder, machine, save_page

from .toml_files import toml_of

Say = Callable[[str], None]


def run_study(
    name: str,
    settings: Any,
    say: Say,
    *,
    compute: Callable[[Any, Say], Any],
    draw: Callable[[Any, Path], dict[str, Path]],
    page: Callable[[Any, dict[str, Path]], Page],
) -> tuple[Path, Any]:
    """Run a study into `settings.output`; returns the report's path and all results.

    The numbers are on disk before anything is drawn. What `compute` finds finished in the folder,
    made with the same settings, it takes up.
    """
    settings.check()
    folder = ResultFolder(settings.output)
    folder.claim(name, settings)
    text = toml_of(settings, f"natgrad study {name} --config settings.toml")
    replace_file(folder.path / "settings.toml", text.encode())
    with show_busy(name):
        result = compute(settings, say)
    folder.write("results.json", result.numbers())
    say("drawing")
    with figure_style():
        drawn = draw(result, folder.figures)
    built = dataclasses.replace(page(result, drawn), machine=machine())
    return save_page(built, folder.path), result
