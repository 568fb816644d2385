"""Pictures of runs, paths and fields, drawn by matplotlib, and the look of every figure.

matplotlib comes with `pip install "natgrad[studies]"`.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .core.archive import replace_file
from .core.compiled import each
from .core.settings import check_integer
from .errors import InputError, import_optional
from .grids import Grid
from .parameters import flatten
from .problem import Problem
from .result import Result

__all__ = ["METRIC_LINES", "PALETTE", "fields", "figure_style", "history", "path", "save"]

# Okabe and Ito's palette, told apart by every common form of colour vision.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#7F7F7F",
}

# The runs of a comparison, one after the other.
RUN_COLOURS = [
    PALETTE[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "black")
]

# A colour and a dash for each metric, the same in every study.
METRIC_LINES = {
    "L2": (PALETTE["blue"], "-"),
    "FR": (PALETTE["green"], "-"),
    "H1": (PALETTE["orange"], "-"),
    "dotH1": (PALETTE["orange"], "--"),
    "Hm1": (PALETTE["sky"], "-"),
    "dotHm1": (PALETTE["sky"], "--"),
    "W2": (PALETTE["vermilion"], "-"),
}

FIGURE_SETTINGS = {
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 130,
    "savefig.facecolor": "white",
}

MARGIN = 0.25  # of the longer side, around the points
TOGETHER = 16  # evaluations at once


def history(
    results: Result | Mapping[str, Result],
    *,
    column: str = "loss",
    against: str = "iterations",
    ax: Any = None,
) -> Any:
    """A column of the history against iterations, propagations or seconds, a line a result.

    ```python
    ng.plot.history({"L²": first, "W₂": second}, against="seconds")
    ```

    The scale is logarithmic where all values are positive up to rounding. A loss that is zero or
    below in the end leaves the axes at the bottom. Returns the axes.

    Args:
        results: One result, or several by name.
        column: A column of the history.
        against: "iterations", "propagations" or "seconds".
        ax: Axes of matplotlib to draw into.
    """
    named = _name_results(results)
    ax = _axes(ax)
    for (name, result), colour in zip(named.items(), cycle(RUN_COLOURS), strict=False):
        if column not in result.history:
            known = ", ".join(result.history)
            raise InputError("column", f"{column!r} is not in the history", f"one of {known}")
        values = np.asarray(result.history[column])
        ax.plot(result.spent(against), values, color=colour, label=name or None)
    shown = np.concatenate([np.asarray(r.history[column]) for r in named.values()])
    shown = shown[np.isfinite(shown)]
    rounding = np.finfo(np.float32).eps * np.max(np.abs(shown), initial=0.0)
    if np.any(shown > 0) and np.all((shown > 0) | (np.abs(shown) <= rounding)):
        ax.set_yscale("log", nonpositive="clip")
    ax.set(xlabel=against, ylabel=column.replace("_", " "))
    if any(named):
        ax.legend(frameon=False)
    return ax


def path(
    results: Result | Mapping[str, Result],
    problem: Problem | None = None,
    *,
    points: int = 60,
    ax: Any = None,
) -> Any:
    """The way of θ over the level sets of the loss, for problems with two parameters.

    ```python
    ng.plot.path({"L²": first, "W₂": second}, problem)
    ```

    Cost: points² evaluations of the loss where a problem is given. Returns the axes.

    Args:
        results: One result, or several by name.
        problem: The problem, for the level sets.
        points: Points a side for the level sets.
        ax: Axes of matplotlib to draw into.
    """
    named = _name_results(results)
    ways = {name: _two_parameter_path(result) for name, result in named.items()}
    ax = _axes(ax)
    if problem is not None:
        like = next(iter(named.values())).theta
        seen = landscape(problem, like, np.concatenate(list(ways.values())), points)
        finite = seen.values[np.isfinite(seen.values)]
        levels = np.unique(np.quantile(finite, np.linspace(0, 1, 18) ** 1.5))
        if len(levels) > 1:
            ax.contour(seen.x, seen.y, seen.values.T, levels=levels, colors="0.7", linewidths=0.7)
    for (name, way), colour in zip(ways.items(), cycle(RUN_COLOURS), strict=False):
        ax.plot(*way.T, ".-", color=colour, lw=1.4, ms=4, label=name or None)
        ax.plot(*way[0], "s", color=colour, ms=6)
        ax.plot(*way[-1], "*", color=colour, ms=11, mec="white", mew=0.6)
    ax.set(xlabel="θ₁", ylabel="θ₂")
    if any(named):
        ax.legend(frameon=False)
    return ax


def fields(
    result: Result,
    of: Callable[[PyTree], Any] | None = None,
    *,
    grid: Grid | None = None,
    count: int = 4,
    axes: Sequence[Any] | None = None,
) -> np.ndarray:
    """θ, or a function of it such as the model, at `count` of the iterates that were kept.

    ```python
    result = ng.minimize(problem, theta0, method, snapshots=20)
    ng.plot.fields(result, of=model, grid=grid)
    ```

    Fields of two dimensions are images with one colour scale, the first axis of the array to the
    right; fields of one dimension are lines. Returns the array of axes, new ones with a colour bar.

    Args:
        result: A result with snapshots.
        of: A function of θ to show in its place.
        grid: The grid of the field, for its axes.
        count: Number of iterates.
        axes: Axes of matplotlib to draw into.
    """
    kept = list(_iterates(result).items())
    check_integer(count, "count", 1, example=4)
    places = np.unique(np.linspace(0, len(kept) - 1, min(count, len(kept))).round().astype(int))
    chosen = [kept[place] for place in places]
    found = [np.asarray((of or (lambda theta: theta))(theta)) for _, theta in chosen]
    if any(field.shape != found[0].shape or field.ndim not in (1, 2) for field in found):
        what = f"has shape {found[0].shape}, which is not a field in one or two dimensions"
        raise InputError("of", what, "of=lambda theta: model(theta)[0]")
    if axes is None:
        size = (2.8 * len(chosen) + 0.4, 3.0)
        made = _pyplot().subplots(1, len(chosen), figsize=size, squeeze=False, layout="constrained")
    shown = np.ravel(made[1] if axes is None else np.asarray(axes, object))
    if len(shown) != len(chosen):
        raise InputError("axes", f"are {len(shown)} for {len(chosen)} fields", "axes=None")
    low, high = min(f.min() for f in found), max(f.max() for f in found)
    room = 0.05 * (high - low) or 1.0
    image = None
    for axis, (number, _), field in zip(shown, chosen, found, strict=True):
        axis.set_title(f"iteration {number}", fontsize="medium")
        if field.ndim == 1:
            where = np.arange(field.size) if grid is None else np.asarray(grid.points).ravel()
            axis.plot(where, field, color=RUN_COLOURS[0])
            axis.set_ylim(low - room, high + room)
            continue
        box = None if grid is None else np.stack([grid.lower, grid.upper], axis=1).ravel()
        image = axis.imshow(field.T, origin="lower", extent=box, vmin=low, vmax=high)
    if image is not None and axes is None:
        shown[0].figure.colorbar(image, ax=shown, shrink=0.8)
    return shown


@dataclass(frozen=True)
class Landscape:
    """f(θ₁, θ₂) on a lattice: `values[i, j]` at (x[i], y[j]); NaN where the loss is not finite."""

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray


def landscape(problem: Problem, like: PyTree, around: np.ndarray, points: int = 60) -> Landscape:
    """The loss on a lattice around points in the plane of θ, whose structure is that of `like`.

    Cost: points² evaluations of the model, some at once unless it runs outside of JAX.
    """
    low, high = around.min(axis=0), around.max(axis=0)
    room = MARGIN * max(float((high - low).max()), 1e-3 * float(np.abs(around).max()), 1e-6)
    x, y = (np.linspace(a - room, b + room, points) for a, b in zip(low, high, strict=True))
    plane = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2))
    find = _values if problem.model.on_host else eqx.filter_jit(_values)
    values = np.asarray(find(problem, like, plane))
    values = np.where(np.isfinite(values), values, np.nan)
    return Landscape(x, y, values.reshape(points, points))


def _values(problem: Problem, like: PyTree, plane: jax.Array) -> jax.Array:
    unravel = flatten(like)[1]

    def value(place: jax.Array) -> jax.Array:
        theta = unravel(place)
        return problem.value(theta, problem.model(theta))

    return each(value, plane, TOGETHER)


@contextmanager
def figure_style() -> Iterator[None]:
    """One set of sizes for all figures drawn inside the block, which need no display."""
    matplotlib = import_optional("matplotlib", "plot")
    matplotlib.use("Agg")
    with matplotlib.rc_context(FIGURE_SETTINGS):
        yield


def save(figure: Any, path: Path) -> Path:
    """Write the figure, as PNG unless the name says otherwise, and close it.

    Args:
        figure: A figure of matplotlib.
        path: The file.
    """
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:] or "png")
    replace_file(path, content.getvalue())
    _pyplot().close(figure)
    return path


def _two_parameter_path(result: Result) -> np.ndarray:
    """The iterates that were kept, as an array of shape (n, 2)."""
    size = flatten(result.theta)[0].size
    if size != 2:
        raise InputError("results", f"have {size} parameters", "a problem with two, or plot.fields")
    return np.array([np.asarray(flatten(theta)[0]) for theta in _iterates(result).values()])


def _iterates(result: Result) -> Mapping[int, PyTree]:
    if not result.iterates:
        raise InputError("results", "have no iterates kept", "minimize(..., snapshots=20)")
    return result.iterates


def _name_results(results: Result | Mapping[str, Result]) -> dict[str, Result]:
    named = {"": results} if isinstance(results, Result) else dict(results)
    if not named or not all(isinstance(result, Result) for result in named.values()):
        raise InputError("results", "are no results", "a Result, or a dict of them by name")
    return named


def _axes(ax: Any) -> Any:
    return _pyplot().subplots(layout="constrained")[1] if ax is None else ax


def _pyplot() -> Any:
    return import_optional("matplotlib.pyplot", "plot")
