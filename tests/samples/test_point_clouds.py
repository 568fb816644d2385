"""Metrics on point clouds: dense oracles, exact answers with rates, laws, and bad input."""

import cloud_cases as cases
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.core.operators import as_dense
from problems_for_tests import assert_input_error

W2, HS, FR = ng.samples.Wasserstein, ng.samples.Sobolev, ng.samples.FisherRao
WIDE = {"W2": W2(bandwidth=0.6), "H-1": HS(-1, bandwidth=0.6), "L2": HS(0, bandwidth=0.6)}
METRICS = WIDE | {"H1": HS(1, bandwidth=0.6)}
every_metric = pytest.mark.parametrize("name", METRICS)


def cloud(count=9, dimension=2, seed=0):
    return np.array(cases.normal(count, dimension, seed)) + 3.0


def dual_oracle(x, h, ridge, s=None):
    """B(Q + λK)⁻¹Bᵀ with a column of B for each Gaussian, and for each coordinate in W₂.

    Q of Sobolev metrics is a Riemann sum over frequencies: (2πh²)^d ∫ e^{−h²|ξ|²} (1 + |ξ|²)^{−s}.
    """
    N, d = x.shape
    difference = x[:, None] - x
    square = (difference**2).sum(-1)
    K = np.exp(-square / (2 * h * h))
    B = np.moveaxis(-difference / h**2 * K[..., None], 2, 1).reshape(N * d, N) / N
    if s is None:
        gaussians = N * B.T @ B
        B = np.concatenate([np.tile(np.eye(d), (N, 1)) / N, B], axis=1)
        Q = N * B.T @ B
    else:
        xi = np.arange(-80, 80) * 0.15 + 0.075
        points = np.stack(np.meshgrid(*[xi] * d, indexing="ij"), -1).reshape(-1, d)
        symbol = (1 + (points**2).sum(1)) ** -float(s) * np.exp(-(h**2) * (points**2).sum(1))
        waves = np.exp(1j * points @ x.T)
        Q = (h * h * 0.15) ** d * ((waves.conj().T * symbol) @ waves).real
        gaussians = Q
    extra = B.shape[1] - N
    Q = Q.copy()
    Q[extra:, extra:] += ridge / N * np.trace(gaussians) / N * K
    return B @ np.linalg.solve(Q, B.T)


