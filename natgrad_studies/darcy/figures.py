"""Fields on the unit square: the set-up, the reconstructions and the posterior."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from natgrad.plot import PALETTE, save

from ..plots import axes_grid
from .problem import centres, observe, wells
from .run import Posterior, VariantResult
from .settings import EVERY

FIELD, PRESSURE, SIGNED, SIZE = "viridis", "magma", "RdBu_r", "cividis"
COLUMNS = 6


def show(axes: Any, values: np.ndarray, title: str, **style: Any) -> Any:
    """A field with x to the right and y upwards."""
    image = axes.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), **style)
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return image


def draw_setup(variant: VariantResult, path: Path) -> Path:
    """The truth with its wells, the start of the data, and the noise in them."""
    inversion, data = variant.inversion, variant.inversion.data
    figure, (truth, one, noise) = plt.subplots(1, 3, figsize=(11.4, 3.7))
    image = show(truth, data.truth, "log-permeability $m^*$, and the sources", cmap=FIELD)
    figure.colorbar(image, ax=truth, shrink=0.85)
    truth.plot(*wells(inversion.settings.sources).T, "o", mfc="white", mec="black", ms=5.5)
    every = EVERY[inversion.variant]
    if every > 1:
        points = observe(np.moveaxis(centres(inversion.settings.cells), -1, 0), every)
        truth.plot(*points.reshape(2, -1), ".", color="white", ms=1.6, alpha=0.8)
    middle = len(data.observed) // 2
    image = show(one, data.observed[middle], "data of the source in the middle", cmap=PRESSURE)
    figure.colorbar(image, ax=one, shrink=0.85)
    rest = (data.observed - data.clean)[middle] / data.noise
    image = show(noise, rest, "its noise, in units of σ", cmap=SIGNED, vmin=-3, vmax=3)
    figure.colorbar(image, ax=noise, shrink=0.85)
    return save(figure, path)


def draw_fields(variant: VariantResult, path: Path) -> Path:
    """Truth, start and what every run found, without the prior and then with it."""
    truth = variant.inversion.data.truth
    style = {"vmin": truth.min(), "vmax": truth.max(), "cmap": FIELD}
    panels: list[tuple[str, np.ndarray]] = [
        ("truth", truth),
        ("start: error 1", np.asarray(variant.inversion.start)),
    ]
    for white in (False, True):
        for run in variant.with_prior(white):
            lines = [run.method.full_name, f"error {run.error[-1]:.3f}, {run.total} prop."]
            lines += [] if run.reached else [f"misfit {run.misfit[-1]:.3g} σ"]
            panels.append(("\n".join(lines), run.field))
    figure, axes = axes_grid(len(panels), min(COLUMNS, len(panels)), (2.35, 2.75))
    image: Any = None
    for axis, (title, field) in zip(axes, panels, strict=True):
        image = show(axis, field, title, **style)
        axis.title.set_fontsize(8)
    figure.colorbar(image, ax=axes, shrink=0.5, label="$m$")
    return save(figure, path)


def draw_posterior(found: Posterior, path: Path) -> Path:
    """Deviations before and after the data, the error, the spectrum, eigenvectors and a sample."""
    figure, axes = plt.subplots(2, 4, figsize=(12.4, 6.0))
    top = found.prior_deviation.max()
    image: Any = None
    for axis, values, title in (
        (axes[0, 0], found.prior_deviation, "prior deviation of $m$"),
        (axes[0, 1], found.deviation, "posterior deviation"),
        (axes[0, 2], np.abs(found.error), "$|m-m^*|$"),
    ):
        image = show(axis, values, title, cmap=SIZE, vmin=0, vmax=top)
    figure.colorbar(image, ax=axes[0, 2], shrink=0.85)
    _spectrum(axes[0, 3], found.values)
    for axis, (i, vector) in zip(axes[1], found.vectors.items(), strict=False):
        size = np.abs(vector).max()
        title = f"eigenvector {i + 1}, $\\mu$ = {found.values[i]:.2g}"
        show(axis, vector, title, cmap=SIGNED, vmin=-size, vmax=size)
    image = show(axes[1, 3], found.sample, "a sample of $m$", cmap=FIELD)
    figure.colorbar(image, ax=axes[1, 3], shrink=0.85)
    return save(figure, path)


def _spectrum(axes: Any, values: np.ndarray) -> None:
    axes.loglog(np.arange(1, 1 + len(values)), values, color=PALETTE["blue"])
    axes.axhline(1.0, color=PALETTE["grey"], lw=1.0, ls="--")
    place = {"xytext": (0, 3), "textcoords": "offset points", "fontsize": 8}
    axes.annotate("data and prior alike", (1, 1.0), **place)
    axes.set_xlabel("eigenpair")
    axes.set_title("eigenvalues $\\mu$", loc="left", fontsize=9.5)
