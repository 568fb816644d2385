"""Low-rank solvers and spectra: exact where the rank suffices, at the rates of theory where not."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.core.randomised import PROBES, basis_sizes, nystrom, range_basis
from natgrad.solvers.base import Factor, System
from problems_for_tests import Linear, bumps_problem, close, linear_problem, with_slow

K, P, RANK = 30, 20, 6
EYE = ng.MatrixMetric(np.eye(K))
LINE = ng.Grid(0.0, 1.0, P)
SOLVERS = {
    "RandomizedSVD": ng.RandomizedSVD(RANK),
    "no refinement": ng.RandomizedSVD(RANK, power_iterations=0, oversampling=0),
    "column space": ng.Hutchinson(8, "column_space"),
}
small = lru_cache(lambda: linear_problem(K, P, RANK, grading=0.1))


def direction(solver: ng.solvers.Solver, damping=0.0, problem: ng.Problem | None = None):
    default, theta, _, _ = small()
    return ng.natural_gradient(
        problem or default, theta, metric=EYE, solver=solver, damping=damping
    )


def oracle(Z: np.ndarray, gradient: np.ndarray, damping: float = 0.0) -> np.ndarray:
    """−(G + λI)†g, with a rank decision far above rounding."""
    G = Z.T @ Z + damping * np.eye(Z.shape[1])
    return -np.linalg.pinv(G, rcond=1e-10, hermitian=True) @ gradient


def graded(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """A K × P matrix with these singular values."""
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(K, P)))
    V, _ = np.linalg.qr(rng.normal(size=(P, P)))
    return U * values @ V.T


# --- the directions


@pytest.mark.parametrize("name", with_slow(SOLVERS, ["no refinement"]))
@pytest.mark.parametrize("damping", [0.0, 1e-3], ids=["undamped", "damped"])
def test_the_dense_direction_where_the_rank_suffices(name: str, damping: float):
    _, theta, Z, target = small()
    d = direction(SOLVERS[name], ng.AbsoluteDamping(damping) if damping else 0.0)
    close(d.eta, oracle(Z, Z.T @ (Z @ np.asarray(theta) - target), damping))
    assert d.info.rank == RANK
    assert d.info.residual < 1e-10
    assert d.info.status == ("ok" if damping else "rank_deficient")
    assert d.info.condition == pytest.approx(np.sqrt((1 + damping) / (0.01 + damping)), rel=1e-8)
    assert name == "column space" or d.info.truncation < 1e-13


def test_states_that_are_pytrees_and_factors_with_another_range():
    grid = ng.Grid(0.0, 1.0, 9)
    x = grid.points[..., 0]
    model = lambda t: (1.0 + 0.3 * jnp.sin(t[0] * x + t[1]), jnp.exp(t[2] * x) * t[0])
    metric = ng.Blocks(ng.Wasserstein(grid), ng.Sobolev(grid, 1))
    problem = ng.Problem(model, lambda rho: jnp.sum(rho[0] ** 4) + jnp.sum(rho[1] ** 2))
    theta = jnp.array([0.7, 0.2, -0.4])
    exact = ng.natural_gradient(problem, theta, metric=metric, solver=ng.SVD(), damping=1e-3)
    damping = ng.AbsoluteDamping(exact.info.damping)
    for solver in (ng.RandomizedSVD(3), ng.Hutchinson(3, "column_space", batch_size=2)):
        d = ng.natural_gradient(problem, theta, metric=metric, solver=solver, damping=damping)
        close(d.eta, exact.eta)
        assert d.info.residual < 1e-10


def test_hutchinson_solves_the_least_squares_problem_of_its_estimate():
    """Against the k × p matrix L H_m(Z) written out, for m below and above k."""
    _, theta, Z, target = small()
    gradient = Z.T @ (Z @ np.asarray(theta) - target)
    for samples in (10, 50):
        signs = np.asarray(jax.random.rademacher(jax.random.key(0), (samples, K), float))
        estimate = signs.T @ (signs @ Z) / samples
        d = direction(ng.Hutchinson(samples), ng.AbsoluteDamping(1e-2))
        close(d.eta, oracle(estimate, gradient, 1e-2))
        assert float(d.gradient @ d.eta) < 0
        assert d.info.residual == pytest.approx(
            np.linalg.norm(Z.T @ (Z @ d.eta) + 1e-2 * d.eta + gradient) / np.linalg.norm(gradient)
        )


@pytest.mark.parametrize("spectrum", ["algebraic", "two levels"])
def test_what_is_beyond_the_directions_found_is_not_blown_up(spectrum: str):
    """λ far below the first eigenvalue that was cut: η is too short there, and still decreases."""
    j = np.arange(P)
    Z = graded(1.0 / (1 + j) if spectrum == "algebraic" else np.where(j < 4, 1.0, 0.05))
    problem = ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(small()[3])))
    d = direction(ng.RandomizedSVD(3, oversampling=1), ng.AbsoluteDamping(1e-8), problem)
    eta, H = np.asarray(d.eta), Z.T @ Z + 1e-8 * np.eye(P)
    exact = oracle(Z, np.asarray(d.gradient), 1e-8)
    assert np.linalg.norm(eta) < (1 + 1e-8) * np.linalg.norm(exact)
    assert 0.5 * eta @ H @ eta + np.asarray(d.gradient) @ eta < 0
    assert 0.02 < d.info.truncation < 0.2
    assert d.info.rank == 4 + 4 + PROBES


@pytest.mark.parametrize("damping", [0.0, 1e-2])
def test_a_model_that_does_not_move(damping: float):
    damped = ng.AbsoluteDamping(damping) if damping else 0.0
    objective = lambda t: jnp.sum(t**2)
    problem = ng.Problem(Linear(np.zeros((K, P))), objective=objective)
    d = direction(ng.RandomizedSVD(RANK), damped, problem)
    close(d.eta, -2 * np.asarray(small()[1]) / damping if damping else np.zeros(P), 1e-12)
    assert (d.info.rank, d.info.truncation) == (0, 0.0)


def test_what_is_not_finite_is_named():
    metric = ng.FactorMetric(
        ng.metrics.AdjointOperator(nan_at_3, nan_at_3, jnp.zeros(K), jnp.zeros(K))
    )
    problem, theta, _, _ = small()
    d = ng.natural_gradient(problem, theta, metric=metric, solver=ng.RandomizedSVD(RANK))
    assert d.info.status == "not_finite"


def nan_at_3(x):
    return x.at[3].set(jnp.nan)


def test_single_precision():
    _, theta, Z, target = small()
    problem = ng.Problem(
        Linear(Z.astype(np.float32)), ng.LeastSquares(jnp.asarray(target, jnp.float32))
    )
    d = ng.natural_gradient(
        problem,
        theta.astype(jnp.float32),
        metric=ng.FactorMetric(jnp.eye(K, dtype=jnp.float32)),
        solver=ng.RandomizedSVD(RANK),
        damping=ng.AbsoluteDamping(1e-3),
    )
    assert d.eta.dtype == jnp.float32
    close(d.eta, oracle(Z, Z.T @ (Z @ np.asarray(theta) - target), 1e-3), 1e-3)
    assert d.info.truncation < 1e-5


def test_seeds():
    system = host_system(graded(1.0 / np.arange(1, P + 1)), small()[3])
    for make in (lambda seed: ng.RandomizedSVD(3, 0, seed=seed), hutchinson):
        one, same, other = (make(seed).prepare(system)[0].projection for seed in (0, 0, 1))
        np.testing.assert_array_equal(one.rest, same.rest)
        assert np.linalg.norm(one.rest - other.rest) > 1e-3


def hutchinson(seed: int) -> ng.Hutchinson:
    return ng.Hutchinson(10, seed=seed)


# --- the account


@pytest.mark.parametrize(
    ("solver", "linearised", "adjoint"),
    [
        (ng.RandomizedSVD(2, oversampling=2), 12, 12),
        pytest.param(  # never more than the rank can be
            *(ng.RandomizedSVD(RANK, power_iterations=2), P, P), marks=pytest.mark.slow
        ),
        pytest.param(ng.Hutchinson(7), 0, 7, marks=pytest.mark.slow),
        pytest.param(ng.Hutchinson(7, "column_space"), 7, 7, marks=pytest.mark.slow),
    ],
)
def test_every_product_is_counted(
    solver: ng.solvers.MatrixFreeSolver, linearised: int, adjoint: int
):
    """The products of a host's model, driven from Python, against the counts and a compiled run."""
    problem, theta, Z, target = small()
    system = host_system(np.asarray(Z), np.asarray(Z @ theta - target))
    prepared, spent = solver.prepare(system)
    assert (system.products.pushed, system.products.pulled) == (linearised, adjoint)
    assert spent == (0, linearised, adjoint)
    for count, damping in enumerate((1e-1, 1e-3), 1):  # another λ costs one pair
        solution = solver.solve(prepared, jnp.asarray(damping))
        assert system.products.pushed == linearised + count
        assert system.products.pulled == adjoint + count
        assert [int(n) for n in solution.info.counts] == [0, 1, 1]
        close(solution.motion, Z @ solution.eta, 1e-12)
    d = direction(solver, ng.AbsoluteDamping(1e-3), problem)
    assert d.info.counts == ng.models.Counts(1, linearised + 1, adjoint + 2)
    close(solution.eta, d.eta, 1e-10)
    assert float(solution.info.residual) == pytest.approx(d.info.residual, abs=1e-12)


