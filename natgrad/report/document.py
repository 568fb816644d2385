"""The HTML document around a page: its head, its one style sheet and its one script."""

import html
from functools import cache
from importlib import resources
from pathlib import Path

GENERATOR = '<meta name="generator" content="natgrad '
HEAD_CHARACTERS = 1000  # where the generator is looked for
SCRIPTS = ("drawing", "axes", "controls", "curves", "paths", "frames", "start")


def document(title: str, body: str) -> str:
    """A document that needs nothing but itself."""
    from .. import __version__

    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{GENERATOR}{__version__}"><title>{html.escape(title)}</title>'
        f"<style>{_text('style.css')}</style></head><body>{body}"
        f"<script>{_script()}</script></body></html>\n"
    )


def is_ours(path: Path) -> bool:
    """Whether a file is a page that natgrad has written."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return GENERATOR in file.read(HEAD_CHARACTERS)


def _script() -> str:
    """All scripts as one, in a block of their own."""
    parts = "\n".join(_text(f"script/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n{{\n{parts}}}\n'


@cache
def _text(name: str) -> str:
    return resources.files("natgrad.report").joinpath(name).read_text(encoding="utf-8")
