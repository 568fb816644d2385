"""Figures: paths, local models, transport schemes and basins of the paper's problem, and fits."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from scipy.interpolate import RectBivariateSpline

from natgrad.plot import PALETTE, save

from ..mixtures import LOWER, START, UPPER
from ..plots import axes_grid
from .descent import starts_in_domain
from .fit import Fit, fit_grid, fit_problem, guess, rank, truth
from .landscape import ESCAPES, OUTCOMES, REACHES, UNDECIDED, Landscape
from .run import MethodResult, StudyResult

COLOURS = {
    UNDECIDED: "#d8d8d8",
    REACHES: PALETTE["blue"],
    ESCAPES: PALETTE["orange"],
}
LEGEND = {
    UNDECIDED: "undecided",
    REACHES: "reaches the global minimum",
    ESCAPES: "escapes to the plateau",
}
PATH = PALETTE["vermilion"]
STAR: dict[str, Any] = {
    "marker": "*",
    "mec": "black",
    "mew": 0.6,
    "mfc": PALETTE["yellow"],
    "ls": "none",
}
SQUARE: dict[str, Any] = {"marker": "s", "mec": "black", "color": "white"}
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
    figure, axes = axes_grid(len(result.methods), 3, (3.6, 3.35))
    for axis, entry in zip(axes, result.methods, strict=True):
        _path_panel(axis, entry, result)
        axis.set_aspect("equal")
        axis.set_title(f"{entry.method.label}: {OUTCOMES[entry.path.outcome]}")
    return save(figure, path)


def draw_quadratic_models(result: StudyResult, path: Path) -> Path:
    """Level sets of the local models of some methods at their first iterates."""
    chosen = [entry for entry in result.methods if len(entry.matrices) > 1]
    figure, axes = plt.subplots(1, len(chosen), figsize=(2.8 * len(chosen), 3.3), squeeze=False)
    colours = (PALETTE["blue"], PALETTE["orange"], PALETTE["green"])
    for axis, entry in zip(axes.flat, chosen, strict=True):
        corners = []
        for number, matrix in enumerate(entry.matrices):
            here, there = entry.path.path[number], entry.path.path[number + 1]
            for fraction in (0.25, 0.5, 1.0):
                ellipse = _ellipse(matrix, here, there, fraction)
                axis.plot(*ellipse.T, color=colours[number], lw=1.2 if fraction == 1.0 else 0.7)
            corners += [ellipse, here[None], there[None]]
            axis.plot(*here, marker="o", ms=4, color=colours[number], mec="black", mew=0.5)
            axis.plot(*there, marker="x", ms=6, color=colours[number], mew=1.6, zorder=6)
        cloud = np.concatenate(corners)
        centre = 0.5 * (cloud.min(axis=0) + cloud.max(axis=0))
        half = 0.58 * np.ptp(cloud, axis=0).max() * np.array([-1, 1])
        _close_up(axis, result.landscape, centre[0] + half, centre[1] + half)
        axis.set_title(entry.method.label)
        axis.locator_params(nbins=4)
    return save(figure, path)


def _close_up(axes: Any, landscape: Landscape, xlim: np.ndarray, ylim: np.ndarray) -> None:
    """Level sets of f in a small window, interpolated from the map."""
    surface = RectBivariateSpline(landscape.axis, landscape.axis, landscape.values)
    x, y = (np.linspace(limits[0], limits[1], 80) for limits in (xlim, ylim))
    values = surface(x, y).T / landscape.weight
    axes.contourf(x, y, values, levels=12, cmap="Greys", alpha=0.35)
    axes.contour(x, y, values, levels=12, colors="#8a8f98", linewidths=0.5)
    axes.set(xlim=xlim, ylim=ylim, aspect="equal")


def _ellipse(
    matrix: np.ndarray, here: np.ndarray, there: np.ndarray, fraction: float
) -> np.ndarray:
    """The level set of q through the point `fraction` of the way from its minimiser to θ.

    q(h) = ∂f·h + hᵀGh/2τ = const + (h − τη)ᵀG(h − τη)/2τ: ellipses about the next iterate.
    """
    move = here - there
    radius = fraction * np.sqrt(move @ matrix @ move)
    angle = np.linspace(0, 2 * np.pi, 181)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    return there + radius * np.linalg.solve(np.linalg.cholesky(matrix).T, circle).T


def draw_transport(result: StudyResult, path: Path) -> Path:
    """Paths with both schemes of W₂, the parity split of the paper's, refinement of ours."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.8, 3.6))
    level_sets(left, result.landscape)
    curves = [
        ("paper's scheme", result["W2"].path.path, PALETTE["vermilion"], "o", "-"),
        ("staggered", result["W2_staggered"].path.path, PALETTE["blue"], "o", "-"),
        ("gradient descent", result["GD"].path.path, PALETTE["black"], None, "--"),
    ]
    if result.floored is not None:
        name = f"paper's, floor {result.settings.floor:g}"
        curves.append((name, result.floored.path.path, PALETTE["green"], None, ":"))
    for name, points, colour, marker, dashes in curves:
        left.plot(*points.T, color=colour, marker=marker, ms=2.5, ls=dashes, label=name)
    left.plot(*START, **SQUARE, ms=6, zorder=7)
    left.set(xlim=(1.2, UPPER + 1.7), ylim=(-0.6, 5.4), aspect="equal", title="paths from (5, 3)")
    left.legend(loc="upper left", fontsize=7.5, framealpha=0.9)

    parity = result.transport.parity
    names = [name.replace(", ", "\n") for name in parity]
    heights = list(parity.values())
    middle.bar(names, heights, color=PALETTE["vermilion"], width=0.6)
    middle.axhline(0.2, color="black", lw=1, ls="--")
    place = {"xycoords": ("axes fraction", "data"), "va": "bottom", "fontsize": 8.5}
    middle.annotate("bound 0.2", (0.02, 0.2), **place)
    middle.set(yscale="log", ylim=(5e-3, 1e6), title=r"paper's $G_{xx}$ by parity")
    for position, height in enumerate(heights):
        middle.annotate(f"{height:.3g}", (position, height), ha="center", va="bottom", fontsize=8)
    middle.tick_params(axis="x", labelsize=7.5)

    cells = np.array(sorted(result.transport.refinement))
    for index, name, colour in ((0, "$G_{xx}$", PALETTE["blue"]), (1, "$G_{yy}$", PALETTE["sky"])):
        values = [result.transport.refinement[int(n)][index, index] for n in cells]
        right.plot(cells, values, marker="o", color=colour, label=f"staggered {name}")
    bound = float(result.transport.feasible_bound)
    right.axhline(bound, color="black", lw=1, ls="--", label="bound, both entries")
    right.set(xscale="log", xlabel="cells per side", ylim=(0.055, 0.09))
    right.set_title("corrected $G(5, 3)$")
    right.set_xticks(cells, [str(n) for n in cells])
    right.minorticks_off()
    right.legend(loc="upper left", fontsize=7.5)
    return save(figure, path)


