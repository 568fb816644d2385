"""An inverse problem: the viscosity of Burgers' equation from noisy measurements, with its error.

    u_t + u u_x = ν u_xx,   u measured at some points (t, x) to ±σ

The unknown is one more leaf of θ beside the network, and the data are one more block of residuals.
Neither initial nor boundary values are given. With weights that make the loss a negative
log-likelihood, n/(2σ²) for n measurements, the information matrix is the precision of θ, and
(G + I)⁻¹ its covariance under a standard normal prior.

`python examples/inverse_burgers.py` prints ν with its standard deviation, and writes
`inverse_burgers.png`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import burgers
import natgrad as ng
from natgrad.plot import figure_style, save

FIRST_GUESS = 0.2
ACCURACY = 1e-2  # to which the equation is to hold, as a standard deviation


class Found(NamedTuple):
    """ν, the standard deviation of log ν, and the run."""

    viscosity: float
    deviation: float
    result: ng.Result


def equation(theta: dict[str, Any], tx: Array) -> Array:
    u = lambda tx: burgers.u(theta["net"], tx)
    u_t, u_x, u_xx = (ng.derivative(u, tx, *axes) for axes in ((0,), (1,), (1, 1)))
    return u_t + u(tx) * u_x - jnp.exp(theta["log_viscosity"]) * u_xx


def misfit(theta: dict[str, Any], row: Array) -> Array:
    """Of one measurement (t, x, u)."""
    return burgers.u(theta["net"], row[:2]) - row[2]


def measure(count: int, noise: float, seed: int = 0) -> np.ndarray:
    """Rows (t, x, u) at random nodes of a grid, of the exact solution with noise."""
    grid, values = burgers.exact()
    rng = np.random.default_rng(seed)
    chosen = rng.choice(values.size, count, replace=False)
    measured = values.ravel()[chosen] + noise * rng.normal(size=count)
    return np.concatenate([grid.reshape(-1, 2)[chosen], measured[:, None]], axis=1)


def fit(
    data: np.ndarray, noise: float, width: int, depth: int, count: int, iterations: int
) -> Found:
    """ν and the network that agree with the data and with the equation."""
    net = eqx.nn.MLP(2, "scalar", width, depth, jnp.tanh, key=jax.random.key(0))
    theta = {"log_viscosity": jnp.log(jnp.array(FIRST_GUESS)), "net": net}
    box = ng.pinn.Box((0.0, -1.0), (1.0, 1.0))
    pinn = ng.Collocation(
        data=ng.Residual(misfit, data, weight=len(data) / (2 * noise**2)),
        interior=ng.Residual(equation, box.sobol(count), weight=count / (2 * ACCURACY**2)),
    )
    method = ng.levenberg_marquardt(pinn.metric)
    result = ng.minimize(pinn.problem, theta, method, stop=ng.Stop(iterations=iterations))
    G = ng.information_matrix(pinn.problem, result.theta, metric=pinn.metric)
    covariance = np.linalg.inv(np.asarray(G) + np.eye(len(G)))  # log ν is the first leaf of θ
    viscosity = float(jnp.exp(result.theta["log_viscosity"]))
    return Found(viscosity, float(np.sqrt(covariance[0, 0])), result)


def draw_figure(found: Found, data: np.ndarray, path: Path) -> Path:
    """The network with the measurements, and what is known of ν."""
    import matplotlib.pyplot as plt

    grid, _ = burgers.exact()
    with figure_style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
        values = burgers.values(found.result.theta["net"], grid)
        image = left.pcolormesh(*np.moveaxis(grid, -1, 0), values, cmap="RdBu_r")
        left.plot(*data[:, :2].T, "k.", markersize=2)
        left.set(xlabel="t", ylabel="x", title="network and measurements")
        figure.colorbar(image, ax=left)
        steps = np.linspace(-4, 4, 200) * found.deviation
        density = np.exp(-0.5 * (steps / found.deviation) ** 2)
        right.plot(found.viscosity * np.exp(steps), density)
        right.axvline(burgers.VISCOSITY, color="k", linestyle=":")
        right.set(xlabel="viscosity", title="posterior density, and the truth", yticks=[])
        return save(figure, path)


def main(
    width: int = 20,
    depth: int = 3,
    count: int = 2000,
    measurements: int = 300,
    noise: float = 0.02,
    iterations: int = 200,
    output: str = ".",
) -> Found:
    """Measure, fit, print ν and draw."""
    jax.config.update("jax_enable_x64", True)
    data = measure(measurements, noise)
    found = fit(data, noise, width, depth, count, iterations)
    print(
        f"ν = {found.viscosity:.3e} ± {found.viscosity * found.deviation:.1e}, "
        f"the truth {burgers.VISCOSITY:.3e}: {found.result}"
    )
    Path(output).mkdir(parents=True, exist_ok=True)
    draw_figure(found, data, Path(output, "inverse_burgers.png"))
    return found


if __name__ == "__main__":
    import tyro

    tyro.cli(main)
