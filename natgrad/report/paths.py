"""Paths in a plane, over a landscape where there is one, with a slider over the iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError
from .images import landscape_image
from .interactive import check_line, check_names, plot, rounded

FALLBACK = "<p>The paths are drawn by a script, which does not run here.</p>"
LEVELS = 14


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
        check_line("tracks", self.name, self.colour, self.dash)
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
            "points": [rounded(point) for point in self.points],
            "colour": self.colour,
            "dash": self.dash,
            "losses": None if self.losses is None else rounded(self.losses),
            "iterations": [int(step) for step in steps],
        }


@dataclass(frozen=True)
class Landscape:
    """An image of a function of two parameters and the rectangle (left, right, bottom, top)."""

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
        image = landscape_image(x, y, values, np.asarray(levels))
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
        check_names("tracks", [track.name for track in self.tracks])

    def data(self) -> dict[str, Any]:
        """In JSON's types."""
        land = self.landscape
        return {
            "tracks": [track.data() for track in self.tracks],
            "caption": self.caption,
            "image": None if land is None else land.image,
            "extent": None if land is None else list(land.extent),
            "markers": {name: rounded(point) for name, point in self.markers.items()},
            "x_label": self.x_label,
            "y_label": self.y_label,
        }

    @classmethod
    def restored(cls, data: dict[str, Any]) -> "Paths":
        """From what `data` made."""
        rest = {key: data[key] for key in ("caption", "markers", "x_label", "y_label")}
        land = None if data["image"] is None else Landscape(data["image"], tuple(data["extent"]))
        return cls([Track(**track) for track in data["tracks"]], landscape=land, **rest)

    def html(self, name: str) -> str:
        """The plot."""
        return plot("paths", name, self.data(), FALLBACK)