class HostProducts(eqx.Module):
    """Zη and Zᵀξ by a program that JAX cannot look into: neither traced nor mapped."""

    rho: np.ndarray
    Z: np.ndarray
    calls: list[str] = eqx.field(static=True)

    @property
    def pushed(self) -> int:
        return self.calls.count("push")

    @property
    def pulled(self) -> int:
        return self.calls.count("pull")

    def push(self, eta):
        assert not isinstance(eta, jax.core.Tracer)
        self.calls.append("push")
        return self.Z @ np.asarray(eta)

    def pull(self, xi):
        assert not isinstance(xi, jax.core.Tracer)
        self.calls.append("pull")
        return self.Z.T @ np.asarray(xi)


def host_system(Z: np.ndarray, b: np.ndarray) -> System:
    return System(
        products=HostProducts(b, Z, []),  # pyright: ignore
        gradient=jnp.asarray(Z.T @ b),
        factor=Factor(EYE.factor(jnp.zeros(K))),
    )


def test_a_run_is_that_of_the_dense_solver_and_the_step_needs_no_product():
    problem, start, _, grid = bumps_problem(mass_varies=True)
    upper = jnp.array([jnp.inf] * 5)
    bounds = (jnp.array([-jnp.inf, 0.42, -jnp.inf, -jnp.inf, -jnp.inf]), upper)
    start = start.at[1].set(0.42)
    dense, result = (
        ng.minimize(
            problem,
            start,
            ng.NaturalGradient(ng.L2(grid), solver=solver, damping=ng.AbsoluteDamping(1e-6)),
            bounds=bounds,
            stop=ng.Stop(iterations=4),
        )
        for solver in (ng.Cholesky(), ng.RandomizedSVD(5))
    )
    close(result.theta, dense.theta)
    # five products of either kind for the basis, one for the residual, one Zᵀξ for the gradient
    assert result.history["linearised"][-1] == 4 * 6
    assert result.history["adjoint"][-1] == 4 * 7


