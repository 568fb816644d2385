"""Makes notebooks/<name>.ipynb of docs/tutorials/<name>.md: `python docs/make_notebooks.py`.

Each Python block of the page is a cell, the text between two of them another. Notebooks have no
output: they are run where they are opened, on Colab for example.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
FIGURE = re.compile(r"^!\[.*\]\(.*\)\n", re.M)
PACKAGES = {"optax": "optax", "torch": "torch"}  # imported, and the extra that brings them


def notebook(page: str) -> dict[str, Any]:
    """The tutorial as a notebook of format 4.5."""
    extras = ["studies", *(e for p, e in PACKAGES.items() if f"import {p}\n" in page)]
    install = f'%pip install -q "natgrad[{",".join(extras)}]"'
    cells = [_cell("code", install)]
    for place, text in enumerate(BLOCK.split(page)):
        text = text if place % 2 else FIGURE.sub("", text).replace("](../", "](../docs/")
        if text.strip():
            cells.append(_cell("code" if place % 2 else "markdown", text.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    cells[0], cells[1] = cells[1], cells[0]  # the title first
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, source: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": "", "metadata": {}, "source": source.splitlines(True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def written(page: Path) -> tuple[Path, str]:
    """Where the notebook of a page belongs, and its text."""
    made = json.dumps(notebook(page.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
    return ROOT / "notebooks" / f"{page.stem}.ipynb", made + "\n"


def main() -> None:
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        path, text = written(page)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
