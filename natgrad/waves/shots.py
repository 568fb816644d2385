"""All shots of a survey at once: mapped one after the other on a CPU, batched on an accelerator."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .positions import Positions
from .propagator import Scheme, adjoint, born, coefficients, forward

PyTree = Any


def each_shot(function: Callable[[PyTree], PyTree], shots: PyTree) -> PyTree:
    """`function` of every shot, stacked. A shot's fields stay in the cache of a core."""
    return jax.lax.platform_dependent(
        shots,
        cpu=lambda xs: jax.lax.map(function, xs),
        default=lambda xs: jax.vmap(function)(xs),
    )


def simulate(
    m: Array,
    sigma: Array,
    wavelets: Array,
    sources: Positions,
    receivers: Positions,
    scheme: Scheme,
    store: bool,
) -> tuple[Array, Array | None]:
    """The data of every shot, (shots, steps, receivers), and the stored fields."""
    c = coefficients(m, sigma, scheme)

    def one(shot: tuple[Array, Positions]) -> tuple[Array, Array | None]:
        wavelet, source = shot
        return forward(c, wavelet, source, receivers, scheme, store)

    return each_shot(one, (wavelets, sources))


def linearised_data(
    m: Array, sigma: Array, eta: Array, stored: Array, receivers: Positions, scheme: Scheme
) -> Array:
    """Zη for a perturbation η of m."""
    c, ratio = coefficients(m, sigma, scheme), _relative(eta, m, scheme)
    return each_shot(lambda q: born(c, ratio, q, receivers, scheme), stored)


def adjoint_image(
    m: Array, sigma: Array, xi: Array, stored: Array, receivers: Positions, scheme: Scheme
) -> Array:
    """Zᵀξ, what falls into the absorbing layer folded back onto the cells at the edge."""
    c = coefficients(m, sigma, scheme)
    images = each_shot(lambda x: adjoint(c, x[0], x[1], receivers, scheme), (xi, stored))
    fold = jax.linear_transpose(lambda eta: _relative(eta, m, scheme), m)
    return fold(jnp.sum(images, axis=0))[0]


def _relative(eta: Array, m: Array, scheme: Scheme) -> Array:
    """η/m on the padded cells."""
    return jnp.pad(eta / m, scheme.absorbing, mode="edge")
