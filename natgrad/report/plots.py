"""Interactive plots: curves, paths and fields, as data that the page's script draws."""

import base64
import dataclasses
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError

MOST_POINTS = 1000  # of a curve: a page has few pixels, cheap iterations are many
DIGITS = 7  # of a number on the page
SHADES = 254  # the largest byte of a value; 255 stands for one that is not finite
LEVELS = 14  # of a landscape
COLOURS = ("sequential", "diverging")
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

    `levels` are horizontal lines with a name. On a logarithmic axis a curve leaves at the bottom
    where its values are not positive.
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


def pack(arrays: Sequence[np.ndarray], low: float, high: float) -> str:
    """Images of one shape as base64: shades, their differences along each row, compressed."""
    share = (np.stack(arrays) - low) / (high - low)
    shades = np.clip(np.nan_to_num(share), 0, 1) * SHADES
    bytes_ = np.where(np.isfinite(share), shades.round(), SHADES + 1).astype(np.uint8)
    steps = np.diff(bytes_, axis=-1, prepend=np.uint8(0))  # modulo 256
    return base64.b64encode(zlib.compress(steps.tobytes())).decode("ascii")


@dataclass(frozen=True)
class Landscape:
    """A function of two parameters; `Landscape.of` makes it from an array.

    `pixels` are shades that rise evenly from level to level, the first row on top, and what is left
    of each shade after rounding down.
    """

    pixels: str
    shape: Sequence[int]
    extent: Sequence[float]
    levels: Sequence[float]

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        values: np.ndarray,
        levels: Sequence[float] | np.ndarray | None = None,
    ) -> "Landscape":
        """`values[i, j]` at (xᵢ, yⱼ); without `levels` they follow the quantiles of the values."""
        x, y, values = (np.asarray(array, float) for array in (x, y, values))
        if values.shape != (len(x), len(y)):
            problem = f"has the shape {values.shape} over {len(x)} × {len(y)} points"
            raise InputError("values", problem, "values[i, j] at (x[i], y[j])")
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        if levels is None:
            levels = np.quantile(finite, np.linspace(0.02, 0.98, LEVELS)) if finite.size else []
        bounds = np.unique([low, high, *np.clip(levels, low, high)])
        bands = np.interp(values, bounds, np.arange(len(bounds)))
        bands[~np.isfinite(values)] = np.nan
        extent = (x[0], x[-1], y[0], y[-1])
        whole = np.floor(shades := bands.T[::-1] * SHADES / max(len(bounds) - 1, 1))
        pixels = pack([whole, (shades - whole) * SHADES], 0.0, SHADES)  # lines need finer steps
        return cls(pixels, bands.T.shape, round_numbers(extent), round_numbers(bounds))

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        numbers = {name: round_numbers(getattr(self, name)) for name in ("extent", "levels")}
        return {**dataclasses.asdict(self), **numbers, "shape": [*self.shape]}


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
            "landscape": None if land is None else land.data(),
            "markers": {name: round_numbers(point) for name, point in self.markers.items()},
            "x_label": self.x_label,
            "y_label": self.y_label,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Paths":
        """The inverse of `data`."""
        land = None if data["landscape"] is None else Landscape(**data["landscape"])
        tracks = [Track(**track) for track in data["tracks"]]
        return cls(**{**data, "tracks": tracks, "landscape": land})

    def html(self, name: str) -> str:
        """The plot."""
        fallback = "<p>Enable JavaScript to see the paths.</p>"
        return _figure("paths", name, self.data(), fallback)


@dataclass(frozen=True)
class Frames:
    """Fields of runs side by side, in the colours of one bar; `Frames.of` makes them from arrays.

    `runs` has the labels of the frames of each run; all images follow each other in `pixels`, that
    of the `reference` at the end.
    """

    runs: Mapping[str, Sequence[str]]
    caption: str
    pixels: str
    shape: Sequence[int]
    limits: Sequence[float]
    extent: Sequence[float]
    unit: str = ""
    x_label: str = ""
    y_label: str = ""
    colours: str = "sequential"
    names: Mapping[str, float] = field(default_factory=dict)
    aspect: float | None = None
    reference: str | None = None

    def __post_init__(self) -> None:
        _check_names("runs", list(self.runs))
        if self.colours not in COLOURS:
            raise InputError("colours", f"there are no {self.colours!r}", " or ".join(COLOURS))

    @classmethod
    def of(
        cls,
        runs: Mapping[str, Sequence[tuple[str, Any]]],
        caption: str,
        *,
        reference: tuple[str, Any] | None = None,
        limits: Sequence[float] | None = None,
        extent: Sequence[float] | None = None,
        **rest: Any,
    ) -> "Frames":
        """Frames from pairs (label, array), all arrays of one shape, their first row on top.

        A slider and a play button move all runs at once; a run of one frame stands still. The
        `reference` is shown beside them. The `limits` of the colours are by default those of all
        values, symmetric for diverging colours; `extent` is (left, right, bottom, top). `names`
        gives names to values, in place of numbers on the bar. The `aspect`, height over width, is
        by default that of the extent.
        """
        shown = [frame for frames in runs.values() for frame in frames]
        shown += [] if reference is None else [reference]
        arrays = [np.asarray(array, float) for _, array in shown]
        if not all(runs.values()) or any(a.ndim != 2 or a.shape != arrays[0].shape for a in arrays):
            raise InputError("runs", "are not all images of one shape", "2D arrays, at least one")
        found = limits or _limits(arrays, rest.get("colours") == COLOURS[1])
        rows, columns = arrays[0].shape
        return cls(
            runs={name: [label for label, _ in frames] for name, frames in runs.items()},
            caption=caption,
            pixels=pack(arrays, *found),
            shape=(rows, columns),
            limits=round_numbers(found),
            extent=round_numbers(extent or (0, columns, rows, 0)),
            reference=None if reference is None else reference[0],
            **rest,
        )

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        numbers = {name: round_numbers(getattr(self, name)) for name in ("limits", "extent")}
        names = dict(zip(self.names, round_numbers(self.names.values()), strict=True))
        return {**dataclasses.asdict(self), **numbers, "names": names, "shape": [*self.shape]}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Frames":
        """The inverse of `data`."""
        return cls(**data)

    def html(self, name: str) -> str:
        """The images, and a slider."""
        fallback = "<p>Enable JavaScript to see the images.</p>"
        return _figure("frames", name, self.data(), fallback)


def _limits(arrays: Sequence[np.ndarray], symmetric: bool) -> tuple[float, float]:
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if symmetric:
        low, high = -max(-low, high), max(-low, high)
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
