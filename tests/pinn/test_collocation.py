"""Residuals at collocation points: conventions, pytrees, new points, recipes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import dense_oracle
import natgrad as ng
from natgrad.core.operators import as_dense
from problems_for_tests import close, minimize_compiling_once, with_slow

LINE = ng.Grid(0.0, 1.0, 6)
INSIDE = jnp.linspace(0.05, 0.95, 8)[:, None]
EDGE = jnp.array([[0.0], [1.0]])


def affine(theta, x):
    """Linear in θ."""
    return theta[0] * jnp.sin(3 * x[0]) + theta[1] * x[0] ** 2 + theta[2] - jnp.exp(x[0])


def system(theta, x):
    """Two equations, linear in θ."""
    return jnp.stack([affine(theta, x), theta[1] * x[0] + theta[2] - 2.0])


def linear(weight=2.0, edge_weight=5.0) -> ng.Collocation:
    return ng.Collocation(
        inside=ng.Residual(system, INSIDE, weight=weight),
        edge=ng.Residual(affine, EDGE, weight=edge_weight),
    )


WEIGHTS = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2.0, 8))
THETA = jnp.array([0.3, -1.0, 0.7])


@eqx.filter_jit
def evaluate(model, theta):
    return model(theta)


def stacked(pinn: ng.Collocation, theta) -> np.ndarray:
    """√wᵢ rᵢ, by hand: f is its square, and Gauss–Newton's step solves its least squares."""
    rows = []
    for block in pinn.blocks.values():
        weight = np.asarray(block.weight)
        each = weight if weight.ndim else np.full(len(block.points), weight / len(block.points))
        for x, w in zip(block.points, each, strict=True):
            rows.append(np.sqrt(w) * np.ravel(block.function(theta, x)))
    return np.concatenate(rows)


@pytest.mark.parametrize("weight", [2.0, WEIGHTS], ids=["one weight", "a weight a point"])
def test_the_loss_is_a_weighted_mean_of_squares_and_the_metric_its_hessian(weight):
    pinn = linear(weight)
    residuals = evaluate(pinn, THETA)
    assert {n: r.shape for n, r in residuals.items()} == {"inside": (8, 2), "edge": (2,)}
    inside, edge = (np.asarray(residuals[n]) for n in ("inside", "edge"))
    w = np.full(8, 2.0 / 8) if np.ndim(weight) == 0 else np.asarray(weight)
    expected = np.sum(w * np.sum(inside**2, axis=1)) + 5.0 * np.mean(edge**2)
    assert float(pinn.loss(residuals)) == pytest.approx(expected, rel=1e-14)
    close(stacked(pinn, THETA) @ stacked(pinn, THETA), expected, 1e-14)
    flat, unravel = ravel_pytree(residuals)
    hessian = jax.jit(jax.hessian(lambda v: pinn.loss(unravel(v))))(flat)
    np.testing.assert_allclose(as_dense(pinn.metric.at(residuals).gram), hessian, rtol=1e-14)
    diagonal = ravel_pytree(pinn.metric.at(residuals).diagonal)[0]
    np.testing.assert_allclose(np.diag(diagonal), hessian, rtol=1e-14)
    c = jax.tree.map(jnp.sin, residuals)
    L = pinn.metric.factor(residuals)
    back = L.T.mv(pinn.metric.whiten(residuals, c))
    close(ravel_pytree(back)[0], ravel_pytree(c)[0], 1e-14)


@pytest.mark.parametrize(
    "weight",
    [pytest.param(2.0, marks=pytest.mark.slow), WEIGHTS],
    ids=["one weight", "a weight a point"],
)
def test_one_step_of_length_one_solves_a_linear_residual(weight):
    """Gauss–Newton, exactly: the first step reaches the least-squares solution."""
    pinn = linear(weight)
    step = ng.FixedStep(1.0)
    result = ng.minimize(
        pinn.problem,
        THETA,
        ng.NaturalGradient(pinn.metric, step=step),
        stop=ng.Stop(iterations=5, gradient=1e-10),
    )
    offset = stacked(pinn, jnp.zeros(3))
    columns = np.stack([stacked(pinn, e) - offset for e in jnp.eye(3)], axis=1)
    close(result.theta, np.linalg.lstsq(columns, -offset, rcond=None)[0], 1e-10)
    assert (result.status, result.iterations) == (ng.Status.CONVERGED, 1)


