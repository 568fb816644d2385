"""W₂ natural gradients with 100,000 parameters: a density on a million cells fitted to an image.

The parameters are a field θ of m × m values of the log-density, interpolated to n × n cells:

    ρ(θ) = exp(UθUᵀ) / ∫ exp(UθUᵀ) dx,        U the n × m matrix of bilinear interpolation

ρ starts as one blurred spot in a corner of an empty sky and is fitted to a spiral galaxy. Nothing
of size k × p is formed: G v = Zᵀ(A(Zv)), with the products of the model by JAX and A for W₂ by one
multigrid solve of −∇·(ρ∇φ) = Zv, inside conjugate gradients stopped early.

    python examples/density_image.py                                     # 128² cells, p = 1,600
    python examples/density_image.py --size 1000 --field 320             # 1000² cells, p = 102,400

Each writes `density_image.png` and prints a table, on whatever device JAX finds. `--loss` chooses
what is minimised, `--metrics` who takes part.

Cost: each iteration of conjugate gradients O(k) for the solve and O(n²m) for two interpolations.
Reference: section 3.4 of the paper; for the loss Peyre, Comparison between W₂ distance and Ḣ⁻¹
norm, ESAIM: COCV 24 (2018).
"""

import argparse
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.plot import PALETTE, figure_style, save

START, WIDTH = 0.25, 0.08  # both coordinates of the spot, and its standard deviation
SCALE = 0.03  # ℓ² in W₂ + ℓ²·FR: below the length ℓ ≈ 1/6 growing is cheaper than moving
CG_ITERATIONS = 20  # to stop this early is all the damping there is
ELLIPTIC = ng.metrics.Elliptic(tolerance=1e-4, precision="single")  # 1e-12 moves the losses by 1%
LOSSES = ("transport", "squares", "divergence")
STYLES = {
    "w2+fr": ("W₂ + ℓ² FR", PALETTE["blue"], "-"),
    "w2": ("W₂", PALETTE["sky"], "--"),
    "h-1+fr": ("Ḣ⁻¹ + ℓ² FR", PALETTE["green"], "-."),
    "fr": ("Fisher–Rao", PALETTE["orange"], "--"),
    "l2": ("L²", PALETTE["vermilion"], ":"),
    "gd": ("gradient", PALETTE["grey"], "-"),
}
HEADER = "metric   its  compile s    s/it   CG  loss/first  misplaced  left behind  centre off"


class LogDensity(eqx.Module):
    """θ ↦ exp(UθUᵀ), normalised: positive and of mass one on the unit square, whatever θ."""

    interpolation: Array

    def __init__(self, cells: int, nodes: int):
        """U: hat functions around the m centres, at the n centres; constant beyond the outer."""
        at = np.clip((np.arange(cells) + 0.5) / cells * nodes - 0.5, 0, nodes - 1)
        self.interpolation = jnp.maximum(0.0, 1 - jnp.abs(at[:, None] - jnp.arange(nodes)))

    def __call__(self, theta: Array) -> Array:
        logarithm = self.interpolation @ theta @ self.interpolation.T
        density = jnp.exp(logarithm - jnp.max(logarithm))
        return density / jnp.mean(density)


class Run(NamedTuple):
    """A minimisation, the iterates on its way, and the seconds that compilation took before it."""

    result: ng.Result
    thetas: list[Array]
    compile_seconds: float

    @property
    def seconds(self) -> float:
        """For one iteration."""
        return float(self.result.history["seconds"][-1]) / max(1, self.result.iterations)


def unit_square(size: int) -> ng.Grid:
    return ng.Grid(lower=(0.0, 0.0), upper=(1.0, 1.0), shape=(size, size))


def galaxy(size: int) -> Array:
    """A bulge, two spiral arms with sixty clusters of stars, and a dark sky; mass one."""
    x, y = np.moveaxis(np.asarray(unit_square(size).points) - (0.58, 0.55), -1, 0)
    x, y = np.cos(0.5) * x + np.sin(0.5) * y, (np.cos(0.5) * y - np.sin(0.5) * x) / 0.72
    winding = lambda r: 2.6 * np.log(r / 0.05 + 0.15)
    r = np.hypot(x, y)
    arms = np.exp(4 * (np.cos(2 * (np.arctan2(y, x) - winding(r))) - 1))
    image = 0.002 + 2.5 * np.exp(-((r / 0.035) ** 2))
    image += (0.08 + arms) * np.exp(-r / 0.13) * (1 - np.exp(-((r / 0.05) ** 2)))
    random = np.random.default_rng(1)
    radii, widths = random.uniform(0.06, 0.36, 60), random.uniform(0.006, 0.012, 60)
    angles = winding(radii) + np.pi * random.integers(0, 2, 60) + random.normal(0, 0.12, 60)
    for radius, angle, width in zip(radii, angles, widths, strict=True):
        square = (x - radius * np.cos(angle)) ** 2 + (y - radius * np.sin(angle)) ** 2
        image += 0.8 * np.exp(-radius / 0.25 - square / (2 * width**2))
    return jnp.asarray(image / image.mean())


