"""Functions of one point and shapes: exact values, symmetries, areas, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import natgrad as ng

BOX = ng.pinn.Box((0.0, -1.0), (1.0, 2.0))
POINT = jnp.array([0.3, -0.4])


def test_a_periodic_embedding_repeats_itself_with_its_derivatives():
    found = ng.pinn.periodic(POINT, {1: 2.0}, (1, 3))
    angles = np.pi * -0.4 * np.array([1, 3])
    np.testing.assert_allclose(found, [0.3, *np.cos(angles), *np.sin(angles)], rtol=1e-14)
    u = lambda x: jnp.sum(jnp.tanh(ng.pinn.periodic(x, {1: 2.0}, 2)) ** 2)
    slopes = jax.jit(lambda x: (ng.derivative(u, x, 1), ng.derivative(u, x, 1, 1)))
    np.testing.assert_allclose(slopes(POINT), slopes(POINT + jnp.array([0.0, 2.0])), rtol=1e-12)


def test_fourier_features_are_waves_of_the_given_frequencies():
    B = np.array([[1.0, 0.0], [2.0, 3.0], [0.0, 0.25]])
    angles = 2 * np.pi * B @ np.asarray(POINT)
    expected = np.concatenate([np.cos(angles), np.sin(angles)])
    np.testing.assert_allclose(ng.pinn.fourier_features(POINT, B), expected, rtol=1e-13)


def test_a_factor_vanishes_on_the_faces_that_are_given_and_nowhere_else():
    phi = lambda *x: float(ng.pinn.vanishing(jnp.array(x), (0.0, -1.0, None), (None, 1.0, None)))
    assert phi(0.0, 0.3, 5.0) == phi(0.7, -1.0, 5.0) == phi(0.7, 1.0, 5.0) == 0.0
    assert phi(0.7, 0.0, -3.0) == pytest.approx(0.7)
    assert phi(1.0, 0.5, 0.0) == pytest.approx(0.75)
    assert float(ng.pinn.vanishing(POINT, (None, None), (1.0, None))) == pytest.approx(0.7)


def test_samplers_are_uniform_and_repeat_themselves():
    means = {}
    for name, draw in {
        "uniform": lambda: jax.jit(BOX.uniform, static_argnums=1)(jax.random.key(1), 4096),
        "sobol": lambda: BOX.sobol(4096),
        "latin": lambda: BOX.latin_hypercube(4096),
        "grid": lambda: BOX.grid(64, 64),
    }.items():
        points = np.asarray(draw())
        np.testing.assert_array_equal(points, draw())
        unit = (points - [0.0, -1.0]) / [1.0, 3.0]
        assert points.shape == (4096, 2)
        assert kstest(unit.ravel(), "uniform").pvalue > 0.01
        means[name] = abs(np.mean(np.sin(3 * unit[:, 0]) * unit[:, 1]) - (1 - np.cos(3)) / 6)
    assert means["sobol"] < 0.1 * means["uniform"]
    assert means["grid"] < 0.1 * means["uniform"]
    assert np.any(BOX.sobol(5) != BOX.sobol(5, seed=1))


def test_faces_have_their_share_of_the_points_by_their_area():
    box = ng.pinn.Box((0.0, 0.0, 0.0), (1.0, 2.0, 4.0))
    faces = {(axis, end): box.face(axis, end).measure for axis in range(3) for end in (0, 1)}
    assert faces == {(a, e): area for a, area in enumerate((8.0, 4.0, 2.0)) for e in (0, 1)}
    assert box.boundary.measure == pytest.approx(28.0)
    for points in (box.boundary.uniform(jax.random.key(0), 281), box.boundary.sobol(281)):
        unit = np.asarray(points) / [1.0, 2.0, 4.0]
        on = {(a, e): np.sum(unit[:, a] == e) for a in range(3) for e in (0, 1)}
        assert sum(on.values()) == 281
        assert all(abs(on[face] - 281 * faces[face] / 28) < 1 for face in faces)
    walls = np.asarray(BOX.sides(1).sobol(64))
    assert set(walls[:, 1]) == {-1.0, 2.0}
    assert kstest(walls[:, 0], "uniform").pvalue > 0.01
    np.testing.assert_array_equal(BOX.face(0, 0).grid(3), [[0.0, -0.5], [0.0, 0.5], [0.0, 1.5]])


def test_a_mean_over_a_union_is_unbiased_whatever_the_number_of_points():
    """Three points on an interval of length 1 and one of length 3: a quarter, on average."""
    lines = ng.pinn.Union((ng.pinn.Box([0.0], [1.0]), ng.pinn.Box([2.0], [5.0])))
    draw = jax.jit(jax.vmap(lambda key: lines.uniform(key, 3)))
    points = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
    assert np.mean(points < 1.5) == pytest.approx(0.25, abs=0.01)
    assert np.mean(points) == pytest.approx(0.25 * 0.5 + 0.75 * 3.5, abs=0.05)


@pytest.mark.parametrize("d", [2, 3])
def test_balls_and_spheres_are_filled_evenly(d: int):
    ball = ng.pinn.Ball(np.arange(d), 2.0)
    inside = np.asarray(ball.sobol(1024)) - np.arange(d)
    radii = np.linalg.norm(inside, axis=1)
    assert kstest((radii / 2) ** d, "uniform").pvalue > 0.01
    sphere = np.asarray(ball.boundary.uniform(jax.random.key(0), 2000)) - np.arange(d)
    np.testing.assert_allclose(np.linalg.norm(sphere, axis=1), 2.0, rtol=1e-12)
    for directions in (inside / radii[:, None], sphere / 2):
        np.testing.assert_allclose(
            directions.T @ directions / len(directions), np.eye(d) / d, atol=0.03
        )
    volume, area = {2: (4 * np.pi, 4 * np.pi), 3: (32 / 3 * np.pi, 16 * np.pi)}[d]
    assert (ball.measure, ball.boundary.measure) == pytest.approx((volume, area))


def test_a_union_takes_its_parts_in_any_form():
    left, right = BOX.face(0, 0), BOX.face(0, 1)
    expected = ng.pinn.Union((left, right))
    for union in (ng.pinn.Union([left, right]), ng.pinn.Union(left, right)):
        assert union == expected
        np.testing.assert_array_equal(union.sobol(8), expected.sobol(8))


BAD = {
    "periods: 2 is no axis": lambda: ng.pinn.periodic(POINT, {2: 1.0}),
    "periods: 0.0 is no period": lambda: ng.pinn.periodic(POINT, {0: 0.0}),
    "harmonics: 0 are none": lambda: ng.pinn.periodic(POINT, {0: 1.0}, 0),
    "frequencies: have shape": lambda: ng.pinn.fourier_features(POINT, jnp.ones(2)),
    "lower, upper: 1 and 2 ends": lambda: ng.pinn.vanishing(POINT, [0.0], [1.0, 1.0]),
    "lower, upper: 1.0 is not below": lambda: ng.pinn.vanishing(POINT, [1.0, 0.0], [0.0, 1.0]),
    "x: has shape": lambda: ng.pinn.periodic(jnp.ones((2, 2)), {0: 1.0}),
    "lower, upper: .* is not a valid box": lambda: ng.pinn.Box([1.0], [0.0]),
    "n: 0 is not an integer": lambda: BOX.sobol(0),
    "shape: 1 numbers for 2 axes": lambda: BOX.grid(3),
    "axis: 3 has no faces": lambda: BOX.face(3, 0),
    "end: 2 is neither": lambda: BOX.face(0, 2),
    "radius: -1.0": lambda: ng.pinn.Ball([0.0], -1.0),
    "shapes: are not all": lambda: ng.pinn.Union(()),
    "shapes: are not all shapes": lambda: ng.pinn.Union(3),  # pyright: ignore
    "boundary: a union has no": lambda: ng.pinn.Union(BOX, BOX).boundary,
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message: str):
    with pytest.raises(ng.InputError, match=message):
        BAD[message]()