def test_a_block_may_have_a_metric_of_its_own():
    """Sobolev on a block that lies on a grid: Z by columns, and A block by block."""
    pinn = ng.Collocation(
        inside=ng.Residual(affine, LINE.points, metric=ng.Sobolev(LINE, -1)),
        edge=ng.Residual(affine, EDGE, weight=5.0),
    )
    residuals = evaluate(pinn, THETA)
    assert pinn.metric.at(residuals).diagonal is None
    A = np.zeros((8, 8))  # the edge first, as pytrees are flattened
    A[:2, :2] = 2 * 5.0 / 2 * np.eye(2)
    A[2:, 2:] = dense_oracle.sobolev(LINE, -1, False)
    Z = np.asarray(jax.jit(jax.jacobian(lambda t: ravel_pytree(pinn(t))[0]))(THETA))
    d = ng.natural_gradient(pinn.problem, THETA, metric=pinn.metric)
    close(d.eta, -np.linalg.solve(Z.T @ A @ Z, d.gradient), 1e-10)
    gradient = jax.jit(jax.grad(lambda t: pinn.loss(pinn(t))))(THETA)
    close(d.gradient, gradient, 1e-12)


def test_other_points_keep_the_rest():
    pinn = linear()
    moved = pinn.at({"inside": INSIDE[:3] + 0.01})
    np.testing.assert_array_equal(moved.blocks["edge"].points, EDGE)
    assert moved(THETA)["inside"].shape == (3, 2)
    assert moved.memory == pinn.memory
    expected = [affine(THETA, x) for x in INSIDE[:3] + 0.01]
    np.testing.assert_allclose(moved(THETA)["inside"][:, 0], expected, rtol=1e-14)
    weights = moved.metric.at(moved(THETA)).diagonal["inside"]  # a mean over fewer points
    np.testing.assert_allclose(weights, 2 * 2.0 / 3, rtol=1e-14)


def network(key: int = 0) -> eqx.nn.MLP:
    """With its activation functions, and their derivatives, in the pytree."""
    return eqx.nn.MLP(1, 1, 6, 1, jnp.tanh, key=jax.random.key(key))


def equation(net, x):
    return ng.laplacian(lambda y: net(y)[0], x) + jnp.pi**2 * jnp.sin(jnp.pi * x[0])


def condition(net, x):
    return net(x)[0]


POISSON = ng.Collocation(
    inside=ng.Residual(equation, INSIDE, weight=0.01), edge=ng.Residual(condition, EDGE)
)


def dict_network(theta, x):
    return theta["out"] @ jnp.tanh(theta["in"]["W"][:, 0] * x[0] + theta["in"]["b"])


def in_dict(theta, x):
    u = lambda y: dict_network(theta, y)
    return ng.derivative(u, x, 0, 0) + jnp.pi**2 * jnp.sin(jnp.pi * x[0])


@pytest.mark.parametrize("kind", with_slow(["module", "dict"], ["dict"]))
def test_parameters_are_any_pytree(kind: str):
    rng = np.random.default_rng(3)
    if kind == "module":
        pinn, theta = POISSON, network()
        u = lambda net, x: net(x)[0]
    else:
        pinn = ng.Collocation(
            inside=ng.Residual(in_dict, INSIDE, weight=0.01), edge=ng.Residual(dict_network, EDGE)
        )
        W, b = (jnp.asarray(rng.normal(size=s)) for s in ((6, 1), 6))
        theta = {"in": {"W": W, "b": b}, "out": jnp.asarray(rng.normal(size=6)), "steps": 3}
        u = dict_network
    result = ng.minimize(
        pinn.problem,
        theta,
        ng.NaturalGradient(pinn.metric, damping=ng.LevenbergMarquardt(), step=ng.Backtracking()),
        stop=ng.Stop(iterations=40),
    )
    assert jax.tree.structure(result.theta) == jax.tree.structure(theta)
    assert np.all(np.diff(result.history["loss"]) < 0)
    x = jnp.linspace(0.0, 1.0, 21)[:, None]
    error = jax.vmap(lambda y: u(result.theta, y))(x) - jnp.sin(jnp.pi * x[:, 0])
    assert np.abs(error).max() < 0.02


def draw(key):
    return {"inside": jax.random.uniform(key, (8, 1))}


def drawn(batch: ng.Resampled, iteration: int, pinn: ng.Collocation = POISSON):
    return sampled(batch, pinn.problem, pinn.metric, iteration)


def sampled(batch: ng.Resampled, problem: ng.Problem, metric: ng.metrics.Metric, iteration: int):
    """The problem and the metric of an iteration."""
    method = ng.NaturalGradient(metric)
    problem, method, _ = batch.sampler(problem, method, network(), None)(iteration, network())
    return problem, method.metric


