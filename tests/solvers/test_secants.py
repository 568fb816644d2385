"""Recycled pairs with secants: M from the steps of a run, and products only where it fails."""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

import natgrad as ng
from natgrad.core.outcomes import STATUSES
from natgrad.solvers import preconditioners as recycling
from problems_for_tests import bumps_problem, close, linear_problem

EYE = ng.MatrixMetric(jnp.eye(20))
SECANTS = ng.CG(max_iterations=2, preconditioner=ng.solvers.Recycled(30))
STOP = ng.Stop(iterations=60, gradient=1e-10)
small = lru_cache(lambda: linear_problem(20, 6, 6, grading=0.1))


def secants(metric: ng.metrics.Metric = EYE, **settings) -> ng.NaturalGradient:
    return ng.NaturalGradient(metric, solver=SECANTS, **settings)


def run(problem=None, method=secants(), theta=None, stop: ng.Stop = STOP, **settings) -> ng.Result:
    default, start, _, _ = small()
    theta = start if theta is None else theta
    return ng.minimize(problem or default, theta, method, stop=stop, **settings)


def walked(*points, H, pairs: int = 4) -> recycling.Pairs:
    """The memory after these points, for the gradient Hθ."""
    memory = ng.solvers.Recycled(pairs).memory(len(points[0]), jnp.asarray(H).dtype)
    for theta in points:
        memory = memory.arrive(theta, H @ theta, jnp.ones(()))
    return memory


def inverse(memory: recycling.Pairs, r):
    return recycling.two_loops(memory.directions, memory.images, memory.count, True, r)


# --- the pairs


def test_the_inverse_takes_the_newest_change_of_the_gradient_to_its_step():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    H = jnp.asarray(root @ root.T + np.eye(6))
    points = list(jnp.asarray(rng.normal(size=(5, 6))))
    memory = walked(*points, H=H)
    assert int(memory.count) == 4  # the first point is the end of no step
    step = points[-1] - points[-2]
    close(inverse(memory, H @ step), step, 1e-12)
    M = jnp.stack([inverse(memory, e) for e in jnp.eye(6)])
    close(M, M.T, 1e-12)
    assert np.all(np.linalg.eigvalsh(np.asarray(M)) > 0)


def test_conjugate_steps_give_the_whole_inverse():
    H = jnp.diag(jnp.array([1.0, 2.0, 5.0]))
    points = jnp.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    r = jnp.array([0.3, -1.0, 2.0])
    close(inverse(walked(*points, H=H), r), r / jnp.diag(H), 1e-14)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 3, 7, 11])
def test_the_form_for_accelerators_is_that_of_the_loops(monkeypatch, steps: int, hard: bool):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(12, 12))
    H = jnp.asarray(root @ root.T + np.eye(12))
    memory = ng.solvers.Recycled(7, secants=False).memory(12, H.dtype)
    for number, d in enumerate(jnp.asarray(rng.normal(size=(steps, 12)))):
        image = -d if number == 2 else H @ d  # one that is there but cannot be used
        memory = memory.record(d, image, jnp.asarray(True))
    given = *memory[:3], hard, jnp.asarray(rng.normal(size=12))
    expected = recycling.two_loops(*given)
    others = lambda *arguments, cpu, default: default(*arguments)
    monkeypatch.setattr(jax.lax, "platform_dependent", others)
    close(recycling.two_loops.__wrapped__(*given), expected, 1e-12)


def test_a_step_of_negative_curvature_is_no_pair():
    H, a, b = jnp.diag(jnp.array([1.0, -1.0])), jnp.zeros(2), jnp.array([0.0, 1.0])
    memory = walked(a, b, H=H)
    assert int(memory.count) == 0
    assert memory.last is not None
    assert not memory.last.served
    np.testing.assert_array_equal(memory.last.theta, b)


@pytest.mark.parametrize(("end", "served"), [(0.0, True), (0.8, True), (0.95, False), (-1, False)])
def test_pairs_have_served_where_a_step_levels_the_slope(end: float, served: bool):
    memory = walked(jnp.ones(1), jnp.full(1, float(end)), H=jnp.eye(1))
    assert memory.last is not None
    assert bool(memory.last.served) == served
    assert not memory.forget_step().last.served  # pyright: ignore[reportOptionalMemberAccess]


# --- a run


def test_a_quadratic_is_minimised_with_the_products_of_the_first_iteration():
    _, _, Z, target = small()
    result = run(stop=replace(STOP, gradient=1e-8))
    assert result.status == ng.Status.CONVERGED
    close(result.theta, np.linalg.lstsq(Z, target)[0], 1e-6)
    products = result.history["solver_iterations"][:-1]
    assert products[0] == 1  # nothing is trusted yet
    assert np.sum(products == 0) > len(products) / 2
    spent = [np.diff(result.history[name]) for name in ("forward", "linearised", "adjoint")]
    np.testing.assert_array_equal(spent[1], products)
    free = (products == 0) & (result.history["halvings"][:-1] == 0)
    evaluations = 2  # one of the trial, and one of the iterate: an explicit model keeps nothing
    np.testing.assert_array_equal(np.sum(spent, axis=0)[free], evaluations + 1)
    np.testing.assert_array_equal(result.history["step"][:-1][free], 1.0)


