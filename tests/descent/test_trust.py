"""Steps that trust the model as far as it holds: the trail, its radius, what is recorded."""

import dataclasses
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import natgrad as ng
from natgrad.direction.linearise import linearise, set_up
from problems_for_tests import bumps_problem, close, linear_problem

EYE = ng.MatrixMetric(jnp.eye(20))


def within(local, radius: float, enough: float | None = None):
    """The same system, whose model is trusted so far, in a run that asks for so much."""
    enough = None if enough is None else jnp.asarray(enough)
    setup = dataclasses.replace(local.setup, radius=jnp.asarray(radius), enough=enough)
    return dataclasses.replace(local, setup=setup)


def trail_of(damping=0.0, D=None, metric=EYE, problem=None, **solver):
    """The trail, G + λD, D and the gradient of a small system."""
    default, theta, Z, _ = linear_problem(20, 6, 6, grading=0.3)
    damp = ng.ParameterDamping(jnp.asarray(D), damping) if D is not None else damping
    damp = ng.AbsoluteDamping(damp) if D is None else damp
    setup = set_up(problem or default, theta, metric, ng.CG(1e-14, **solver), damp)
    local = linearise(setup)
    solution = within(local, 0.0).solve(jnp.asarray(damping))
    D = np.eye(6) if D is None else np.diag(D)
    return solution, np.asarray(Z.T @ Z) + damping * D, D, np.asarray(local.gradient)


def dense_step(G, D, g, radius):
    """argmin ⟨g, η⟩ + ½⟨η, Gη⟩ over ‖η‖_D ≤ radius: (G + σD) η = −g."""
    solve = lambda sigma: np.linalg.solve(G + sigma * D, -g)
    length = lambda eta: np.sqrt(eta @ D @ eta)
    if length(solve(0.0)) <= radius:
        return solve(0.0)
    return solve(brentq(lambda s: length(solve(s)) - radius, 0.0, 1e12, xtol=1e-15, rtol=1e-13))


def decrease(G, g, eta):
    return -(g @ eta + 0.5 * eta @ G @ eta)


weights = np.array([1.0, 4.0, 0.3, 2.0, 1.0, 0.5])


@pytest.mark.parametrize(("damping", "D"), [(0.0, None), (0.05, None), (0.05, weights)])
def test_the_end_of_a_trail_is_eta_and_every_point_is_what_it_says(damping, D):
    solution, G, D, g = trail_of(damping, D)
    trail = solution.trail
    close(np.asarray(jnp.sum(trail.parts, axis=0)), np.asarray(solution.eta), 1e-12)
    close(np.asarray(solution.eta), np.linalg.solve(G, -g), 1e-9)
    for share in (0.01, 0.2, 0.5, 0.9, 0.999, 2.0):
        radius = share * float(trail.length)
        eta, length, linear, quadratic = trail.follow(jnp.asarray(radius))
        eta = np.asarray(eta)
        expected = pytest.approx(min(radius, float(trail.length)), rel=1e-9)
        assert np.sqrt(eta @ D @ eta) == expected
        assert float(length) == expected
        assert float(linear) == pytest.approx(-g @ eta, rel=1e-8)
        assert float(quadratic) == pytest.approx(eta @ G @ eta, rel=1e-8)


@pytest.mark.parametrize(("damping", "D"), [(0.0, None), (0.05, None)])
def test_steihaug_decreases_the_model_by_half_as_much_as_the_dense_solution_at_least(damping, D):
    """Yuan's bound for conjugate gradients; at the end, and near 0, they agree."""
    solution, G, D, g = trail_of(damping, D)
    trail = solution.trail
    for share in np.geomspace(1e-3, 2.0, 12):
        radius = share * float(trail.length)
        ours = decrease(G, g, np.asarray(trail.follow(jnp.asarray(radius))[0]))
        best = decrease(G, g, dense_step(G, D, g, radius))
        assert 0.5 * best <= ours <= best * (1 + 1e-9)
        if share < 2e-3 or share > 1:
            assert ours == pytest.approx(best, rel=0.02)


small_trail = lru_cache(lambda: trail_of()[0].trail)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-4, 3.0), st.floats(1e-4, 3.0))
def test_a_larger_radius_never_predicts_less(a, b):
    trail = small_trail()

    def gain(share: float) -> float:
        _, _, linear, quadratic = trail.follow(share * trail.length)
        return float(linear - 0.5 * quadratic)

    small, large = sorted((a, b))
    assert gain(small) <= gain(large) * (1 + 1e-12)


