"""Methods in loops of one's own: compiled, side by side, within bounds, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from cases import METHODS, ROSENBROCK, START
from problems_for_tests import Linear, with_slow

EYE = ng.MatrixMetric(np.eye(2))
STEPS = 4


def descend(step, method, theta):
    """θ after some iterations."""
    state = method.init(ROSENBROCK, theta)
    for _ in range(STEPS):
        theta, state, _ = step(method, theta, state)
    return theta


def plain(method, theta, state):
    return method.step(ROSENBROCK, theta, state)


compiled = eqx.filter_jit(plain)


@pytest.mark.parametrize("name", with_slow(METHODS, set(METHODS) - {"rejected steps"}))
def test_steps_from_many_starts_at_once(name: str):
    method, starts = METHODS[name], jnp.stack([START, START + 0.3, START - 0.2])
    init = lambda theta: method.init(ROSENBROCK, theta)
    thetas, states = starts, eqx.filter_vmap(init)(starts)
    for _ in range(STEPS):
        thetas, states, _ = eqx.filter_vmap(lambda t, s: plain(method, t, s))(thetas, states)
    for start, theta in zip(starts, thetas, strict=True):
        np.testing.assert_allclose(theta, descend(compiled, method, start), rtol=1e-8)


def test_bounds_and_a_rejected_step():
    method = ng.NaturalGradient(EYE, step=ng.FixedStep(50.0))
    theta, _, record = method.step(ROSENBROCK, START, method.init(ROSENBROCK, START))
    assert not record.accepted
    np.testing.assert_array_equal(theta, START)
    method, bounds = METHODS["NaturalGradient"], (START, START + 0.1)
    step = eqx.filter_jit(lambda t, s: method.step(ROSENBROCK, t, s, bounds=bounds))
    theta, _, record = step(START, method.init(ROSENBROCK, START))
    assert record.accepted
    assert np.all((theta >= START) & (theta <= START + 0.1))


def test_methods_that_differ_in_their_step_share_the_linearisation():
    problem = ng.Problem(Linear(np.eye(3, 2)), ng.LeastSquares(jnp.ones(3)))
    one = ng.NaturalGradient(ng.L2(), damping=0.1, step=ng.FixedStep(0.5))
    two = ng.NaturalGradient(ng.L2(), damping=0.1, step=ng.Backtracking(), order=2)
    state = one.init(problem, START)
    with jax.checking_leaks():
        local = one.linearise(problem, START, state)
    first, second = (method.try_step(local, state) for method in (one, two))
    np.testing.assert_allclose(second[0] - START, 2.0 * (first[0] - START), rtol=1e-12)


def test_what_is_driven_from_python_is_refused_in_a_compiled_program():
    method = ng.NaturalGradient(EYE, step=ng.ProximalStep(1.0))
    state = method.init(ROSENBROCK, START)
    with pytest.raises(ng.InputError, match="ProximalStep is driven from Python"):
        compiled(method, START, state)
    outside = ng.ExternalModel(np.sin, lambda t, v: np.cos(t) * v, lambda t, w: np.cos(t) * w)
    problem, method = ng.Problem(outside, ng.LeastSquares(jnp.zeros(2))), ng.NaturalGradient(EYE)
    state = method.init(problem, START, known=method.check(problem, START))
    assert method.step(problem, START, state)[2].accepted
    step = eqx.filter_jit(lambda theta, state: method.step(problem, theta, state))
    with pytest.raises(ng.InputError, match="outside"):
        step(START, state)


def test_an_iteration_is_the_same_in_one_program_and_in_two_halves():
    """Losses, λ and counts of `minimize`, of compiled steps and of `linearise` with `try_step`."""
    points = jnp.linspace(-1.0, 1.0, 9)[:, None]
    net = eqx.nn.MLP(1, "scalar", 3, 1, jnp.tanh, key=jax.random.key(0))
    pinn = ng.Collocation(
        interior=ng.Residual(lambda net, x: net(x) - jnp.sin(3 * x[0]), points),
        boundary=ng.Residual(lambda net, x: net(x), points[:1], weight=10.0),
    )
    damping, step = ng.LevenbergMarquardt(1e-9, decrease=1e-3), ng.FixedStep(1.9)
    problem = pinn.problem
    method = ng.NaturalGradient(pinn.metric, damping=damping, step=step, order=2)
    result = ng.minimize(problem, net, method, stop=ng.Stop(iterations=6, gradient=0.0))
    step = eqx.filter_jit(lambda theta, state: method.step(problem, theta, state))
    one = two = net
    states = [method.init(problem, net)] * 2
    rejected = 0
    for i in range(6):
        one, states[0], record = step(one, states[0])
        local, promised, counts = method.linearise(problem, two, states[1]), None, 0
        while True:
            moved, states[1], tried = method.try_step(local, states[1])
            promised = tried.predicted if promised is None else promised
            counts = counts + np.array(tried.counts)
            if tried.accepted:
                break
            rejected += 1
        two = moved
        np.testing.assert_array_equal(record.counts, counts)
        for found in (record, tried):
            np.testing.assert_allclose(found.value, result.history["loss"][i + 1], rtol=1e-9)
            np.testing.assert_allclose(found.damping, result.history["damping"][i], rtol=1e-12)
        np.testing.assert_allclose(record.predicted, promised, rtol=1e-9)
    assert rejected > 0