def test_a_direction_without_products_says_so():
    result = run(stop=replace(STOP, iterations=3))
    assert result.info is not None
    assert (result.info.status, result.info.iterations) == ("recycled", 0)
    assert np.isnan(result.info.residual)
    alone = ng.natural_gradient(*small()[:2], metric=EYE, solver=SECANTS)
    assert alone.info.status == "max_iterations"  # there is nothing to recycle
    assert STATUSES[ng.Status.RECYCLED.code] == "recycled"


def test_a_curved_model():
    problem, start, truth, grid = bumps_problem(mass_varies=True)
    result = run(problem, secants(ng.L2(grid)), theta=start)
    assert result.converged
    close(result.theta, truth, 1e-6)


def test_bounds():
    _, start, Z, target = small()
    lower, upper = np.minimum(start, -2.0), np.maximum(start, 1.0)
    expected = lsq_linear(Z, target, (lower, upper), tol=1e-14)
    assert 0 < np.sum(np.abs(expected.active_mask)) < 6
    result = run(bounds=(lower, upper), stop=replace(STOP, gradient=1e-9))
    assert np.all((result.theta >= lower) & (result.theta <= upper))
    assert result.loss == pytest.approx(expected.cost, rel=1e-8)


@pytest.mark.parametrize(
    "damping",
    [pytest.param(1e-2, marks=pytest.mark.slow), ng.LevenbergMarquardt(1e-2)],
    ids=["fixed", "adaptive"],
)
def test_damping_is_added_to_the_pairs(damping):
    _, _, Z, target = small()
    result = run(method=secants(damping=damping), stop=replace(STOP, iterations=200))
    close(result.theta, np.linalg.lstsq(Z, target)[0], 1e-6)
    assert np.any(result.history["solver_iterations"] == 0)


def test_a_regulariser_is_part_of_the_secants():
    problem, _, Z, target = small()
    smooth = ng.Problem(problem.model, problem.loss, regulariser=lambda t: 0.05 * jnp.sum(t**2))
    result = run(smooth)
    close(result.theta, np.linalg.solve(Z.T @ Z + 0.1 * np.eye(6), Z.T @ target), 1e-7)
    free = (result.history["solver_iterations"] == 0) & (result.history["halvings"] == 0)
    np.testing.assert_array_equal(result.history["step"][free], 1.0)


def test_newton():
    problem, start, truth, _ = bumps_problem(mass_varies=True)
    result = run(problem, ng.Newton(solver=SECANTS), theta=start)
    close(result.theta, truth, 1e-6)
    assert np.any(result.history["solver_iterations"] == 0)


def test_another_right_hand_side_is_solved_with_products():
    result = run(method=secants(momentum=0.5, damping=1e-1), stop=replace(STOP, iterations=5))
    assert np.all(np.diff(result.history["linearised"]) >= 2)


def test_mini_batches_record_no_steps():
    method, stop = secants(damping=1e-2), replace(STOP, iterations=6)
    result = run(method=method, stop=stop, batch=ng.MiniBatch(15))
    assert np.all(result.history["solver_iterations"][:-1] >= 1)
    memory = SECANTS.initial_memory(6, jnp.zeros(()).dtype, batches=True)
    assert memory.last is None
    assert memory.arrive(jnp.ones(6), jnp.ones(6), jnp.ones(())) is memory


def outside(Z) -> ng.ExternalModel:
    return ng.ExternalModel(
        forward=lambda t: Z @ np.asarray(t),
        jvp=lambda t, v: Z @ np.asarray(v),
        vjp=lambda t, x: Z.T @ np.asarray(x),
    )


@pytest.mark.slow
def test_a_model_outside_jax_takes_the_same_steps():
    problem, _, Z, _ = small()
    inside, external = run(), run(ng.Problem(outside(Z), problem.loss))
    for name in ("loss", "solver_iterations", "linearised", "adjoint"):
        a, b = inside.history[name][:12], external.history[name][:12]
        np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=name)


def test_gradients_in_single_precision_of_parameters_in_double():
    _, _, Z, target = small()
    problem = ng.Problem(outside(Z.astype("f4")), ng.LeastSquares(jnp.asarray(target, "f4")))
    result = run(
        problem,
        secants(ng.MatrixMetric(jnp.eye(20, dtype="f4"))),
        stop=replace(STOP, iterations=20),
    )
    assert np.asarray(result.theta).dtype == np.float64
    assert result.loss == pytest.approx(run().loss, rel=1e-5)


@pytest.mark.slow
def test_a_long_memory_beats_lbfgs_per_propagation():
    """A graded spectrum, as inverse problems have it, and a model that keeps its evaluation."""
    rng = np.random.default_rng(0)
    Z = np.linalg.qr(rng.normal(size=(60, 40)))[0] * np.geomspace(1, 1e-2, 40)
    problem = ng.Problem(outside(Z), ng.LeastSquares(jnp.asarray(Z @ rng.normal(size=40))))
    method = ng.NaturalGradient(ng.MatrixMetric(jnp.eye(60)), solver=ng.CG())
    stop = ng.Stop(iterations=200, propagations=160, gradient=0.0)
    ours = run(problem, method, theta=jnp.zeros(40), stop=stop)
    stop = ng.Stop(iterations=1000, propagations=160, gradient=0.0)
    theirs = run(problem, ng.LBFGS(10), theta=jnp.zeros(40), stop=stop)
    assert ours.loss < 0.5 * theirs.loss
