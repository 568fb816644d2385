"""Mini-batches: the metric on a selection, unbiasedness, directions, runs, reproducibility."""

from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import dense_oracle as oracle
import natgrad as ng
from cases import FAST_SMALL_CASES, defines, density
from natgrad.core.operators import as_dense
from natgrad.core.selection import Functions, Points, Sublattice
from natgrad.direction.linearise import linearise
from natgrad.direction.local import Setup
from natgrad.direction.rows import ByRows
from natgrad.models.base import Evaluation
from problems_for_tests import Linear, minimize_compiling_once, with_slow

ONE_STEP = ng.FixedStep(1.0, require_decrease=False)
GRID = ng.Grid(0.0, 1.0, 6)
PLANE = ng.Grid((0.0, 0.0), (1.0, 2.0), (4, 6), "periodic")
RNG = np.random.default_rng(0)
CASES = [
    case
    for case in FAST_SMALL_CASES
    if case.grid.boundary == "neumann"
    and defines(case.metric, "restricted")
    and not isinstance(case.metric, ng.Mobility)  # a sublattice, but no points
]
SYMBOLS = [case for case in CASES if "Sobolev(" in case.name and "Sobolev(-1)" not in case.name]


def minimized(problem: ng.Problem, theta, method, batch, iterations: int = 100) -> ng.Result:
    """A run of several iterations, which must not compile again for another selection."""
    stop = ng.Stop(iterations=iterations)
    return minimize_compiling_once(problem, theta, method, batch=batch, stop=stop)


def sampler(batch: ng.MiniBatch, problem: ng.Problem, metric: ng.metrics.Metric, state):
    """The draws of a batch for a state like this."""
    return batch.sampler(problem, ng.NaturalGradient(metric), jnp.zeros(3), Evaluation(state))


@eqx.filter_jit
def matrices(metric: ng.metrics.Metric, rho, c):
    """A by way of L and by `gram`, and Lᵀb + r for the whitened b of c."""
    geometry = metric.at(rho)
    rest = geometry.remainder(c) if geometry.annihilates else jnp.zeros_like(c)
    L = geometry.factor
    return as_dense(L), as_dense(geometry.gram), L.T.mv(geometry.whiten(c)) + rest


def check_matrices(metric: ng.metrics.Metric, rho: np.ndarray, expected: np.ndarray) -> None:
    rho = jnp.asarray(rho)
    c = jnp.asarray(np.random.default_rng(5).normal(size=rho.shape))
    L, A, back = matrices(metric, rho, c)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(A, expected, atol=1e-11 * scale)
    np.testing.assert_allclose(L.T @ L, expected, atol=1e-11 * scale)
    np.testing.assert_allclose(back, c, atol=1e-9)


@pytest.mark.parametrize("case", with_slow(CASES, SYMBOLS), ids=str)
def test_the_metric_at_points_is_a_scaled_principal_submatrix(case):
    rho, rows = density(case.grid, 1), np.array([1, 4, 5, 11, 17, 18])
    selection = Points(jnp.asarray(rows), case.grid.shape)
    A = case.dense(np.asarray(rho))[np.ix_(rows, rows)] * case.grid.size / len(rows)
    check_matrices(case.metric.restricted(selection), np.ravel(rho)[rows], A)


def test_the_metric_of_functions_is_the_same_on_fewer():
    rho, rows = np.exp(RNG.normal(size=(5, 6))), np.array([0, 3])
    one = lambda name, i: {
        "Sobolev": oracle.sobolev(GRID, -1, False),
        "Wasserstein": oracle.transport(GRID, rho[i], 0.5, "staggered"),
    }[name]
    for name, metric in {
        "Sobolev": ng.Sobolev(GRID, -1),
        "Wasserstein": ng.Wasserstein(GRID),
    }.items():
        A = np.zeros((12, 12))
        A[:6, :6], A[6:, 6:] = one(name, 0), one(name, 3)
        restricted = metric.restricted(Functions(jnp.asarray(rows), 5))
        np.testing.assert_allclose(
            matrices(restricted, jnp.asarray(rho[rows]), jnp.zeros((2, 6)))[1], 2.5 * A, atol=1e-12
        )