def test_a_long_iteration_ends_in_the_last_side():
    problem, theta, Z, _ = linear_problem(40, 30, 30, grading=0.1)
    metric = ng.MatrixMetric(jnp.eye(40))
    local = linearise(set_up(problem, theta, metric, ng.CG(1e-10, preconditioner=None)))
    solution = within(local, 0.0).solve(jnp.zeros(()))
    assert solution.info.iterations > 16
    trail, G, g = solution.trail, Z.T @ Z, np.asarray(local.gradient)
    eta, _, linear, quadratic = trail.follow(0.97 * trail.length)
    eta = np.asarray(eta)
    assert float(linear) == pytest.approx(-g @ eta, rel=1e-8)
    assert float(quadratic) == pytest.approx(eta @ G @ eta, rel=1e-8)


# --- runs


def valleys():
    """Two curved valleys: a full step leads far off."""
    model = lambda t: jnp.stack(
        [10 * (t[1] - t[0] ** 2), 1 - t[0], 3 * (t[3] - t[2] ** 2), 1 - t[2]]
    )
    return ng.Problem(model, ng.LeastSquares(jnp.zeros(4))), jnp.array([-1.2, 1.0, -0.5, 1.0])


L2 = ng.MatrixMetric(jnp.eye(4))
CURVED = ng.NaturalGradient(L2, solver=ng.CG(1e-10, preconditioner=None))
EASY = ng.NaturalGradient(L2, solver=ng.CG())


def run(method=CURVED, iterations=8, **options):
    problem, theta = valleys()
    return ng.minimize(problem, theta, method, stop=ng.Stop(iterations=iterations), **options)


def test_the_history_tells_what_the_model_predicted():
    h = run().history
    actual = -np.diff(h["loss"])
    np.testing.assert_allclose(h["ratio"][:-1], actual / h["predicted"][:-1], rtol=1e-9)
    assert np.all(h["radius"][:-1] > 0)
    assert np.isnan(h["radius"][-1])


def test_the_radius_follows_the_ratio():
    h = run(iterations=12).history
    ratio, radius, length = h["ratio"][:-1], h["radius"][:-1], h["step_norm"][:-1]
    assert np.any(ratio < 0.75)
    poor = ratio < 0.25
    np.testing.assert_allclose(radius[poor], 0.5 * length[poor], rtol=1e-9)
    later = h["halvings"][1:-1] == 0
    assert np.all(length[1:][later] <= radius[:-1][later] * (1 + 1e-9))


def test_going_back_along_the_trail_costs_an_evaluation_and_no_product():
    h = run(iterations=12).history
    assert np.any(h["halvings"] > 0)
    spent = {name: np.diff(h[name]) for name in ("forward", "linearised", "adjoint")}
    products, tries = h["solver_iterations"][:-1], h["halvings"][:-1]
    np.testing.assert_array_equal(spent["linearised"], products)
    # the next linearisation, with its gradient, which the last step has none of
    np.testing.assert_array_equal(spent["adjoint"][:-1], products[:-1] + 1)
    np.testing.assert_array_equal(spent["forward"][:-1], tries[:-1] + 2)


def test_a_tolerance_is_solved_to_and_none_is_as_far_as_it_pays():
    exact, loose = run().history, run(EASY).history
    assert np.all(exact["solver_iterations"][:-1] >= 4)
    assert loose["solver_iterations"][0] == 1
    assert loose["linearised"][-1] < exact["linearised"][-1]


def test_why_conjugate_gradients_stopped():
    problem, theta, _, _ = linear_problem(40, 30, 30, grading=0.1)
    local = linearise(set_up(problem, theta, ng.MatrixMetric(jnp.eye(40)), ng.CG()))
    stopped = lambda radius: within(local, radius).solve(jnp.zeros(())).info
    assert ng.Status.RADIUS.code == int(stopped(0.0).reason)
    assert int(stopped(0.0).iterations) == 1
    assert ng.Status.TRUNCATED.code == int(stopped(np.inf).reason)
    assert 1 < int(stopped(np.inf).iterations) < 30
    assert local.solve(jnp.zeros(())).trail is None


def graded_system(solver=ng.CG()):
    """A system whose conjugate gradients gain less and less."""
    problem, theta, _, _ = linear_problem(40, 30, 30, grading=0.1)
    return linearise(set_up(problem, theta, ng.MatrixMetric(jnp.eye(40)), solver))


def gains_of(local):
    """What each step of conjugate gradients adds to −⟨∂_θ f, η⟩."""
    return np.asarray(within(local, np.inf).solve(jnp.zeros(())).trail.gains)