# --- errors at the rates of theory


def test_the_estimator_of_signs_errs_by_the_root_of_k_over_m():
    """E‖H_m(Z)‖² = (1 + (k − 1)/m)‖Z‖², which for an unbiased estimate is its squared error."""
    _, theta, Z, target = small()
    system = host_system(np.asarray(Z), np.asarray(Z @ theta - target))
    total = np.sum(np.asarray(Z) ** 2)
    for samples in (8, 24):
        squares = [
            float(jnp.sum(prepared.projection.approximation.values**2))
            for seed in range(8)
            for prepared, _ in [ng.Hutchinson(samples, seed=seed).prepare(system)]
        ]
        assert np.mean(squares) / total - 1 == pytest.approx((K - 1) / samples, rel=0.3)


@eqx.filter_jit
def bases(Y: jax.Array, keys: jax.Array, width: int, power_iterations: int):
    """For each key the singular values of what is missed, without the probes and with them."""

    def one(key):
        forward, backward = (lambda v: Y @ v), (lambda u: Y.T @ u)
        rows, images, missed = range_basis(
            forward, backward, (K, P), width, key, Y.dtype, power_iterations
        )
        rest = lambda Q: jnp.linalg.svd(Y - Q.T @ (Q @ Y), compute_uv=False)
        defects = (
            jnp.abs(rows @ rows.T - jnp.eye(len(rows))).max(),
            jnp.abs(images - rows @ Y).max(),
        )
        return rest(rows[:-PROBES]), rest(rows), missed, defects

    return jax.lax.map(one, keys)


