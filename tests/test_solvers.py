"""Direct solvers: agreement, minimum norm, damping, the fate of ill-conditioned problems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import natgrad as ng
from problems_for_tests import linear_problem

SOLVERS = {
    "Cholesky": ng.Cholesky(),
    "QR": ng.QR(),
    "PivotedQR": ng.PivotedQR(),
    "SVD": ng.SVD(),
    "Kernel": ng.Kernel(),
    "Auto": ng.Auto(),
}
every_solver = pytest.mark.parametrize("name", SOLVERS)


def direction(problem, theta, k, solver, damping=0.0):
    return ng.natural_gradient(
        problem, theta, metric=ng.MatrixMetric(np.eye(k)), solver=solver, damping=damping
    )


@every_solver
@pytest.mark.parametrize(("k", "p"), [(30, 8), (8, 30), (12, 12)], ids=["tall", "wide", "square"])
def test_full_rank(name: str, k: int, p: int):
    problem, theta, Z, target = linear_problem(k, p, min(k, p), grading=0.1)
    expected = -np.linalg.lstsq(np.asarray(Z), np.asarray(Z @ theta - target), rcond=None)[0]
    d = direction(problem, theta, k, SOLVERS[name])
    np.testing.assert_allclose(d.eta, expected, rtol=1e-9, atol=1e-10)
    assert d.info.rank == min(k, p)
    assert d.info.condition == pytest.approx(10.0, rel=1.0)
    assert d.info.status == ("ok" if k >= p else "rank_deficient")


@every_solver
@pytest.mark.parametrize(("k", "p"), [(30, 8), (8, 30)], ids=["tall", "wide"])
def test_rank_deficient_gives_the_minimum_norm_solution(name: str, k: int, p: int):
    problem, theta, Z, target = linear_problem(k, p, 5, grading=0.1)
    expected = -np.linalg.pinv(np.asarray(Z), rcond=1e-10) @ np.asarray(Z @ theta - target)
    d = direction(problem, theta, k, SOLVERS[name])
    np.testing.assert_allclose(d.eta, expected, rtol=1e-7, atol=1e-8)
    assert d.info.status == "rank_deficient"
    assert d.info.rank == 5


@every_solver
@given(damping=st.floats(1e-6, 10.0), shape=st.sampled_from([(20, 6), (6, 20), (9, 9)]))
def test_damping_is_exact(name: str, damping: float, shape: tuple[int, int]):
    k, p = shape
    problem, theta, Z, target = linear_problem(k, p, min(k, p), grading=0.01)
    g = Z.T @ (Z @ theta - target)
    expected = -jnp.linalg.solve(Z.T @ Z + damping * jnp.eye(p), g)
    d = direction(problem, theta, k, SOLVERS[name], ng.AbsoluteDamping(damping))
    np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)
    assert d.info.damping == pytest.approx(damping)


@every_solver
@pytest.mark.parametrize("damping", [0.0, 1e-2])
def test_objective_of_theta_reaches_the_solver_whole(name: str, damping: float):
    """With objective=F there is no whitened covector: G η = −∂F all the same."""
    _, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    F = lambda t: 0.5 * jnp.sum((Z @ t - target) ** 2) + 0.1 * jnp.sum(jnp.sin(t))
    problem = ng.Problem(lambda t: Z @ t, objective=F)
    d = direction(problem, theta, 20, SOLVERS[name], ng.AbsoluteDamping(damping))
    expected = -jnp.linalg.solve(Z.T @ Z + damping * jnp.eye(6), jax.grad(F)(theta))
    np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)


@every_solver
def test_regulariser_enters_the_gradient(name: str):
    _, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    R = lambda t: 0.05 * jnp.sum(t**4)
    problem = ng.Problem(lambda t: Z @ t, ng.LeastSquares(target), regulariser=R)
    g = Z.T @ (Z @ theta - target) + jax.grad(R)(theta)
    d = direction(problem, theta, 20, SOLVERS[name])
    np.testing.assert_allclose(d.eta, -jnp.linalg.solve(Z.T @ Z, g), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(d.gradient, g, rtol=1e-10)


def test_least_squares_solvers_do_not_square_the_condition_number():
    """At condition 1e7, G has condition 1e14: all but Cholesky keep their digits."""
    rng = np.random.default_rng(0)
    _, _, Z, _ = linear_problem(40, 10, 10, grading=1e-7)
    truth = jnp.asarray(rng.normal(size=10))
    problem = ng.Problem(lambda t: Z @ t, ng.LeastSquares(Z @ truth))
    errors = {}
    for name in ("Cholesky", "QR", "PivotedQR", "SVD"):
        eta = direction(problem, jnp.zeros(10), 40, SOLVERS[name]).eta
        errors[name] = float(jnp.linalg.norm(eta - truth) / jnp.linalg.norm(truth))
    assert max(errors[n] for n in ("QR", "PivotedQR", "SVD")) < 1e-7
    assert errors["Cholesky"] > 1e-5


def test_truncation_tolerance_sets_the_rank():
    problem, theta, _, _ = linear_problem(30, 8, 8, grading=1e-7)  # one decade per singular value
    for solver in (ng.PivotedQR(rtol=3e-4), ng.SVD(rtol=3e-4)):
        assert direction(problem, theta, 30, solver).info.rank == 4


@every_solver
def test_parameters_without_effect_do_not_move(name: str):
    """Not even when the objective pulls at them: the metric does not know how far to go."""
    _, _, Z, target = linear_problem(20, 5, 5, grading=0.1)
    problem = ng.Problem(lambda t: Z @ t[:5], ng.LeastSquares(target))
    pulled = ng.Problem(lambda t: Z @ t[:5], problem.loss, regulariser=lambda t: 3.0 * t[6])
    for each in (problem, pulled):
        d = direction(each, jnp.ones(7), 20, SOLVERS[name])
        np.testing.assert_allclose(d.eta[5:], 0.0, atol=1e-12)
        assert (d.info.rank, d.info.status) == (5, "rank_deficient")


@every_solver
@pytest.mark.parametrize(("k", "p"), [(4, 9), (20, 6)], ids=["wide", "deficient"])
def test_damping_moves_what_the_metric_does_not_see(name: str, k: int, p: int):
    """(G + λI)⁻¹r has the part of r outside the row space divided by λ."""
    _, theta, Z, target = linear_problem(k, p, 4, grading=0.1)
    R = lambda t: 0.05 * jnp.sum(t**4)
    problem = ng.Problem(lambda t: Z @ t, ng.LeastSquares(target), regulariser=R)
    g = Z.T @ (Z @ theta - target) + jax.grad(R)(theta)
    d = direction(problem, theta, k, SOLVERS[name], ng.AbsoluteDamping(0.1))
    expected = -jnp.linalg.solve(Z.T @ Z + 0.1 * jnp.eye(p), g)
    np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)


@every_solver
def test_redundant_parameters_are_found_on_long_states(name: str):
    """Rounding in sums over k = 900 values must not pass for rank: θ₀ and θ₁ do the same."""
    x = jnp.linspace(0.0, 1.0, 900)
    grid = ng.Grid(0.0, 1.0, 900)
    target = ng.LeastSquares(jnp.cos(3.0 * x), grid)
    problem = ng.Problem(lambda t: t[0] * jnp.exp(t[1] + t[2] * x), target)
    metric = ng.L2(grid)
    for seed in range(8):
        theta = jnp.asarray(np.random.default_rng(seed).uniform(0.5, 1.5, 3))
        d = ng.natural_gradient(problem, theta, metric=metric, solver=SOLVERS[name])
        Z = jax.jacobian(problem.model)(theta)
        residual = problem.model(theta) - problem.loss.target
        expected = -np.linalg.pinv(np.asarray(Z), rcond=1e-9) @ np.asarray(residual)
        assert (d.info.rank, d.info.status) == (2, "rank_deficient"), seed
        np.testing.assert_allclose(d.eta, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Cholesky", "QR", "PivotedQR", "SVD"])
def test_units_of_parameters_do_not_matter(name: str):
    problem, theta, Z, target = linear_problem(20, 4, 4, grading=0.3)
    units = jnp.array([1.0, 1e-8, 1e5, 1.0])
    rescaled = ng.Problem(lambda t: Z @ (units * t), problem.loss)
    eta = direction(rescaled, theta / units, 20, SOLVERS[name]).eta
    expected = -np.linalg.lstsq(np.asarray(Z), np.asarray(Z @ theta - target), rcond=None)[0]
    if name != "SVD":  # whose cut is on singular values, in whatever units they are
        np.testing.assert_allclose(units * eta, expected, rtol=1e-6, atol=1e-7)


@every_solver
def test_mixed_precision_is_promoted(name: str):
    problem, theta, Z, target = linear_problem(20, 4, 4, grading=0.3)
    g = Z.T @ (Z @ theta - target)
    expected = -jnp.linalg.solve(Z.T @ Z, g)
    d = direction(problem, theta.astype(jnp.float32), 20, SOLVERS[name])
    assert d.eta.dtype == jnp.float32
    np.testing.assert_allclose(d.eta, expected, rtol=1e-3, atol=1e-4)
    result = ng.minimize(
        problem, theta.astype(jnp.float32), metric=ng.MatrixMetric(np.eye(20)), max_iterations=2
    )
    assert result.theta.dtype == jnp.float32


@pytest.mark.parametrize(
    ("k", "p", "damping", "expected"),
    [
        (30, 8, 0.0, "PivotedQR"),
        (30, 8, 1e-3, "Cholesky"),
        (8, 30, 0.0, "PivotedQR"),
        (8, 30, 1e-3, "Kernel"),
    ],
)
def test_auto_chooses_and_says_which(k: int, p: int, damping, expected: str):
    problem, theta, _, _ = linear_problem(k, p, min(k, p))
    assert direction(problem, theta, k, ng.Auto(), damping).info.solver == expected


def test_relative_damping_is_a_fraction_of_the_mean_eigenvalue():
    problem, theta, Z, _ = linear_problem(20, 6, 6, grading=0.1)
    d = direction(problem, theta, 20, ng.Cholesky(), 1e-3)
    assert d.info.damping == pytest.approx(1e-3 * float(jnp.sum(Z**2)) / 6)


def test_parameter_damping_is_an_operator_on_theta():
    problem, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6))
    D = root @ root.T + np.eye(6)
    g = Z.T @ (Z @ theta - target)
    for solver in SOLVERS.values():
        d = direction(problem, theta, 20, solver, ng.ParameterDamping(D, strength=0.3))
        np.testing.assert_allclose(
            d.eta, -jnp.linalg.solve(Z.T @ Z + 0.3 * D, g), rtol=1e-8, atol=1e-9
        )
    diagonal = direction(problem, theta, 20, ng.QR(), ng.ParameterDamping(np.arange(1.0, 7.0)))
    expected = -jnp.linalg.solve(Z.T @ Z + jnp.diag(jnp.arange(1.0, 7.0)), g)
    np.testing.assert_allclose(diagonal.eta, expected, rtol=1e-8)


def test_parameter_damping_by_a_metric_on_a_field():
    grid = ng.Grid(0.0, 1.0, 8)
    theta = jnp.linspace(0.0, 1.0, 8)
    problem = ng.Problem(lambda t: jnp.cumsum(t), ng.LeastSquares(jnp.ones(8), grid))
    prior = ng.ParameterDamping(ng.Sobolev(grid, 1).gram(theta), strength=0.5)
    d = ng.natural_gradient(problem, theta, metric=ng.L2(grid), damping=prior)
    G = ng.information_matrix(problem, theta, metric=ng.L2(grid))
    D = ng.Sobolev(grid, 1).gram(theta).as_matrix()
    np.testing.assert_allclose(d.eta, -jnp.linalg.solve(G + 0.5 * D, d.gradient), rtol=1e-8)


def test_damping_by_another_metric_adds_to_g():
    problem, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    metric = ng.MatrixMetric(np.eye(20)) + 0.2 * ng.MatrixMetric(np.diag(np.arange(1.0, 21.0)))
    g = Z.T @ (Z @ theta - target)
    A = jnp.eye(20) + 0.2 * jnp.diag(jnp.arange(1.0, 21.0))
    d = ng.natural_gradient(problem, theta, metric=metric)
    np.testing.assert_allclose(d.eta, -jnp.linalg.solve(Z.T @ A @ Z, g), rtol=1e-8)