@pytest.mark.parametrize("energy", [np.nan, 1.1])
@pytest.mark.parametrize("overhead", [2.0, 5.0, 20.0])
def test_a_dear_iteration_is_solved_further_by_the_rate_of_what_is_left(energy, overhead):
    gained = np.cumsum(gains_of(graded_system(ng.CG(1e-14))))[:15]
    energy = energy * gained[-1]
    used = gained if np.isnan(energy) else -np.log(1 - gained / energy)
    before, last = used[:-1], np.diff(used)
    poor = (np.arange(len(last)) + 1 + overhead) * last < before

    local = graded_system()
    change = lambda system: dataclasses.replace(
        system, energy=jnp.asarray(energy), overhead=overhead
    )
    prepared = dataclasses.replace(local.prepared, system=change(local.prepared.system))
    dear = dataclasses.replace(local, prepared=prepared)
    info = within(dear, np.inf).solve(jnp.zeros(())).info
    assert ng.Status.TRUNCATED.code == int(info.reason)
    assert int(info.iterations) == int(np.argmax(poor)) + 2
    plain = within(local, np.inf).solve(jnp.zeros(())).info
    assert int(info.iterations) >= int(plain.iterations)


def test_nothing_is_solved_for_beyond_what_the_run_asks_for():
    local = graded_system()
    gained = np.cumsum(gains_of(local))
    for steps in (1, 2):
        wanted = 0.5 * gained[steps - 1] * (1 - 1e-9)
        info = within(local, np.inf, wanted).solve(jnp.zeros(())).info
        assert int(info.iterations) == steps
        assert ng.Status.TRUNCATED.code == int(info.reason)


@lru_cache
def factorised_problem():
    """−u″ + e^θ u = 1 with u known, by one factorisation for each θ."""
    n = 128
    L = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)) * 0.1
    dense = jnp.asarray(L.toarray())
    h = lambda u, theta: dense @ u + jnp.exp(theta) * u - 1.0
    factorise = lambda u, theta: ng.models.SparseLU(L + scipy.sparse.diags_array(np.exp(theta)))
    model = ng.ImplicitModel(h, initial=jnp.zeros(n), linear=True, factorise=factorise)
    truth = jnp.sin(jnp.linspace(0.0, 6.0, n))
    return ng.Problem(model, ng.LeastSquares(model(truth), ng.Grid(0.0, 1.0, n))), jnp.zeros(n)


def test_a_model_that_factorises_makes_products_in_every_iteration():
    problem, theta = factorised_problem()
    method = ng.NaturalGradient(ng.L2(ng.Grid(0.0, 1.0, theta.size)))
    assert problem.model.overhead > dataclasses.replace(problem.model, factorise=None).overhead
    found = ng.minimize(problem, theta, method, stop=ng.Stop(iterations=6))
    assert np.all(found.history["solver_iterations"][:-1] >= 1)
    assert found.info.solver == "CG"


def test_a_run_with_a_target_makes_no_products_beyond_it():
    problem, theta = factorised_problem()
    method = ng.NaturalGradient(ng.L2(ng.Grid(0.0, 1.0, theta.size)))
    free = ng.minimize(problem, theta, method, stop=ng.Stop(iterations=6)).history
    target = 0.9 * float(free["loss"][2])  # a little beyond the second step
    found = ng.minimize(problem, theta, method, stop=ng.Stop(loss=target))
    assert found.status == "loss_reached"
    steps = found.history["solver_iterations"]
    assert steps[2] < free["solver_iterations"][2]
    assert free["loss"][3] < found.loss <= target


METRICS = {
    "L2": lambda grid: ng.L2(grid),  # that of the loss: secants
    "H1": lambda grid: ng.Sobolev(grid, 1),
}


@pytest.mark.parametrize(
    ("metric", "tolerance"),
    [
        ("L2", 1e-8),
        pytest.param("H1", None, marks=pytest.mark.slow),
        pytest.param("L2", None, marks=pytest.mark.slow),
        pytest.param("H1", 1e-8, marks=pytest.mark.slow),
    ],
)
def test_a_metric_times_a_constant_takes_the_same_path(metric, tolerance):
    problem, start, _, grid = bumps_problem(mass_varies=True)
    one = METRICS[metric](grid)
    paths = [
        ng.minimize(
            problem,
            start,
            ng.NaturalGradient(m, solver=ng.CG(tolerance)),
            stop=ng.Stop(iterations=4, gradient=0.0),
        )
        for m in (one, 1e4 * one)
    ]
    for name in ("loss", "step_norm", "ratio", "radius", "solver_iterations"):
        a, b = (path.history[name] for path in paths)
        np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=name)