@pytest.mark.parametrize(
    ("width", "power_iterations"), [(8, 0), (4, 1), (4, 2)], ids=["once", "twice", "thrice"]
)
@pytest.mark.parametrize("spectrum", ["geometric", "algebraic"])
def test_bases_miss_what_theory_allows_and_say_so(spectrum: str, width: int, power_iterations: int):
    j = np.arange(P)
    values = 0.6**j if spectrum == "geometric" else 1.0 / (1 + j)
    Y, keys = jnp.asarray(graded(values)), jax.random.split(jax.random.key(1), 10)
    before, after, missed, (skew, wrong) = map_numpy(bases(Y, keys, width, power_iterations))
    assert skew.max() < 1e-13
    assert wrong.max() < 1e-13
    rank = width // 2
    over, columns = width - rank, width
    first, tail = values[rank], np.linalg.norm(values[rank:])
    # Halko, Martinsson and Tropp, theorem 10.6; a Krylov space is at least as good
    bound = (1 + np.sqrt(rank / (over - 1))) * first + np.e * np.sqrt(columns) / over * tail
    assert before[:, 0].mean() <= bound
    if power_iterations:  # corollary 10.10: close to the best that `rank` vectors can do
        assert before[:, 0].max() <= 1.1 * first
        assert before[:, 0].max() >= values[sum(basis_sizes(width, power_iterations, P)[:-1])]
    # the estimate: a lower bound for what was missed when it was made, and not far below ...
    assert np.all(missed <= before[:, 0] * (1 + 1e-12))
    assert np.all(missed >= 0.5 * before[:, 0])
    # ... and therefore nearly an upper bound for what is missed with the probes in the basis
    assert np.all(after[:, 0] <= 1.2 * missed)


def map_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def test_keeping_the_blocks_is_better_than_the_last_one_at_the_same_products():
    Y = graded(1.0 / np.arange(1, P + 1))
    rng = np.random.default_rng(0)
    last = np.linalg.qr(Y @ rng.normal(size=(P, 5)))[0]
    last = np.linalg.qr(Y @ np.linalg.qr(Y.T @ last)[0])[0]
    alone = np.linalg.norm(Y - last @ (last.T @ Y), 2)
    keys = jax.random.split(jax.random.key(1), 10)
    before = map_numpy(bases(jnp.asarray(Y), keys, 5, 1))[0]
    assert before[:, 0].mean() < 0.8 * alone


# --- Nyström


@pytest.mark.parametrize("rank", [4, 12])
def test_nystrom(rank: int):
    """Eigenpairs of GΩ(ΩᵀGΩ)†ΩᵀG; the whole of a G whose rank is below."""
    Z = np.asarray(small()[2])
    G, key = Z.T @ Z, jax.random.key(3)
    calls = []

    def product(v):
        calls.append(1)
        return G @ np.asarray(v)

    U, values = map_numpy(nystrom(product, P, rank, key, jnp.float64))
    assert (U.shape, values.shape, len(calls)) == ((P, rank), (rank,), rank)
    close(U.T @ U, np.eye(rank), 1e-12)
    assert np.all(np.diff(values) <= 0)
    assert values[-1] >= 0
    sketch = np.asarray(jax.random.normal(key, (rank, P), jnp.float64)).T
    core = np.linalg.pinv(sketch.T @ G @ sketch, rcond=1e-12, hermitian=True)
    expected = G @ sketch @ core @ sketch.T @ G
    close(U * values @ U.T, expected, 1e-8)
    assert np.linalg.eigvalsh(G - U * values @ U.T)[0] > -1e-12
    if rank < RANK:  # the same as the projection of Y onto the range of YΩ
        Q = np.linalg.qr(Z @ sketch)[0]
        close(expected, (Q.T @ Z).T @ (Q.T @ Z), 1e-8)
    else:
        close(expected, G, 1e-8)
        single = nystrom(lambda v: jnp.float32(G) @ v, P, rank, key, jnp.float32)
        close(single[0] * single[1] @ single[0].T, G, 1e-3)