def test_a_matrix_may_couple_functions():
    root = RNG.normal(size=(12, 12))
    selection = Functions(jnp.array([0, 2]), 4)
    rows = np.array([0, 1, 2, 6, 7, 8])
    for metric, A in (
        (ng.MatrixMetric(root @ root.T), root @ root.T),
        (ng.FactorMetric(root), root.T @ root),
    ):
        check_matrices(
            metric.restricted(selection), RNG.normal(size=(2, 3)), 2 * A[np.ix_(rows, rows)]
        )


def test_blocks_are_restricted_one_by_one():
    metric = ng.Blocks(b=ng.L2(GRID), a=2.0 * ng.Sobolev(GRID, 1))
    restricted = metric.restricted(Functions(jnp.array([1]), 3))
    rho = {"a": jnp.ones((1, 6)), "b": jnp.ones((1, 6))}
    A = np.zeros((12, 12))  # dicts are flattened in the order of their keys
    A[:6, :6], A[6:, 6:] = 6 * oracle.sobolev(GRID, 1, False), 3 * np.eye(6) / 6
    L = np.asarray(eqx.filter_jit(lambda m, r: as_dense(m.factor(r)))(restricted, rho))
    np.testing.assert_allclose(L.T @ L, A, atol=1e-10)


@pytest.mark.parametrize(
    ("metric", "dense"),
    [
        (ng.L2(PLANE), lambda g, rho: g.cell_volume * np.eye(6)),
        (ng.FisherRao(PLANE), lambda g, rho: np.diag(g.cell_volume / rho.ravel())),
        (ng.HomogeneousSobolev(PLANE, 1), lambda g, rho: oracle.sobolev(g, 1, True)),
        (ng.Wasserstein(PLANE), lambda g, rho: oracle.transport(g, rho, 0.5, "staggered")),
    ],
    ids=["L2", "FisherRao", "Sobolev", "Wasserstein"],
)
def test_a_sublattice_is_a_coarser_grid(metric, dense):
    problem = ng.Problem(lambda t: t, ng.LeastSquares(jnp.zeros((4, 6))))
    batch = ng.MiniBatch(2, of="sublattice")
    selection = sampler(batch, problem, metric, jnp.zeros((4, 6))).selection(3)
    assert isinstance(selection, Sublattice)
    rho = np.exp(RNG.normal(size=(2, 3)))
    coarse = ng.Grid((0.0, 0.0), (1.0, 2.0), (2, 3), "periodic")
    check_gram = matrices(metric.restricted(selection), jnp.asarray(rho), jnp.zeros((2, 3)))[1]
    np.testing.assert_allclose(check_gram, dense(coarse, rho), atol=1e-10)
    whole = np.arange(24).reshape(4, 6)
    offsets = np.asarray(selection.rows)[0, 0] // 6, np.asarray(selection.rows)[0, 0] % 6
    np.testing.assert_array_equal(selection.rows, whole[offsets[0] :: 2, offsets[1] :: 2])


class Positive(eqx.Module):
    """θ ↦ exp(Zθ)."""

    Z: jax.Array

    def __call__(self, theta):
        return jnp.exp(self.Z @ theta)


@eqx.filter_jit
def everything(problem: ng.Problem, metric: ng.metrics.Metric, theta):
    """f, its gradient and G."""
    f = lambda t: problem.value(t, problem.model(t))
    Z, rho = jax.jacobian(problem.model)(theta), problem.model(theta)
    Z = Z.reshape(rho.size, theta.size)
    return *jax.value_and_grad(f)(theta), Z.T @ as_dense(metric.at(rho).gram) @ Z


def average(problem, metric, theta, selections):
    found = [everything(problem.restricted(s), metric.restricted(s), theta) for s in selections]
    return [np.mean([np.asarray(part[i]) for part in found], axis=0) for i in range(3)]


@pytest.mark.parametrize("loss", [ng.LeastSquares, ng.KullbackLeibler])
@pytest.mark.parametrize("metric", [ng.L2(GRID), ng.FisherRao(GRID)], ids=["L2", "FisherRao"])
def test_points_are_unbiased_over_all_selections(loss, metric):
    theta, target = jnp.array([0.3, -0.2]), jnp.asarray(RNG.uniform(0.5, 2.0, 6))
    model = Positive(jnp.asarray(RNG.normal(size=(6, 2))))
    problem = ng.Problem(model, loss(target, GRID))
    selections = [Points(jnp.array(rows), (6,)) for rows in combinations(range(6), 4)]
    whole = everything(problem, metric, theta)
    for mean, expected in zip(average(problem, metric, theta, selections), whole, strict=True):
        np.testing.assert_allclose(mean, expected, rtol=1e-12)