def draw_basins(result: StudyResult, path: Path) -> Path:
    """The fate of every start, method by method."""
    figure, axes = axes_grid(len(result.methods), 3, (3.6, 3.45))
    colours = ListedColormap([COLOURS[code] for code in sorted(COLOURS)])
    for axis, entry in zip(axes, result.methods, strict=True):
        area = entry.basins
        style = {"cmap": colours, "vmin": -0.5, "vmax": 2.5, "shading": "nearest", "alpha": 0.85}
        axis.pcolormesh(area.side, area.side, area.outcome.T, **style)
        level_sets(axis, result.landscape, filled=False)
        axis.plot(*START, **SQUARE, ms=5, zorder=7)
        axis.set_aspect("equal")
        counts = f"{area.count(REACHES)} reach, {area.count(ESCAPES)} escape"
        axis.set_title(
            f"{entry.method.label}\n{counts}, {area.count(UNDECIDED)} undecided", fontsize=10
        )
        axis.set(xlim=(LOWER - 0.15, UPPER + 0.15), ylim=(LOWER - 0.15, UPPER + 0.15))
    handles: list[Any] = [
        Patch(facecolor=COLOURS[code], label=LEGEND[code]) for code in (REACHES, ESCAPES, UNDECIDED)
    ]
    handles.append(Line2D([], [], **STAR, ms=10, label="global minimum"))
    handles.append(Line2D([], [], **SQUARE, ls="none", ms=5, label="(5, 3)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return save(figure, path)


def draw_densities(fits: list[Fit], path: Path) -> Path:
    """Target, start and the density of every fit, the best first."""
    points = fits[0].state.shape[0]
    grid = fit_grid(points)
    problem = fit_problem(grid)
    x, y = (np.asarray(axis) for axis in grid.axes)
    goal = np.asarray(problem.model(truth()))
    panels = [("target", goal), ("start", np.asarray(problem.model(guess())))]
    panels += [
        (f"{fit.contestant.label}\n" + rf"$f/f_0$ = {fit.relative[-1]:.0e}", fit.state)
        for fit in rank(fits)
    ]
    figure, axes = axes_grid(len(panels), 4, (2.6, 2.75))
    levels = np.linspace(0, goal.max(), 9)[1:]
    for axis, (title, state) in zip(axes, panels, strict=True):
        style = {"vmin": 0, "vmax": goal.max(), "cmap": "Blues", "shading": "nearest"}
        image = axis.pcolormesh(x, y, state.T, rasterized=True, **style)
        axis.contour(x, y, goal.T, levels=levels[::2], colors=PALETTE["vermilion"], linewidths=0.8)
        axis.set(title=title, aspect="equal", xlim=(-4.2, 4.2), ylim=(-4.2, 4.2))
    figure.colorbar(image, ax=axes, shrink=0.6, label="density")
    return save(figure, path)
