"""A page with every kind of part, for the tests of reports."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from natgrad.report import (
    Curves,
    Figure,
    Frames,
    Landscape,
    Page,
    Paths,
    Section,
    Series,
    Table,
    Track,
    machine,
    versions,
)

NASTY = "a < b & \"c\" </script><script>alert('x')</script>"


def curves() -> Curves:
    """Two curves over three abscissae; the second has a gap and a zero."""
    steps = np.arange(40.0)
    falls = np.exp(-0.4 * steps)
    broken = 0.5 * np.exp(-0.1 * steps)
    broken[10:13] = np.nan
    broken[-1] = 0.0
    x = {"iterations": steps, "seconds": 0.3 + 0.05 * steps**1.5, "propagations": 3 * steps}
    return Curves(
        [Series("L²", falls, x, "#0072B2"), Series("GD & co", broken, x, "#000000", "--")],
        "loss",
        "Two losses.",
        levels={"the noise": 1e-3},
    )


def paths() -> Paths:
    """Two paths on a slope; the second is shorter."""
    axis = np.linspace(-2.0, 2.0, 41)
    land = Landscape.of(axis, axis, axis[:, None] ** 2 + 3 * axis[None, :] ** 2)
    shrink = 0.8 ** np.arange(21.0)
    long = np.stack([1.8 * shrink, 1.5 * shrink**2], axis=1)
    losses = (long**2).sum(axis=1)
    return Paths(
        [
            Track("W₂", long, "#D55E00", losses=losses),
            Track("FR", -long[:8], "#009E73", "--", losses[:8]),
        ],
        "Two paths.",
        land,
        {"start": (1.8, 1.5), "minimum": (0.0, 0.0)},
        "μ₁",
        "μ₂",
    )


def frames(count: int = 5, shape: tuple[int, int] = (20, 50)) -> Frames:
    """A bump that moves, in two runs, beside where it should be."""
    rows, columns = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    bump = lambda at: np.exp(-20 * ((columns - at) ** 2 + (rows - 0.5) ** 2))
    steps = range(count)
    return Frames.of(
        {
            "L²": [(f"iteration {k}", bump(k / count)) for k in steps],
            "GD": [(f"iteration {2 * k}", bump(0.3 * k / count)) for k in steps],
        },
        "A field.",
        reference=("true", bump(1.0)),
        extent=(0.0, 5.0, 2.0, 0.0),
        unit="velocity, km/s",
        x_label="distance, km",
        y_label="depth, km",
    )


def every_part(folder: Path) -> Page:
    """Text, a table, a figure and all plots; the figure is drawn into the folder."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn, axes = plt.subplots(figsize=(3, 2))
    axes.plot([0, 1])
    drawn.savefig(folder / "figures" / "line.png")
    plt.close(drawn)
    return Page(
        "Every part",
        NASTY,
        [
            Section(
                f"Words {NASTY}", ["A paragraph.", Table(("a", "b"), [("1", NASTY)], "Cells.")]
            ),
            Section("Curves", [curves(), Figure(folder / "figures" / "line.png", "PNG.", "line")]),
            Section("Paths", [paths()]),
            Section("Fields", [frames()]),
        ],
        settings={"points": 70, "metrics": ("L2", "W2"), "budget": {"seconds": 3}, "bands": ()},
        versions=versions(),
        machine=machine(),
    )