@every_metric
def test_metric_against_its_dense_oracle(name):
    """Also L and Lᵀ by their dot product, and b with Lᵀb = c."""
    x = cloud()
    metric = METRICS[name]

    @jax.jit
    def operators(x, y):
        L = metric.factor(x)
        c = L.T.mv(y)
        return as_dense(metric.at(x).gram), as_dense(L), as_dense(L.T), c, metric.whiten(x, c)

    size = 9 + 2 * (name == "W2")
    y = jnp.asarray(np.random.default_rng(1).normal(size=size))
    A, L, Lt, c, b = map(np.asarray, operators(jnp.asarray(x), y))
    expected = dual_oracle(x, 0.6, 1.0, getattr(metric, "s", None))
    np.testing.assert_allclose(A, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(Lt, L.T, rtol=0, atol=1e-14 * np.abs(L).max())
    np.testing.assert_allclose(Lt @ b, c.ravel(), rtol=0, atol=1e-9 * np.abs(c).max())


COUNTS = (100, 1600)


def mean_errors(map, theta, d, metric, exact):
    """Of G, over six draws, for each number of samples."""
    draws = [[cases.normal(N, d, seed) for seed in range(6)] for N in COUNTS]
    found = [[cases.information(map, theta, z, metric) for z in row] for row in draws]
    return [np.mean([cases.error(G, exact) for G in row]) for row in found]


def rate(errors, counts=COUNTS):
    """The slope of log error over log N."""
    return np.log(errors[1] / errors[0]) / np.log(counts[1] / counts[0])


@pytest.mark.parametrize(
    "d", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_w2_of_gaussians_is_that_of_bures(d):
    """At the rate of Monte Carlo; in one dimension the Euclidean metric is exact too."""
    theta = cases.affine_parameters(d)
    exact = cases.affine_information(theta)
    errors = mean_errors(cases.affine, theta, d, W2(centres=50), exact)
    assert errors[1] < 0.08
    assert -0.75 < rate(errors) < -0.3
    z = cases.normal(COUNTS[1], d, 0)
    euclidean = cases.information(cases.affine, theta, z, (1 / COUNTS[1]) * ng.L2())
    assert (cases.error(euclidean, exact) < 0.08) == (d == 1)


def test_turning_a_ball_costs_nothing():
    """The rotation of N(0, I) is in the kernel of W₂; the samples leave O(1/N) of it."""
    turn = jnp.array([[0.0, -1.0], [1.0, 0.0]])
    length = jax.jit(lambda x: jnp.sum(W2(centres=50).factor(x).mv(x @ turn) ** 2))
    costs = [np.mean([float(length(cases.normal(N, 2, s))) for s in range(6)]) for N in COUNTS]
    assert costs[1] < 0.02 * 2  # of E|v|² = 2
    assert -1.3 < rate(costs) < -0.6


def test_a_translation_costs_its_length():
    """Exactly, whatever the samples are."""
    x, shift = jnp.asarray(cloud(40, 3)), jnp.array([0.3, -0.2, 0.5])
    v = jnp.tile(shift, (40, 1))
    length = float(jnp.sum(jax.jit(lambda v: W2().factor(x).mv(v))(v) ** 2))
    assert length == pytest.approx(float(shift @ shift), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "grid_metric", "bound"),
    [
        ("W2", ng.Wasserstein, 0.09),
        ("H-1", lambda g: ng.Sobolev(g, -1), 0.15),
        ("L2", ng.L2, 0.4),
    ],
)
def test_a_bent_density_against_the_metric_of_the_grid(name, grid_metric, bound):
    metric = {"W2": W2(), "H-1": HS(-1), "L2": HS(0)}[name]
    exact = cases.wave_information(grid_metric, 96)
    found = [
        cases.information(cases.wave, cases.WAVE, cases.normal(1200, 2, seed), metric)
        for seed in range(3)
    ]
    assert np.mean([cases.error(G, exact) for G in found]) < bound


@pytest.mark.slow
def test_two_humps_on_a_line_against_the_grid_and_the_closed_form():
    """E[∂T∂Tᵀ] from all three; what W₂ adds to the error of the sample mean falls faster."""
    grid = cases.line_information_on_grid(ng.Wasserstein, 600)
    assert cases.error(grid, cases.line_information()) < 3e-4
    draws = [[cases.normal(N, 1, seed) for seed in range(6)] for N in COUNTS]
    found = [[cases.information(cases.line, cases.LINE, z, W2(centres=50)) for z in row] for row in draws]  # fmt: skip
    means = [[line_mean(np.asarray(z)) for z in row] for row in draws]
    errors = [np.mean([cases.error(G, grid) for G in row]) for row in found]
    assert errors[1] < 0.05
    assert -0.75 < rate(errors) < -0.3
    beyond = [
        np.mean([cases.error(G, E) for G, E in zip(*rows, strict=True)])
        for rows in zip(found, means, strict=True)
    ]
    assert beyond[1] < 0.003
    assert rate(beyond) < -0.6


def line_mean(z):
    """∂T∂Tᵀ of the line, over the samples at hand."""
    motions = np.stack([np.ones(len(z)), z[:, 0], np.tanh(2 * z[:, 0])])
    return motions @ motions.T / len(z)


@pytest.mark.parametrize(
    ("s", "d", "bound"),
    [
        pytest.param(-1, 1, 0.12, marks=pytest.mark.slow),
        (-1, 3, 0.12),
        pytest.param(0, 3, 0.15, marks=pytest.mark.slow),
        pytest.param(1, 2, 0.25, marks=pytest.mark.slow),
    ],
)
def test_sobolev_norms_of_gaussians(s, d, bound):
    """Against an integral over frequencies, the error falling with N."""
    exact = cases.isotropic_information(s, d)
    metric = HS(s, centres=100)
    errors = mean_errors(cases.isotropic, jnp.array([0.0, 1.0]), d, metric, exact)
    assert errors[1] < bound
    assert rate(errors) < -0.2


@every_metric
def test_laws(name):
    """Symmetric and positive; blind to the order of the samples, to shifts and to turns."""
    x, V = cloud(30), np.random.default_rng(2).normal(size=(5, 30, 2))
    metric = METRICS[name]
    G = jax.jit(lambda x, V: metric.at(x).information(V)[0])
    plain = np.asarray(G(x, V))
    assert np.linalg.eigvalsh(plain)[0] > 0
    np.testing.assert_allclose(plain, plain.T, rtol=1e-12)
    order = np.random.default_rng(3).permutation(30)
    c, s = np.cos(0.7), np.sin(0.7)
    turn = np.array([[c, -s], [s, c]])
    tolerance = 1e-7 * np.abs(plain).max()
    np.testing.assert_allclose(G(x[order], V[:, order]), plain, atol=tolerance)
    np.testing.assert_allclose(G(x @ turn.T - 5.0, V @ turn.T), plain, atol=tolerance)
    if name == "W2":
        euclidean = np.einsum("ank,bnk->ab", V, V) / 30
        assert np.linalg.eigvalsh(euclidean - plain)[0] > 0
        np.testing.assert_allclose(G(2 * x, V), jax.jit(rescaled)(x, V), rtol=1e-6)


def rescaled(x, V):
    """Twice as wide a bandwidth for twice as wide a cloud changes nothing."""
    return W2(bandwidth=0.3).at(x).information(V)[0]


def test_coincident_samples_are_no_harm():
    x = jnp.asarray(np.repeat(cloud(20), 2, axis=0))
    v = jnp.asarray(np.repeat(np.random.default_rng(0).normal(size=(20, 2)), 2, axis=0))
    for metric in (METRICS["W2"], METRICS["H-1"]):
        image = np.asarray(jax.jit(lambda v, metric=metric: metric.factor(x).mv(v))(v))
        assert np.all(np.isfinite(image))


@pytest.mark.slow
def test_the_flow_of_kullback_leibler_on_gaussians():
    """dm/dt = −Hm and dΣ/dt = 2I − HΣ − ΣH; with G formed and without."""
    theta, H = cases.affine_parameters(2), cases.HESSIAN
    problem = cases.divergence(cases.standardised(400, 2, 0))
    m, A = map(np.asarray, theta)
    expected = 2 * np.eye(2) - H @ A @ A.T - A @ A.T @ H
    solvers = {
        "Cholesky": (ng.Cholesky(), 1e-4),
        "CG": (ng.CG(tolerance=1e-10, preconditioner=None), ng.AbsoluteDamping(2e-5)),
    }
    for name, (solver, damping) in solvers.items():
        found = ng.natural_gradient(problem, theta, metric=W2(), solver=solver, damping=damping)
        shift, B = map(np.asarray, found.eta)
        np.testing.assert_allclose(shift, -H @ m, rtol=0.02, err_msg=name)
        change = B @ A.T + A @ B.T
        assert np.linalg.norm(change - expected) < 0.05 * np.linalg.norm(expected), name


def test_descent_follows_that_flow_to_its_end():
    """To first order in the steps, up to what the samples leave; Σ itself changes by 160%."""
    mean, covariance = cases.flow(cases.TIME)
    runs = [cases.descent(cases.standardised(1600, 2, 0), W2(centres=50), n) for n in (10, 20)]
    lags = [np.linalg.norm(m - mean) / np.linalg.norm(mean) for m, _ in runs]
    assert 1.8 < lags[0] / lags[1] < 2.3
    errors = [cases.error(S, covariance) for _, S in runs]
    assert errors[1] < 0.7 * errors[0] < 0.05
    limit = 2 * runs[1][1] - runs[0][1]
    assert cases.error(limit, covariance) < 0.012


@pytest.mark.slow
def test_a_network_moves_alike_in_other_coordinates():
    """Zη of an equinox network fitted to data by all of the metric: θ = ψ + A sin ψ."""
    net = eqx.nn.MLP(2, 2, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    flat, unravel = jax.flatten_util.ravel_pytree(eqx.filter(net, eqx.is_inexact_array))
    static = eqx.filter(net, eqx.is_inexact_array, inverse=True)
    z, data = cases.normal(30, 2, 1), cases.normal(20, 2, 2)
    model = lambda v: jax.vmap(eqx.combine(unravel(v), static))(z)
    A = 0.1 * jnp.asarray(np.random.default_rng(0).normal(size=(flat.size, flat.size)))
    chart = lambda psi: psi + A @ jnp.sin(psi)
    psi = 0.3 * jnp.asarray(np.random.default_rng(1).normal(size=flat.size))
    loss = ng.samples.EnergyDistance(data)
    motions = []
    for coordinates, place in ((lambda v: v, chart(psi)), (chart, psi)):
        problem = ng.Problem(lambda v, c=coordinates: model(c(v)), loss)
        found = ng.natural_gradient(problem, place, metric=W2(), solver=ng.SVD())
        motions.append(np.asarray(jax.jvp(problem.model, (place,), (found.eta,))[1]))
        assert found.info.metric["bandwidth"] > 0
    assert np.linalg.norm(motions[0] - motions[1]) < 1e-5 * np.linalg.norm(motions[0])


def test_single_precision():
    x, v = cloud(60), np.random.default_rng(0).normal(size=(60, 2))
    length = jax.jit(lambda x, v: jnp.sum(W2().factor(x).mv(v) ** 2))
    single = length(jnp.asarray(x, jnp.float32), jnp.asarray(v, jnp.float32))
    assert single.dtype == jnp.float32
    assert float(single) == pytest.approx(float(length(x, v)), rel=2e-3)


class Normal(eqx.Module):
    """log N(μ, σ²) at the points x plus a constant that moves with θ = (μ, log σ)."""

    x: jax.Array
    constant: float = 0.0

    def __call__(self, theta):
        mean, log_width = theta
        square = ((self.x - mean) / jnp.exp(log_width)) ** 2
        return -0.5 * square - log_width - 0.5 * jnp.log(2 * jnp.pi) + self.constant * theta.sum()


def test_fisher_rao_of_a_gaussian():
    """diag(1/σ², 2): from its own samples, from another's, and without the constant."""
    theta, width = jnp.array([0.4, -0.3]), np.exp(-0.3)
    exact = np.diag([1 / width**2, 2.0])
    G = lambda model, metric: np.asarray(
        ng.information_matrix(ng.Problem(model, jnp.sum), theta, metric=metric)
    )
    errors = {"own": [], "other": [], "centred": []}
    for N in (200, 12800):
        draws = [cases.normal(N, 1, seed)[:, 0] for seed in range(6)]
        own = [Normal(0.4 + width * z) for z in draws]
        errors["own"].append(np.mean([cases.error(G(m, FR()), exact) for m in own]))
        other = [(Normal(z), FR(proposal=-0.5 * z**2)) for z in draws]
        errors["other"].append(np.mean([cases.error(G(*pair), exact) for pair in other]))
        shifted = [Normal(0.4 + width * z, 3.0) for z in draws]
        metric = FR(centred=True)
        errors["centred"].append(np.mean([cases.error(G(m, metric), exact) for m in shifted]))
    for name, found in errors.items():
        assert found[1] < 0.05, name
        assert -0.75 < rate(found, (200, 12800)) < -0.3, name
    grid = ng.Grid(-6.0, 7.0, 200)
    problem = ng.Problem(lambda t: jnp.exp(Normal(grid.points[:, 0])(t)), jnp.sum)
    on_grid = ng.information_matrix(problem, theta, metric=ng.FisherRao(grid))
    np.testing.assert_allclose(on_grid, exact, atol=1e-6)


def test_fisher_rao_against_its_dense_oracle():
    rng = np.random.default_rng(0)
    state, log_q, c = rng.normal(size=(3, 7))
    w = np.exp(state - log_q) / np.exp(state - log_q).sum()
    for metric, weights in ((FR(), np.full(7, 1 / 7)), (FR(jnp.asarray(log_q)), w)):
        np.testing.assert_allclose(as_dense(metric.at(state).gram), np.diag(weights), atol=1e-15)
        np.testing.assert_allclose(metric.at(state).diagonal, weights)
        L = np.asarray(as_dense(metric.factor(state)))
        np.testing.assert_allclose(L.T @ metric.whiten(state, c), c, atol=1e-14)
        centred = FR(metric.proposal, centred=True)
        A = np.diag(weights) - np.outer(weights, weights)
        np.testing.assert_allclose(as_dense(centred.at(state).gram), A, atol=1e-15)
        L = np.asarray(as_dense(centred.factor(state)))
        np.testing.assert_allclose(as_dense(centred.factor(state).T), L.T, atol=1e-15)
        rest = np.asarray(centred.at(state).remainder(c))
        np.testing.assert_allclose(L.T @ centred.whiten(state, c) + rest, c, atol=1e-14)


def test_energy_distance():
    """Against the double sums; a Taylor test; zero at the data, with a gradient that is finite."""
    x, y = np.array(cases.normal(6, 3, 0)), np.array(cases.normal(8, 3, 1))
    apart = lambda a, b: np.mean([np.linalg.norm(p - q) for p in a for q in b])
    loss = ng.samples.EnergyDistance(jnp.asarray(y))
    expected = 2 * apart(x, y) - apart(x, x) - apart(y, y)
    assert float(eqx.filter_jit(loss)(jnp.asarray(x))) == pytest.approx(expected, rel=1e-12)
    problem = ng.Problem(cases.Pushed(cases.affine, jnp.asarray(x)), loss)
    assert ng.checks.check_gradient(
        problem, cases.affine_parameters(3), trials=1, verbose=False
    ).passed
    value, slope = jax.jit(jax.value_and_grad(loss))(jnp.asarray(y))
    assert float(value) == pytest.approx(0.0, abs=1e-15)
    assert np.all(np.isfinite(slope))


def in_metric(metric, state):
    problem = ng.Problem(lambda t: t * state, jnp.sum)
    return ng.natural_gradient(problem, jnp.ones(()), metric=metric)


POINTS = np.array(cases.normal(5, 2, 0))


@pytest.mark.parametrize(
    ("argument", "pattern", "call"),
    [
        ("model", r"shape \(5,\)", lambda: in_metric(W2(), POINTS[:, 0])),
        ("model", "2 samples in 5", lambda: in_metric(HS(-1), POINTS.T)),
        ("model", "is a tuple", lambda: W2().check_structure((POINTS, POINTS))),
        ("model", "not finite", lambda: in_metric(W2(), POINTS * np.nan)),
        ("model", "coincide", lambda: in_metric(W2(), np.ones((5, 2)))),
        ("model", "coincide", lambda: in_metric(W2(), np.full((7, 2), 0.1))),
        ("centres", "6 of 5", lambda: in_metric(W2(centres=6), POINTS)),
        ("centres", "not an integer", lambda: W2(centres=0)),
        ("bandwidth", "not finite and positive", lambda: W2(bandwidth=0.0)),
        ("ridge", "not finite and positive", lambda: HS(1, ridge=-1.0)),
        ("s", "not −1, 0 or 1", lambda: HS(2)),
        ("model", r"shape \(5, 2\)", lambda: in_metric(FR(), POINTS)),
        ("proposal", r"\(3,\)", lambda: in_metric(FR(np.ones(3)), POINTS[:, 0])),
        ("data", "has shape", lambda: ng.samples.EnergyDistance(np.ones(3))),
        ("data", "not finite", lambda: ng.samples.EnergyDistance(np.full((3, 2), np.nan))),
        ("data", "3 dimensions", lambda: ng.samples.EnergyDistance(np.ones((4, 3))).check_structure(POINTS)),
        ("metric", "no distance", lambda: W2().squared_distance(POINTS, POINTS)),
        ("batch", "needs the state everywhere", lambda: ng.minimize(ng.Problem(lambda t: t * POINTS, jnp.sum), jnp.ones(()), ng.NaturalGradient(W2()), batch=ng.MiniBatch(3, select=lambda rows: None))),
    ],
)  # fmt: skip
def test_bad_input(argument, pattern, call):
    assert_input_error(argument, pattern, call)
