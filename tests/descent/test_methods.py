"""Methods in loops of one's own: the steps of `minimize`, compiled, and side by side."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import Linear

EYE = ng.MatrixMetric(np.eye(2))
ROSENBROCK = ng.Problem(
    lambda t: jnp.stack([10.0 * (t[1] - t[0] ** 2), 1.0 - t[0]]), ng.LeastSquares(jnp.zeros(2))
)
START = jnp.array([-1.2, 1.0])
METHODS = {
    "natural": ng.NaturalGradient(EYE),
    "rejected steps": ng.NaturalGradient(
        EYE, damping=ng.LevenbergMarquardt(1e-6), step=ng.FixedStep(1.0)
    ),
    "curve": ng.NaturalGradient(
        EYE, damping=ng.LevenbergMarquardt(), step=ng.Backtracking(), order=2, momentum=0.3
    ),
    "matrix-free": ng.NaturalGradient(
        EYE, solver=ng.CG(1e-8, preconditioner=ng.solvers.Recycled(4)), damping=1e-3
    ),
    "gradient": ng.GradientDescent(),
    "Newton": ng.Newton(damping=ng.LevenbergMarquardt()),
}
STEPS = 4


def descend(step, method, theta):
    """θ and the losses of some iterations."""
    state = method.init(ROSENBROCK, theta)
    values = []
    for _ in range(STEPS):
        theta, state, record = step(method, theta, state)
        values.append(float(record.value))
    return theta, values


def plain(method, theta, state):
    return method.step(ROSENBROCK, theta, state)


compiled = eqx.filter_jit(plain)


@pytest.mark.parametrize("name", METHODS)
def test_steps_are_those_of_minimize(name: str):
    method = METHODS[name]
    stop = ng.Stop(iterations=STEPS, gradient=0.0)
    result = ng.minimize(ROSENBROCK, START, method, stop=stop)
    assert result.iterations == STEPS
    for step in (plain, compiled):
        theta, values = descend(step, method, START)
        np.testing.assert_allclose(theta, result.theta, rtol=1e-9)
        np.testing.assert_allclose(values, result.history["loss"][1:], rtol=1e-9)


@pytest.mark.parametrize("name", ["natural", "rejected steps"])
def test_steps_from_many_starts_at_once(name: str):
    method, starts = METHODS[name], jnp.stack([START, START + 0.3, START - 0.2])
    init = lambda theta: method.init(ROSENBROCK, theta)
    thetas, states = starts, eqx.filter_vmap(init)(starts)
    for _ in range(STEPS):
        thetas, states, _ = eqx.filter_vmap(lambda t, s: plain(method, t, s))(thetas, states)
    for start, theta in zip(starts, thetas, strict=True):
        np.testing.assert_allclose(theta, descend(compiled, method, start)[0], rtol=1e-8)


def test_bounds_and_a_rejected_step():
    method = ng.NaturalGradient(EYE, step=ng.FixedStep(50.0))
    theta, _, record = method.step(ROSENBROCK, START, method.init(ROSENBROCK, START))
    assert not record.accepted
    np.testing.assert_array_equal(theta, START)
    method, bounds = METHODS["natural"], (START, START + 0.1)
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
