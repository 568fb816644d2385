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


@jax.jit
def derivatives_of_the_wave(x):
    return [ng.derivative(wave, x, *axes) for axes in CLOSED]


def test_closed_forms():
    x = np.array([0.7, -0.4, 1.3])
    s, c, e = np.sin(2 * x[0]), np.cos(2 * x[0]), np.exp(0.3 * x[1])
    expected = [formula(s, c, e, x[2]) for formula in CLOSED.values()]
    np.testing.assert_allclose(derivatives_of_the_wave(x), expected, rtol=1e-13, atol=1e-15)


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
    x = np.asarray(point)
    for found, expected in zip(by_library(x), by_jax(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_laplacian_of_a_harmonic_function_is_zero():
    points = np.random.default_rng(0).normal(size=(20, 2))
    harmonic = lambda x: jnp.exp(x[0]) * jnp.sin(x[1])
    both = lambda x: (ng.laplacian(harmonic, x), ng.laplacian(lambda y: y @ y, x))
    values, bowl = jax.jit(jax.vmap(both))(points)
    np.testing.assert_allclose(values, 0.0, atol=1e-13)
    np.testing.assert_allclose(bowl, 4.0, rtol=1e-14)


def test_a_batch_is_the_points_one_by_one():
    points = np.random.default_rng(1).normal(size=(5, 3))
    batch = jax.jit(jax.vmap(by_library))(points)
    for i, x in enumerate(points):
        for found, expected in zip(batch, by_library(x), strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-13, atol=1e-14)


def residual(theta, x):
    """Δu + u_t u for u = a·sin(Bx)."""
    u = lambda y: theta["a"] @ jnp.sin(theta["B"] @ y)
    return ng.laplacian(u, x) + ng.derivative(u, x, 0) * u(x)


def test_the_gradient_in_theta_leaves_a_remainder_of_second_order():
    rng = np.random.default_rng(2)
    draw = lambda: {"a": rng.normal(size=4), "B": rng.normal(size=(4, 2))}
    theta, v, x = draw(), draw(), np.array([0.3, -0.8])
    value_and_gradient = jax.jit(jax.value_and_grad(residual))
    value, gradient = value_and_gradient(theta, x)
    slope = sum(np.vdot(gradient[name], v[name]) for name in v)
    moved = lambda h: {name: theta[name] + h * v[name] for name in v}
    remainders = [value_and_gradient(moved(h), x)[0] - value - h * slope for h in (1e-2, 1e-3)]
    assert np.log10(remainders[0] / remainders[1]) == pytest.approx(2.0, abs=0.1)
    closed = -theta["a"] @ (np.sum(theta["B"] ** 2, 1) * np.sin(theta["B"] @ x))
    u, u_t = (
        theta["a"] @ np.sin(theta["B"] @ x),
        theta["a"] @ (theta["B"][:, 0] * np.cos(theta["B"] @ x)),
    )
    np.testing.assert_allclose(value, closed + u_t * u, rtol=1e-12)


def test_single_precision_stays_single():
    x = np.array([0.5, 1.0, 2.0], np.float32)
    both = jax.jit(lambda x: (ng.derivative(wave, x, 0, 1), ng.laplacian(wave, x)))
    assert [found.dtype for found in both(x)] == [jnp.float32] * 2