def spot(field: int) -> Array:
    """θ of one blurred spot, away from the galaxy, over a sky a hundred times darker."""
    square = ((unit_square(field).points - START) ** 2).sum(-1)
    return jnp.log(jnp.exp(-square / (2 * WIDTH**2)) + 0.01)


def losses(grid: ng.Grid, target: Array) -> dict[str, Callable[[Array], Array]]:
    """`transport` is ½‖ρ − ρ*‖² in Ḣ⁻¹: like W₂ it knows how far mass is from where it belongs."""
    return {
        "transport": ng.SquaredDistance(target, ng.HomogeneousSobolev(grid, -1)),
        "squares": ng.LeastSquares(target, grid),
        "divergence": ng.KullbackLeibler(target, grid),
    }


def metrics(grid: ng.Grid) -> dict[str, ng.metrics.Metric]:
    """The rivals. h-1+fr is Gauss–Newton for the loss `transport`, held back like W₂."""
    transport, fisher_rao = ng.Wasserstein(grid, elliptic=ELLIPTIC), ng.FisherRao(grid)
    return {
        "w2+fr": transport + SCALE * fisher_rao,
        "w2": transport,
        "h-1+fr": ng.HomogeneousSobolev(grid, -1) + SCALE * fisher_rao,
        "fr": fisher_rao,
        "l2": ng.L2(grid),
    }


def methods(grid: ng.Grid) -> dict[str, ng.descent.Method]:
    """Natural gradients in every metric, and gradient descent."""
    # Without recycling, every metric is cut off in a Krylov space of its own G alone.
    solver = ng.CG(tolerance=1e-3, max_iterations=CG_ITERATIONS, preconditioner=None)
    natural = {name: ng.NaturalGradient(m, solver=solver) for name, m in metrics(grid).items()}
    return natural | {"gd": ng.GradientDescent()}


def fit(problem: ng.Problem, theta: Array, method: ng.descent.Method, iterations: int) -> Run:
    """Twice: the first iteration by itself, to compile, and then the run that is timed."""
    thetas = [theta]

    def minimise(iterations: int, callbacks: Sequence[Callable] = ()) -> ng.Result:
        stop = ng.Stop(iterations=iterations, gradient=1e-9)
        return ng.minimize(problem, theta, method, stop=stop, callbacks=callbacks)

    first = minimise(1).history["seconds"][-1]
    result = minimise(iterations, [lambda progress: thetas.append(progress.theta)])
    return Run(result, thetas, max(0.0, first - result.history["seconds"][1]))


def centre(grid: ng.Grid, density: Array) -> Array:
    return grid.cell_volume * jnp.sum(grid.points * density[..., None], axis=(0, 1))


def memory() -> str:
    """The most that was held: by an accelerator, or by the process."""
    statistics = jax.devices()[0].memory_stats() or {}
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if "peak_bytes_in_use" in statistics:
        return f"{statistics['peak_bytes_in_use'] / 2**30:.2f} GiB, host {host:.2f} GiB"
    return f"{host:.2f} GiB"


def errors(grid: ng.Grid, rho: Array, target: Array) -> tuple[float, float, float]:
    """The mass out of place, the surplus left where the spot was, the distance of the centres."""
    surplus = grid.cell_volume * jnp.maximum(rho - target, 0.0)
    near = ((grid.points - START) ** 2).sum(-1) < (2 * WIDTH) ** 2
    off = jnp.linalg.norm(centre(grid, rho) - centre(grid, target))
    return float(jnp.sum(surplus)), float(jnp.sum(surplus * near)), float(off)


def table_row(name: str, run: Run, measured: tuple[float, float, float]) -> str:
    """What an iteration costs, and how far the run came."""
    history, (misplaced, behind, off) = run.result.history, measured
    return (
        f"{name:7s} {run.result.iterations:4d} {run.compile_seconds:10.1f} {run.seconds:7.3g}"
        f" {np.nanmean(history['solver_iterations']):4.0f}"
        f" {history['loss'][-1] / history['loss'][0]:11.3g}"
        f" {misplaced:10.4f} {behind:12.4f} {off:11.2g}"
    )