# --- spectra and posteriors

GRID = ng.Grid((0.0, 0.0), (1.0, 1.0), (4, 5), "periodic")
PRIORS = {"none": None, "Sobolev": ng.Sobolev(GRID, 2), "matrix": "matrix"}


@lru_cache
def bayes(name: str, rank: int = RANK):
    """Six noisy functionals of a field, a prior, and everything dense."""
    Z, noise = np.random.default_rng(0).normal(size=(RANK, P)), 0.3
    problem = ng.Problem(OfField(jnp.asarray(Z)), ng.LeastSquares(jnp.zeros(RANK)))
    metric = ng.MatrixMetric(np.eye(RANK) / noise**2)
    prior = PRIORS[name]
    D = np.eye(P)
    if prior == "matrix":
        root = np.random.default_rng(1).normal(size=(P, P))
        D = root @ root.T + np.eye(P)
        prior = ng.MatrixMetric(D)
    elif prior is not None:
        D = np.asarray(prior.at(jnp.zeros(GRID.shape)).gram.as_matrix())
    spectrum = ng.information_spectrum(
        problem, jnp.ones(GRID.shape), metric=metric, rank=rank, prior=prior, strength=3.0
    )
    return spectrum, Z.T @ Z / noise**2, 3.0 * D


class OfField(eqx.Module):
    Z: jax.Array

    def __call__(self, theta):
        return self.Z @ theta.ravel()


@pytest.mark.parametrize("name", with_slow(PRIORS, ["Sobolev"]))
def test_eigenpairs_and_the_posterior_against_dense_matrices(name: str):
    spectrum, G, D = bayes(name)
    covariance = np.linalg.inv(G + D)
    V = np.asarray(spectrum.vectors).reshape(RANK, P)
    close(V @ D @ V.T, np.eye(RANK), 1e-10)
    close(G @ V.T, D @ V.T * np.asarray(spectrum.values), 1e-10)
    assert np.all(np.diff(spectrum.values) <= 0)
    assert spectrum.counts == ng.models.Counts(1, RANK, RANK)  # no more than six data can need
    assert float(spectrum.error) == 0.0
    v = np.random.default_rng(5).normal(size=P)
    applied, variance, estimate, sample, root = map_numpy(
        posterior(spectrum, jnp.asarray(v).reshape(GRID.shape), jax.random.key(4))
    )
    close(applied.ravel(), covariance @ v)
    assert variance.shape == GRID.shape
    close(variance.ravel(), np.diag(covariance))
    assert np.abs(estimate.ravel() / np.diag(covariance) - 1).max() < 4 * np.sqrt(2 / 400)
    close(root.T @ root, covariance)
    white = np.asarray(jax.random.normal(jax.random.key(4), (P,)))
    close(sample.ravel(), root.T @ white)


@eqx.filter_jit
def posterior(spectrum: ng.direction.spectrum.Spectrum, v: jax.Array, key: jax.Array):
    """Everything that a spectrum gives, and its square root of the covariance."""
    root = jax.vmap(spectrum._colour)(jnp.eye(P))
    variances = spectrum.variance(), spectrum.variance(samples=400)
    return spectrum.apply(v), *variances, spectrum.sample(key), root


def test_a_spectrum_cut_short_errs_on_the_side_of_caution():
    exact, G, D = bayes("none")
    spectrum, _, _ = bayes("none", 3)
    close(spectrum.values, exact.values[:3], 1e-10)
    assert float(spectrum.error) == pytest.approx(float(exact.values[3]), rel=1e-10)
    assert np.all(np.asarray(spectrum.variance()).ravel() > np.diag(np.linalg.inv(G + D)))


