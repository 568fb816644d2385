"""The paper's figure 2, and the curves and windows of its figure 3."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from scipy.interpolate import RectBivariateSpline

from natgrad.plot import PALETTE, figure_style, save

from ..mixtures import LOWER, START, UPPER
from .descent import starts_in_domain
from .landscape import OUTCOMES, Landscape
from .run import MethodResult, StudyResult

PATH = PALETTE["vermilion"]
STAR: Any = {"marker": "*", "mec": "black", "mew": 0.6, "mfc": PALETTE["yellow"], "ls": "none"}
LEVELS = np.concatenate(  # of f, denser about the plateau and the saddles
    [np.linspace(2.05, 2.55, 6), np.linspace(2.59, 2.75, 9), np.linspace(2.85, 3.45, 7)]
)


def level_sets(axes: Any, landscape: Landscape, filled: bool = True) -> None:
    """Level sets of f over μ, the domain and the minimum."""
    axis, values = landscape.axis, landscape.values / landscape.weight
    if filled:
        axes.contourf(axis, axis, values.T, levels=LEVELS, cmap="Greys", alpha=0.35, extend="both")
    axes.contour(axis, axis, values.T, levels=LEVELS, colors="#8a8f98", linewidths=0.5)
    side = UPPER - LOWER
    axes.add_patch(Rectangle((LOWER, LOWER), side, side, fill=False, lw=0.9, ls=":", ec="black"))
    axes.plot(*landscape.minimum, **STAR, ms=12, zorder=6)


def _path_panel(axes: Any, entry: MethodResult, result: StudyResult) -> None:
    level_sets(axes, result.landscape)
    _, points = starts_in_domain(result.settings.arrows)
    length = np.linalg.norm(entry.field, axis=1, keepdims=True)
    unit = np.divide(entry.field, length, out=np.zeros_like(entry.field), where=length > 0)
    style = {"color": "#3b4654", "width": 0.0045, "headwidth": 4, "alpha": 0.8}
    axes.quiver(*points.T, *unit.T, scale=26, pivot="mid", **style)
    path = entry.path.path
    axes.plot(*path.T, color=PATH, lw=1.2, marker="o", ms=1.8, zorder=5)
    axes.plot(*START, marker="s", ms=6, color=PATH, mec="black", mew=0.6, zorder=7)
    axes.set(xlim=(LOWER - 0.2, UPPER + 1.7), ylim=(LOWER - 0.2, UPPER + 0.2))


def draw_paths(result: StudyResult, path: Path) -> Path:
    """Directions of every method, and its path from (5, 3)."""
    with figure_style():
        rows = -(-len(result.methods) // 3)
        figure, axes = plt.subplots(
            rows, 3, figsize=(10.8, 3.35 * rows), sharex=True, sharey=True, squeeze=False
        )
        for axis in axes.flat[len(result.methods) :]:
            axis.set_visible(False)
        for axis, entry in zip(axes.flat, result.methods, strict=False):
            _path_panel(axis, entry, result)
            axis.set_aspect("equal")
            axis.set_title(f"{entry.method.label}: {OUTCOMES[entry.path.outcome]}")
        return save(figure, path)


def close_up(
    landscape: Landscape, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f in a window about some points, interpolated from the map: x, y and the values."""
    surface = RectBivariateSpline(landscape.axis, landscape.axis, landscape.values)
    room = 0.1 * (high - low)
    x, y = np.linspace(low - room, high + room, 80, axis=1)
    return x, y, surface(x, y) / landscape.weight


def ellipse(matrix: np.ndarray, here: np.ndarray, there: np.ndarray, fraction: float) -> np.ndarray:
    """The level set of q through the point `fraction` of the way from its minimiser to θ.

    q(h) = ∂f·h + hᵀGh/2τ = const + (h − τη)ᵀG(h − τη)/2τ: ellipses about the next iterate.
    """
    move = here - there
    radius = fraction * np.sqrt(move @ matrix @ move)
    angle = np.linspace(0, 2 * np.pi, 181)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    return there + radius * np.linalg.solve(np.linalg.cholesky(matrix).T, circle).T
