"""Dense Jacobians: every mode gives the same Z, on any pytree, in chunks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.parameters import flatten
from problems_for_tests import with_slow

X = jnp.linspace(-1.0, 1.0, 11)[:, None]


def network() -> eqx.nn.MLP:
    return eqx.nn.MLP(1, "scalar", 6, 2, jnp.tanh, key=jax.random.key(0))


@eqx.filter_jit
def dense(model, theta):
    flat, unravel = flatten(theta)
    return model.jacobian(unravel, flat)


@pytest.mark.parametrize(
    "memory", with_slow([1, 10_000, 2**30], [1, 2**30]), ids=["one by one", "chunks", "at once"]
)
def test_forward_reverse_and_pointwise_agree(memory: int):
    net = network()
    function = lambda net: jax.vmap(net)(X)
    forward = ng.models.Explicit(function, mode="forward", memory=memory)
    reverse = ng.models.Explicit(function, mode="reverse", memory=memory)
    pointwise = ng.Pointwise(lambda net, x: net(x), X, memory=memory)
    rho, expected, _ = dense(ng.models.Explicit(function), net)
    for model in (forward, reverse, pointwise):
        value, columns, _ = dense(model, net)
        np.testing.assert_allclose(value, rho, rtol=1e-12)
        np.testing.assert_allclose(columns, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(pointwise(net), rho, rtol=1e-12)


def test_auto_takes_the_mode_with_fewer_products_and_counts_them():
    few = lambda theta: jnp.outer(theta, jnp.ones(9)).ravel()[:20] ** 2
    _, _, counts = dense(ng.models.Explicit(few), jnp.ones(3))
    assert (int(counts.linearised), int(counts.adjoint)) == (3, 0)
    many = lambda theta: jnp.stack([theta.sum(), (theta**2).sum()])
    _, _, counts = dense(ng.models.Explicit(many), jnp.ones(7))
    assert (int(counts.linearised), int(counts.adjoint)) == (0, 2)
    _, _, counts = dense(ng.Pointwise(lambda t, x: t @ x, jnp.ones((5, 3))), jnp.ones(3))
    assert (int(counts.linearised), int(counts.adjoint)) == (0, 1)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_states_and_parameters_are_pytrees(mode):
    theta = {"a": jnp.ones(2), "b": (jnp.zeros(()), jnp.arange(3))}  # integers are not parameters
    model = ng.models.Explicit(
        lambda t: {"u": t["a"] * t["b"][0] + t["a"] ** 2, "v": t["b"][0] + jnp.ones((2, 2))},
        mode=mode,
    )
    rho, columns, _ = dense(model, theta)
    assert columns["u"].shape == (3, 2)
    assert columns["v"].shape == (3, 2, 2)
    np.testing.assert_allclose(columns["u"], [[2, 0], [0, 2], [1, 1]])
    np.testing.assert_allclose(columns["v"][2], 1.0)
    np.testing.assert_allclose(rho["v"], 1.0)


def test_taylor_remainder_is_second_order():
    net = network()
    flat, unravel = flatten(net)
    model = ng.Pointwise(lambda net, x: net(x), X)
    rho, columns, _ = map(np.asarray, dense(model, net))
    v = np.sin(np.arange(flat.size))
    state = jax.jit(lambda h: model(unravel(flat + h * v)))
    remainders = [np.linalg.norm(state(h) - rho - h * (v @ columns)) for h in (1e-2, 1e-3)]
    assert np.log10(remainders[0] / remainders[1]) == pytest.approx(2.0, abs=0.1)


def test_equinox_network_trains_as_it_is():
    target = jnp.sin(3 * X[:, 0])
    problem = ng.Problem(ng.Pointwise(lambda net, x: net(x), X), ng.LeastSquares(target))
    metric = ng.MatrixMetric(np.eye(11))
    result = ng.minimize(
        problem,
        network(),
        ng.NaturalGradient(metric, damping=ng.LevenbergMarquardt(), step=ng.Backtracking()),
        stop=ng.Stop(iterations=40),
    )
    assert isinstance(result.theta, eqx.nn.MLP)
    assert result.loss < 1e-8
