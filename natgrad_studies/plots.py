"""What the figures of the studies share: curves of a page, and axes for fields side by side."""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from natgrad.plot import PALETTE
from natgrad.report import Curves

GRID = {"color": "#e6e6e6", "lw": 0.6}


def plot_curves(
    panels: Sequence[Sequence[tuple[Curves, str]]],
    size: tuple[float, float],
    crossed: Collection[str] = (),
) -> tuple[Any, np.ndarray]:
    """Rows of panels, each of curves and what they are drawn against; the figure and its axes.

    `crossed` are the names of curves with a cross at their end.
    """
    figure, axes = plt.subplots(
        *(len(panels), len(panels[0])), figsize=size, sharey="row", squeeze=False
    )
    for axis, (curves, against) in zip(axes.flat, chain(*panels), strict=True):
        for series in curves.series:
            x, y = np.asarray(series.x[against]), np.asarray(series.y)
            style = {"color": series.colour, "label": series.name}
            axis.plot(x, y, ls=series.dash, lw=1.4, **style)
            if series.name in crossed:
                axis.plot(x[-1], y[-1], "x", color=series.colour, ms=5)
        for name, level in curves.levels.items():
            axis.axhline(level, color=PALETTE["grey"], lw=1.0, ls=(0, (1, 1)))
            place = {"xytext": (0, -11), "textcoords": "offset points", "fontsize": 8.5}
            axis.annotate(name, (0.01, level), xycoords=("axes fraction", "data"), **place)
        axis.set(xlabel=against, yscale="log" if curves.log else "linear")
        axis.grid(**GRID)
    for row, (first, *_) in zip(axes, panels, strict=True):
        row[0].set_ylabel(first[0].y_label)
    handles = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    handles = {name: line for name, line in handles.items() if not name.startswith("_")}
    place = {"loc": "outside lower center", "ncols": 7, "frameon": False, "fontsize": 8.5}
    figure.legend(handles.values(), handles.keys(), **place)
    return figure, axes


def axes_grid(count: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with so many axes of one scale, row by row; `size` is that of one, in inches."""
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        *(rows, columns),
        figsize=(size[0] * columns, size[1] * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])