class Rows(eqx.Module):
    """Each source is a matrix; the regulariser and the rest see all of θ."""

    def __call__(self, theta, source):
        return source @ theta


def sourcewise(n: int = 5, noise: float = 0.0):
    """n sources of six values each, p = 3."""
    rng = np.random.default_rng(3)
    sources, truth = jnp.asarray(rng.normal(size=(n, 6, 3))), jnp.asarray(rng.normal(size=3))
    target = sources @ truth + noise * rng.normal(size=(n, 6))
    return ng.Problem(ng.Sourcewise(Rows(), sources), ng.LeastSquares(target, GRID)), truth


def square(theta):
    return 0.1 * jnp.sum(theta**2)


@pytest.mark.parametrize(
    "metric",
    [ng.Sobolev(GRID, -1), pytest.param(ng.L2(GRID), marks=pytest.mark.slow)],
    ids=["H-1", "L2"],
)
def test_functions_are_unbiased_over_all_selections(metric):
    problem, _ = sourcewise(noise=1.0)
    losses = problem.loss, ng.SquaredDistance(problem.loss.target, ng.Sobolev(GRID, -1))
    for loss in losses:
        problem = ng.Problem(problem.model, loss, regulariser=square)
        selections = [Functions(jnp.array(rows), 5) for rows in combinations(range(5), 2)]
        theta = jnp.array([0.3, -0.2, 1.0])
        whole = everything(problem, metric, theta)
        for mean, expected in zip(average(problem, metric, theta, selections), whole, strict=True):
            np.testing.assert_allclose(mean, expected, rtol=1e-11)


def test_what_a_principal_submatrix_estimates():
    """The diagonal is unbiased, the rest of A enters with (k′ − 1)/(k − 1)."""
    A, total = oracle.sobolev(GRID, 1, False), np.zeros((6, 6))
    for rows in combinations(range(6), 4):
        metric = ng.Sobolev(GRID, 1).restricted(Points(jnp.array(rows), (6,)))
        total[np.ix_(rows, rows)] += matrices(metric, jnp.ones(4), jnp.ones(4))[1] / 15
    expected = 3 / 5 * A + 2 / 5 * np.diag(np.diag(A))
    np.testing.assert_allclose(total, expected, atol=1e-11 * np.abs(A).max())


def plane_problem():
    """A linear model on the plane grid, p = 3."""
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(4, 6, 3))
    target = rng.normal(size=(4, 6))
    return ng.Problem(Linear(Z), ng.LeastSquares(jnp.asarray(target), PLANE)), Z, target


METRICS = {
    "L2": ng.L2(PLANE),
    "H1": ng.Sobolev(PLANE, 1),
    "dotH-1": ng.HomogeneousSobolev(PLANE, -1),
}


@pytest.mark.parametrize("name", with_slow(METRICS, ["L2", "H1"]))
def test_the_direction_of_a_batch_is_the_dense_one(name: str):
    problem, Z, target = plane_problem()
    theta, metric, batch = jnp.zeros(3), METRICS[name], ng.MiniBatch(10, seed=4)
    result = ng.minimize(
        problem,
        theta,
        ng.NaturalGradient(metric, step=ONE_STEP),
        stop=ng.Stop(iterations=1),
        batch=batch,
    )
    rows = np.asarray(sampler(batch, problem, metric, jnp.zeros((4, 6))).selection(0).rows)
    assert len(set(rows)) == 10
    dense = {
        "L2": PLANE.cell_volume * np.eye(24),
        "H1": oracle.sobolev(PLANE, 1, False),
        "dotH-1": oracle.sobolev(PLANE, -1, True),
    }[name]
    ZS, A = Z.reshape(24, 3)[rows], 2.4 * dense[np.ix_(rows, rows)]
    gradient = 2.4 * PLANE.cell_volume * ZS.T @ -target.ravel()[rows]
    np.testing.assert_allclose(result.theta, -np.linalg.solve(ZS.T @ A @ ZS, gradient), rtol=1e-8)
    residual = Z @ np.asarray(result.theta) - target
    assert result.loss == pytest.approx(0.5 * PLANE.cell_volume * np.sum(residual**2))


