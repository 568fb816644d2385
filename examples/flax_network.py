"""The same ten lines for three kinds of network: equinox, flax and a plain dict.

θ is any pytree of arrays, so the only thing that changes is how the network is called. The problem
is −u″ = π² sin πx on [0, 1] with u = 0 at both ends.

    python examples/flax_network.py

prints the relative L² error of each. flax has to be installed for its line, it is no dependency of
natgrad.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

import natgrad as ng

WIDTH = 10
Network = tuple[Any, Callable[[Any, Array], Array]]  # θ, and u(θ, x) at one point x of shape (1,)


def equinox_network(key: Array) -> Network:
    """The module itself is θ; what is no array in it stays as it is."""
    net = eqx.nn.MLP(1, "scalar", WIDTH, depth=2, activation=jnp.tanh, key=key)
    return net, lambda net, x: net(x)


def flax_network(key: Array) -> Network:
    """θ is what `init` returns, and `apply` calls the network."""
    import flax.linen as nn

    dense = functools.partial(nn.Dense, param_dtype=float)  # flax would take float32
    net = nn.Sequential([dense(WIDTH), nn.tanh, dense(WIDTH), nn.tanh, dense(1)])
    return net.init(key, jnp.zeros(1)), lambda variables, x: net.apply(variables, x)[0]


def dict_network(key: Array) -> Network:
    """θ is a dict of arrays, and the network three lines."""
    keys = jax.random.split(key, 3)
    normal = lambda key, *shape: jax.random.normal(key, shape) / jnp.sqrt(shape[0])
    theta = {
        "weights": [normal(keys[0], 1, WIDTH), normal(keys[1], WIDTH, WIDTH)],
        "biases": [jnp.zeros(WIDTH), jnp.zeros(WIDTH)],
        "last": normal(keys[2], WIDTH),
    }

    def u(theta: dict[str, Any], x: Array) -> Array:
        for weights, bias in zip(theta["weights"], theta["biases"], strict=True):
            x = jnp.tanh(x @ weights + bias)
        return x @ theta["last"]

    return theta, u


NETWORKS = {"equinox": equinox_network, "flax": flax_network, "dict": dict_network}


def solve(network: Network, iterations: int = 40) -> float:
    """Minimise the residuals; the relative L² error between the points."""
    theta, u = network
    source = lambda x: jnp.pi**2 * jnp.sin(jnp.pi * x[0])
    equation = lambda theta, x: ng.laplacian(lambda y: u(theta, y), x) + source(x)
    pinn = ng.Collocation(
        interior=ng.Residual(equation, jnp.linspace(0, 1, 42)[1:-1, None]),
        boundary=ng.Residual(u, jnp.array([[0.0], [1.0]])),
    )
    method = ng.levenberg_marquardt(pinn.metric)
    result = ng.minimize(pinn.problem, theta, method, stop=ng.Stop(iterations=iterations))
    x = jnp.linspace(0, 1, 201)[:, None]
    exact = jnp.sin(jnp.pi * x[:, 0])
    found = jax.vmap(lambda y: u(result.theta, y))(x)
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


def main(iterations: int = 40) -> dict[str, float]:
    """Print and return the error for each kind of network that is installed."""
    jax.config.update("jax_enable_x64", True)
    errors = {}
    for name, make in NETWORKS.items():
        try:
            errors[name] = solve(make(jax.random.key(0)), iterations)
        except ModuleNotFoundError as missing:
            print(f"{name:8} {missing.name} is not installed")
        else:
            print(f"{name:8} relative error {errors[name]:.1e}")
    return errors


if __name__ == "__main__":
    main()
