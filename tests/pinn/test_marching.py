"""Time windows: an oscillator that hands on u and u_t, one program, the same run in two parts."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import assert_same, compiled

LINE = ng.pinn.Box([0.0], [1.0])


def height(theta, x):
    return jnp.polyval(theta, x[0])


def u(theta, x):
    """u and u_t, a polynomial in time."""
    return jnp.stack([height(theta, x), ng.derivative(lambda y: height(theta, y), x, 0)])


def equation(theta, x):
    """u_tt + u = 0."""
    at = lambda y: height(theta, y)
    return ng.derivative(at, x, 0, 0) + at(x)


PINN = ng.Collocation(interior=ng.Residual(equation, LINE.grid(10)))
START = lambda x: jnp.array([1.0, 0.0])


def oscillate(windows=6, pinn=PINN, start=START, points=jnp.zeros((1, 1)), **options):
    one_step = lambda metric: ng.NaturalGradient(metric, step=ng.FixedStep(1.0))
    stop = ng.Stop(iterations=2, gradient=0.0)
    settings = {"windows": windows, "length": 1.0, "method": one_step, "stop": stop}
    return ng.pinn.march(u, start, points, pinn, jnp.zeros(9), weight=10.0, **settings | options)


def test_each_window_goes_on_from_the_last_in_one_program():
    before = []
    with compiled() as names:
        note = lambda progress: before.append(len(names)) and None
        found = oscillate(callbacks=[note])
        assert len(names) - before[3] <= 2  # the first window and its end are behind
    assert len(found.results) == 6
    times = np.linspace(0.0, 6.0, 50)
    expected = np.stack([np.cos(times), -np.sin(times)], axis=1)
    np.testing.assert_allclose(found(times[:, None]), expected, atol=1e-5)


def test_windows_hand_on_the_damping_of_the_last_accepted_step():
    damped = lambda metric: ng.levenberg_marquardt(metric, order=1)
    found = oscillate(2, method=damped, stop=ng.Stop(iterations=3, gradient=0.0)).results
    first, second = (result.history["damping"] for result in found)
    assert first[0] == 1e-3
    assert first[2] < 1e-4  # easy steps
    assert second[0] == first[2]
    method = damped(PINN.metric)
    assert method.after(found[0]).damping.initial == first[2]
    assert ng.LBFGS().after(found[0]) == ng.LBFGS()
    stuck = dataclasses.replace(found[0], history={"damping": first, "step": 0 * first})
    assert method.after(stuck) is method


@pytest.mark.slow
def test_a_march_goes_on_from_its_folder(tmp_path):
    def interrupt(progress):
        calls.append(progress)
        if len(calls) == 5:
            raise KeyboardInterrupt

    calls = []
    with pytest.raises(KeyboardInterrupt):
        oscillate(checkpoint=tmp_path, callbacks=[interrupt])
    assert len(list(tmp_path.glob("window-*.npz"))) == 3
    resumed = oscillate(checkpoint=tmp_path)
    for one, other in zip(oscillate().results, resumed.results, strict=True):
        assert_same(one, other)


BAD = {
    "pinn: has a block 'start'": lambda: oscillate(
        pinn=ng.Collocation(start=ng.Residual(equation, LINE.grid(2)))
    ),
    "points: of shape": lambda: oscillate(points=jnp.ones((1, 1))),
    "start: returns 1 numbers where u returns 2": lambda: oscillate(start=lambda x: x[0]),
    "windows: 0 is not an integer": lambda: oscillate(0),
    "length: 0.0 is not finite": lambda: oscillate(length=0.0),
    "points: some times are outside": lambda: ng.pinn.March(u, 1.0, (None, None))(
        jnp.array([[2.1]])
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message: str):
    with pytest.raises(ng.InputError, match=message):
        BAD[message]()