@settings(max_examples=6)
@given(seed=st.integers(0, 5), iteration=st.integers(0, 50), period=st.integers(1, 4))
def test_draws_depend_on_the_seed_and_the_period_alone(seed: int, iteration: int, period: int):
    points = lambda i, s=seed: np.asarray(
        drawn(ng.Resampled(draw, period=period, seed=s), i)[0].model.blocks["inside"].points
    )
    np.testing.assert_array_equal(points(iteration), points(iteration))
    first = iteration - iteration % period
    np.testing.assert_array_equal(points(iteration), points(first))
    assert np.any(points(first) != points(first + period))
    assert np.any(points(iteration) != points(iteration, seed + 1))
    key = jax.random.fold_in(jax.random.key(seed), iteration // period)
    np.testing.assert_array_equal(points(iteration), draw(key)["inside"])


def test_the_loss_and_the_metric_move_with_the_points_where_they_are_the_models_own():
    subset = lambda key: {"inside": jax.random.choice(key, INSIDE, (4,), replace=False)}
    problem, metric = drawn(ng.Resampled(subset), 2)
    points = np.asarray(problem.model.blocks["inside"].points)
    assert points.shape == (4, 1)
    assert np.all(np.isin(points, INSIDE))
    np.testing.assert_array_equal(problem.model.blocks["edge"].points, EDGE)
    np.testing.assert_allclose(metric.metrics["inside"].weights, 2 * 0.01 / 4, rtol=1e-14)
    net = network()
    residuals = evaluate(problem.model, net)
    mean = 0.01 * jnp.mean(residuals["inside"] ** 2) + jnp.mean(residuals["edge"] ** 2)
    assert float(problem.value(net, residuals)) == pytest.approx(float(mean), rel=1e-14)

    own = ng.Problem(POISSON, lambda r: jnp.sum(r["inside"] ** 4), regulariser=lambda t: 3.0)
    scaled = ng.Blocks(inside=2.0 * ng.L2(), edge=ng.L2())
    problem, metric = sampled(ng.Resampled(subset), own, scaled, 2)
    assert (problem.loss, problem.regulariser) == (own.loss, own.regulariser)
    assert eqx.tree_equal(metric, scaled)
    other = linear().loss  # squares with weights of another model stay what they are
    problem, _ = sampled(ng.Resampled(subset), ng.Problem(POISSON, other), scaled, 2)
    assert problem.loss is other


def test_later_draws_are_what_a_first_one_would_be():
    """Also of arrays of NumPy, and in another number than before."""

    def draw(key):
        sign = 1.0 - 2.0 * float(jax.random.bernoulli(key))
        return {"inside": sign * np.ones((5 if sign > 0 else 3, 1))}

    method = ng.NaturalGradient(POISSON.metric)
    draws = ng.Resampled(draw).sampler(POISSON.problem, method, network(), None)
    seen = set()
    for iteration in range(12):
        problem, found, _ = draws(iteration, network())
        points = problem.model.blocks["inside"].points
        seen.add(points.shape)
        moved = POISSON.at({"inside": points})
        assert eqx.tree_equal(problem, moved.problem)
        assert eqx.tree_equal(found.metric, moved.metric)
    assert seen == {(5, 1), (3, 1)}


def test_a_resampled_run_follows_its_draws_and_compiles_once():
    batch = ng.Resampled(draw, seed=4)
    method = ng.NaturalGradient(
        POISSON.metric,
        damping=ng.AbsoluteDamping(1e-3),
        step=ng.FixedStep(0.5, require_decrease=False),
        momentum=0.5,
    )
    stop = ng.Stop(iterations=4)
    run = lambda batch: minimize_compiling_once(
        POISSON.problem, network(), method, batch=batch, stop=stop
    )
    result = run(batch)
    whole = POISSON.loss(evaluate(POISSON, result.theta))
    assert result.loss == pytest.approx(float(whole), rel=1e-12)
    again = run(batch)
    np.testing.assert_array_equal(again.history["loss"], result.history["loss"])
    problem, _ = drawn(batch, 0)
    first = problem.value(network(), evaluate(problem.model, network()))
    assert result.history["loss"][0] == pytest.approx(float(first), rel=1e-12)
    other = run(ng.Resampled(draw))
    assert np.all(other.history["loss"] != result.history["loss"])


def bent(theta, x):
    """Two equations, not linear in θ."""
    return system(theta + 0.3 * jnp.sin(theta), x)


BENT = ng.Collocation(inside=ng.Residual(bent, INSIDE), edge=ng.Residual(affine, EDGE))


RECIPES = {
    "levenberg-marquardt": ng.levenberg_marquardt,
    "gauss-newton": ng.gauss_newton,
    "spring": ng.spring,
    "nystrom": ng.nystrom,
    "matrix-free": ng.matrix_free,
}


@pytest.mark.parametrize(
    "name", with_slow(RECIPES, {*RECIPES} - {"levenberg-marquardt", "matrix-free"})
)
def test_every_recipe_decreases_the_loss(name: str):
    method = RECIPES[name](BENT.metric)
    result = ng.minimize(BENT.problem, THETA, method, stop=ng.Stop(iterations=3))
    assert result.iterations == 3
    assert result.loss < result.history["loss"][0]


@pytest.mark.parametrize("name", RECIPES)
def test_the_settings_of_a_recipe_may_be_changed(name: str):
    method = RECIPES[name](BENT.metric, damping=ng.AbsoluteDamping(2.0), momentum=0.25)
    assert (float(method.damping.value), float(method.momentum)) == (2.0, 0.25)


def wave_residual(t, x):
    return t[0] * jnp.sin(t[1] * x[0]) + t[2] - x[0] ** 2


DERIVED = {
    "multiple": lambda m, c: c * m,
    "sum": lambda m, c: m + (c - 1.0) * m,
    "by block": lambda m, c: ng.Blocks(**{key: c * part for key, part in m.metrics.items()}),
    "nested": lambda m, c: 0.5 * (c * m + c * m),
}


def check_that_weights_follow(name: str, c: float, count: int, seed: int) -> None:
    """What is made of the model's metric has the weights of the points drawn, as that has."""
    pinn = ng.Collocation(
        inside=ng.Residual(wave_residual, jnp.linspace(0.1, 0.9, 6)[:, None]),
        edge=ng.Residual(wave_residual, jnp.linspace(0.0, 1.0, 6)[:, None], weight=3.0),
    )
    draw = lambda key: {"inside": jax.random.uniform(key, (count, 1))}
    make = lambda metric: ng.NaturalGradient(metric, damping=1e-6)
    batch = ng.Resampled(draw, seed=seed)
    sampler = lambda metric: batch.sampler(pinn.problem, make(metric), jnp.ones(3), None)
    follow = lambda metric: sampler(metric)(5, jnp.ones(3))[:2]
    problem, method = follow(DERIVED[name](pinn.metric, c))
    _, own = follow(pinn.metric)
    rho = {"inside": jnp.ones(count), "edge": jnp.ones(6)}
    for key, entries in method.metric.at(rho).diagonal.items():
        np.testing.assert_allclose(entries, c * own.metric.at(rho).diagonal[key], rtol=1e-14)
    np.testing.assert_allclose(own.metric.at(rho).diagonal["inside"], 2.0 / count)
    assert problem.model.blocks["inside"].points.shape == (count, 1)


derived = {"c": st.floats(1.1, 10.0), "count": st.integers(1, 20), "seed": st.integers(0, 2**31)}


@pytest.mark.parametrize("name", DERIVED)
@settings(max_examples=5)
@given(**derived)
def test_weights_follow_the_points_in_derived_metrics(name, **case):
    check_that_weights_follow(name, **case)


@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVED)
@settings(max_examples=200)
@given(**derived)
def test_weights_always_follow_the_points_in_derived_metrics(name, **case):
    check_that_weights_follow(name, **case)


