"""Iterates kept on the way: which, how many, through a checkpoint and through a file."""

import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.descent.run import Snapshots


def rosenbrock(theta):
    return jnp.stack([10 * (theta[1] - theta[0] ** 2), 1 - theta[0]])


PROBLEM = ng.Problem(rosenbrock, ng.LeastSquares(jnp.zeros(2)))
START = jnp.array([-1.2, 1.0])
METHOD = ng.GradientDescent(step=ng.Backtracking())


@pytest.mark.parametrize("most", [1, 2, 7, 20])
def test_a_run_of_any_length_keeps_so_many_evenly(most):
    kept = Snapshots(most, jnp.zeros(3))
    for iterate in range(1, 100):
        kept.note(iterate, np.full(3, float(iterate)))
        assert len(kept.kept) <= most
    numbers = list(kept.kept)
    assert numbers[0] == 0
    assert len(set(np.diff(numbers))) <= 1
    assert len(numbers) >= most / 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_result_has_no_more_than_were_asked_for(most):
    found = descend(6, snapshots=most)
    assert len(found.iterates) <= most
    assert max(found.iterates) == len(found.history["loss"]) - 1


def descend(iterations=100, problem=PROBLEM, start=START, **settings):
    stop = ng.Stop(iterations=iterations, gradient=0.0)
    return ng.minimize(problem, start, METHOD, stop=stop, **settings)


def test_few_parameters_are_kept_unasked_and_losses_are_those_of_the_history():
    result = descend(iterations=12)
    assert list(result.iterates) == list(range(13))
    for number, theta in result.iterates.items():
        loss = PROBLEM.value(theta, rosenbrock(theta))
        assert float(loss) == pytest.approx(result.history["loss"][number], rel=1e-12)
    assert len(descend(iterations=12, snapshots=4).iterates) <= 5
    assert not descend(iterations=12, snapshots=0).iterates


def test_lbfgs_keeps_them_too():
    result = ng.minimize(PROBLEM, START, ng.LBFGS(10), stop=ng.Stop(iterations=5))
    losses = [float(PROBLEM.value(t, rosenbrock(t))) for t in result.iterates.values()]
    np.testing.assert_allclose(losses, result.history["loss"][list(result.iterates)], rtol=1e-12)


def test_a_resumed_run_has_the_iterates_of_the_whole(tmp_path):
    whole = descend(iterations=20, snapshots=6)
    path = tmp_path / "run.npz"
    descend(iterations=9, snapshots=6, checkpoint=path)
    resumed = descend(iterations=20, snapshots=6, checkpoint=path)
    assert list(resumed.iterates) == list(whole.iterates)
    for number, theta in whole.iterates.items():
        np.testing.assert_array_equal(resumed.iterates[number], theta)


def test_a_saved_result_has_its_iterates(tmp_path):
    theta0 = {"a": START[:1], "b": START[1:]}
    problem = ng.Problem(lambda t: rosenbrock(jnp.concatenate([t["a"], t["b"]])), PROBLEM.loss)
    result = descend(3, problem, theta0)
    result.save(tmp_path / "result.npz")
    for like in (theta0, None):
        loaded = ng.load_result(tmp_path / "result.npz", like=like)
        assert list(loaded.iterates) == [0, 1, 2, 3]
        key = "a" if like else "['a']"
        np.testing.assert_array_equal(loaded.iterates[2][key], result.iterates[2]["a"])


@pytest.mark.parametrize("snapshots", [-1, 2.5, True])
def test_no_number_of_iterates(snapshots):
    with pytest.raises(ng.InputError, match="snapshots"):
        descend(snapshots=snapshots)
