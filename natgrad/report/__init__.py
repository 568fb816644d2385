"""Pages of results: text, tables, figures and interactive plots in one HTML file.

`result.report(path)` and `comparison.report(path)` write such pages. Your own study builds
its `Page` from the same parts, and keeps it in a `ResultFolder`; `write_report` puts the pages of
several runs into one file.

```python
from natgrad.report import Curves, Page, Section, Series
x = {"iterations": range(3)}
plot = Curves([Series("W₂", [1.0, 0.1, 0.01], x, "#0072B2")], "loss", "The loss.")
html = Page("A run", "It converged.", [Section("Loss", ["Three iterations.", plot])]).html()
```
"""

from ..comparison import Table
from ..core.archive import read_arrays, replace_file
from ..result import machine, versions
from .combine import Report, write_report
from .folder import MARKER, FolderError, ResultFolder, load_page, save_page
from .page import Figure, Page, Part, Section, plain
from .plots import Curves, Frames, Landscape, Paths, Series, Track
from .runs import comparison_page, result_page

__all__ = [
    "MARKER",
    "Curves",
    "Figure",
    "FolderError",
    "Frames",
    "Landscape",
    "Page",
    "Part",
    "Paths",
    "Report",
    "ResultFolder",
    "Section",
    "Series",
    "Table",
    "Track",
    "comparison_page",
    "load_page",
    "machine",
    "plain",
    "read_arrays",
    "replace_file",
    "result_page",
    "save_page",
    "versions",
    "write_report",
]
