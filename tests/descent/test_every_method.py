"""What holds for every method and every step: a new one is a line in `cases`."""

import equinox as eqx
import numpy as np
import pytest

import natgrad as ng
from cases import METHODS, ROSENBROCK, START, STEPS
from problems_for_tests import with_slow

COUNT = 4
every_method = pytest.mark.parametrize("name", METHODS)


def run(method, count: int = COUNT, checkpoint=None) -> ng.Result:
    stop = ng.Stop(iterations=count, gradient=0.0)
    return ng.minimize(ROSENBROCK, START, method, stop=stop, checkpoint=checkpoint)


def step(method, theta, state):
    return method.step(ROSENBROCK, theta, state)


@every_method
def test_steps_descend_and_are_those_of_minimize(name: str):
    """Driven by `minimize`, and in a loop of one's own."""
    method = METHODS[name]
    result = run(method)
    assert result.iterations == COUNT
    assert np.all(np.diff(result.history["loss"]) < 0)
    check_steps(step, method, result)


# One of each kind of program: of one try, of tries until one is accepted, of no linear system.
FAST = ("NaturalGradient", "rejected steps", "LBFGS")


@pytest.mark.parametrize("name", with_slow(METHODS, set(METHODS) - {*FAST}))
def test_a_compiled_step_is_that_of_minimize(name: str):
    check_steps(eqx.filter_jit(step), METHODS[name], run(METHODS[name]))


def check_steps(iterate, method, result: ng.Result) -> None:
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


@every_method
def test_a_budget_ends_a_run_before_a_try_and_does_not_change_its_path(name: str, tmp_path):
    """Zero means no step; a run that goes on with more to spend is the one that had it at once."""
    method, whole = METHODS[name], run(METHODS[name])
    loss, spent = whole.history["loss"], whole.spent("propagations")
    for budget in (0, int(spent[1]), int(spent[2]) + 1):
        path = tmp_path / f"{budget}.npz"
        stop = ng.Stop(propagations=budget, gradient=0.0)
        cut = ng.minimize(ROSENBROCK, START, method, stop=stop, checkpoint=path)
        count = cut.iterations
        assert cut.status == "max_propagations"
        assert cut.spent("propagations")[-1] >= budget
        begun = np.sum(spent[:-1] < budget)
        assert count == begun or (count == begun - 1 and method.tries > 1)
        np.testing.assert_array_equal(cut.history["loss"], loss[: count + 1])
        resumed = run(method, checkpoint=path)
        np.testing.assert_array_equal(resumed.history["loss"], loss)
        np.testing.assert_array_equal(resumed.spent("propagations"), spent)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_decreases_the_loss(name: str):
    result = run(ng.NaturalGradient(ng.L2(), step=STEPS[name]))
    assert result.iterations == COUNT
    assert np.all(np.diff(result.history["loss"]) < 0)
