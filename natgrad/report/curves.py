"""Curves with a choice of abscissa: loss against iterations, seconds or propagations."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError
from .interactive import check_line, check_names, plot, rounded

MOST_POINTS = 1000  # of a curve: a page has few pixels, cheap iterations are many


@dataclass(frozen=True)
class Series:
    """One curve: its values, and what they can be drawn against, each as long as `y`.

    A value that is not finite makes a gap.
    """

    name: str
    y: Sequence[float | None] | np.ndarray
    x: Mapping[str, Sequence[float | None] | np.ndarray]
    colour: str
    dash: str = "-"

    def __post_init__(self) -> None:
        check_line("series", self.name, self.colour, self.dash)
        for name, values in self.x.items():
            if len(values) != len(self.y):
                problem = f"{self.name} has {len(self.y)} values and {len(values)} {name}"
                raise InputError("series", problem, "as many of each")

    def data(self) -> dict[str, Any]:
        """In JSON's types, thinned where there are very many points."""
        kept = thinned(len(self.y))
        take = lambda values: rounded([values[k] for k in kept])
        return {
            "name": self.name,
            "y": take(self.y),
            "x": {name: take(values) for name, values in self.x.items()},
            "colour": self.colour,
            "dash": self.dash,
        }


@dataclass(frozen=True)
class Curves:
    """Curves in one plot, with buttons for the abscissa and for logarithmic axes.

    `levels` are horizontal lines with a name. On a logarithmic axis values that are not positive
    are left out.
    """

    series: Sequence[Series]
    y_label: str
    caption: str
    log: bool = True
    log_x: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names("series", [series.name for series in self.series])

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "series": [series.data() for series in self.series],
            "y_label": self.y_label,
            "caption": self.caption,
            "log": self.log,
            "log_x": self.log_x,
            "levels": dict(zip(self.levels, rounded(self.levels.values()), strict=True)),
        }

    @classmethod
    def restored(cls, data: dict[str, Any]) -> "Curves":
        """From what `data` made."""
        return cls(**{**data, "series": [Series(**series) for series in data["series"]]})

    def html(self, name: str) -> str:
        """The plot; without scripts, the last value of every curve."""
        data = self.data()
        ends = "".join(
            f"<li>{html.escape(series['name'])}: {_last(series['y'])}</li>"
            for series in data["series"]
        )
        fallback = f"<p>{html.escape(self.y_label)} at the end of each curve:</p><ul>{ends}</ul>"
        return plot("curves", name, data, fallback)


def _last(values: list[float | None]) -> str:
    finite = [value for value in values if value is not None]
    return f"{finite[-1]:.4g}" if finite else "–"


def thinned(count: int) -> np.ndarray:
    """Indices of a curve: all, or as dense at the start as in the logarithm, with both ends."""
    if count <= MOST_POINTS:
        return np.arange(count)
    half = MOST_POINTS // 2
    even, early = np.linspace(0, count - 1, half), np.geomspace(1, count, half) - 1
    return np.unique(np.round(np.concatenate([even, early])).astype(int))