def elliptic_iterations(size: int, field: int, theta: Array) -> int:
    """The cycles of multigrid in one product with A, here for the tangent ρ* − ρ."""
    rho, target = LogDensity(size, field)(theta), galaxy(size)
    metric = ng.Wasserstein(unit_square(size), elliptic=ELLIPTIC)
    return int(metric.potential(rho, target - rho).iterations)


def draw(model: LogDensity, target: Array, runs: dict[str, Run], path: Path) -> Path:
    """Start and target, the loss against iterations and seconds, and iterates of every run."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import PowerNorm

    taken = max(run.result.iterations for run in runs.values())
    shown = [taken, *(taken // 2**i for i in range(1, 5) if taken // 2**i > 0)][::-1]
    brightness = PowerNorm(0.5, vmin=0, vmax=float(jnp.quantile(target, 0.999)))

    def picture(axes: Any, density: Array) -> None:
        axes.imshow(density.T, origin="lower", cmap="magma", norm=brightness)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)

    with figure_style():
        figure = plt.figure(figsize=(10, 3.6 + 10 / len(shown) * len(runs)))
        heights = (3.6, 10 / len(shown) * len(runs))
        top, bottom = figure.subfigures(2, 1, height_ratios=heights)
        names = [["start", "iteration", "seconds"], ["target", "iteration", "seconds"]]
        panels = top.subplot_mosaic(names, width_ratios=(1, 2, 2))
        start = next(iter(runs.values())).thetas[0]
        for name, density in (("start", model(start)), ("target", target)):
            picture(panels[name], density)
            panels[name].set_title(name)
        for name, run in runs.items():
            history, (label, colour, style) = run.result.history, STYLES[name]
            times = {"iteration": np.arange(len(history["loss"])), "seconds": history["seconds"]}
            for unit, time in times.items():
                loss = history["loss"] / history["loss"][0]
                panels[unit].semilogy(time, loss, style, color=colour, label=label)
                panels[unit].set(xlabel=unit)
        panels["iteration"].set_title("loss / first loss")
        panels["seconds"].set_title("the same, without compilation")
        top.legend(
            handles=panels["iteration"].get_lines(), loc="outside lower center", ncols=len(runs)
        )
        images = bottom.subplots(len(runs), len(shown), squeeze=False)
        for row, (name, run) in zip(images, runs.items(), strict=True):
            for axes, iteration in zip(row, shown, strict=True):
                picture(axes, model(run.thetas[min(iteration, run.result.iterations)]))
            row[0].set_ylabel(STYLES[name][0])
        for axes, iteration in zip(images[0], shown, strict=True):
            axes.set_title(f"iteration {iteration}")
        return save(figure, path)


def main(
    size: int = 128,
    field: int = 40,
    iterations: int = 16,
    loss: str = "transport",
    names: Sequence[str] = tuple(STYLES),
    output: str | Path = ".",
) -> dict[str, Run]:
    """Run, print the table as it grows, draw, and return the runs."""
    jax.config.update("jax_enable_x64", True)
    grid, target, model = unit_square(size), galaxy(size), LogDensity(size, field)
    problem = ng.Problem(model, losses(grid, target)[loss])
    device, everyone, runs = jax.devices()[0], methods(grid), {}
    print(f"{device.platform} ({device.device_kind}): {size}² cells, p = {field**2:,}, {loss}")
    print(HEADER, "-" * len(HEADER), sep="\n")
    for name in names:
        runs[name] = fit(problem, spot(field), everyone[name], iterations)
        measured = errors(grid, model(runs[name].thetas[-1]), target)
        print(table_row(name, runs[name], measured), flush=True)
    print(f"peak memory: {memory()}")
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    draw(model, target, runs, output / "density_image.png")
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=128, help="cells on a side")
    parser.add_argument("--field", type=int, default=40, help="parameters on a side")
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--loss", choices=LOSSES, default="transport")
    parser.add_argument("--metrics", dest="names", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--output", default=".", help="a folder")
    arguments = parser.parse_args()
    runs = main(**vars(arguments))
    if "w2+fr" in runs:
        thetas = [runs["w2+fr"].thetas[i] for i in (0, -1)]
        cycles = [elliptic_iterations(arguments.size, arguments.field, theta) for theta in thetas]
        print(f"multigrid cycles in a product with A, at the start and at the end: {cycles}")