@pytest.mark.parametrize("of", with_slow(["points", "sublattice"], ["points"]))
def test_a_batch_of_everything_is_no_batch(of):
    problem, _, _ = plane_problem()
    batch = ng.MiniBatch(24 if of == "points" else 1, of=of)
    run = lambda **more: ng.minimize(
        problem,
        jnp.zeros(3),
        ng.NaturalGradient(METRICS["H1"], step=ONE_STEP),
        stop=ng.Stop(iterations=1),
        **more,
    )
    np.testing.assert_allclose(run(batch=batch).theta, run().theta, rtol=1e-9)


def network(theta, x):
    """One hidden layer of eight."""
    return theta["out"] @ jnp.tanh(theta["in"] @ x + theta["bias"])


def network_fit():
    grid = ng.Grid((0.0, 0.0), (1.0, 1.0), (16, 16))
    rng = np.random.default_rng(1)
    theta = {"in": rng.normal(size=(8, 2)), "bias": rng.normal(size=8), "out": rng.normal(size=8)}
    target = jnp.sin(3 * grid.points[..., 0]) * grid.points[..., 1]
    model = ng.Pointwise(network, grid.points)
    return ng.Problem(model, ng.LeastSquares(target, grid)), jax.tree.map(jnp.asarray, theta), grid


@pytest.mark.parametrize("metric", [ng.L2, ng.FisherRao], ids=lambda m: m.__name__)
def test_points_of_a_network_go_by_rows_and_are_unbiased(metric):
    """The mean over all selections of the gradient and of G, each from blocks of rows."""
    weights = jnp.asarray(np.random.default_rng(7).normal(size=3))
    model = ng.Pointwise(
        lambda t, x: jnp.exp(t @ jnp.sin(weights * x[0])), GRID.points, memory=4 * 2 * 3 * 8
    )
    theta = jnp.array([0.3, -0.5, 0.2])
    problem = ng.Problem(model, ng.LeastSquares(jnp.linspace(0.5, 2.0, 6), GRID))
    damping, means = ng.AbsoluteDamping(1.0), [0.0, 0.0]
    for rows in combinations(range(6), 4):
        selection = Points(jnp.array(rows), (6,))
        part, measure = problem.restricted(selection), metric(GRID).restricted(selection)
        assert isinstance(part.model, ng.Pointwise)
        assert part.model.memory == model.memory
        local = linearise(Setup(part, theta, measure, ng.Cholesky(), damping))
        assert isinstance(local, ByRows)
        found = local.gradient, local.prepared.G
        means = [mean + x / 15 for mean, x in zip(means, found, strict=True)]
    _, gradient, G = everything(problem, metric(GRID), theta)
    np.testing.assert_allclose(means[0], gradient, rtol=1e-12)
    np.testing.assert_allclose(means[1], G, rtol=1e-12)


@pytest.mark.slow
def test_a_network_is_fitted_by_batches_of_points():
    problem, theta, grid = network_fit()
    result = minimized(
        problem,
        theta,
        ng.NaturalGradient(ng.L2(grid), damping=ng.LevenbergMarquardt()),
        ng.MiniBatch(64),
        iterations=60,
    )
    first = float(problem.value(theta, problem.model(theta)))
    assert result.loss < 1e-4 * first, (first, result)


def test_sources_are_fitted_by_batches_of_functions():
    problem, truth = sourcewise()
    result = minimized(
        problem,
        jnp.zeros(3),
        ng.NaturalGradient(ng.Sobolev(GRID, -1)),
        ng.MiniBatch(2, of="functions"),
        iterations=200,
    )
    assert result.converged, result
    np.testing.assert_allclose(result.theta, truth, atol=1e-4)


@pytest.mark.slow
def test_wasserstein_on_sublattices():
    grid = ng.Grid(0.0, 1.0, 48, "periodic")
    bump = Bump(grid.points[:, 0])
    problem = ng.Problem(bump, ng.LeastSquares(bump(jnp.array([0.4, 1.0])), grid))
    result = minimized(
        problem,
        jnp.array([0.5, 1.3]),
        ng.NaturalGradient(ng.Wasserstein(grid) + 0.1 * ng.L2(grid)),
        ng.MiniBatch(3, of="sublattice"),
    )
    assert result.converged, result
    np.testing.assert_allclose(result.theta, [0.4, 1.0], atol=1e-4)


