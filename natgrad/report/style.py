"""The look of every figure: one palette, one set of sizes, no display needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

from .palette import PALETTE

matplotlib.use("Agg")

# A colour and a dash for each metric, the same in every study.
METRIC_LINES = {
    "L2": (PALETTE["blue"], "-"),
    "FR": (PALETTE["green"], "-"),
    "H1": (PALETTE["orange"], "-"),
    "dotH1": (PALETTE["orange"], "--"),
    "Hm1": (PALETTE["sky"], "-"),
    "dotHm1": (PALETTE["sky"], "--"),
    "W2": (PALETTE["vermilion"], "-"),
}

_SETTINGS: Any = {
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 130,
    "savefig.facecolor": "white",
}


@contextmanager
def figure_style() -> Iterator[None]:
    """The settings above, for the figures drawn inside the block only."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def save(figure: Any, path: Path) -> Path:
    """Write the figure as PNG and close it."""
    import matplotlib.pyplot as plt

    figure.savefig(path)
    plt.close(figure)
    return path
