"""L-BFGS with the history of a natural gradient run."""

import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from equations_for_tests import CODE, GRID, LOSS, START, THETA, model
from problems_for_tests import linear_problem, with_slow

PROBLEM = ng.Problem(model("external"), LOSS)
TRUTH = THETA + np.array([0.2, 0.1, -0.3, 0.2])


@pytest.fixture(autouse=True)
def _clean():
    CODE.clear()


@pytest.mark.parametrize(
    "kind", with_slow(["external", "external only linearize", "host", "lu"], ["lu"])
)
def test_it_finds_the_minimiser_and_counts_exactly(kind: str):
    result = ng.minimize(
        ng.Problem(model(kind), LOSS),
        START,
        ng.LBFGS(10),
        stop=ng.Stop(gradient=1e-7, iterations=1000),
    )
    np.testing.assert_allclose(result.theta, TRUTH, rtol=1e-3, atol=1e-4)
    assert result.status == ng.Status.CONVERGED
    history = result.history
    assert np.all(np.diff(history["loss"]) < 0)
    assert len(history["loss"]) == result.iterations + 1
    last = kind in ("host", "lu")  # the residual of the equation is checked at the end
    assert history["forward"][-1] == history["adjoint"][-1] + last
    assert history["linearised"][-1] == 0
    assert history["gradient_norm"][-1] <= 1e-7 * history["gradient_norm"][0]
    assert np.all(history["step_norm"][:-1] > 0)
    if kind == "external":
        points = {theta.tobytes() for theta in CODE.calls["forward"]}
        assert len(points) == CODE.count("forward") == CODE.count("vjp") == history["forward"][-1]
    if kind == "host":
        assert CODE.count("factorise") == history["forward"][-1]


def test_a_function_in_jax_and_its_statuses():
    problem, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    best = np.linalg.lstsq(Z, target, rcond=None)[0]
    result = ng.minimize(problem, theta, ng.LBFGS(10), stop=ng.Stop(gradient=1e-9, iterations=1000))
    np.testing.assert_allclose(result.theta, best, rtol=1e-5)
    assert result.converged
    assert (
        ng.minimize(problem, theta, ng.LBFGS(10), stop=ng.Stop(iterations=2)).status
        == ng.Status.MAX_ITERATIONS
    )
    few = ng.minimize(problem, theta, ng.LBFGS(10), stop=ng.Stop(propagations=6))
    assert few.status == ng.Status.MAX_PROPAGATIONS
    assert 6 <= sum(few.history[name][-1] for name in ("forward", "adjoint")) <= 7
    assert (
        ng.minimize(problem, theta, ng.LBFGS(10), stop=ng.Stop(seconds=0.0)).status
        == ng.Status.MAX_SECONDS
    )
    halfway = 0.5 * (result.history["loss"][0] + result.loss)
    assert (
        ng.minimize(
            problem, theta, ng.LBFGS(10), stop=ng.Stop(loss=halfway, iterations=1000)
        ).status
        == ng.Status.LOSS_REACHED
    )
    stopped = ng.minimize(
        problem,
        theta,
        ng.LBFGS(10),
        stop=ng.Stop(iterations=1000),
        callbacks=[lambda p: p.iteration == 2],
    )
    assert (stopped.status, stopped.iterations) == (ng.Status.STOPPED, 2)
    exact = ng.minimize(
        problem,
        jnp.asarray(result.theta),
        ng.LBFGS(10),
        stop=ng.Stop(gradient=0.0, iterations=1000),
    )
    assert exact.status in (ng.Status.PRECISION, ng.Status.NO_DECREASE, ng.Status.CONVERGED)


def test_bounds_hold_and_their_gradient_does_not_count():
    upper = np.array([0.4, 1.0, 1.0, 1.0])
    result = ng.minimize(
        PROBLEM,
        START,
        ng.LBFGS(10),
        stop=ng.Stop(gradient=1e-6, iterations=1000),
        bounds=(None, jnp.asarray(upper)),
    )
    assert result.status == ng.Status.CONVERGED
    assert result.theta[0] == 0.4
    assert all(np.all(theta <= upper) for theta in CODE.calls["forward"])
    constrained = ng.minimize(
        PROBLEM,
        START,
        ng.NaturalGradient(ng.L2(GRID)),
        stop=ng.Stop(gradient=1e-8),
        bounds=(None, jnp.asarray(upper)),
    )
    np.testing.assert_allclose(result.theta, constrained.theta, rtol=1e-2, atol=1e-3)


def test_a_start_at_the_minimum_is_converged():
    flat = ng.Problem(lambda t: t, lambda rho: 0.0 * jnp.sum(rho))
    assert (
        ng.minimize(flat, START, ng.LBFGS(10), stop=ng.Stop(iterations=1000)).status
        == ng.Status.CONVERGED
    )


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: ng.LBFGS(0), "pairs"),
        (lambda: ng.Stop(iterations=0), "iterations"),
        (lambda: ng.minimize(PROBLEM, START, ng.LBFGS(10), bounds=3), "bounds"),  # pyright: ignore
    ],
)
def test_arguments_are_checked(call, argument: str):
    with pytest.raises(ng.InputError) as caught:
        call()
    assert caught.value.argument == argument


def test_a_loss_that_is_infinite_at_the_start_is_an_error():
    problem = ng.Problem(lambda t: t, lambda rho: jnp.sum(jnp.log(rho - 2.0)))
    with pytest.raises(ng.InputError, match="theta0"):
        ng.minimize(problem, START, ng.LBFGS(10), stop=ng.Stop(iterations=1000))
