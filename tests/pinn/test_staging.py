"""Networks in stages: what a stage is scaled by, and an error far below that of the first."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.pinn.staging import Staged, _measure

LINE = ng.pinn.Box([0.0], [1.0])
PLANE = ng.pinn.Box((0.0, 0.0), (1.0, 2.0))
wave = lambda x: 1e-6 * jnp.sin(6 * jnp.pi * x[0]) * jnp.cos(2 * jnp.pi * x[1])


def test_a_stage_has_the_frequency_and_the_size_of_what_is_left():
    """r = u − w: κ is the frequency of w along each axis, and ε net(κ·) as large as w."""
    points = PLANE.grid(48, 48)
    pinn = ng.Collocation(all=ng.Residual(lambda u, x: u(x) - wave(x), points, weight=3.0))
    net = lambda x: 2.0 + jnp.sin(x[0])
    scale, frequency, loss = _measure(pinn, Staged((), (), ()), net)
    np.testing.assert_allclose(frequency, [6 * np.pi, 2 * np.pi], rtol=1e-6)
    size = lambda f: np.sqrt(np.mean(np.asarray(jax.vmap(f)(points)) ** 2))
    assert float(scale) == pytest.approx(size(wave) / size(lambda x: net(frequency * x)), rel=1e-10)
    assert float(loss) == pytest.approx(3 * size(wave) ** 2, rel=1e-10)
    few = pinn.at({"all": PLANE.grid(5, 5)})  # half a wave of which is no shorter than 1/5 and 2/5
    resolved = 0.25 * np.pi * 5 / (np.array([1.0, 2.0]) * 0.8)
    np.testing.assert_allclose(_measure(few, Staged((), (), ()), net)[1][0], resolved[0])


def equation(u, x):
    """u'' = −π² sin πx − (9π² / 10) sin 3πx with u = 0 at the ends built in."""
    at = lambda y: ng.pinn.vanishing(y, [0.0], [1.0]) * u(y)
    source = jnp.sin(jnp.pi * x[0]) + 0.9 * jnp.sin(3 * jnp.pi * x[0])
    return ng.laplacian(at, x) / jnp.pi**2 + source


@pytest.mark.slow
def test_a_second_stage_is_a_hundred_times_more_accurate(tmp_path):
    net = lambda width, act, key: eqx.nn.MLP(1, "scalar", width, 2, act, key=jax.random.key(key))
    first = ng.Collocation(interior=ng.Residual(equation, LINE.grid(40)))
    second = ng.Collocation(interior=ng.Residual(equation, LINE.grid(120)))
    pairs = [(first, net(6, jnp.tanh, 0)), (second, net(12, jnp.sin, 1))]
    settings = {"stop": ng.Stop(iterations=60, gradient=1e-13), "checkpoint": tmp_path}
    found = ng.pinn.stages(pairs, **settings)
    x = LINE.grid(201)
    exact = np.sin(np.pi * x) + 0.1 * np.sin(3 * np.pi * x)

    def miss(u):
        values = jax.vmap(lambda y: ng.pinn.vanishing(y, [0.0], [1.0]) * u(y))(x)
        return np.linalg.norm(values - exact[:, 0]) / np.linalg.norm(exact)

    before, after = miss(found.results[0].theta), miss(found)
    assert before < 1e-6
    assert after < 1e-2 * before
    assert after < 1e-11
    again = ng.pinn.stages(pairs, **settings)  # from the folder
    assert eqx.tree_equal(again.field, found.field)


def test_bad_input_is_named():
    pinn = ng.Collocation(all=ng.Residual(lambda u, x: u(x), LINE.grid(3)))
    with pytest.raises(ng.InputError, match="pairs: an array is not callable"):
        ng.pinn.stages([(pinn, jnp.ones(3))])
    with pytest.raises(ng.InputError, match="pairs: there are none"):
        ng.pinn.stages([])
    with pytest.raises(ng.InputError, match="pairs: is an int"):
        ng.pinn.stages([(3, jnp.sin)])