def test_a_multiple_of_the_metric_takes_the_same_resampled_step():
    pinn = ng.Collocation(inside=ng.Residual(wave_residual, jnp.linspace(0.1, 0.9, 6)[:, None]))
    batch = ng.Resampled(lambda key: {"inside": jax.random.uniform(key, (12, 1))})
    start, ends = jnp.array([0.1, -0.2, 0.05]), []
    for metric, tau in ((pinn.metric, 0.5), (2.0 * pinn.metric, 1.0)):
        step = ng.FixedStep(tau, require_decrease=False)
        method = ng.NaturalGradient(metric, damping=1e-6, step=step)
        stop = ng.Stop(iterations=1, gradient=0.0)
        ends.append(ng.minimize(pinn.problem, start, method, batch=batch, stop=stop).theta)
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-9)


def test_a_run_traces_a_residual_few_times():
    """To check it, for its rows, for the line search and for a curve, whatever its order."""
    calls = []

    def residual(w, x):
        calls.append(1)
        return jnp.tanh(w @ x) - x[0]

    points = jnp.linspace(0.1, 1.0, 111).reshape(37, 3)  # no multiple of a chunk of rows
    pinn = ng.Collocation(one=ng.Residual(residual, points))
    method = ng.levenberg_marquardt(pinn.metric)
    stop = ng.Stop(iterations=2, gradient=0.0)
    ng.minimize(pinn.problem, jnp.array([0.1, 0.2, 0.3]), method, stop=stop)
    assert len(calls) <= 7
