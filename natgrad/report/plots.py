"""Interactive plots: curves, paths and fields, as data that the page's script draws."""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from .images import draw_bar, draw_field, draw_landscape

MOST_POINTS = 1000  # of a curve: a page has few pixels, cheap iterations are many
LEVELS = 14  # of a landscape
DIGITS = 7  # of a number on the page
DASHES = ("-", "--", ":", "-.")
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class Series:
    """One curve: its values `y`, and by name what they can be drawn against, each as long as `y`.

    A value that is not finite makes a gap.

    ```python
    Series("W₂", losses, {"iterations": range(len(losses)), "seconds": seconds}, "#0072B2")
    ```
    """

    name: str
    y: Sequence[float | None] | np.ndarray
    x: Mapping[str, Sequence[float | None] | np.ndarray]
    colour: str
    dash: str = "-"

    def __post_init__(self) -> None:
        _check_line("series", self.name, self.colour, self.dash)
        for name, values in self.x.items():
            if len(values) != len(self.y):
                problem = f"{self.name} has {len(self.y)} values and {len(values)} {name}"
                raise InputError("series", problem, "as many of each")

    def data(self) -> dict[str, Any]:
        """In JSON's types, thinned where there are very many points."""
        kept = thin(len(self.y))
        take = lambda values: round_numbers([values[k] for k in kept])
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
        _check_names("series", [series.name for series in self.series])

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "series": [series.data() for series in self.series],
            "y_label": self.y_label,
            "caption": self.caption,
            "log": self.log,
            "log_x": self.log_x,
            "levels": dict(zip(self.levels, round_numbers(self.levels.values()), strict=True)),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Curves":
        """The inverse of `data`."""
        return cls(**{**data, "series": [Series(**series) for series in data["series"]]})

    def html(self, name: str) -> str:
        """The plot; without scripts, the last value of every curve."""
        data = self.data()
        ends = "".join(
            f"<li>{html.escape(series['name'])}: {_last(series['y'])}</li>"
            for series in data["series"]
        )
        fallback = f"<p>{html.escape(self.y_label)} at the end of each curve:</p><ul>{ends}</ul>"
        return _figure("curves", name, data, fallback)


def _last(values: list[float | None]) -> str:
    finite = [value for value in values if value is not None]
    return f"{finite[-1]:.4g}" if finite else "–"


def thin(count: int) -> np.ndarray:
    """The indices of the points of a curve to keep, both ends among them.

    Where there are too many, half of them are spread evenly and half evenly in the logarithm.
    """
    if count <= MOST_POINTS:
        return np.arange(count)
    half = MOST_POINTS // 2
    even, early = np.linspace(0, count - 1, half), np.geomspace(1, count, half) - 1
    return np.unique(np.round(np.concatenate([even, early])).astype(int))


@dataclass(frozen=True)
class Track:
    """One path: (n, 2) points, the iteration of each (0 to n − 1 by default), and its losses."""

    name: str
    points: Sequence[Sequence[float | None]] | np.ndarray
    colour: str
    dash: str = "-"
    losses: Sequence[float | None] | np.ndarray | None = None
    iterations: Sequence[int] | None = None

    def __post_init__(self) -> None:
        _check_line("tracks", self.name, self.colour, self.dash)
        if not len(self.points) or any(len(point) != 2 for point in self.points):
            raise InputError("tracks", f"{self.name} is no list of pairs", "points of shape (n, 2)")
        for values in (self.losses, self.iterations):
            if values is not None and len(values) != len(self.points):
                problem = f"{self.name} has {len(self.points)} points and {len(values)} values"
                raise InputError("tracks", problem, "one loss and one iteration for every point")

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        steps = range(len(self.points)) if self.iterations is None else self.iterations
        return {
            "name": self.name,
            "points": [round_numbers(point) for point in self.points],
            "colour": self.colour,
            "dash": self.dash,
            "losses": None if self.losses is None else round_numbers(self.losses),
            "iterations": [int(step) for step in steps],
        }


@dataclass(frozen=True)
class Landscape:
    """An image of a function of two parameters, and its rectangle (left, right, bottom, top)."""

    image: str
    extent: tuple[float, float, float, float]

    @classmethod
    def of(
        cls, x: np.ndarray, y: np.ndarray, values: np.ndarray, levels: np.ndarray | None = None
    ) -> "Landscape":
        """`values[i, j]` at (xᵢ, yⱼ); without `levels` they follow the quantiles of the values."""
        x, y, values = (np.asarray(array, float) for array in (x, y, values))
        if values.shape != (len(x), len(y)):
            problem = f"has the shape {values.shape} over {len(x)} × {len(y)} points"
            raise InputError("values", problem, "values[i, j] at (x[i], y[j])")
        if levels is None:
            finite = values[np.isfinite(values)]
            shares = np.linspace(0.02, 0.98, LEVELS)
            levels = np.unique(np.quantile(finite, shares)) if finite.size else finite
        image = draw_landscape(x, y, values, np.asarray(levels))
        return cls(image, (float(x[0]), float(x[-1]), float(y[0]), float(y[-1])))


