"""Burgers' equation with a shock, solved by a network: residuals at points, and a recipe.

    u_t + u u_x = ν u_xx on x ∈ [−1, 1], t ∈ [0, 1],   u(0, x) = −sin πx,   u(t, ±1) = 0

with ν = 0.01/π, for which the sine steepens into a front at x = 0, about a hundredth wide.

`python examples/burgers.py` writes `burgers.png` and prints the error against the formula of Cole
and Hopf. The conditions are residuals too: built into u = −sin πx + t(1 − x²) net they gave the
first three digits sooner and twice the error in the end. Points drawn anew every ten iterations
keep the error as small as the residual.
"""

import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.plot import figure_style, save

VISCOSITY, FRONT = 0.01 / np.pi, 0.05


@functools.cache
def exact(shape: tuple[int, int] = (101, 401), nodes: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """(t, x) on a grid, and u there by Cole and Hopf's formula and Gauss–Hermite quadrature."""
    axes = np.linspace(0, 1, shape[0]), np.linspace(-1, 1, shape[1])
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    z, weights = np.polynomial.hermite.hermgauss(nodes)
    y = grid[..., 1:] - np.sqrt(4 * VISCOSITY * grid[..., :1]) * z
    exponent = -np.cos(np.pi * y) / (2 * np.pi * VISCOSITY)
    heat = weights * np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    return grid, -np.sum(heat * np.sin(np.pi * y), axis=-1) / np.sum(heat, axis=-1)


def points(key: Array, count: int) -> Array:
    """(t, x) at random: half of them anywhere, half Cauchy of width `FRONT` around the front."""
    times, anywhere, near = jax.random.split(key, 3)
    draw = lambda key, n: jax.random.uniform(key, (n,), minval=-1.0, maxval=1.0)
    front = FRONT * jnp.tan(jnp.arctan(1 / FRONT) * draw(near, count // 2))
    x = jnp.concatenate([draw(anywhere, count - count // 2), front])
    return jnp.stack([jax.random.uniform(times, (count,)), x], axis=1)


def u(net: eqx.nn.MLP, tx: Array) -> Array:
    return net(tx * jnp.array([2.0, 1.0]) - jnp.array([1.0, 0.0]))


def equation(net: eqx.nn.MLP, tx: Array) -> Array:
    at = lambda tx: u(net, tx)
    u_t, u_x, u_xx = (ng.derivative(at, tx, *axes) for axes in ((0,), (1,), (1, 1)))
    return u_t + at(tx) * u_x - VISCOSITY * u_xx


def initial(net: eqx.nn.MLP, tx: Array) -> Array:
    return u(net, tx) + jnp.sin(jnp.pi * tx[1])


values = eqx.filter_jit(jax.vmap(jax.vmap(u, (None, 0)), (None, 0)))  # on the grid


def error(net: eqx.nn.MLP) -> float:
    """Relative, in L²."""
    grid, reference = exact()
    return float(np.linalg.norm(values(net, grid) - reference) / np.linalg.norm(reference))


def solve(width: int, depth: int, count: int, iterations: int, **options: Any) -> ng.Result:
    """Minimise the residuals; `options` are further ones of `ng.minimize`."""
    net = eqx.nn.MLP(2, "scalar", width, depth, jnp.tanh, key=jax.random.key(0))
    start = jnp.stack([jnp.zeros(200), jnp.linspace(-1, 1, 200)], axis=1)
    sides = jnp.stack(jnp.meshgrid(jnp.linspace(0, 1, 100), jnp.array([-1.0, 1.0])), axis=-1)
    draw = lambda key: {"interior": points(key, count)}
    pinn = ng.Collocation(
        interior=ng.Residual(equation, points(jax.random.key(1), count), weight=0.1),
        initial=ng.Residual(initial, start),
        boundary=ng.Residual(u, sides.reshape(-1, 2)),
    )
    method = ng.levenberg_marquardt(pinn.metric)
    stop, batch = ng.Stop(iterations=iterations, gradient=0.0), ng.Resampled(draw, 10)
    return ng.minimize(pinn.problem, net, method, stop=stop, batch=batch, **options)


def draw_figure(net: eqx.nn.MLP, path: Path) -> Path:
    """The exact solution, that of the network, and their difference."""
    import matplotlib.pyplot as plt

    grid, reference = exact()
    found = np.asarray(values(net, grid))
    with figure_style():
        figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
        fields = {"exact": reference, "network": found, "difference": found - reference}
        for ax, (title, field) in zip(axes, fields.items(), strict=True):
            image = ax.pcolormesh(*np.moveaxis(grid, -1, 0), field, cmap="RdBu_r")
            image.set_clim(-np.abs(field).max(), np.abs(field).max())
            ax.set(xlabel="t", ylabel="x", title=title)
            figure.colorbar(image, ax=ax)
        return save(figure, path)


def main(
    width: int = 20, depth: int = 3, count: int = 2000, iterations: int = 200, output: str = "."
) -> float:
    """Solve, print the error, draw, and return the error."""
    jax.config.update("jax_enable_x64", True)
    result = solve(width, depth, count, iterations)
    print(f"relative L² error {error(result.theta):.1e}: {result}")
    Path(output).mkdir(parents=True, exist_ok=True)
    draw_figure(result.theta, Path(output, "burgers.png"))
    return error(result.theta)


if __name__ == "__main__":
    import tyro

    tyro.cli(main)
