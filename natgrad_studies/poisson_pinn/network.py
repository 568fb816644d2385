"""The network: a few layers of tanh and a linear one, with normal weights at the start."""

from collections.abc import Sequence
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from jax import Array

Theta = tuple[tuple[Array, Array], ...]  # the weights and biases of each layer
MEAN = 3.0  # the last bias at the start: the boundary value of the solution


def initial(hidden: Sequence[int], seed: int) -> Theta:
    """Weights of a d₁ × d₂ layer from N(0, 2/(d₁ + d₂)), biases zero, the last one 3.

    The generator is NumPy's old one, whose numbers are the same in every version.
    """
    random = np.random.RandomState(seed)
    widths = (2, *hidden, 1)
    layers = []
    for before, after in pairwise(widths):
        weights = random.standard_normal((before, after)) * np.sqrt(2 / (before + after))
        layers.append((jnp.asarray(weights), jnp.zeros(after)))
    last, _ = layers[-1]
    return (*layers[:-1], (last, jnp.asarray(np.full(1, MEAN))))


def network(theta: Theta, x: Array) -> Array:
    """The value at one point x."""
    for weights, biases in theta[:-1]:
        x = jnp.tanh(x @ weights + biases)
    weights, biases = theta[-1]
    return (x @ weights + biases)[0]


def rescaled(theta: Theta, x: Array) -> Array:
    """The value at one point of [−1, 1]², which the network sees as one of [0, 1]²."""
    return network(theta, (x + 1) / 2)