@dataclass(frozen=True)
class Paths:
    """Paths over a landscape, with named points such as the start and the minimum."""

    tracks: Sequence[Track]
    caption: str
    landscape: Landscape | None = None
    markers: Mapping[str, Sequence[float | None] | np.ndarray] = field(default_factory=dict)
    x_label: str = "θ₁"
    y_label: str = "θ₂"

    def __post_init__(self) -> None:
        _check_names("tracks", [track.name for track in self.tracks])

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        land = self.landscape
        return {
            "tracks": [track.data() for track in self.tracks],
            "caption": self.caption,
            "image": None if land is None else land.image,
            "extent": None if land is None else list(land.extent),
            "markers": {name: round_numbers(point) for name, point in self.markers.items()},
            "x_label": self.x_label,
            "y_label": self.y_label,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Paths":
        """The inverse of `data`."""
        rest = {key: data[key] for key in ("caption", "markers", "x_label", "y_label")}
        land = None if data["image"] is None else Landscape(data["image"], tuple(data["extent"]))
        return cls([Track(**track) for track in data["tracks"]], landscape=land, **rest)

    def html(self, name: str) -> str:
        """The plot."""
        fallback = "<p>The paths are drawn by a script, which does not run here.</p>"
        return _figure("paths", name, self.data(), fallback)


class Frame(NamedTuple):
    """An image, as base64 of a PNG, and what it shows."""

    label: str
    image: str


@dataclass(frozen=True)
class Frames:
    """Images of runs, all with the colours of one bar; `Frames.of` makes them from arrays."""

    runs: Mapping[str, Sequence[Frame]]
    caption: str
    bar: str
    limits: tuple[float, float]
    unit: str
    extent: tuple[float, float, float, float]
    x_label: str
    y_label: str
    reference: Frame | None = None

    @classmethod
    def of(
        cls,
        runs: Mapping[str, Sequence[tuple[str, Any]]],
        caption: str,
        *,
        reference: tuple[str, Any] | None = None,
        limits: tuple[float, float] | None = None,
        extent: tuple[float, float, float, float] | None = None,
        unit: str = "",
        x_label: str = "",
        y_label: str = "",
        colours: str = "viridis",
    ) -> "Frames":
        """Frames from pairs (label, array), all arrays of one shape, their first row on top.

        `reference` is shown beside them. The `limits` of the colours are by default those of all
        values; `extent` is (left, right, bottom, top).
        """
        _check_names("runs", list(runs))
        shown = [frame for frames in runs.values() for frame in frames]
        shown += [] if reference is None else [reference]
        arrays = [np.asarray(array, float) for _, array in shown]
        if not all(runs.values()) or any(a.ndim != 2 or a.shape != arrays[0].shape for a in arrays):
            raise InputError("runs", "are not all images of one shape", "2D arrays, at least one")
        low, high = _limits(arrays) if limits is None else limits
        rows, columns = arrays[0].shape
        encoded = lambda frame: Frame(frame[0], draw_field(frame[1], low, high, colours))
        return cls(
            runs={name: [encoded(frame) for frame in frames] for name, frames in runs.items()},
            caption=caption,
            bar=draw_bar(colours),
            limits=(low, high),
            unit=unit,
            extent=(0.0, float(columns), float(rows), 0.0) if extent is None else extent,
            x_label=x_label,
            y_label=y_label,
            reference=None if reference is None else encoded(reference),
        )

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "runs": {
                name: [frame._asdict() for frame in frames] for name, frames in self.runs.items()
            },
            "caption": self.caption,
            "bar": self.bar,
            "limits": list(self.limits),
            "unit": self.unit,
            "extent": list(self.extent),
            "x_label": self.x_label,
            "y_label": self.y_label,
            "reference": None if self.reference is None else self.reference._asdict(),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Frames":
        """The inverse of `data`."""
        runs = {name: [Frame(**frame) for frame in frames] for name, frames in data["runs"].items()}
        beside = None if data["reference"] is None else Frame(**data["reference"])
        return cls(**{**data, "runs": runs, "reference": beside})

    def html(self, name: str) -> str:
        """The images, and a slider."""
        fallback = "<p>The images are shown by a script, which does not run here.</p>"
        return _figure("frames", name, self.data(), fallback)


def _limits(arrays: Iterable[np.ndarray]) -> tuple[float, float]:
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _figure(kind: str, name: str, data: dict[str, Any], fallback: str) -> str:
    """A figure with its data; the script finds it by its class and draws it by its kind."""
    # No "<" may appear in the script element: text in the data must not end it.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return (
        f'<figure class="plot" id="{html.escape(name)}" data-kind="{kind}">'
        f'<script type="application/json">{text}</script><noscript>{fallback}</noscript>'
        f"<figcaption>{html.escape(data['caption'])}</figcaption></figure>"
    )


def round_numbers(values: Any) -> list[Any]:
    """Numbers with few digits, None where they are not finite.

    >>> round_numbers([1.0, float("nan"), 1 / 3])
    [1.0, None, 0.3333333]
    """
    return [_number(value) for value in values]


def _number(value: Any) -> float | None:
    number = float("nan") if value is None else float(value)
    return float(f"{number:.{DIGITS}g}") if abs(number) < float("inf") else None


def _check_line(argument: str, name: str, colour: str, dash: str) -> None:
    """Raise `InputError` unless a line has a name, a colour #rrggbb and a known dash."""
    if not name:
        raise InputError(argument, "a line without a name", 'name="L²"')
    if not COLOUR.fullmatch(colour):
        raise InputError(argument, f"{name} has the colour {colour!r}", 'one such as "#0072B2"')
    if dash not in DASHES:
        raise InputError(argument, f"{name} has the dash {dash!r}", f"one of {', '.join(DASHES)}")


def _check_names(argument: str, names: Sequence[str]) -> None:
    """Raise `InputError` unless there is at least one name and none comes twice."""
    if not names:
        raise InputError(argument, "there is nothing to draw", "at least one entry")
    if len(set(names)) < len(names):
        raise InputError(argument, f"names repeat in {', '.join(names)}", "different names")