def test_steps_are_recycled_only_where_the_metric_is_that_of_the_loss():
    problem, start, _, grid = bumps_problem(mass_varies=True)
    products = {}
    for name, metric in METRICS.items():
        method = ng.NaturalGradient(metric(grid), solver=ng.CG())
        stop = ng.Stop(iterations=6, gradient=0.0)
        h = ng.minimize(problem, start, method, stop=stop).history
        products[name] = h["solver_iterations"][:-1]
    assert np.any(products["L2"] == 0)
    assert np.all(products["H1"] > 0)


def test_a_run_that_was_interrupted_goes_on_bit_for_bit(tmp_path):
    method = EASY
    whole = run(method, 7)
    file = tmp_path / "run.npz"
    run(method, 3, checkpoint=file)
    resumed = run(method, 7, checkpoint=file)
    np.testing.assert_array_equal(whole.theta, resumed.theta)
    for name in ("loss", "radius", "predicted", "ratio"):
        np.testing.assert_array_equal(whole.history[name], resumed.history[name])


def test_a_step_by_itself_compiled_and_mapped():
    problem, theta = valleys()
    method = EASY
    step = lambda theta, state: method.step(problem, theta, state)[:2]
    start = jnp.stack([theta, theta + 0.05])
    states = eqx.filter_vmap(lambda t: method.init(problem, t))(start)
    thetas = start
    for _ in range(3):
        thetas, states = eqx.filter_jit(eqx.filter_vmap(step))(thetas, states)
    for i in range(2):
        one, state = start[i], method.init(problem, start[i])
        for _ in range(3):
            one, state = eqx.filter_jit(step)(one, state)
        close(thetas[i], one, 1e-9)
        assert float(states.rule.radius[i]) == pytest.approx(float(state.rule.radius), rel=1e-6)


@pytest.mark.slow
def test_a_model_outside_jax_takes_the_same_steps():
    problem, theta = valleys()
    linear = lambda t, v: jax.jvp(problem.model.function, (jnp.asarray(t),), (jnp.asarray(v),))[1]
    back = lambda t, x: jax.vjp(problem.model.function, jnp.asarray(t))[1](jnp.asarray(x))[0]
    outside = ng.ExternalModel(
        forward=lambda t: np.asarray(problem.model.function(jnp.asarray(t))),
        jvp=lambda t, v: np.asarray(linear(t, v)),
        vjp=lambda t, x: np.asarray(back(t, x)),
    )
    method = EASY
    stop = ng.Stop(iterations=6)
    inside, other = (
        ng.minimize(p, theta, method, stop=stop).history
        for p in (problem, ng.Problem(outside, problem.loss))
    )
    for name in ("loss", "radius", "solver_iterations", "halvings"):
        np.testing.assert_allclose(inside[name], other[name], rtol=1e-6, err_msg=name)


def test_a_trial_that_is_not_finite_is_followed_by_a_nearer_one():
    model = lambda t: jnp.where(jnp.sum(t**2) < 0.3, jnp.concatenate([t, t**2]), jnp.nan)
    problem = ng.Problem(model, ng.LeastSquares(jnp.array([0.5, 0.0, 0.25, 0.0])))
    method = ng.NaturalGradient(ng.MatrixMetric(jnp.eye(4)), solver=ng.CG(1e-10))
    theta = jnp.array([-0.3, 0.4])
    result = ng.minimize(problem, theta, method, stop=ng.Stop(iterations=30))
    assert result.converged
    close(result.theta, jnp.array([0.5, 0.0]), 1e-5)


def test_a_result_warns_of_a_model_that_does_not_hold():
    fine = run(iterations=4)
    assert fine.warning is None
    ratio = np.array([0.1, 0.2, 9.0, 1.0, np.nan])
    history = dict(fine.history) | {
        "loss": np.array([5.0, 4.0, 3.0, 2.0, 1.0]),
        "step": np.array([1.0, 1.0, 1.0, 1.0, np.nan]),
        "predicted": np.array([1.0, 1.0, 1.0, 1.0, np.nan]),
        "ratio": ratio,
    }
    astray = dataclasses.replace(fine, history=history)
    assert "3 of 4 steps" in astray.warning
    assert "the linear model does not hold" in str(astray)
    tiny = dict(history) | {"predicted": np.full(5, 1e-12)}
    assert dataclasses.replace(fine, history=tiny).warning is None  # rounding says nothing