def test_a_spectrum_for_parameters_that_are_a_tree():
    Z = np.asarray(small()[2])
    theta = {"a": jnp.ones((3, 4)), "b": jnp.ones(8), "name": "kept"}
    model = lambda t: jnp.asarray(Z) @ jnp.concatenate([t["a"].ravel(), t["b"]])
    problem = ng.Problem(model, ng.LeastSquares(jnp.zeros(K)))
    spectrum = ng.information_spectrum(problem, theta, metric=EYE, rank=RANK, power_iterations=0)
    close(spectrum.values, np.geomspace(1.0, 0.1, RANK) ** 2, 1e-10)
    assert spectrum.vectors["a"].shape == (RANK, 3, 4)
    variance = spectrum.variance()
    flat = np.concatenate([variance["a"].ravel(), variance["b"]])
    close(flat, np.diag(np.linalg.inv(Z.T @ Z + np.eye(P))))


def test_a_spectrum_of_a_model_outside_jax():
    Z, theta = np.asarray(small()[2]), jnp.zeros(P)
    calls = []
    jvp = lambda t, eta: calls.append("push") or Z @ eta
    vjp = lambda t, xi: calls.append("pull") or Z.T @ xi
    model = ng.ExternalModel(lambda t: Z @ t, jvp, vjp)
    problem = ng.Problem(model, ng.LeastSquares(jnp.zeros(K)))
    sizes = {"rank": RANK, "power_iterations": 0, "oversampling": 2}
    prior = {"prior": ng.L2(LINE), "strength": 2.0}
    spectrum = ng.information_spectrum(problem, theta, metric=EYE, **sizes, **prior)
    close(spectrum.values, np.geomspace(1.0, 0.1, RANK) ** 2 * P / 2, 1e-10)  # D = 2/P
    assert spectrum.counts == (1, calls.count("push"), calls.count("pull")) == (1, 12, 12)


# --- input


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("rank", lambda: ng.RandomizedSVD(0)),
        ("rank", lambda: ng.RandomizedSVD(2.0)),  # pyright: ignore
        ("rank", lambda: direction(ng.RandomizedSVD(P + 1))),
        ("power_iterations", lambda: ng.RandomizedSVD(2, -1)),
        ("batch_size", lambda: ng.RandomizedSVD(2, batch_size=0)),
        ("rtol", lambda: ng.RandomizedSVD(2, rtol=0.0)),
        ("samples", lambda: ng.Hutchinson(0)),
        ("samples", lambda: direction(ng.Hutchinson(P + 1, "column_space"))),
        ("probes", lambda: ng.Hutchinson(4, "columns")),  # pyright: ignore
        ("damping", lambda: direction(ng.RandomizedSVD(2), ng.ParameterDamping(np.ones(P)))),
        ("damping", lambda: direction(ng.Hutchinson(2), ng.ParameterDamping(np.ones(P)))),
        ("rank", lambda: spectrum_with(rank=P + 1)),
        ("strength", lambda: spectrum_with(strength=0.0)),
        ("metric", lambda: spectrum_with(metric=None)),
        ("prior", lambda: spectrum_with(prior=3.0)),
        ("prior", lambda: spectrum_with(prior=ng.HomogeneousSobolev(LINE, 1))),
        ("prior", lambda: spectrum_with(prior=ng.L2(LINE) + ng.Sobolev(LINE, 1))),
        ("prior", lambda: spectrum_with(prior=ng.FactorMetric(as_operator()))),
        ("prior", lambda: spectrum_with(theta={"a": small()[1]}, prior=ng.L2(LINE))),
    ],
)
def test_bad_input(argument: str, make):
    with pytest.raises(ng.InputError) as error:
        make()
    assert error.value.argument == argument


def spectrum_with(**changes):
    problem, theta, _, _ = small()
    if "theta" in changes:
        problem = ng.Problem(lambda t: small()[0].model(t["a"]), problem.loss)
    return ng.information_spectrum(
        **{"problem": problem, "theta": theta, "metric": EYE, "rank": 2} | changes
    )


def as_operator() -> ng.metrics.AdjointOperator:
    product = lambda v: 2.0 * v
    return ng.metrics.AdjointOperator(product, product, jnp.zeros(P), jnp.zeros(P))
