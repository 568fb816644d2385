"""The loop: convergence, statuses, history, bounds, damping that adapts, no recompilation."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, nnls

import natgrad as ng
from cases import ROSENBROCK, START
from problems_for_tests import (
    FURTHER_METRICS,
    METRIC_NAMES,
    Linear,
    all_metrics,
    bumps_problem,
    compiled,
    linear_problem,
    minimize_compiling_once,
    with_slow,
)

SOLVERS = {"Cholesky": ng.Cholesky(), "QR": ng.QR(), "PivotedQR": ng.PivotedQR(), "SVD": ng.SVD()}


@pytest.mark.parametrize("name", with_slow(METRIC_NAMES, [*FURTHER_METRICS, "Sum"]))
def test_every_metric_finds_the_parameters(name: str):
    problem, start, truth, grid = bumps_problem()
    result = ng.minimize(
        problem, start, ng.NaturalGradient(all_metrics(grid)[name]), stop=ng.Stop(iterations=400)
    )
    assert result.converged, result
    np.testing.assert_allclose(result.theta, truth, atol=1e-3)
    assert np.all(np.diff(result.history["loss"]) < 0)


def test_gradient_descent_is_the_euclidean_metric():
    problem, start, _, _ = bumps_problem()
    result = ng.minimize(
        problem, start, ng.GradientDescent(step=ng.FixedStep(1e-3)), stop=ng.Stop(iterations=3)
    )
    theta, gradient = start, jax.jit(jax.grad(lambda t: problem.value(t, problem.model(t))))
    for _ in range(3):
        theta = theta - 1e-3 * gradient(theta)
    np.testing.assert_allclose(result.theta, theta, rtol=1e-12)
    assert result.info is not None
    assert result.info.solver == "gradient"


def test_history_has_a_row_per_iterate_and_counts_everything():
    problem, start, _, grid = bumps_problem()
    result = ng.minimize(
        problem,
        start,
        ng.NaturalGradient(ng.L2(grid), step=ng.FixedStep(0.5)),
        stop=ng.Stop(iterations=5, gradient=0.0),
    )
    history = result.history
    assert result.status == ng.Status.MAX_ITERATIONS
    assert result.iterations == 5
    assert all(len(column) == 6 for column in history.values())
    assert history["loss"][-1] == pytest.approx(result.loss)
    value = problem.value(result.theta, problem.model(result.theta))
    assert result.loss == pytest.approx(float(value))
    np.testing.assert_allclose(history["step"][:5], 0.5)
    assert np.isnan(history["step"][5])
    # one evaluation to check the start, one with each Jacobian of p = 4 products, one per step
    assert history["forward"][-1] == 11
    assert history["linearised"][-1] == 20
    assert np.all(np.diff(history["seconds"]) > 0)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"gradient": 1e-3}, "converged"),
        ({"loss": 1e-4}, "loss_reached"),
        ({"step": 1e-2}, "small_step"),
        ({"iterations": 2}, "max_iterations"),
        ({"propagations": 12}, "max_propagations"),
        ({"seconds": 0.0}, "max_seconds"),
        ({}, "stopped"),
    ],
)
def test_every_stopping_rule_has_its_status(settings: dict, status: str):
    problem, start, _, grid = bumps_problem()
    stop = ng.Stop(**({"gradient": 0.0} | settings))
    callbacks = [lambda progress: status == "stopped" and progress.iteration == 2]
    method = ng.NaturalGradient(ng.L2(grid))
    result = ng.minimize(problem, start, method, stop=stop, callbacks=callbacks)
    assert result.status == status
    assert result.status.message in str(result)
    assert str(result).startswith(("converged after ", "stopped after "))


def test_a_step_that_does_not_decrease_is_not_taken():
    problem, start, _, grid = bumps_problem()
    result = ng.minimize(problem, start, ng.NaturalGradient(ng.L2(grid), step=ng.FixedStep(50.0)))
    assert result.status == ng.Status.NO_DECREASE
    assert result.iterations == 0
    np.testing.assert_array_equal(result.theta, start)
    taken = ng.minimize(
        problem,
        start,
        ng.NaturalGradient(ng.L2(grid), step=ng.FixedStep(50.0, require_decrease=False)),
        stop=ng.Stop(iterations=1),
    )
    assert taken.iterations == 1
    assert taken.history["decreased"][0] == 0.0


def test_running_into_rounding_error_is_named():
    problem, start, _, grid = bumps_problem()
    shifted = ng.Problem(lambda t: problem.model(t) + 1.0, problem.loss)
    result = ng.minimize(
        shifted, start, ng.NaturalGradient(ng.L2(grid)), stop=ng.Stop(gradient=0.0, iterations=200)
    )
    assert result.status == ng.Status.PRECISION
    assert " (precision), loss " in str(result)
    assert result.converged


def check_that_success_is_true(name: str, seed: int, offset: float) -> None:
    """`converged` is said of a minimum only, whatever the metric sees of the tangents."""
    grid, rng = ng.Grid(0.0, 1.0, 12), np.random.default_rng(seed)
    Z, target = rng.normal(size=(12, 3)), rng.normal(size=12) + offset
    Z[:, 2] = 1.0  # which the homogeneous metrics do not see
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(target), grid))
    method = ng.NaturalGradient(all_metrics(grid)[name])
    result = ng.minimize(problem, jnp.zeros(3), method)
    rest = target - Z @ np.linalg.lstsq(Z, target)[0]
    best, first = 0.5 * grid.cell_volume * rest @ rest, result.history["loss"][0]
    if result.converged:
        assert result.loss - best <= 1e-9 * first
    if result.status == "blind":
        assert result.loss - best > 1e-13 * first
    assert result.status in ("converged", "precision", "blind", "max_iterations")
    assert name in ("L2", "H-1") or result.status in ("blind", "max_iterations")


class Negative(ng.L2):
    """A metric with a wrong sign: A = −I."""

    def at(self, rho):
        geometry = ng.metrics.Geometry(self, rho)
        geometry.gram = lx.DiagonalLinearOperator(-jnp.ones_like(rho))  # pyright: ignore
        return geometry


def test_a_metric_of_the_wrong_sign_is_refused_when_it_shows():
    problem, theta, _, _ = linear_problem(6, 3, 3)
    with pytest.raises(ng.InputError, match=r"metric: is not positive: ⟨ζ, Aζ⟩ = -") as caught:
        ng.minimize(problem, theta, ng.NaturalGradient(Negative(), solver=ng.CG()))
    assert caught.value.natgrad_result.status == "failed"  # pyright: ignore


blind = {"seed": st.integers(0, 2**31), "offset": st.floats(0.1, 10.0)}


@pytest.mark.parametrize("name", ["L2", "dotH1"])
@settings(max_examples=5)
@given(**blind)
def test_converged_means_that_the_gradient_says_so(name, seed, offset):
    check_that_success_is_true(name, seed, offset)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["L2", "H-1", "dotH1", "dotH-1"])
@settings(max_examples=200)
@given(**blind)
def test_converged_always_means_that_the_gradient_says_so(name, seed, offset):
    check_that_success_is_true(name, seed, offset)


def test_a_fit_in_single_precision_ends_at_rounding_level():
    B = jnp.asarray(np.random.default_rng(0).normal(size=(30, 4)), jnp.float32)
    truth = jnp.asarray([0.3, -0.5, 0.8, 0.1], jnp.float32)
    model = lambda t: jnp.tanh(B @ t) + 0.1 * (B @ t)
    problem = ng.Problem(model, ng.LeastSquares(model(truth)))
    method = ng.NaturalGradient(ng.L2(), solver=ng.CG())
    result = ng.minimize(problem, truth + 0.25, method, stop=ng.Stop(gradient=0.0))
    assert result.status in ("precision", "converged")
    np.testing.assert_allclose(result.theta, truth, atol=1e-5)


def test_a_state_that_leaves_the_metric_is_rejected():
    grid = ng.Grid(0.0, 1.0, 8)
    problem = ng.Problem(lambda t: t * jnp.ones(8), ng.LeastSquares(-jnp.ones(8), grid))
    for metric in (ng.FisherRao(grid), ng.FisherRao(grid) + ng.L2(grid)):
        result = ng.minimize(
            problem, jnp.array([1.0]), ng.NaturalGradient(metric, step=ng.FixedStep(1e6))
        )
        assert result.status == ng.Status.INADMISSIBLE
        assert float(result.theta[0]) == 1.0


def test_a_loss_that_is_not_finite_is_rejected():
    loss = lambda rho: jnp.where(rho[0] > 0.5, jnp.sum(rho**2), jnp.nan)
    problem = ng.Problem(lambda t: t, loss)
    result = ng.minimize(
        problem, jnp.ones(2), ng.NaturalGradient(ng.MatrixMetric(np.eye(2)), step=ng.FixedStep(1.0))
    )
    assert result.status == ng.Status.NOT_FINITE
    assert np.all(np.isfinite(result.theta))


def test_backtracking_satisfies_armijo_and_counts_halvings():
    problem, start, _, grid = bumps_problem()
    step = ng.Backtracking(initial=64.0, sufficient=0.1)
    result = ng.minimize(
        problem, start, ng.NaturalGradient(ng.L2(grid), step=step), stop=ng.Stop(iterations=1)
    )
    history = result.history
    assert history["halvings"][0] > 0
    assert history["step"][0] == pytest.approx(64.0 * 0.5 ** history["halvings"][0])
    assert history["ratio"][0] >= 0.1
    assert history["forward"][-1] == 1 + 1 + 1 + history["halvings"][0]


def test_model_step_is_exact_on_a_quadratic():
    problem, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    for metric in (ng.MatrixMetric(np.eye(20)), ng.MatrixMetric(1e4 * np.eye(20))):
        result = ng.minimize(problem, theta, ng.NaturalGradient(metric), stop=ng.Stop(iterations=1))
        best = np.linalg.lstsq(Z, target, rcond=None)[0]
        np.testing.assert_allclose(result.theta, best, rtol=1e-8)


@pytest.mark.parametrize("name", with_slow(SOLVERS, ["PivotedQR", "SVD"]))
def test_bounds_hold_and_the_constrained_minimum_is_found(name: str):
    """Compared with SciPy's bounded least squares on a coupled quadratic."""
    problem, _, Z, target = linear_problem(20, 6, 6, seed=3, grading=0.2)
    expected = lsq_linear(Z, target, bounds=(-0.3, 0.4), tol=1e-14)
    metric, step = ng.MatrixMetric(np.eye(20)), ng.Backtracking()
    result = ng.minimize(
        problem,
        jnp.zeros(6),
        ng.NaturalGradient(metric, solver=SOLVERS[name], step=step),
        stop=ng.Stop(gradient=1e-9),
        bounds=(-0.3, 0.4),
    )
    assert result.converged, result
    np.testing.assert_allclose(result.theta, expected.x, atol=1e-6)


