"""Figures: time against size, the cost of W₂ over that of L², and the iterations of multigrid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from natgrad.plot import PALETTE, save

from .labels import Label, label_ends
from .results import MethodCosts, StudyResult

# A colour for each family and a marker for each method of it.
PRECISIONS = {"W2": ("double", None), "W2_mixed": ("mixed", "///"), "W2_single": ("single", "..")}
LINES = {
    "L2": (PALETTE["blue"], "o", "-"),
    "FR": (PALETTE["green"], "s", "-"),
    "H1": (PALETTE["orange"], "^", "-"),
    "dotH1": (PALETTE["orange"], "v", "--"),
    "Hm1": (PALETTE["sky"], "^", "-"),
    "dotHm1": (PALETTE["sky"], "v", "--"),
    "W2": (PALETTE["vermilion"], "D", "-"),
    "W2_mixed": (PALETTE["vermilion"], "h", "-."),
    "W2_single": (PALETTE["vermilion"], "d", "--"),
    "W2_sparse": (PALETTE["purple"], "P", "-"),
    "W2_collocated": (PALETTE["grey"], "X", "--"),
    "W2_qr": (PALETTE["black"], "p", "-"),
    "W2_collocated_qr": (PALETTE["grey"], "p", "-"),
}


def draw(result: StudyResult, folder: Path) -> dict[str, Path]:
    """All figures by name; that of the iterations only where multigrid was measured."""
    drawn = {
        "actions": _times(
            result,
            folder / "actions.png",
            (("product", r"$v\mapsto Lv$"), ("whiten", r"$v\mapsto (L^\top)^\dagger v$")),
        ),
        "direction": _times(
            result,
            folder / "direction.png",
            (("direction", "one direction, $p=2$"), ("set_up", r"set-up of $L$ at a new $\rho$")),
        ),
    }
    if any(entry.method.by_multigrid and entry.measured for entry in result.methods):
        drawn["iterations"] = _iterations(result, folder / "iterations.png")
    return drawn


def _times(result: StudyResult, path: Path, panels: Sequence[tuple[str, str]]) -> Path:
    figure, axes = plt.subplots(len(panels), 1, figsize=(8.6, 4.9 * len(panels)))
    for axis, (operation, title) in zip(axes, panels, strict=True):
        axis.set(xscale="log", yscale="log", ylabel="CPU seconds")
        axis.set_title(title, loc="left")
        drawn = [entry for entry in result.methods if entry.seconds(operation)]
        for entry in drawn:
            seconds = entry.seconds(operation)
            colour, marker, dashes = LINES[entry.method.key]
            k = [n**2 for n in seconds]
            axis.plot(k, list(seconds.values()), color=colour, marker=marker, ls=dashes, ms=5)
        _size_axis(axis, sorted({n for entry in drawn for n in entry.seconds(operation)}))
        _guide(axis, result, operation)
        figure.draw_without_rendering()  # the labels need the final limits
        label_ends(axis, [_end(result, entry, operation) for entry in drawn])
    return save(figure, path)


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
    axis.grid(color="#e6e6e6", lw=0.6)


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
    axis.annotate(
        "slope 1",
        (np.sqrt(lower * upper), 0.4 * lowest / np.sqrt(6)),
        color="#707070",
        fontsize=8.5,
        ha="left",
        va="top",
    )


def _iterations(result: StudyResult, path: Path) -> Path:
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
        bars = left.bar(
            places,
            counts,
            0.92 * width,
            color=colour if hatch is None else "white",
            edgecolor=colour,
            hatch=hatch,
            label=precision,
        )
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


def _compared(result: StudyResult) -> list[MethodCosts]:
    return [e for e in result.methods if e.method.key != "L2" and result.over_l2(e)]


def _over_l2(axis: Any, result: StudyResult) -> None:
    axis.set(xscale="log", yscale="log")
    entries = _compared(result)
    for entry in entries:
        ratios = result.over_l2(entry)
        colour, marker, dashes = LINES[entry.method.key]
        k = [n**2 for n in ratios]
        axis.plot(k, list(ratios.values()), color=colour, marker=marker, ls=dashes, ms=4.5)
    axis.axhline(1.0, color=LINES["L2"][0], lw=1.0)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}×"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    _size_axis(axis, sorted({n for entry in entries for n in result.over_l2(entry)}))


def _ratio_labels(result: StudyResult) -> list[Label]:
    labels = []
    for entry in _compared(result):
        ratios = result.over_l2(entry)
        n = max(ratios)
        text = f"{entry.method.label}  {ratios[n]:.3g}×"
        labels.append(Label(n**2, ratios[n], text, LINES[entry.method.key][0]))
    return labels
