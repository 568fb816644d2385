"""Small problems of every kind for runs over several devices and processes."""

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng

START = jnp.array([0.4, 0.35, 0.6, 0.55])
TRUTH = jnp.array([0.3, 0.3, 0.7, 0.6])


def bumps(grid):
    """Two bumps on a background, θ their centres, along every axis the same."""
    points = grid.points

    def density(theta):
        centres = jnp.stack([theta.reshape(2, 2)[:, i % 2] for i in range(grid.dimension)], -1)
        squares = jnp.sum((points[..., None, :] - centres) ** 2, -1)
        return jnp.exp(-squares / 0.04) @ jnp.array([0.6, 0.4]) + 0.05

    return ng.Problem(density, ng.LeastSquares(density(TRUTH), grid))


def transport():
    """A density on a plane in W₂, by multigrid."""
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (16, 12))
    metric = ng.Wasserstein(grid, elliptic=ng.Elliptic("multigrid"))
    return bumps(grid), START, {"metric": metric, "damping": 1e-3}


def pinn():
    """A small network at collocation points of two blocks."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
    net = {"a": draw(2, 6), "b": draw(6), "c": draw(6)}
    u = lambda net, x: jnp.tanh(x @ net["a"] + net["b"]) @ net["c"]
    inside, edge = rng.uniform(size=(24, 2)), rng.uniform(size=(8, 2)) * [1.0, 0.0]
    equation = lambda net, x: ng.laplacian(lambda y: u(net, y), x) + jnp.sin(3 * x[0])
    model = ng.Collocation(
        interior=ng.Residual(equation, inside, weight=0.1), boundary=ng.Residual(u, edge)
    )
    return model.problem, net, {"metric": model.metric, "solver": ng.Cholesky(), "damping": 1e-3}


def waves():
    """Waves of five shots, which no even number of devices divides."""
    from natgrad import waves

    velocity = np.full((20, 16), 2000.0)
    line = {"dt": 0.004, "steps": 160, "shots": 5, "frequency": 4.0}
    survey = waves.Survey.line(velocity.shape, 40.0, **line)
    model = waves.Acoustic(survey, velocity, absorbing=6, dtype=jnp.float64)
    rng = np.random.default_rng(1)
    faster = velocity * (1 + 0.1 * rng.uniform(size=velocity.shape))
    data = model(jnp.asarray(waves.squared_slowness(faster)))
    problem = ng.Problem(model, ng.LeastSquares(np.asarray(data), survey.gather_grid))
    start = jnp.asarray(waves.squared_slowness(velocity))
    method = {"metric": ng.L2(survey.gather_grid), "solver": ng.CG(0.0, max_iterations=2)}
    return problem, start, method


PROBLEMS = {"transport": transport, "pinn": pinn, "waves": waves}


def numbers(theta):
    """θ as a list."""
    return [float(x) for leaf in jax.tree.leaves(theta) for x in np.ravel(leaf)]
