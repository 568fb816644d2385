"""Images of arrays: small PNGs, made when a page is built, as base64 for the page's data."""

import base64
import io
from typing import Any

import numpy as np

from ..errors import import_optional

SHADES = 255  # the last of 256 colours is transparent: a value that is not finite
LONG_SIDE = 720  # pixels of a landscape


def draw_field(values: np.ndarray, low: float, high: float, colours: str) -> str:
    """One pixel for each value, the first row on top, in a colour map of matplotlib."""
    palette = _palette(colours)
    share = (np.asarray(values, float) - low) / (high - low)
    shade = np.clip(np.nan_to_num(share) * (SHADES - 1), 0, SHADES - 1).round()
    index = np.where(np.isfinite(share), shade, SHADES).astype(np.uint8)
    image = _package("PIL.Image").fromarray(index)
    image.putpalette(palette)
    return _encode(image, transparency=SHADES)


def draw_bar(colours: str) -> str:
    """All colours of a map from left to right."""
    return draw_field(np.linspace(0, 1, SHADES)[None], 0.0, 1.0, colours)


def draw_landscape(x: np.ndarray, y: np.ndarray, values: np.ndarray, levels: np.ndarray) -> str:
    """Shaded areas between levels, and the level lines; `values[i, j]` belongs to (xᵢ, yⱼ)."""
    sides = np.array([np.ptp(x), np.ptp(y)])
    size = tuple(LONG_SIDE / 100 * sides / sides.max())
    figure = _package("matplotlib.figure").Figure(figsize=size)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    if len(levels) > 1:  # else the function is constant, or nowhere finite
        axes.contourf(x, y, values.T, levels=levels, cmap="Greys", alpha=0.45, extend="both")
        axes.contour(x, y, values.T, levels=levels, colors="#8a8f98", linewidths=0.6)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100, facecolor="white")
    return _encode(_package("PIL.Image").open(content).convert("RGB").quantize(48))


def _palette(colours: str) -> list[int]:
    shades = np.linspace(0, 1, SHADES)
    table = _package("matplotlib").colormaps[colours](shades, bytes=True)[:, :3]
    return [int(part) for colour in table for part in colour] + [255, 255, 255]


def _encode(image: Any, **options: Any) -> str:
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True, **options)
    return base64.b64encode(content.getvalue()).decode("ascii")


def _package(name: str) -> Any:
    return import_optional(name, "report")
