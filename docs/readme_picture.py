"""The picture of the README: `python docs/readme_picture.py` writes docs/paths.svg.

Two means of a mixture on a line, least squares, one start, five metrics. The background is
transparent and the text grey, so that it can be read on a light and on a dark page.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import natgrad as ng
from natgrad.plot import METRIC_LINES, PALETTE

matplotlib.use("Agg")
import matplotlib.pyplot as plt

START, TRUTH = (3.0, 2.5), (1.0, -1.0)
TEXT = "#7d8590"
STYLE = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "natgrad",
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

jax.config.update("jax_enable_x64", True)
grid = ng.Grid(-6.0, 6.0, 240)


def bump(mean, width):
    x = (grid.points[:, 0] - mean) / width
    return jnp.exp(-0.5 * x**2) / (width * jnp.sqrt(2 * jnp.pi))


def mixture(means):
    return 0.6 * bump(means[0], 1.0) + 0.4 * bump(means[1], 0.4)


problem = ng.Problem(mixture, ng.LeastSquares(mixture(jnp.array(TRUTH)), grid))
METHODS = {
    "gradient": (ng.GradientDescent(), PALETTE["grey"]),
    "L²": (ng.NaturalGradient(ng.L2(grid)), METRIC_LINES["L2"][0]),
    "Fisher–Rao": (ng.NaturalGradient(ng.FisherRao(grid)), METRIC_LINES["FR"][0]),
    "Ḣ⁻¹": (ng.NaturalGradient(ng.HomogeneousSobolev(grid, -1)), METRIC_LINES["Hm1"][0]),
    "W₂": (ng.NaturalGradient(ng.Wasserstein(grid)), METRIC_LINES["W2"][0]),
}


def run(method: ng.descent.Method) -> tuple[np.ndarray, np.ndarray]:
    """The path of θ and the losses along it."""
    path = [np.array(START)]
    keep = lambda progress: path.append(np.asarray(progress.theta)) and None
    result = ng.minimize(problem, jnp.array(START), method, callbacks=[keep])
    return np.stack(path), result.history["loss"]


def landscape(axis: np.ndarray) -> np.ndarray:
    """The loss at all pairs of means."""
    pairs = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    value = jax.vmap(lambda means: problem.value(means, problem.model(means)))
    return np.asarray(jax.jit(value)(pairs)).reshape(len(axis), -1)


def draw(path: Path) -> None:
    axis = np.linspace(-3.5, 4.5, 65)
    with matplotlib.rc_context(STYLE):
        figure, (plane, curves) = plt.subplots(
            1, 2, figsize=(9, 4.0), layout="constrained", width_ratios=(1.1, 1)
        )
        levels = np.geomspace(1e-3, 0.3, 16)
        plane.contourf(
            axis, axis, landscape(axis).T, levels, cmap="bone", extend="both", norm="log"
        )
        plane.set(xlabel="mean of the wide bump", ylabel="mean of the narrow bump", aspect="equal")
        for name, (method, colour) in METHODS.items():
            points, losses = run(method)
            plane.plot(*points.T, ".-", color=colour, markersize=4, linewidth=1.8)
            curves.semilogy(losses, color=colour, label=name, linewidth=1.8)
        plane.plot(*START, "o", color="white", markeredgecolor="black", markersize=8)
        plane.plot(*TRUTH, "*", color="white", markeredgecolor="black", markersize=14)
        curves.set(xlabel="iteration", ylabel="loss", ylim=(1e-12, 1), xlim=(0, 60))
        curves.legend(frameon=False, labelcolor=TEXT)
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(__file__).with_name("paths.svg"))
