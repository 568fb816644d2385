"""Fields over iterations: images of one or several runs, with a slider."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from .images import bar_image, field_image
from .interactive import check_names, plot

FALLBACK = "<p>The images are shown by a script, which does not run here.</p>"


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
        """From (label, array) frames, all arrays of one shape, their first row on top.

        `reference` is shown beside them. `limits` of the colours are by default those of all
        values; `extent` is (left, right, bottom, top).
        """
        check_names("runs", list(runs))
        shown = [frame for frames in runs.values() for frame in frames]
        shown += [] if reference is None else [reference]
        arrays = [np.asarray(array, float) for _, array in shown]
        if not all(runs.values()) or any(a.ndim != 2 or a.shape != arrays[0].shape for a in arrays):
            raise InputError("runs", "are not all images of one shape", "2D arrays, at least one")
        low, high = _limits(arrays) if limits is None else limits
        rows, columns = arrays[0].shape
        encoded = lambda frame: Frame(frame[0], field_image(frame[1], low, high, colours))
        return cls(
            runs={name: [encoded(frame) for frame in frames] for name, frames in runs.items()},
            caption=caption,
            bar=bar_image(colours),
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
    def restored(cls, data: dict[str, Any]) -> "Frames":
        """From what `data` made."""
        runs = {name: [Frame(**frame) for frame in frames] for name, frames in data["runs"].items()}
        beside = None if data["reference"] is None else Frame(**data["reference"])
        return cls(**{**data, "runs": runs, "reference": beside})

    def html(self, name: str) -> str:
        """The images."""
        return plot("frames", name, self.data(), FALLBACK)


def _limits(arrays: Iterable[np.ndarray]) -> tuple[float, float]:
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)
