"""Figures of the fit with all parameters free."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from natgrad.plot import PALETTE, save

from .colours import LINES
from .fit import Fit, fit_grid, fit_problem, guess, ranked, truth

FLOOR = 1e-16  # relative losses below this are rounding error


def draw(fits: list[Fit], folder: Path) -> dict[str, Path]:
    """All figures of this part, by name."""
    return {
        "fit_losses": _losses(fits, folder / "fit_losses.png"),
        "fit_densities": _densities(fits, folder / "fit_densities.png"),
    }


def _losses(fits: list[Fit], path: Path) -> Path:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True)
    for fit in fits:
        colour, dashes = LINES[fit.contestant.key]
        relative = np.maximum(fit.relative, FLOOR)
        style = {"color": colour, "linestyle": dashes, "label": fit.contestant.label}
        left.semilogy(relative, **style)
        right.loglog(np.maximum(fit.seconds, 1e-3), relative, **style)
    left.set(xlabel="iterations", ylabel="loss / initial loss", ylim=(FLOOR / 3, 3))
    right.set(xlabel="seconds, compilation excluded")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return save(figure, path)


def _densities(fits: list[Fit], path: Path) -> Path:
    points = fits[0].state.shape[0]
    grid = fit_grid(points)
    problem = fit_problem(grid)
    x, y = (np.asarray(axis) for axis in grid.axes)
    goal = np.asarray(problem.model(truth()))
    panels = [("target", goal), ("start", np.asarray(problem.model(guess())))]
    panels += [
        (f"{fit.contestant.label}\n" + rf"$f/f_0$ = {fit.relative[-1]:.0e}", fit.state)
        for fit in ranked(fits)
    ]
    columns = 4
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(10.5, 2.75 * rows), sharex=True, sharey=True, squeeze=False
    )
    levels = np.linspace(0, goal.max(), 9)[1:]
    for axis, (title, state) in zip(axes.flat, panels, strict=False):
        image = axis.pcolormesh(
            x, y, state.T, vmin=0, vmax=goal.max(), cmap="Blues", shading="nearest", rasterized=True
        )
        axis.contour(x, y, goal.T, levels=levels[::2], colors=PALETTE["vermilion"], linewidths=0.8)
        axis.set(title=title, aspect="equal", xlim=(-4.2, 4.2), ylim=(-4.2, 4.2))
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.6, label="density")
    return save(figure, path)