def test_bounds_as_pytrees():
    theta = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    problem = ng.Problem(
        lambda t: jnp.concatenate([t["a"], t["b"][None]]), ng.LeastSquares(5.0 * jnp.ones(3))
    )
    bounds = ({"a": -1.0, "b": -1.0}, {"a": jnp.array([1.0, 2.0]), "b": 10.0})
    result = ng.minimize(
        problem, theta, ng.NaturalGradient(ng.MatrixMetric(np.eye(3))), bounds=bounds
    )
    np.testing.assert_allclose(result.theta["a"], [1.0, 2.0])
    np.testing.assert_allclose(result.theta["b"], 5.0)


@pytest.mark.parametrize("step", [ng.Backtracking(), ng.FixedStep(1.0)], ids=["LS", "reject"])
def test_levenberg_marquardt_solves_rosenbrock(step):
    result = ng.minimize(
        ROSENBROCK,
        START,
        ng.NaturalGradient(ng.L2(), damping=ng.LevenbergMarquardt(), step=step),
        stop=ng.Stop(iterations=100, gradient=0.0, loss=1e-20),
    )
    assert result.status == ng.Status.LOSS_REACHED
    np.testing.assert_allclose(result.theta, 1.0, atol=1e-8)
    damping = result.history["damping"]
    assert damping[0] >= 1e-3
    # an easy step divides λ by 3, one that was foreseen by 9, each rejection on the way to the next
    # one multiplies it by 4
    divisor = 9 if 2 * result.history["ratio"][0] > 0.9 else 3
    growth = np.log(divisor * damping[1] / damping[0]) / np.log(4)
    if result.history["halvings"][0] == 0:
        assert growth == pytest.approx(round(growth), abs=1e-9)


