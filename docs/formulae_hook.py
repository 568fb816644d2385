"""A hook of mkdocs: formulae written in TeX become MathML, which browsers draw by themselves.

Nothing is fetched for them, neither a script nor a font.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tag, tex = found.groups()
    drawn = convert(html.unescape(tex), display="block" if tag == "div" else "inline")
    return f'<{tag} class="formula">{drawn}</{tag}>'
