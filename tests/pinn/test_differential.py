"""Derivatives at a point: closed forms, `jax.hessian`, batches, and differentiation in θ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import natgrad as ng

coordinates = st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3)


def wave(x):
    """sin(2x) e^{3y} z²."""
    return jnp.sin(2 * x[0]) * jnp.exp(0.3 * x[1]) * x[2] ** 2


def field(x):
    """A vector with mixed terms."""
    return jnp.stack([wave(x), x[0] * x[1] * x[2], jnp.cos(x @ x)])


CLOSED = {
    (): lambda s, c, e, z: s * e * z**2,
    (0,): lambda s, c, e, z: 2 * c * e * z**2,
    (-1,): lambda s, c, e, z: 2 * s * e * z,
    (1, 1): lambda s, c, e, z: 0.09 * s * e * z**2,
    (0, 2): lambda s, c, e, z: 4 * c * e * z,
    (2, 0, 0): lambda s, c, e, z: -8 * s * e * z,
    (0, 1, 2, 2): lambda s, c, e, z: 1.2 * c * e,
    (2, 2, 2): lambda s, c, e, z: 0.0,
}


@pytest.mark.parametrize("axes", CLOSED, ids=str)
def test_closed_forms(axes: tuple[int, ...]):
    x = jnp.array([0.7, -0.4, 1.3])
    s, c, e = jnp.sin(2 * x[0]), jnp.cos(2 * x[0]), jnp.exp(0.3 * x[1])
    expected = CLOSED[axes](s, c, e, x[2])
    np.testing.assert_allclose(ng.derivative(wave, x, *axes), expected, rtol=1e-13, atol=1e-15)


@jax.jit
def by_library(x):
    second = [[ng.derivative(field, x, i, j) for j in range(3)] for i in range(3)]
    first = jnp.stack([ng.derivative(field, x, i) for i in range(3)], -1)
    return first, jnp.stack([jnp.stack(row, -1) for row in second], -2), ng.laplacian(field, x)


@jax.jit
def by_jax(x):
    hessian = jax.hessian(field)(x)
    return jax.jacobian(field)(x), hessian, jnp.trace(hessian, axis1=-2, axis2=-1)


@given(point=coordinates)
def test_all_derivatives_of_a_vector_are_those_of_jax(point: list[float]):
    x = jnp.asarray(point)
    for found, expected in zip(by_library(x), by_jax(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_laplacian_of_a_harmonic_function_is_zero():
    points = jax.random.normal(jax.random.key(0), (20, 2))
    harmonic = lambda x: jnp.exp(x[0]) * jnp.sin(x[1])
    values = jax.vmap(lambda x: ng.laplacian(harmonic, x))(points)
    np.testing.assert_allclose(values, 0.0, atol=1e-13)
    bowl = jax.vmap(lambda x: ng.laplacian(lambda y: y @ y, x))(points)
    np.testing.assert_allclose(bowl, 4.0, rtol=1e-14)


def test_a_batch_is_the_points_one_by_one():
    points = jax.random.normal(jax.random.key(1), (5, 3))
    both = lambda x: (ng.derivative(field, x, 0, 1), ng.laplacian(field, x))
    batch = jax.vmap(both)(points)
    for i, x in enumerate(points):
        for found, expected in zip(batch, both(x), strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-13, atol=1e-14)


def residual(theta, x):
    """Δu + u_t u for u = a·sin(Bx)."""
    u = lambda y: theta["a"] @ jnp.sin(theta["B"] @ y)
    return ng.laplacian(u, x) + ng.derivative(u, x, 0) * u(x)


def test_the_gradient_in_theta_leaves_a_remainder_of_second_order():
    keys = jax.random.split(jax.random.key(2), 4)
    theta = {"a": jax.random.normal(keys[0], (4,)), "B": jax.random.normal(keys[1], (4, 2))}
    v = {"a": jax.random.normal(keys[2], (4,)), "B": jax.random.normal(keys[3], (4, 2))}
    x = jnp.array([0.3, -0.8])
    value, gradient = jax.value_and_grad(residual)(theta, x)
    slope = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, v)))
    moved = lambda h: jax.tree.map(lambda t, d: t + h * d, theta, v)
    remainders = [float(residual(moved(h), x) - value - h * slope) for h in (1e-2, 1e-3)]
    assert np.log10(remainders[0] / remainders[1]) == pytest.approx(2.0, abs=0.1)
    closed = -theta["a"] @ (jnp.sum(theta["B"] ** 2, 1) * jnp.sin(theta["B"] @ x))
    u, u_t = (
        theta["a"] @ jnp.sin(theta["B"] @ x),
        theta["a"] @ (theta["B"][:, 0] * jnp.cos(theta["B"] @ x)),
    )
    np.testing.assert_allclose(value, closed + u_t * u, rtol=1e-12)


def test_single_precision_stays_single():
    x = jnp.array([0.5, 1.0, 2.0], jnp.float32)
    assert ng.derivative(wave, x, 0, 1).dtype == jnp.float32
    assert ng.laplacian(wave, x).dtype == jnp.float32
