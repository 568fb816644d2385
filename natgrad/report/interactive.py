"""What the interactive parts of a page share: numbers as JSON, drawn by the page's script."""

import html
import json
import re
from collections.abc import Sequence
from typing import Any

from ..errors import InputError

DASHES = ("-", "--", ":", "-.")
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
DIGITS = 7  # of a number on the page


def plot(kind: str, name: str, data: dict[str, Any], fallback: str) -> str:
    """A figure with its data; the script finds it by its class and draws it by its kind."""
    # "<" never appears in the script element, so that no text in the data can end it.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return (
        f'<figure class="plot" id="{html.escape(name)}" data-kind="{kind}">'
        f'<script type="application/json">{text}</script><noscript>{fallback}</noscript>'
        f"<figcaption>{html.escape(data['caption'])}</figcaption></figure>"
    )


def rounded(values: Any) -> list[Any]:
    """Numbers with few digits, None where they are not finite.

    >>> rounded([1.0, float("nan"), 1 / 3])
    [1.0, None, 0.3333333]
    """
    return [_number(value) for value in values]


def _number(value: Any) -> float | None:
    number = float("nan") if value is None else float(value)
    return float(f"{number:.{DIGITS}g}") if abs(number) < float("inf") else None


def check_line(argument: str, name: str, colour: str, dash: str) -> None:
    """Raise `InputError` unless a line has a name, a colour #rrggbb and a known dash."""
    if not name:
        raise InputError(argument, "a line without a name", 'name="L²"')
    if not COLOUR.fullmatch(colour):
        raise InputError(argument, f"{name} has the colour {colour!r}", 'one such as "#0072B2"')
    if dash not in DASHES:
        raise InputError(argument, f"{name} has the dash {dash!r}", f"one of {', '.join(DASHES)}")


def check_names(argument: str, names: Sequence[str]) -> None:
    """Raise `InputError` unless there is at least one name and none comes twice."""
    if not names:
        raise InputError(argument, "there is nothing to draw", "at least one entry")
    if len(set(names)) < len(names):
        raise InputError(argument, f"names repeat in {', '.join(names)}", "different names")