FORESEEN = [(0.5, jnp.nan), (0.4, jnp.nan), (1.0, 2.0), (0.5, 2.0)]  # ratio and what was expected


def test_levenberg_marquardt_rule():
    damping = ng.LevenbergMarquardt(initial=1.0, decrease=0.5, increase=4.0, floor=0.1)

    def after(accepted: bool, halvings: int, ratio: float = 0.0, expected: float = 0.0) -> float:
        outcome = ng.descent.Outcome(*[jnp.zeros(())] * 10)._replace(
            accepted=jnp.asarray(accepted),
            halvings=jnp.asarray(halvings),
            ratio=jnp.asarray(ratio),
            expected=jnp.asarray(expected),
        )
        return float(damping.update(jnp.asarray(1.0), outcome))

    assert [after(True, 0), after(True, 1), after(True, 2), after(False, 0)] == [0.5, 1, 4, 4]
    foreseen = [after(True, 0, ratio, expected) for ratio, expected in FORESEEN]
    assert foreseen == [0.25, 0.5, 0.25, 0.5]
    assert float(damping.strength(jnp.asarray(0.5), jnp.asarray(20.0), 3)) == 2.0


def test_an_adapting_damping_falls_below_the_rounding_of_G_where_Y_is_there():
    """A linear fit with singular values down to 1e-11: solved to what its data can say."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.normal(size=(n, 10)))[0] for n in (30, 10))
    Y, truth = jnp.asarray(U * 10 ** np.linspace(0, -11, 10) @ V.T), rng.normal(size=10)
    model = ng.Pointwise(lambda theta, row: row @ theta, Y)
    problem = ng.Problem(model, ng.LeastSquares(Y @ truth))
    least = {}
    for name, rows in (("whole", model), ("blocks", ng.Pointwise(model.function, Y, memory=800))):
        method = ng.levenberg_marquardt(ng.L2(), order=1)
        case = ng.Problem(rows, problem.loss)
        result = ng.minimize(case, jnp.zeros(10), method, stop=ng.Stop(100, gradient=0.0))
        least[name] = np.nanmin(result.history["damping"]) / float(jnp.sum(Y**2))
        error = np.abs(V.T @ (result.theta - truth))
        assert error[np.linspace(0, -11, 10) > (-6.5 if name == "blocks" else -9.5)].max() < 1e-3
    assert least["blocks"] >= 0.99e-15
    assert least["whole"] < 1e-18


def test_an_adapting_damping_lets_no_parameter_without_effect_drift():
    """Twice the same parameters, and data that no parameters explain: θ stays the shortest."""
    rng = np.random.default_rng(1)
    half = rng.normal(size=(30, 5))
    Y, data = jnp.asarray(np.concatenate([half, half], axis=1)), jnp.asarray(rng.normal(size=30))
    problem = ng.Problem(ng.Pointwise(lambda theta, row: row @ theta, Y), ng.LeastSquares(data))
    method = ng.levenberg_marquardt(ng.L2(), order=1)
    result = ng.minimize(problem, jnp.zeros(10), method, stop=ng.Stop(200, gradient=0.0))
    np.testing.assert_allclose(result.theta, np.linalg.pinv(Y) @ data, atol=1e-3)
    # and a direction that is exactly zero leaves a λ that is finite
    still = ng.Problem(problem.model, ng.LeastSquares(jnp.zeros(30)))
    state = method.init(still, jnp.zeros(10))
    _, state, _ = method.step(still, jnp.zeros(10), state)
    assert jnp.isfinite(state.damping)


def test_new_values_do_not_compile_again():
    """θ, step length, damping, tolerance and target data are leaves of the compiled program."""
    problem, start, _, grid = bumps_problem()

    def run(theta, size, damping, scale):
        scaled = ng.Problem(problem.model, ng.LeastSquares(scale * problem.loss.target, grid))
        ng.minimize(
            scaled,
            theta,
            ng.NaturalGradient(
                ng.L2(grid) + damping * ng.Sobolev(grid, 1),
                damping=damping,
                step=ng.FixedStep(size),
            ),
            stop=ng.Stop(iterations=2),
        )

    moved = start + 0.01
    run(start, 0.5, 1e-2, 1.0)
    with compiled() as programs:
        run(moved, 0.4, 2e-2, 1.01)
    assert not programs


def test_callbacks_see_the_run():
    problem, start, _, grid = bumps_problem()
    seen = []
    result = ng.minimize(
        problem,
        start,
        ng.NaturalGradient(ng.L2(grid)),
        stop=ng.Stop(iterations=4, gradient=0.0),
        callbacks=[seen.append],
    )
    assert [progress.iteration for progress in seen] == [1, 2, 3, 4]
    np.testing.assert_array_equal(seen[-1].theta, result.theta)
    assert seen[-1].loss == result.loss
    assert seen[0].row["loss"] == result.history["loss"][0]


def test_losses_have_the_right_derivatives():
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (5, 4))
    rng = np.random.default_rng(0)
    target = jnp.asarray(rng.uniform(0.5, 1.5, grid.shape))
    rho = jnp.asarray(rng.uniform(0.5, 1.5, grid.shape))
    v = jnp.asarray(rng.normal(size=grid.shape))
    for loss in (
        ng.LeastSquares(target, grid),
        ng.KullbackLeibler(target, grid),
        ng.SquaredDistance(target, ng.Sobolev(grid, 2)),
        ng.SquaredDistance(target, ng.Wasserstein(grid)),
    ):
        loss = jax.jit(lambda rho, loss=loss: loss(rho))
        value, gradient = jax.jit(jax.value_and_grad(loss))(rho)
        assert float(loss(target)) == pytest.approx(0.0, abs=1e-12)
        assert float(value) > 0
        remainders = [
            abs(float(loss(rho + h * v) - value - h * jnp.vdot(gradient, v))) for h in (1e-2, 1e-3)
        ]
        assert np.log10(remainders[0] / remainders[1]) == pytest.approx(2.0, abs=0.1)


def test_damping_recovers_after_a_long_easy_run():
    """λ is updated from the value in use, so that its floor also bounds what it forgets."""
    damping = ng.LevenbergMarquardt(initial=1.0, floor=1e-3)
    state = jnp.asarray(1.0)
    outcome = ng.descent.Outcome(*[jnp.zeros(())] * 10)._replace(
        accepted=jnp.asarray(True), halvings=jnp.asarray(0)
    )
    for _ in range(400):
        state = damping.update(damping.strength(state, jnp.asarray(1.0), 1), outcome)
    rejected = outcome._replace(accepted=jnp.asarray(False))
    for _ in range(8):
        state = damping.update(damping.strength(state, jnp.asarray(1.0), 1), rejected)
    assert float(state) > 1.0


@jax.custom_jvp
def uphill(rho):
    """A loss whose derivative has the wrong sign, so that no step decreases it."""
    return 1e3 + jnp.sum(rho**2)


uphill.defjvp(lambda p, t: (uphill(*p), -2.0 * jnp.vdot(p[0], t[0])))
UPHILL = ng.Problem(lambda t: t, uphill)


@pytest.mark.parametrize("step", [ng.Backtracking(), ng.FixedStep(1.0)], ids=["LS", "reject"])
def test_a_wrong_gradient_is_not_mistaken_for_convergence(step):
    method = ng.NaturalGradient(ng.L2(), damping=ng.LevenbergMarquardt(), step=step)
    result = ng.minimize(UPHILL, jnp.ones(2), method)
    assert result.status == ng.Status.NO_DECREASE
    assert not result.converged


def test_budgets_hold_during_rejections_and_everything_is_counted():
    damping, step = ng.LevenbergMarquardt(), ng.FixedStep(1.0)
    method = ng.NaturalGradient(ng.L2(), damping=damping, step=step)
    result = ng.minimize(UPHILL, jnp.ones(2), method, stop=ng.Stop(propagations=10))
    assert result.status == ng.Status.MAX_PROPAGATIONS
    spent = sum(result.history[name][-1] for name in ("forward", "linearised", "adjoint"))
    assert spent == 10


def test_bounds_with_an_operator_as_damping():
    """D acts among the parameters that may move: held ones stay, free ones solve their system."""
    problem, _, Z, target = linear_problem(12, 3, 3, grading=0.3)
    D = np.array([[2.0, 0.9, 0.3], [0.9, 1.0, 0.2], [0.3, 0.2, 1.5]])
    gradient = -Z.T @ target
    held = int(np.argmax(np.abs(gradient)))
    lower, upper = np.full(3, -9.0), np.full(3, 9.0)
    (lower if gradient[held] > 0 else upper)[held] = 0.0
    result = ng.minimize(
        problem,
        jnp.zeros(3),
        ng.NaturalGradient(
            ng.MatrixMetric(np.eye(12)),
            damping=ng.ParameterDamping(D, strength=0.5),
            step=ng.FixedStep(1.0),
        ),
        stop=ng.Stop(iterations=1),
        bounds=(jnp.asarray(lower), jnp.asarray(upper)),
    )
    free = [i for i in range(3) if i != held]
    system = (Z.T @ Z + 0.5 * D)[np.ix_(free, free)]
    expected = -np.linalg.solve(system, gradient[free])
    assert float(result.theta[held]) == 0.0
    np.testing.assert_allclose(np.asarray(result.theta)[free], expected, rtol=1e-8)


def test_bounds_of_a_network_leave_its_other_leaves_alone():
    theta = {"w": jnp.zeros(2), "n": jnp.arange(3, dtype=jnp.uint32), "f": jnp.tanh}
    problem = ng.Problem(lambda t: t["w"] + 0.0, ng.LeastSquares(5.0 * jnp.ones(2)))
    metric = ng.MatrixMetric(np.eye(2))
    upper = {"w": jnp.array([1.0, 2.0]), "n": None, "f": None}
    result = ng.minimize(problem, theta, ng.NaturalGradient(metric), bounds=(None, upper))
    np.testing.assert_allclose(result.theta["w"], [1.0, 2.0])
    np.testing.assert_array_equal(result.theta["n"], jnp.arange(3))
    d = ng.natural_gradient(problem, theta, metric=metric)
    assert d.eta["n"] is None
    assert d.eta["f"] is None


def test_weakly_typed_parameters_compile_once():
    shared, _, _, _ = linear_problem(6, 3, 3)
    problem = ng.Problem(lambda t: shared.model(t), shared.loss)  # a function not yet compiled
    minimize_compiling_once(
        problem,
        jnp.full(3, 2.0),
        ng.NaturalGradient(ng.MatrixMetric(np.eye(6)), step=ng.FixedStep(0.5)),
        stop=ng.Stop(gradient=0.0, iterations=3),
    )


def test_a_batch_member_without_mass_is_not_admissible():
    grid = ng.Grid(0.0, 1.0, 6)
    rho = jnp.stack([jnp.ones(6), jnp.zeros(6)])
    for metric in (ng.FisherRao(grid), ng.Wasserstein(grid)):
        assert not bool(metric.admissible(rho))
        assert bool(metric.admissible(rho + 0.1))


def test_kullback_leibler_is_infinite_for_negative_densities():
    grid = ng.Grid(0.0, 1.0, 4)
    loss = ng.KullbackLeibler(jnp.array([1.0, 0.0, 1.0, 1.0]), grid)
    assert np.isinf(float(loss(jnp.array([1.0, -0.5, 1.0, 1.0]))))
    assert np.isfinite(float(loss(jnp.array([1.0, 0.0, 1.0, 1.0]))))


def check_a_start_near_a_bound(seed: int, exponents: list[float]) -> None:
    """However near a bound a run begins, it ends where the active set says."""
    root = np.random.default_rng(seed).normal(size=(6, 3))
    y = np.random.default_rng(seed + 1).normal(size=6) * 2
    theta = np.array([10.0**e for e in exponents])
    problem = ng.Problem(Linear(root), ng.LeastSquares(jnp.asarray(y)))
    method = ng.NaturalGradient(ng.L2())
    result = ng.minimize(problem, jnp.asarray(theta), method, bounds=(0.0, 10.0))
    best, _ = nnls(root, y)
    assert result.converged, result
    loss = lambda t: 0.5 * np.sum((root @ t - y) ** 2)
    assert result.loss <= loss(best) * (1 + 1e-7)


near = {
    "seed": st.integers(0, 10_000),
    "exponents": st.lists(st.floats(-16, 0), min_size=3, max_size=3),
}


@settings(max_examples=10)
@given(**near)
def test_a_parameter_near_its_bound_does_not_stop_the_run(seed, exponents):
    check_a_start_near_a_bound(seed, exponents)


@pytest.mark.slow
@settings(max_examples=200)
@given(**near)
def test_no_parameter_near_its_bound_stops_the_run(seed, exponents):
    check_a_start_near_a_bound(seed, exponents)
