"""Labels at the right end of curves, moved apart so that none covers another."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


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
        axes.plot(
            [end[0], 1.0, 1.03],
            [end[1], height, height],
            transform=axes.transAxes,
            color=label.colour,
            lw=0.7,
            ls=":",
            alpha=0.8,
            clip_on=False,
        )
        axes.text(
            1.04,
            height,
            label.text,
            transform=axes.transAxes,
            color=label.colour,
            va="center",
            fontsize=9,
        )
