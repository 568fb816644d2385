"""A hook of mkdocs: runs examples, tutorials and the quick start for their figures.

Each `examples/<name>.py` has a function `main(..., output)` that writes `<name>.png`; the pages
find it as `gallery/<name>.png`. The Python blocks of the quick start and of a tutorial write the
figures that the page shows. No figure is kept in the repository.
"""

import contextlib
import functools
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "optimal_transport": {"size": 64, "iterations": 60},
    "density_image": {"size": 96, "field": 32, "names": ("w2+fr", "fr")},
    "l_shape": {"refinements": 4},
    "point_cloud": {},
    "burgers": {"width": 12, "count": 1000, "iterations": 80},
    "inverse_burgers": {"width": 12, "count": 1000, "iterations": 100},
    "poisson_5d": {
        "hidden": (24, 24),
        "interior": 300,
        "boundary": 60,
        "iterations": 50,
        "variants": ("fixed", "drawn"),
    },
    "training_loops": {"steps": 200, "rates": {"natural gradient": (1.0,), "Adam": (0.1,)}},
}


DOCS = ROOT / "docs"
FIGURE = re.compile(r"^!\[.*\]\((\w+\.png)\)$", re.M)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)

# methods are compared by seconds, of code as a user gets it
TIMED = ("density_image", "point_cloud", "training_loops")


def on_startup(command: str, dirty: bool) -> None:
    """Nearly all the time goes into compiling, so as little as possible is asked for there."""
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    sys.path.append(str(EXAMPLES))  # one may build on another


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ARGUMENTS:
        figure = _figure(name, (EXAMPLES / f"{name}.py").stat().st_mtime)
        files.append(File.generated(config, f"gallery/{name}.png", content=figure))
    for page in (DOCS / "quickstart.md", *sorted((DOCS / "tutorials").glob("*.md"))):
        for name, figure in _draw(page.read_text(encoding="utf-8"), page.stem).items():
            place = (page.parent / name).relative_to(DOCS).as_posix()
            files.append(File.generated(config, place, content=figure))
    return files


@functools.cache
def _figure(name: str, modified: float) -> bytes:
    """Drawn once for each version of the example, also while `mkdocs serve` rebuilds."""
    jax.config.update("jax_disable_most_optimizations", name not in TIMED)
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    with tempfile.TemporaryDirectory() as folder:
        main(**ARGUMENTS[name], output=folder)
        return Path(folder, f"{name}.png").read_bytes()


@functools.cache
def _draw(text: str, name: str) -> dict[str, bytes]:
    """The figures that a page shows, written by its blocks."""
    if not (shown := FIGURE.findall(text)):
        return {}
    jax.config.update("jax_disable_most_optimizations", False)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(compile("\n".join(PYTHON.findall(text)), name, "exec"), {"__name__": name})
        return {figure: Path(figure).read_bytes() for figure in shown}
