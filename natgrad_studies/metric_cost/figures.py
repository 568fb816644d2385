"""Figures: time against size, the cost of W₂ over that of L², and the iterations of multigrid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from natgrad.plot import PALETTE, save

from ..methods import LINES as SHARED_LINES
from ..pages import GRID
from .run import MethodCosts, StudyResult
from .settings import METRICS

# A colour for each family and a marker for each method of it.
PRECISIONS = {"W2": ("double", None), "W2_mixed": ("mixed", "///"), "W2_single": ("single", "..")}
LINES = SHARED_LINES | {
    "W2_mixed": (PALETTE["vermilion"], "-."),
    "W2_single": (PALETTE["vermilion"], "--"),
    "W2_sparse": (PALETTE["purple"], "-"),
    "W2_collocated": (PALETTE["grey"], "--"),
    "W2_qr": (PALETTE["black"], "-"),
    "W2_collocated_qr": (PALETTE["grey"], "-"),
}
MARKERS = dict(zip(METRICS, "os^v^vDhdPXpp", strict=True))


class Label(NamedTuple):
    """The last point of a curve, what to write beside it, and its colour."""

    x: float
    y: float
    text: str
    colour: str


def spread(wanted: Sequence[float], gap: float, lower: float, upper: float) -> list[float]:
    """Positions in the same order, at least `gap` apart, as near to `wanted` as that allows.

    >>> [round(float(y), 2) for y in spread([0.0, 0.0, 1.0], 0.2, -1.0, 1.0)]
    [-0.1, 0.1, 1.0]

    Positions that crowd are pooled into one evenly spaced block about their mean; the blocks are
    then kept inside [lower, upper].
    """
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []  # the sum of the wanted starts, and the number of labels
    for position, index in enumerate(order):
        blocks.append([wanted[index] - position * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    starts = [total / count for total, count in blocks for _ in range(int(count))]
    highest = upper - gap * (len(order) - 1)
    placed = [0.0] * len(order)
    for position, index in enumerate(order):
        placed[index] = min(max(starts[position], lower), highest) + position * gap
    return placed


def label_ends(axes: Any, labels: Sequence[Label], gap: float = 0.062) -> None:
    """Write the labels to the right of the axes, each joined to its curve by a thin line."""
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((label.x, label.y)) for label in labels]
    heights = spread([float(end[1]) for end in ends], gap, 0.0, 1.02)
    for label, end, height in zip(labels, ends, heights, strict=True):
        place = {"transform": axes.transAxes, "color": label.colour}
        line = {"lw": 0.7, "ls": ":", "alpha": 0.8, "clip_on": False}
        axes.plot([end[0], 1.0, 1.03], [end[1], height, height], **line, **place)
        axes.text(1.04, height, label.text, va="center", fontsize=9, **place)


def draw_times(result: StudyResult, path: Path, panels: Sequence[tuple[str, str]]) -> Path:
    """CPU seconds of some operations against the number of cells, with fitted exponents."""
    figure, axes = plt.subplots(len(panels), 1, figsize=(8.6, 4.9 * len(panels)))
    for axis, (operation, title) in zip(axes, panels, strict=True):
        axis.set(xscale="log", yscale="log", ylabel="CPU seconds")
        axis.set_title(title, loc="left")
        drawn = [entry for entry in result.methods if entry.seconds(operation)]
        for entry in drawn:
            _plot(axis, entry, entry.seconds(operation))
        _size_axis(axis, sorted({n for entry in drawn for n in entry.seconds(operation)}))
        _guide(axis, result, operation)
        figure.draw_without_rendering()  # the labels need the final limits
        label_ends(axis, [_end(result, entry, operation) for entry in drawn])
    return save(figure, path)


def _plot(axis: Any, entry: MethodCosts, values: dict[int, float]) -> None:
    colour, dashes = LINES[entry.method.key]
    style = {"color": colour, "ls": dashes, "marker": MARKERS[entry.method.key], "ms": 5}
    axis.plot([n**2 for n in values], list(values.values()), **style)


def _end(result: StudyResult, entry: MethodCosts, operation: str) -> Label:
    seconds, growth = entry.seconds(operation), result.growth(entry, operation)
    text = entry.method.label
    if growth is not None:
        text += rf"  $k^{{{growth.exponent:.2f}}}$"
    n = max(seconds)
    return Label(n**2, seconds[n], text, LINES[entry.method.key][0])


def _size_axis(axis: Any, sizes: Sequence[int]) -> None:
    axis.set_xticks([n**2 for n in sizes])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"${round(np.sqrt(k))}^2$"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(r"number of cells $k=n^2$")
    axis.grid(**GRID)


def _guide(axis: Any, result: StudyResult, operation: str) -> None:
    """A short line of slope one, below all curves on the right."""
    times = [entry.seconds(operation) for entry in result.methods]
    longest = max((t for t in times if t), key=lambda t: max(t), default=None)
    if longest is None:
        return
    upper = max(longest) ** 2
    lower = upper / 6
    lowest = min(t[max(t)] for t in times if t and max(t) == max(longest))
    axis.plot([lower, upper], [0.45 * lowest / 6, 0.45 * lowest], color="#9a9a9a", lw=1.0)
    place = (np.sqrt(lower * upper), 0.4 * lowest / np.sqrt(6))
    axis.annotate("slope 1", place, color="#707070", fontsize=8.5, ha="left", va="top")


def draw_iterations(result: StudyResult, path: Path) -> Path:
    """Iterations of multigrid, and what a direction costs over one in L²."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.8, 4.2), gridspec_kw={"width_ratios": (1, 1.25)}
    )
    solved = [e for e in result.methods if e.method.by_multigrid and e.measured]
    sizes = sorted({n for entry in solved for n in entry.measured})
    width = 0.8 / len(solved)
    for position, entry in enumerate(solved):
        offset = (position - (len(solved) - 1) / 2) * width
        colour = LINES[entry.method.key][0]
        places = [sizes.index(n) + offset for n in entry.measured]
        counts = [found.iterations or 0 for found in entry.measured.values()]
        precision, hatch = PRECISIONS[entry.method.key]
        style = {"color": colour if hatch is None else "white", "edgecolor": colour}
        bars = left.bar(places, counts, 0.92 * width, hatch=hatch, label=precision, **style)
        left.bar_label(bars, fontsize=9, padding=1)
    left.set_xticks(range(len(sizes)), [f"${n}^2$" for n in sizes])
    left.set(xlabel="number of cells", ylabel="iterations")
    left.set_title("multigrid iterations in a direction", loc="left")
    left.margins(y=0.3)
    left.legend(frameon=False, loc="upper left", ncols=3, title="precision")
    _over_l2(right, result)
    right.set_title(r"CPU time of a direction over that of $L^2$", loc="left")
    figure.draw_without_rendering()
    label_ends(right, _ratio_labels(result), gap=0.075)
    return save(figure, path)


def _entries_over_l2(result: StudyResult) -> list[MethodCosts]:
    return [e for e in result.methods if e.method.key != "L2" and result.over_l2(e)]


def _over_l2(axis: Any, result: StudyResult) -> None:
    axis.set(xscale="log", yscale="log")
    entries = _entries_over_l2(result)
    for entry in entries:
        _plot(axis, entry, result.over_l2(entry))
    axis.axhline(1.0, color=LINES["L2"][0], lw=1.0)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}×"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    _size_axis(axis, sorted({n for entry in entries for n in result.over_l2(entry)}))


def _ratio_labels(result: StudyResult) -> list[Label]:
    labels = []
    for entry in _entries_over_l2(result):
        ratios = result.over_l2(entry)
        n = max(ratios)
        text = f"{entry.method.label}  {ratios[n]:.3g}×"
        labels.append(Label(n**2, ratios[n], text, LINES[entry.method.key][0]))
    return labels
