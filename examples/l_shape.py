"""A mixture on an L-shaped mesh: gradient descent, L², H⁻¹ and W₂ on triangles.

Two bumps are moved, by their means, to where the two of the target are:

    ρ(θ) ∝ 0.6 exp(−|x − θ₁|²/2σ²) + 0.4 exp(−|x − θ₂|²/2σ²),  ∫ρ dx = 1,  f = ½ ∫ (ρ − ρ*)² dx

The density is known at the nodes of a triangulation, which is finer around the reentrant corner.
The boundary is natural: nothing flows out, so W₂ carries mass around the corner, not across it.

    python examples/l_shape.py                        # writes l_shape.png and prints a table
    python examples/l_shape.py --refinements 6

Cost: one factorisation of the mesh for each W₂ direction, two for the whole run in H⁻¹.
"""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import skfem
from jax import Array

import natgrad as ng
from natgrad.plot import METRIC_LINES, PALETTE, figure_style, save

WIDTH = 0.25
WEIGHTS = jnp.array([0.6, 0.4])
START = jnp.array([[0.55, -0.55], [-0.45, -0.45]])
END = jnp.array([[-0.15, -0.5], [-0.5, 0.45]])
STYLES = {
    "gradient": ("gradient descent", PALETTE["grey"], "-"),
    "L2": ("L²", *METRIC_LINES["L2"]),
    "H-1": ("H⁻¹", *METRIC_LINES["Hm1"]),
    "W2": ("W₂", *METRIC_LINES["W2"]),
}


class Bumps(eqx.Module):
    """θ ↦ ρ(θ) at the nodes: positive and of mass one."""

    space: ng.fem.Space

    def __call__(self, means: Array) -> Array:
        square = ((self.space.points[:, None] - means) ** 2).sum(-1)
        density = jnp.exp(-square / (2 * WIDTH**2)) @ WEIGHTS
        return density / self.space.integral(density)


def l_shape(refinements: int) -> skfem.MeshTri:
    """Triangles in [−1, 1]² without the upper right square, half as long near the corner."""
    mesh = skfem.MeshTri.init_lshaped().refined(refinements)
    centres = mesh.p[:, mesh.t].mean(axis=1)
    return mesh.refined(np.flatnonzero(np.hypot(*centres) < 0.4))


def methods(space: ng.fem.Space) -> dict[str, ng.descent.Method]:
    """Gradient descent, and natural gradients in three metrics, with the same line search."""
    return {
        "gradient": ng.GradientDescent(),
        "L2": ng.NaturalGradient(ng.fem.L2(space)),
        "H-1": ng.NaturalGradient(ng.fem.Sobolev(space, -1)),
        "W2": ng.NaturalGradient(ng.fem.Wasserstein(space)),
    }


def run(space: ng.fem.Space, iterations: int) -> dict[str, ng.Result]:
    """One run for each method, from the same start."""
    model = Bumps(space)
    problem = ng.Problem(model, ng.LeastSquares(model(END), space))
    stop, snapshots = ng.Stop(iterations=iterations), iterations + 1
    return {
        name: ng.minimize(problem, START, method, stop=stop, snapshots=snapshots)
        for name, method in methods(space).items()
    }


def draw(space: ng.fem.Space, mesh: skfem.MeshTri, runs: dict[str, ng.Result], path: Path) -> Path:
    """The mesh with the paths of the means, the densities, and the losses."""
    import matplotlib.pyplot as plt

    model = Bumps(space)
    with figure_style():
        figure, (left, middle, right) = plt.subplots(
            1, 3, figsize=(12.4, 4), width_ratios=(1, 1, 1.2)
        )
        for axes, means, title in (
            (left, START, "the start, and the way of the means"),
            (middle, END, "the target, and the mesh"),
        ):
            axes.tripcolor(*mesh.p, mesh.t.T, model(means), cmap="Greys", shading="gouraud")
            axes.set(aspect="equal", title=title)
            axes.set_axis_off()
        middle.triplot(*mesh.p, mesh.t.T, color=PALETTE["sky"], linewidth=0.3)
        for name, result in runs.items():
            label, colour, dash = STYLES[name]
            thetas = np.stack(list(result.iterates.values()))
            for i in range(thetas.shape[1]):
                left.plot(*thetas[:, i].T, dash, color=colour, marker=".", markersize=4)
            right.semilogy(result.history["loss"], dash, color=colour, label=label)
        left.plot(*np.asarray(END).T, "+", color="black", markersize=10, markeredgewidth=2)
        right.set(xlabel="iteration", ylabel="loss", title="½ ∫ (ρ − ρ*)² dx")
        right.set_ylim(bottom=1e-15)
        right.legend()
        return save(figure, path)


def main(
    refinements: int = 5, iterations: int = 40, output: str | Path = "."
) -> dict[str, ng.Result]:
    """Run, draw and print."""
    jax.config.update("jax_enable_x64", True)
    mesh = l_shape(refinements)
    space = ng.fem.Space(mesh)
    runs = run(space, iterations)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    draw(space, mesh, runs, output / "l_shape.png")
    print(f"{space.size} nodes, {len(space.cells)} triangles")
    print(f"{'metric':>9} {'iterations':>10} {'loss/first':>10} {'means off':>9}  status")
    for name, result in runs.items():
        loss: Any = result.history["loss"]
        off = float(jnp.max(jnp.abs(result.theta - END)))
        row = f"{name:>9} {len(loss) - 1:10d} {loss[-1] / loss[0]:10.1e} {off:9.1e}"
        print(f"{row}  {result.status}")
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--refinements", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--output", default=".")
    main(**vars(parser.parse_args()))