class Bump(eqx.Module):
    """Position and height of a bump on the ring."""

    x: jax.Array

    def __call__(self, theta):
        return 0.2 + theta[1] * jnp.exp(-2 * (1 - jnp.cos(2 * jnp.pi * (self.x - theta[0]))))


def test_a_selection_without_signal_does_not_end_a_run():
    """Most points see nothing of a narrow bump: their gradients vanish, the run goes on."""
    x = jnp.linspace(0.0, 1.0, 64)
    model = ng.Pointwise(narrow, x[:, None])
    problem = ng.Problem(model, ng.LeastSquares(model(jnp.array([1.0]))))
    result = ng.minimize(
        problem,
        jnp.array([0.5]),
        ng.NaturalGradient(ng.L2(ng.Grid(0.0, 64.0, 64))),
        stop=ng.Stop(iterations=40),
        batch=ng.MiniBatch(6, seed=3),
    )
    norms = result.history["gradient_norm"]
    assert np.any(norms[: result.iterations] == 0), "no selection was blind"
    np.testing.assert_allclose(result.theta, [1.0])


def narrow(theta, x):
    return theta[0] * jnp.maximum(0.0, 1 - 20 * jnp.abs(x[0] - 0.3))


def test_draws_depend_on_seed_and_iteration_alone():
    problem, *_ = plane_problem()
    draws = lambda seed: sampler(
        ng.MiniBatch(7, seed=seed), problem, ng.L2(PLANE), jnp.zeros((4, 6))
    )
    rows = lambda seed, i: np.asarray(draws(seed).selection(i).rows)
    np.testing.assert_array_equal(rows(1, 5), rows(1, 5))
    assert np.any(rows(1, 5) != rows(2, 5))
    assert np.any(rows(1, 5) != rows(1, 6))
    run = lambda seed: ng.minimize(
        problem,
        jnp.zeros(3),
        ng.NaturalGradient(ng.L2(PLANE)),
        stop=ng.Stop(iterations=3),
        batch=ng.MiniBatch(10, seed=seed),
    )
    np.testing.assert_array_equal(run(4).history["loss"], run(4).history["loss"])
    assert run(4).loss != run(5).loss


def implicit():
    """(1 + θ₁ + θ₂x) u = 1 on six points, whole."""
    x = jnp.linspace(0.0, 1.0, 6)
    residual = Residual(x)
    model = ng.ImplicitModel(residual, initial=jnp.zeros(6), linear=True, linear_solver=lx.LU())
    target = 1 / (1.5 + 0.3 * x)
    return ng.Problem(model, ng.LeastSquares(target, GRID))


class Residual(eqx.Module):
    x: jax.Array

    def __call__(self, u, theta):
        return (1 + theta[0] + theta[1] * self.x) * u - 1.0


class Chosen(eqx.Module):
    """`select` for the sources of `sourcewise`."""

    problem: ng.Problem

    def __call__(self, rows):
        model, loss = self.problem.model, self.problem.loss
        return ng.Problem(
            ng.Sourcewise(model.function, model.sources[rows]),
            ng.LeastSquares(loss.target[rows], GRID),
        )


def test_an_implicit_model_is_solved_as_a_whole_and_observed_in_part():
    start = jnp.array([0.2, 0.0])
    result = minimized(implicit(), start, ng.NaturalGradient(ng.L2(GRID)), ng.MiniBatch(4))
    assert result.converged, result
    np.testing.assert_allclose(result.theta, [0.5, 0.3], atol=1e-4)


def test_select_gives_what_the_library_would():
    problem, _ = sourcewise(noise=1.0)
    run = lambda **more: minimized(
        problem,
        jnp.zeros(3),
        ng.NaturalGradient(ng.L2(GRID)),
        ng.MiniBatch(2, of="functions", **more),
        iterations=4,
    )
    np.testing.assert_allclose(run(select=Chosen(problem)).theta, run().theta, rtol=1e-12)


