"""Direct solvers: agreement, minimum norm, damping, the fate of ill-conditioned problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dense_oracle
import natgrad as ng
from problems_for_tests import Linear, linear_problem, with_slow

SOLVERS = {
    "Cholesky": ng.Cholesky(),
    "QR": ng.QR(),
    "PivotedQR": ng.PivotedQR(),
    "SVD": ng.SVD(),
    "Kernel": ng.Kernel(),
    "Auto": ng.Auto(),
}
every_solver = pytest.mark.parametrize("name", with_slow(SOLVERS, ["SVD", "Auto"]))
# Of each kind one, where what comes before the solver is tested: by G, by Y, by YYᵀ.
each_kind = pytest.mark.parametrize("name", with_slow(SOLVERS, ["PivotedQR", "SVD", "Auto"]))
# The same few shapes everywhere, so that the tests share their programs.
TALL, WIDE, SQUARE = (30, 8), (8, 30), (12, 12)


def direction(problem, theta, k, solver, damping=0.0):
    return ng.natural_gradient(
        problem, theta, metric=ng.MatrixMetric(np.eye(k)), solver=solver, damping=damping
    )


def quartic(theta):
    return 0.05 * jnp.sum(theta**4)


class Wavy(eqx.Module):
    """½‖Zθ − y‖² + Σ sin(θ)/10 as an objective of θ."""

    Z: jax.Array
    target: jax.Array

    def __call__(self, theta):
        return 0.5 * jnp.sum((self.Z @ theta - self.target) ** 2) + 0.1 * jnp.sum(jnp.sin(theta))


@every_solver
@pytest.mark.parametrize(
    ("k", "p"),
    [
        pytest.param(*TALL, id="tall"),
        pytest.param(*WIDE, id="wide"),
        pytest.param(*SQUARE, id="square", marks=pytest.mark.slow),
    ],
)
def test_full_rank(name: str, k: int, p: int):
    problem, theta, Z, target = linear_problem(k, p, min(k, p), grading=0.1)
    expected = -np.linalg.lstsq(Z, Z @ theta - target, rcond=None)[0]
    d = direction(problem, theta, k, SOLVERS[name])
    np.testing.assert_allclose(d.eta, expected, rtol=1e-9, atol=1e-10)
    assert d.info.rank == min(k, p)
    assert d.info.condition == pytest.approx(10.0, rel=1.0)
    assert d.info.status == ("ok" if k >= p else "rank_deficient")


@every_solver
@pytest.mark.parametrize(("k", "p"), [TALL, WIDE], ids=["tall", "wide"])
def test_rank_deficient_gives_the_minimum_norm_solution(name: str, k: int, p: int):
    problem, theta, Z, target = linear_problem(k, p, 5, grading=0.1)
    expected = -np.linalg.pinv(Z, rcond=1e-10) @ (Z @ theta - target)
    d = direction(problem, theta, k, SOLVERS[name])
    np.testing.assert_allclose(d.eta, expected, rtol=1e-7, atol=1e-8)
    assert d.info.status == "rank_deficient"
    assert d.info.rank == 5


@every_solver
@given(damping=st.floats(1e-6, 10.0), shape=st.sampled_from([TALL, WIDE]))
def test_damping_is_exact(name: str, damping: float, shape: tuple[int, int]):
    k, p = shape
    problem, theta, Z, target = linear_problem(k, p, min(k, p), grading=0.01)
    g = Z.T @ (Z @ theta - target)
    expected = -np.linalg.solve(Z.T @ Z + damping * np.eye(p), g)
    d = direction(problem, theta, k, SOLVERS[name], ng.AbsoluteDamping(damping))
    np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)
    assert d.info.damping == pytest.approx(damping)


@eqx.filter_jit
def solved(solver, Y, b, damping):
    return solver.solve(solver.prepare(Y, b, jnp.zeros(Y.shape[1])), damping)


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("damping", [0.0, 1e-300, 1e-20])
@pytest.mark.parametrize("name", ["Cholesky", "Kernel"])
def test_damping_below_rounding_is_none(name: str, damping: float, seed: int):
    """A λ that is lost in G must not make a deficient one pass for definite."""
    rng = np.random.default_rng(seed)
    Y = rng.normal(size=(1000, 99)) @ rng.normal(size=(99, 100))
    Y = Y if name == "Cholesky" else Y.T
    b = rng.normal(size=len(Y))
    eta, info = solved(SOLVERS[name], jnp.asarray(Y), jnp.asarray(b), jnp.asarray(damping))
    expected = -np.linalg.pinv(Y, rcond=1e-10) @ b
    assert np.linalg.norm(eta - expected) < 1e-7 * np.linalg.norm(expected)
    assert (int(info.rank), bool(info.rank_deficient)) == (99, True)


@pytest.mark.parametrize("name", ["Cholesky", "Kernel"])
def test_a_damping_that_is_no_number_gives_no_direction(name: str):
    Y, b = np.random.default_rng(0).normal(size=(6, 4)), np.ones(6)
    eta, _ = solved(SOLVERS[name], jnp.asarray(Y), jnp.asarray(b), jnp.asarray(np.nan))
    assert np.isnan(eta).all()


@pytest.mark.parametrize("name", ["Cholesky", "Kernel"])
def test_damping_that_is_small_by_intention_is_kept(name: str):
    """Below max(k, p)·eps of G, where an undamped pivot would be a dependence."""
    rng = np.random.default_rng(1)
    Y = np.linalg.qr(rng.normal(size=(100_000, 3)))[0] * [1.0, 0.5, 0.25]
    Y, b = np.concatenate([Y, Y[:, :1]], axis=1), rng.normal(size=100_000)
    Y, b = (Y, b) if name == "Cholesky" else (Y.T, rng.normal(size=4))
    damping = 1e-11
    eta, info = solved(SOLVERS[name], jnp.asarray(Y), jnp.asarray(b), jnp.asarray(damping))
    U, values, Vt = np.linalg.svd(Y, full_matrices=False)
    expected = -Vt.T @ (values / (values**2 + damping) * (U.T @ b))
    assert np.linalg.norm(eta - expected) < 1e-3 * np.linalg.norm(expected)
    assert not bool(info.rank_deficient)


@each_kind
@pytest.mark.parametrize("damping", with_slow([0.0, 1e-2], [0.0]))
def test_objective_of_theta_reaches_the_solver_whole(name: str, damping: float):
    """With objective=F there is no whitened covector: G η = −∂F all the same."""
    k, p = TALL
    _, theta, Z, target = linear_problem(k, p, p, grading=0.1)
    problem = ng.Problem(Linear(Z), objective=Wavy(jnp.asarray(Z), jnp.asarray(target)))
    d = direction(problem, theta, k, SOLVERS[name], ng.AbsoluteDamping(damping))
    g = Z.T @ (Z @ theta - target) + 0.1 * np.cos(theta)
    expected = -np.linalg.solve(Z.T @ Z + damping * np.eye(p), g)
    np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)


@each_kind
def test_regulariser_enters_the_gradient(name: str):
    k, p = TALL
    _, theta, Z, target = linear_problem(k, p, p, grading=0.1)
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(target)), regulariser=quartic)
    g = Z.T @ (Z @ theta - target) + 0.2 * np.asarray(theta) ** 3
    d = direction(problem, theta, k, SOLVERS[name])
    np.testing.assert_allclose(d.eta, -np.linalg.solve(Z.T @ Z, g), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(d.gradient, g, rtol=1e-10)


def test_least_squares_solvers_do_not_square_the_condition_number():
    """At condition 1e7, G has condition 1e14: all but Cholesky keep their digits."""
    rng = np.random.default_rng(0)
    k, p = TALL
    _, _, Z, _ = linear_problem(k, p, p, grading=1e-7)
    truth = rng.normal(size=p)
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(Z @ truth)))
    errors = {}
    for name in ("Cholesky", "QR", "PivotedQR", "SVD"):
        eta = direction(problem, jnp.zeros(p), k, SOLVERS[name]).eta
        errors[name] = np.linalg.norm(eta - truth) / np.linalg.norm(truth)
    assert max(errors[n] for n in ("QR", "PivotedQR", "SVD")) < 1e-7
    assert errors["Cholesky"] > 1e-5


def test_truncation_tolerance_sets_the_rank():
    problem, theta, _, _ = linear_problem(30, 8, 8, grading=1e-7)  # one decade per singular value
    for solver in (ng.PivotedQR(rtol=3e-4), ng.SVD(rtol=3e-4)):
        assert direction(problem, theta, 30, solver).info.rank == 4


def pull(theta):
    return 3.0 * theta[6]


@every_solver
def test_parameters_without_effect_do_not_move(name: str):
    """Not even when the objective pulls at them: the metric does not know how far to go."""
    k, p = TALL
    _, _, Z, target = linear_problem(k, p, p, grading=0.1)
    Z[:, 5:] = 0.0
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(target)))
    pulled = ng.Problem(problem.model, problem.loss, regulariser=pull)
    for each in (problem, pulled):
        d = direction(each, jnp.ones(p), k, SOLVERS[name])
        np.testing.assert_allclose(d.eta[5:], 0.0, atol=1e-12)
        assert (d.info.rank, d.info.status) == (5, "rank_deficient")


@each_kind
@pytest.mark.parametrize(("k", "p", "rank"), [(*WIDE, 8), (*TALL, 4)], ids=["wide", "deficient"])
def test_damping_moves_what_the_metric_does_not_see(name: str, k: int, p: int, rank: int):
    """(G + λI)⁻¹r has the part of r outside the row space divided by λ."""
    _, theta, Z, target = linear_problem(k, p, rank, grading=0.1)
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(target)), regulariser=quartic)
    g = Z.T @ (Z @ theta - target) + 0.2 * np.asarray(theta) ** 3
    d = direction(problem, theta, k, SOLVERS[name], ng.AbsoluteDamping(0.1))
    expected = -np.linalg.solve(Z.T @ Z + 0.1 * np.eye(p), g)
    np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)


LONG = np.linspace(0.0, 1.0, 900)


def redundant(theta):
    return theta[0] * jnp.exp(theta[1] + theta[2] * LONG)


# Eigenvalues of the kernel's 900 × 900 matrix take a second each: two starts, all of them if slow.
@pytest.mark.parametrize(
    ("name", "starts"),
    [
        *[(name, 2 if name == "Kernel" else 8) for name in SOLVERS],
        pytest.param("Kernel", 8, marks=pytest.mark.slow),
    ],
)
def test_redundant_parameters_are_found_on_long_states(name: str, starts: int):
    """Rounding in sums over k = 900 values must not pass for rank: θ₀ and θ₁ do the same."""
    grid = ng.Grid(0.0, 1.0, 900)
    target = np.cos(3.0 * LONG)
    problem = ng.Problem(redundant, ng.LeastSquares(jnp.asarray(target), grid))
    for seed in range(starts):
        theta = np.random.default_rng(seed).uniform(0.5, 1.5, 3)
        d = ng.natural_gradient(
            problem, jnp.asarray(theta), metric=ng.L2(grid), solver=SOLVERS[name]
        )
        shape = np.exp(theta[1] + theta[2] * LONG)
        Z = np.stack([shape, theta[0] * shape, theta[0] * LONG * shape], axis=1)
        expected = -np.linalg.pinv(Z, rcond=1e-9) @ (theta[0] * shape - target)
        assert (d.info.rank, d.info.status) == (2, "rank_deficient"), seed
        np.testing.assert_allclose(d.eta, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Cholesky", "QR", "PivotedQR", "SVD"])
def test_units_of_parameters_do_not_matter(name: str):
    k, p = TALL
    problem, theta, Z, target = linear_problem(k, p, p, grading=0.3)
    units = np.array([1.0, 1e-8, 1e5, 1.0] * 2)
    rescaled = ng.Problem(Linear(Z * units), problem.loss)
    eta = direction(rescaled, theta / units, k, SOLVERS[name]).eta
    expected = -np.linalg.lstsq(Z, Z @ theta - target, rcond=None)[0]
    if name != "SVD":  # whose cut is on singular values, in whatever units they are
        np.testing.assert_allclose(units * eta, expected, rtol=1e-6, atol=1e-7)


@each_kind
def test_mixed_precision_is_promoted(name: str):
    problem, theta, Z, target = linear_problem(20, 4, 4, grading=0.3)
    g = Z.T @ (Z @ theta - target)
    expected = -np.linalg.solve(Z.T @ Z, g)
    d = direction(problem, theta.astype(jnp.float32), 20, SOLVERS[name])
    assert d.eta.dtype == jnp.float32
    np.testing.assert_allclose(d.eta, expected, rtol=1e-3, atol=1e-4)
    result = ng.minimize(
        problem,
        theta.astype(jnp.float32),
        ng.NaturalGradient(ng.MatrixMetric(np.eye(20))),
        stop=ng.Stop(iterations=2),
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
    k, p = TALL
    problem, theta, Z, _ = linear_problem(k, p, p, grading=0.1)
    d = direction(problem, theta, k, ng.Cholesky(), 1e-3)
    assert d.info.damping == pytest.approx(1e-3 * np.sum(Z**2) / p)


def test_parameter_damping_is_an_operator_on_theta():
    k, p = TALL
    problem, theta, Z, target = linear_problem(k, p, p, grading=0.1)
    rng = np.random.default_rng(1)
    root = rng.normal(size=(p, p))
    D = root @ root.T + np.eye(p)
    g = Z.T @ (Z @ theta - target)
    for solver in SOLVERS.values():
        d = direction(problem, theta, k, solver, ng.ParameterDamping(D, strength=0.3))
        expected = -np.linalg.solve(Z.T @ Z + 0.3 * D, g)
        np.testing.assert_allclose(d.eta, expected, rtol=1e-8, atol=1e-9)
    diagonal = direction(problem, theta, k, ng.QR(), ng.ParameterDamping(np.arange(1.0, p + 1)))
    expected = -np.linalg.solve(Z.T @ Z + np.diag(np.arange(1.0, p + 1)), g)
    np.testing.assert_allclose(diagonal.eta, expected, rtol=1e-8)


def test_parameter_damping_by_a_metric_on_a_field():
    grid = ng.Grid(0.0, 1.0, 8)
    theta = jnp.linspace(0.0, 1.0, 8)
    problem = ng.Problem(lambda t: jnp.cumsum(t), ng.LeastSquares(jnp.ones(8), grid))
    prior = ng.ParameterDamping(ng.Sobolev(grid, 1).at(theta).gram, strength=0.5)
    d = ng.natural_gradient(problem, theta, metric=ng.L2(grid), damping=prior)
    G = ng.information_matrix(problem, theta, metric=ng.L2(grid))
    D = dense_oracle.sobolev(grid, 1, False)
    np.testing.assert_allclose(d.eta, -np.linalg.solve(G + 0.5 * D, d.gradient), rtol=1e-8)


@pytest.mark.parametrize("name", with_slow(SOLVERS, {*SOLVERS} - {"Kernel"}))
def test_parameter_damping_of_a_model_with_transforms(name: str):
    """XLA refused transforms under a triangular solve."""
    frequency, d = jnp.arange(9.0), np.linspace(1.0, 2.0, 16)
    smooth = lambda t: jnp.fft.irfft(jnp.fft.rfft(jnp.exp(t)) / (1 + frequency**2), n=16)
    problem = ng.Problem(smooth, ng.LeastSquares(jnp.ones(16)))
    damping = ng.ParameterDamping(d, strength=1e-3)
    found = ng.natural_gradient(
        problem, jnp.zeros(16), metric=ng.L2(), solver=SOLVERS[name], damping=damping
    )
    Z = np.asarray(jax.jacobian(smooth)(jnp.zeros(16)))
    expected = -np.linalg.solve(Z.T @ Z + 1e-3 * np.diag(d), found.gradient)
    np.testing.assert_allclose(found.eta, expected, rtol=1e-8)


def test_a_sobolev_prior_with_every_default():
    """More parameters than values: the kernel, with transforms in the metric and in the prior."""
    fine, coarse = ng.Grid(0.0, 1.0, 40), ng.Grid(0.0, 1.0, 20)
    add = lambda t: jnp.tanh(t).reshape(20, 2).sum(1)
    problem = ng.Problem(add, ng.LeastSquares(jnp.ones(20), coarse))
    prior = ng.ParameterDamping(ng.Sobolev(fine, 1).at(jnp.zeros(40)).gram, strength=1e-3)
    d = ng.natural_gradient(problem, jnp.zeros(40), metric=ng.Sobolev(coarse, -1), damping=prior)
    Z = np.kron(np.eye(20), np.ones((1, 2)))
    G = Z.T @ dense_oracle.sobolev(coarse, -1, False) @ Z
    D = 1e-3 * dense_oracle.sobolev(fine, 1, False)
    np.testing.assert_allclose(d.eta, -np.linalg.solve(G + D, d.gradient), rtol=1e-7)


def test_damping_by_another_metric_adds_to_g():
    problem, theta, Z, target = linear_problem(20, 6, 6, grading=0.1)
    metric = ng.MatrixMetric(np.eye(20)) + 0.2 * ng.MatrixMetric(np.diag(np.arange(1.0, 21.0)))
    g = Z.T @ (Z @ theta - target)
    A = np.eye(20) + 0.2 * np.diag(np.arange(1.0, 21.0))
    d = ng.natural_gradient(problem, theta, metric=metric)
    np.testing.assert_allclose(d.eta, -np.linalg.solve(Z.T @ A @ Z, g), rtol=1e-8)
