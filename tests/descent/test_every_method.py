"""What holds for every method and every step: a new one is a line in `cases`."""

import equinox as eqx
import numpy as np
import pytest

import natgrad as ng
from cases import METHODS, ROSENBROCK, START, STEPS

COUNT = 4
every_method = pytest.mark.parametrize("name", METHODS)


def run(method, count: int = COUNT, checkpoint=None) -> ng.Result:
    stop = ng.Stop(iterations=count, gradient=0.0)
    return ng.minimize(ROSENBROCK, START, method, stop=stop, checkpoint=checkpoint)


def step(method, theta, state):
    return method.step(ROSENBROCK, theta, state)


compiled = eqx.filter_jit(step)


@every_method
def test_steps_descend_and_are_those_of_minimize(name: str):
    """Driven by `minimize`, in a loop of one's own, and compiled."""
    method = METHODS[name]
    result = run(method)
    assert result.iterations == COUNT
    assert np.all(np.diff(result.history["loss"]) < 0)
    for iterate in (step, compiled):
        theta, state, values = START, method.init(ROSENBROCK, START), []
        for _ in range(COUNT):
            theta, state, record = iterate(method, theta, state)
            values.append(float(record.value))
        np.testing.assert_allclose(theta, result.theta, rtol=1e-9)
        np.testing.assert_allclose(values, result.history["loss"][1:], rtol=1e-9)


@every_method
def test_a_run_in_two_parts_is_the_run_in_one(name: str, tmp_path):
    method, path = METHODS[name], tmp_path / "run.npz"
    run(method, 2, path)
    resumed, whole = run(method, checkpoint=path), run(method)
    np.testing.assert_array_equal(resumed.theta, whole.theta)
    np.testing.assert_array_equal(resumed.history["loss"], whole.history["loss"])


@pytest.mark.parametrize("name", STEPS)
def test_every_step_decreases_the_loss(name: str):
    result = run(ng.NaturalGradient(ng.L2(), step=STEPS[name]))
    assert result.iterations == COUNT
    assert np.all(np.diff(result.history["loss"]) < 0)