class Laboratory:
    """Code outside JAX that is told which experiments to run."""

    def __init__(self, problem: ng.Problem):
        self.sources = np.asarray(problem.model.sources)
        self.target, self.rows = np.asarray(problem.loss.target), np.arange(5)
        self.seen: list[int] = []
        self.model = ng.ExternalModel(self.forward, self.jvp, self.vjp)

    def forward(self, theta):
        self.seen.append(len(self.rows))
        return self.sources[self.rows] @ theta

    def jvp(self, theta, eta):
        return self.sources[self.rows] @ eta

    def vjp(self, theta, xi):
        return np.einsum("sij,si->j", self.sources[self.rows], xi)

    def problem(self, rows):
        self.rows = np.asarray(rows)
        return ng.Problem(self.model, ng.LeastSquares(jnp.asarray(self.target[self.rows]), GRID))


def test_a_model_outside_jax_selects_for_itself():
    problem, truth = sourcewise()
    everything, parts = Laboratory(problem), Laboratory(problem)
    whole = everything.problem(np.arange(5))
    batch = ng.MiniBatch(2, of="functions", select=parts.problem)
    result = ng.minimize(
        whole,
        jnp.zeros(3),
        ng.NaturalGradient(ng.L2(GRID)),
        stop=ng.Stop(iterations=3),
        batch=batch,
    )
    np.testing.assert_allclose(result.theta, truth, atol=1e-8)
    assert everything.seen == [5, 5], "the whole is evaluated at the start and at the end"
    assert set(parts.seen) == {2}
    with pytest.raises(ng.InputError, match="select"):
        ng.minimize(
            whole,
            jnp.zeros(3),
            ng.NaturalGradient(ng.L2(GRID)),
            batch=ng.MiniBatch(2, of="functions"),
        )


def free_loss(rho):
    return jnp.sum(rho**4)


def pair(theta):
    return theta[0] * jnp.ones(6), theta[1] * jnp.ones(4)


def test_bad_input():
    problem, *_ = plane_problem()
    state = jnp.zeros((4, 6))

    def refused(match, batch, problem=problem, metric=ng.L2(PLANE), state=state):
        with pytest.raises(ng.InputError, match=match):
            sampler(batch, problem, metric, state)

    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ng.InputError, match="size"):
            ng.MiniBatch(wrong)
    with pytest.raises(ng.InputError, match="'cells' is unknown"):
        ng.MiniBatch(3, of="cells")  # pyright: ignore
    with pytest.raises(ng.InputError, match="seed"):
        ng.MiniBatch(3, seed=-1)
    with pytest.raises(ng.InputError, match="select"):
        ng.MiniBatch(3, select=3)  # pyright: ignore
    refused("25 points of 24", ng.MiniBatch(25))
    refused("5 functions of 4", ng.MiniBatch(5, of="functions"))
    refused("stride of 3", ng.MiniBatch(3, of="sublattice"))
    refused("Wasserstein needs the state everywhere", ng.MiniBatch(3), metric=ng.Wasserstein(PLANE))
    dirichlet = ng.Sobolev(ng.Grid((0.0, 0.0), (1.0, 1.0), (4, 6), "dirichlet"), 1)
    refused("dirichlet", ng.MiniBatch(2, of="sublattice"), metric=dirichlet)
    refused("free_loss", ng.MiniBatch(3), ng.Problem(problem.model, free_loss))
    refused("objective", ng.MiniBatch(3), ng.Problem(problem.model, objective=square))
    distance = ng.SquaredDistance(state, ng.L2(PLANE))
    refused("not a sum over points", ng.MiniBatch(3), ng.Problem(problem.model, distance))
    two = (jnp.zeros(6), jnp.zeros(4))
    refused("a tuple has no points", ng.MiniBatch(3), state=two)
    refused("leading axes", ng.MiniBatch(3, of="functions"), state=two)
    refused("returns an int", ng.MiniBatch(3, select=len))
    with pytest.raises(ng.InputError, match="sources"):
        ng.Sourcewise(Rows(), (jnp.zeros(3), jnp.zeros(2)))
    with pytest.raises(ng.InputError, match="batch"):
        ng.minimize(problem, jnp.zeros(3), ng.NaturalGradient(ng.L2(PLANE)), batch=10)  # pyright: ignore
