"""Images of arrays, made when a page is built: small PNGs, as text for the page's data."""

import base64
import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

SHADES = 255  # the last of 256 colours is transparent: a value that is not finite
LONG_SIDE = 720  # pixels of a landscape


def field_image(values: np.ndarray, low: float, high: float, colours: str) -> str:
    """One pixel a value, the first row on top; base64 of a PNG with a palette."""
    share = (np.asarray(values, float) - low) / (high - low)
    shade = np.clip(np.nan_to_num(share) * (SHADES - 1), 0, SHADES - 1).round()
    index = np.where(np.isfinite(share), shade, SHADES).astype(np.uint8)
    image = Image.fromarray(index)
    image.putpalette(_palette(colours))
    return _encoded(image, transparency=SHADES)


def bar_image(colours: str) -> str:
    """All colours from left to right."""
    return field_image(np.linspace(0, 1, SHADES)[None], 0.0, 1.0, colours)


def landscape_image(x: np.ndarray, y: np.ndarray, values: np.ndarray, levels: np.ndarray) -> str:
    """Shaded areas between levels, and the level lines; `values[i, j]` belongs to (xᵢ, yⱼ)."""
    sides = np.array([np.ptp(x), np.ptp(y)])
    figure = Figure(figsize=tuple(LONG_SIDE / 100 * sides / sides.max()))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    if len(levels) > 1:  # else the function is constant, or nowhere finite
        axes.contourf(x, y, values.T, levels=levels, cmap="Greys", alpha=0.45, extend="both")
        axes.contour(x, y, values.T, levels=levels, colors="#8a8f98", linewidths=0.6)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100, facecolor="white")
    image = Image.open(content).convert("RGB").quantize(48)
    return _encoded(image)


def _palette(colours: str) -> list[int]:
    table = matplotlib.colormaps[colours](np.linspace(0, 1, SHADES), bytes=True)[:, :3]
    return [int(part) for colour in table for part in colour] + [255, 255, 255]


def _encoded(image: Any, **options: Any) -> str:
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True, **options)
    return base64.b64encode(content.getvalue()).decode("ascii")
