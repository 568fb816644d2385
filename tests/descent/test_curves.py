"""Curved steps and momentum: their order, their laws, their dense oracles, and runs with them."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad.descent.curves import bend, expand
from natgrad.descent.steps import offset
from natgrad.direction.linearise import linearise
from natgrad.direction.local import Setup
from natgrad.parameters import Bounds, flatten
from problems_for_tests import (
    Linear,
    all_metrics,
    bumps_problem,
    close,
    compiled,
    state_and_jacobian,
    with_slow,
)

GRID = ng.Grid(0.0, 1.0, 4)
A = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
START = jnp.array([0.3, -0.2, 0.5, 0.1])
SHORT = jnp.array([0.02, -0.01, 0.015, 0.01])


class Wavy(eqx.Module):
    """θ ↦ exp(Bφ + ½ sin(Cφ)) for φ = θ + R sin θ: positive; square and invertible for k = 4."""

    B: jax.Array
    C: jax.Array
    R: jax.Array

    def __init__(self, k: int = 4, R: jax.Array | None = None):
        rng = np.random.default_rng(5)
        self.B = jnp.asarray(np.eye(k, 4) + 0.3 * rng.normal(size=(k, 4)))
        self.C = jnp.asarray(rng.normal(size=(k, 4)))
        self.R = jnp.zeros((4, 4)) if R is None else R

    def __call__(self, theta):
        phi = theta + self.R @ jnp.sin(theta)
        return jnp.exp(self.B @ phi + 0.5 * jnp.sin(self.C @ phi))


SERIES = {
    "linear": lambda x: jnp.concatenate([x, A[0]])[1:5].sum() - jnp.where(A > 0, x, 2.0),
    "product": lambda x: (x[:, None] * x) @ jnp.sin(x) + A @ jnp.cos(x),
    "matrices": lambda x: jnp.tanh(jnp.outer(x, x) @ A) @ jnp.outer(jnp.exp(x), x),
    "batched": lambda x: jax.vmap(lambda a: jnp.tanh(jnp.diag(x) @ a) @ (x * a))(A),
    "powers": lambda x: x**3 + jnp.square(x) + (4.0 + x) ** -2,
    "networks": lambda x: jax.nn.gelu(x) + jax.nn.sigmoid(x) * jax.nn.silu(x),
    "choice": lambda x: jnp.where(x > 0, x**2, jnp.sin(x)) * jnp.argmax(x),
    "without a rule": lambda x: jax.nn.softplus(x) / (2 + jnp.sin(x)) + jnp.sqrt(4 + x),
    "loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, y: (i + 1) * jnp.sin(y) * x, x),
    "gather": lambda x: jnp.take(x * x, jnp.array([1, 9]), mode="fill", fill_value=5.0) ** 2,
    "several": lambda x: {"a": x[0] * x.at[1].set(x[2]), "b": jnp.ones(3)},
}


@pytest.mark.parametrize("name", with_slow(SERIES, ["powers", "choice", "loop", "several"]))
def test_series_are_nested_derivatives(name: str):
    """The coefficients of τⁿ up to n = 3, by the rules and by differentiating n times."""
    function, curve = SERIES[name], jnp.asarray(np.random.default_rng(3).normal(size=(4, 4)))

    @jax.jit
    def both(curve):
        orders = [lambda tau: function(curve[0] + offset(curve[1:], tau))]
        for n in range(1, 4):
            slope = lambda tau, f=orders[-1]: jax.jvp(f, (tau,), (jnp.ones(()),))[1]
            orders.append(lambda tau, n=n, f=slope: jax.tree.map(lambda x: x / n, f(tau)))
        found = [order(jnp.zeros(())) for order in orders]
        return expand(function, curve), jax.tree.map(lambda *terms: jnp.stack(terms), *found)

    series, nested = both(curve)
    for one, other in zip(jax.tree.leaves(series), jax.tree.leaves(nested), strict=True):
        close(one, other, 1e-12)


@pytest.mark.parametrize("name", ["networks", "gather"])
def test_series_keep_single_precision(name: str):
    """With double precision switched on too, which a constant of NumPy would bring in."""
    curve = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    found = jax.eval_shape(lambda curve: expand(SERIES[name], curve), curve)
    assert found.dtype == jnp.float32


def near(model, theta, distance: float = 0.05) -> ng.Problem:
    """A least-squares problem whose target is not far from the state at θ."""
    rho = np.asarray(state_and_jacobian(model, theta)[0])
    noise = np.random.default_rng(6).normal(size=rho.shape)
    return ng.Problem(model, ng.LeastSquares(jnp.asarray(rho * (1 + distance * noise))))


@eqx.filter_jit
def bent(
    problem,
    theta,
    metric,
    order,
    strength=0.0,
    solver=ng.QR(),
    momentum=None,
    previous=None,
    eta=None,
):
    """The curve of a direction, and the direction: the natural gradient, or that given."""
    local = linearise(Setup(problem, theta, metric, solver))
    strength = jnp.asarray(strength)
    solution = local.solve(strength)
    solution = solution if eta is None else solution._replace(eta=eta)
    path = bend(local, solution, strength, order, momentum, previous)
    coefficients = path.eta[None] if path.coefficients is None else path.coefficients
    return coefficients, solution.eta


@eqx.filter_jit
def remainder(model, theta, coefficients, tau):
    """ρ(θ(τ)) − ρ − τZη, flat, and θ(τ)."""
    flat, unravel = flatten(theta)
    state = lambda v: ravel_pytree(model(unravel(v)))[0]
    rho, motion = jax.jvp(state, (flat,), (coefficients[0],))
    end = flat + offset(coefficients, tau)
    return state(end) - rho - tau * motion, end


def order_of(measure) -> float:
    """The observed order of what vanishes with τ."""
    coarse, fine = (np.linalg.norm(measure(jnp.asarray(tau))) for tau in (1.0, 0.5))
    return float(np.log2(coarse / fine))


METRICS = {
    "L2": ng.L2(GRID),
    "FisherRao": ng.FisherRao(GRID),
    "Sobolev": ng.Sobolev(GRID, 1),
    "Sum": ng.L2(GRID) + 0.2 * ng.FisherRao(GRID),
}


@pytest.mark.parametrize("name", with_slow(METRICS, ["FisherRao", "Sum"]))
def test_the_state_moves_straight_ahead_to_the_order_of_the_curve(name: str):
    """Where Z is square and invertible; then the metric does not matter."""
    model = Wavy()
    coefficients, eta = bent(near(model, START), START, METRICS[name], 4, eta=SHORT)
    np.testing.assert_array_equal(coefficients[0], eta)
    assert np.all(np.linalg.norm(coefficients, axis=1) > 0), "dropped"
    plain = bent(near(model, START), START, METRICS["L2"], 4, eta=SHORT)[0]
    close(coefficients, plain, 1e-9)
    for q in (1, 2, 3, 4):
        along = lambda tau, q=q: remainder(model, START, coefficients[:q], tau)[0]
        assert order_of(along) == pytest.approx(q + 1, abs=0.25), q


@pytest.mark.parametrize("order", with_slow([1, 2, 3], [1, 3]))
def test_a_lower_order_is_the_beginning_of_a_higher_one(order: int):
    problem = near(Wavy(), START)
    lower, higher = (bent(problem, START, METRICS["L2"], q, eta=SHORT)[0] for q in (order, 4))
    assert lower.shape == (order, 4)
    np.testing.assert_allclose(lower, higher[:order], rtol=1e-13)


@pytest.mark.parametrize(
    "name", with_slow(["L2", "FisherRao", "H-1", "Wasserstein"], ["L2", "H-1", "Wasserstein"])
)
def test_what_the_tangent_space_reaches_vanishes_to_that_order(name: str):
    """k > p: ZᵀA(ρ(θ(τ)) − ρ − τZη), in the metric at the start."""
    problem, _, truth, grid = bumps_problem(n=8)
    metric, theta = all_metrics(grid)[name], truth + jnp.array([0.01, -0.02, 0.015, 0.01])
    coefficients, _ = bent(problem, theta, metric, 3, eta=SHORT)
    assert np.all(np.linalg.norm(coefficients, axis=1) > 0), "dropped"
    pulled = seen_by(problem.model, theta, metric)
    for q in (1, 2, 3):
        along = lambda tau, q=q: remainder(problem.model, theta, coefficients[:q], tau)[0]
        assert order_of(lambda tau, a=along: pulled(a(tau))) == pytest.approx(q + 1, abs=0.3), q
    outside = remainder(problem.model, theta, coefficients, jnp.ones(()))[0]
    assert np.linalg.norm(outside) > 0


def seen_by(model, theta, metric):
    """ζ ↦ ZᵀAζ."""
    rho, pull = jax.vjp(model, theta)
    gram = metric.at(rho).gram
    return jax.jit(lambda zeta: pull(gram.mv(zeta.reshape(rho.shape)))[0])


@pytest.mark.parametrize("k", with_slow([4, 7], [4]), ids=["square", "tall"])
def test_ends_do_not_depend_on_the_parameterisation(k: int):
    """θ = φ(ϑ): the curves of order q end at the same point, to order q + 1."""
    R = 0.2 * A / jnp.linalg.norm(A, 2)
    charted, model = Wavy(k, R), Wavy(k)
    start = START + R @ jnp.sin(START)  # φ(START)
    inner, _ = bent(near(charted, START), START, ng.L2(), 3, eta=SHORT)
    pushed = SHORT + R @ (jnp.cos(START) * SHORT)
    outer, _ = bent(near(model, start), start, ng.L2(), 3, eta=pushed)
    for q in (1, 2, 3):

        def gap(tau, q=q):
            end = remainder(charted, START, inner[:q], tau)[1]
            return end + R @ jnp.sin(end) - remainder(model, start, outer[:q], tau)[1]

        assert order_of(gap) == pytest.approx(q + 1, abs=0.3), q


@pytest.mark.parametrize("strength", [0.0, 0.1])
def test_the_second_coefficient_is_the_geodesic_acceleration(strength: float):
    """Transtrum and Sethna: −½(G + λI)⁻¹ZᵀA ∂²ρ[η, η]."""
    model = Wavy(7)
    coefficients, eta = bent(near(model, START), START, ng.L2(), 2, strength, eta=SHORT)
    Z = np.asarray(state_and_jacobian(model, START)[1])
    along = lambda t: jax.jvp(model, (t,), (eta,))[1]
    second = jax.jit(lambda eta: jax.jvp(along, (START,), (eta,))[1])(eta)
    G = Z.T @ Z + strength * np.eye(4)
    close(coefficients[1], -0.5 * np.linalg.solve(G, Z.T @ np.asarray(second)), 1e-10)


@eqx.filter_jit
def end_of(problem, eta, tau):
    """Where the curve of order 4 leads at its first length τ."""
    local = linearise(Setup(problem, START, ng.L2(), ng.QR()))
    solution = local.solve(jnp.zeros(()))._replace(eta=eta)
    return bend(local, solution, jnp.zeros(()), 4, None, None).trial(tau).theta


@pytest.mark.parametrize("tau", [1.0, 1e-3])
def test_a_term_that_is_too_large_is_dropped_with_those_after_it(tau: float):
    problem = near(Wavy(), START)
    short, eta = bent(problem, START, ng.L2(), 4, eta=SHORT)
    ratio = np.linalg.norm(short[1]) / np.linalg.norm(eta)  # grows in proportion to η
    end = lambda share: end_of(problem, share / ratio / tau * SHORT, jnp.asarray(tau)) - START
    straight = 0.38 / ratio * SHORT
    close(end(0.38), straight, 1e-14)
    assert np.linalg.norm(end(0.37) - straight) > 0.3 * np.linalg.norm(straight)


# Every step, order, momentum and solver; lengths of η belong to the metric, so a τ grows with it.
SCALED = {
    "line": (1, 0.0, ng.QR(), None, 0.0),
    "curve": (3, 0.0, ng.Cholesky(), None, 0.0),
    "fixed": (2, 0.0, ng.Kernel(), ng.FixedStep, 0.0),
    "backtracking": (3, 0.0, ng.SVD(), ng.Backtracking, 0.0),
    "momentum": (1, 0.5, ng.Cholesky(), None, 1e-3),
    "both": (2, 0.5, ng.Kernel(), ng.Backtracking, 1e-3),
    "by products": (2, 0.0, ng.CG(1e-12, preconditioner=None), None, 0.0),
    "by LSMR": (1, 0.3, ng.LSMR(1e-13), ng.FixedStep, 1e-3),
    "by rank": (1, 0.0, ng.RandomizedSVD(4), None, 0.0),
    "by proximal steps": (1, 0.0, ng.QR(), ng.ProximalStep, 0.0),
}
scaled = {"seed": st.integers(0, 2**31), "exponent": st.floats(-4.0, 4.0), "tau": st.floats(0.1, 1)}


def check_the_scale_of_a_metric(name: str, seed: int, exponent: float, tau: float) -> None:
    """A metric times a constant, without absolute damping, gives the same path."""
    order, momentum, solver, rule, damping = SCALED[name]
    rng = np.random.default_rng(seed)
    start = START + 0.05 * jnp.asarray(rng.normal(size=4))
    problem = near(Wavy(7), start, 0.3)
    losses = []
    for c in (1.0, 10**exponent):
        step = ng.ModelStep() if rule is None else rule(c * tau)
        settings = {"solver": solver, "damping": damping, "order": order, "momentum": momentum}
        method = ng.NaturalGradient(c * ng.L2(), step=step, **settings)
        result = ng.minimize(problem, start, method, stop=ng.Stop(iterations=3, gradient=0.0))
        losses.append(result.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["curve", "by products"])
@settings(max_examples=6)
@given(**scaled)
def test_the_scale_of_a_metric_does_not_change_the_path(name, **case):
    check_the_scale_of_a_metric(name, **case)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCALED.keys() - {"by proximal steps"}))
@settings(max_examples=200)
@given(**scaled)
def test_the_scale_of_a_metric_never_changes_the_path(name, **case):
    check_the_scale_of_a_metric(name, **case)


# Losses without a positive curvature at the state, for which a model step has no minimum.
WITHOUT = {
    "linear": jnp.sum,
    "concave": lambda rho: -jnp.sum(rho**2),
    "saturating": lambda rho: jnp.sum(jnp.log(1.0 + 9.0 * rho)),
}


@pytest.mark.parametrize("loss", with_slow(WITHOUT, ["saturating"]))
def test_the_scale_of_a_metric_does_not_change_model_steps_without_a_minimum(loss):
    problem, losses = ng.Problem(Wavy(7), WITHOUT[loss]), []
    for c in (1.0, 1e-4, 1e3):
        method = ng.NaturalGradient(c * ng.L2(), solver=ng.QR(), order=2)
        result = ng.minimize(problem, START, method, stop=ng.Stop(iterations=3, gradient=0.0))
        losses.append(result.history["loss"])
    assert np.all(np.diff(losses[0]) < 0)
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-6)


@pytest.mark.slow
@settings(max_examples=20)
@given(**scaled)
def test_the_scale_of_a_metric_does_not_change_proximal_steps(**case):
    check_the_scale_of_a_metric("by proximal steps", **case)


def test_a_linear_model_needs_no_curve():
    problem = ng.Problem(Linear(A), ng.LeastSquares(jnp.ones(4)))
    for solver in (ng.QR(), ng.CG()):
        coefficients, eta = bent(problem, START, ng.L2(), 3, solver=solver)
        np.testing.assert_array_equal(coefficients[1:], 0.0)
        np.testing.assert_array_equal(coefficients[0], eta)


SOLVERS = (
    *(ng.Cholesky(), ng.QR(), ng.PivotedQR(), ng.SVD(), ng.Kernel()),
    *(ng.NystromKernel(rank=7), ng.CG(1e-13), ng.LSMR(1e-13)),
)
BY_NAME = {solver.name: solver for solver in SOLVERS}
DIRECT = [solver for solver in SOLVERS if solver.name in ("QR", "PivotedQR", "SVD", "Kernel")]
every_solver = pytest.mark.parametrize("solver", with_slow(SOLVERS, DIRECT), ids=lambda s: s.name)
HELD = ng.ParameterDamping(np.diag([1.0, 2.0, 3.0, 4.0]) + 0.2, strength=0.1)


@eqx.filter_jit
def answers(problem, theta, metric, solver, damping, box, strength, zeta):
    """The response to ζ, by the machinery of a step; and which parameters were free."""
    local = linearise(Setup(problem, theta, metric, solver, damping, box))
    found, _ = local.responder(strength).respond(zeta)
    return found, local.free


@every_solver
def test_responses_with_an_operator_and_held_parameters(solver: ng.solvers.Solver):
    """`aim`: −(G + λD)⁻¹ZᵀAζ on the parameters that may move."""
    model = Wavy(7)
    problem, metric = near(model, START), ng.MatrixMetric(np.diag(np.linspace(1.0, 2.0, 7)))
    rho, Z = map(np.asarray, state_and_jacobian(model, START))
    gradient = Z.T @ (rho - np.asarray(problem.loss.target))
    lower, upper = np.full(4, -9.0), np.full(4, 9.0)
    (lower if gradient[2] > 0 else upper)[2] = START[2]
    box = Bounds(jnp.asarray(lower), jnp.asarray(upper))
    zeta = jnp.asarray(np.random.default_rng(8).normal(size=7))
    found, free = answers(problem, START, metric, solver, HELD, box, jnp.asarray(0.1), zeta)
    np.testing.assert_array_equal(free, [1, 1, 0, 1])
    kept = np.asarray(free, bool)
    Z = Z[:, kept]
    weights = np.linspace(1.0, 2.0, 7)
    D = (np.diag([1.0, 2.0, 3.0, 4.0]) + 0.2)[np.ix_(kept, kept)]
    G = Z.T @ (weights[:, None] * Z) + 0.1 * D
    close(np.asarray(found)[kept], -np.linalg.solve(G, Z.T @ (weights * zeta)), 1e-9)
    assert abs(float(found[2])) < 1e-14


def by(metric=ng.L2(), kind=ng.NaturalGradient, **settings) -> ng.NaturalGradient:
    own = {"damping": ng.AbsoluteDamping(1e-3), "step": ng.Backtracking()}
    return kind(metric, **(own | settings))


def run(problem, theta, *, bounds=None, iterations: int = 3, **settings) -> ng.Result:
    stop = ng.Stop(iterations=iterations)
    return ng.minimize(problem, theta, by(**settings), bounds=bounds, stop=stop)


FAR = near(Wavy(7), jnp.array([-0.3, 0.4, 0.2, -0.5]), 0.0)


@pytest.mark.parametrize("name", with_slow(BY_NAME, set(BY_NAME) - {"Kernel"}))
def test_curved_steps_do_not_depend_on_the_solver(name: str):
    result = run(FAR, START, solver=BY_NAME[name], order=2)
    losses = result.history["loss"]
    assert np.all(np.diff(losses) < 0)
    expected = run(FAR, START, solver=ng.SVD(), order=2).history["loss"]
    assert not np.allclose(expected[1:], run(FAR, START, solver=ng.SVD()).history["loss"][1:])
    np.testing.assert_allclose(losses, expected, rtol=1e-7)


def quartic(theta):
    return jnp.sum((FAR.model(theta) - FAR.loss.target) ** 2) + 0.1 * jnp.sum(theta**4)


VARIANTS = {
    "Wasserstein": (bumps_problem(n=8)[0], bumps_problem(n=8)[1], {"metric": "Wasserstein"}),
    "objective": (ng.Problem(FAR.model, objective=quartic), START, {}),
    "regulariser": (ng.Problem(FAR.model, FAR.loss, regulariser=lambda t: t @ t), START, {}),
    "bounds": (FAR, START, {"bounds": (START - jnp.array([9, 9, 0.01, 9]), START + 1.0)}),
    "model step": (FAR, START, {"step": ng.ModelStep()}),
    "adaptive": (FAR, START, {"damping": ng.LevenbergMarquardt()}),
    "momentum too": (FAR, START, {"momentum": 0.5}),
}


@pytest.mark.parametrize("name", with_slow(VARIANTS, set(VARIANTS) - {"bounds"}))
def test_curved_steps_decrease_every_kind_of_loss(name: str):
    problem, theta, settings = VARIANTS[name]
    if "metric" in settings:
        metrics = all_metrics(bumps_problem(n=8)[3])
        settings = settings | {"metric": metrics[settings["metric"]]}
    result = run(problem, theta, order=3, **settings)
    assert np.all(np.diff(result.history["loss"]) < 0)
    if name == "bounds":
        assert float(result.theta[2]) == float(START[2]) - 0.01  # it was reached
        assert np.all(result.theta <= START + 1.0)


def test_a_curve_pays_where_the_model_bends():
    """The same number of iterations from the same start gets further."""
    run_of = lambda q: run(FAR, START, order=q, solver=ng.SVD(), damping=ng.AbsoluteDamping(1e-9))
    losses = [run_of(q).history["loss"][2] for q in (1, 2, 3)]
    assert losses[2] < losses[1] < losses[0]


def test_the_products_of_a_curve_are_counted():
    """Order 3: one linearisation, 4 + 8 evaluations, and two products Zᵀξ, an iteration."""
    spent = {}
    for order in (1, 3):
        history = run(FAR, START, order=order, iterations=1).history
        halvings = history["halvings"][0]
        spent[order] = {n: history[n][-1] for n in ("forward", "linearised", "adjoint")}
        spent[order]["forward"] -= halvings
    difference = {n: spent[3][n] - spent[1][n] for n in spent[1]}
    assert difference == {"forward": 1 + 4 + 8, "linearised": 0, "adjoint": 2}


def tikhonov(theta, previous, share: float, strength: float):
    """argmin ‖b + Yη‖² + λ‖η − μη′‖², by least squares on the stacked rows."""
    rho, Z = map(np.asarray, state_and_jacobian(FAR.model, theta))
    b = rho - np.asarray(FAR.loss.target)
    rows = np.concatenate([Z, np.sqrt(strength) * np.eye(4)])
    return np.linalg.lstsq(rows, np.append(-b, np.sqrt(strength) * share * previous), rcond=None)[0]


MOVED = [ng.Cholesky(), ng.Kernel(), ng.CG(1e-13), ng.NystromKernel(rank=7)]


@pytest.mark.parametrize("solver", with_slow(MOVED, [*MOVED[:2], MOVED[3]]), ids=lambda s: s.name)
def test_momentum_moves_the_centre_of_the_damping(solver: ng.solvers.Solver):
    """A run of three iterations against the stacked least-squares problem."""
    step = ng.FixedStep(0.4, require_decrease=False)
    damping = ng.AbsoluteDamping(0.3)
    result = run(FAR, START, solver=solver, damping=damping, step=step, momentum=0.8)
    theta, eta = np.asarray(START), np.zeros(4)
    for _ in range(3):
        eta = tikhonov(jnp.asarray(theta), eta, 0.8, 0.3)
        theta = theta + 0.4 * eta
    close(result.theta, theta, 1e-9)
    plain = run(FAR, START, solver=solver, damping=damping, step=step)
    assert np.linalg.norm(plain.theta - theta) > 1e-2


def outside() -> ng.ExternalModel:
    """The same model as code outside JAX."""
    both = jax.jit(lambda theta: (FAR.model(theta), jax.jacobian(FAR.model)(theta)))
    state, jacobian = (lambda theta, i=i: np.asarray(both(theta)[i]) for i in (0, 1))
    return ng.ExternalModel(state, lambda t, v: jacobian(t) @ v, lambda t, u: jacobian(t).T @ u)


def solved() -> ng.ImplicitModel:
    """The same model as the solution of an equation."""
    return ng.ImplicitModel(lambda u, t: u - FAR.model(t), initial=jnp.zeros(7), linear=True)


@pytest.mark.parametrize("make", with_slow([outside, solved], [solved]))
def test_models_of_products_take_momentum_but_no_curve(make):
    problem = ng.Problem(make(), FAR.loss)
    settings = {"solver": ng.Cholesky(), "step": ng.FixedStep(0.4), "momentum": 0.8}
    settings |= {"damping": ng.AbsoluteDamping(0.3), "iterations": 2}
    expected, found = (run(p, START, **settings) for p in (FAR, problem))
    close(found.theta, expected.theta, 1e-8)
    with pytest.raises(ng.InputError, match=f"{type(problem.model).__name__}.*order=1") as caught:
        run(problem, START, order=2)
    assert caught.value.argument == "order"


def test_momentum_leaves_held_parameters_alone():
    upper = START.at[0].add(9.0)
    result = run(FAR, START, bounds=(START - 9.0, upper), momentum=0.9, damping=1.0)
    assert np.all(np.asarray(result.theta) <= np.asarray(upper))
    assert np.all(np.diff(result.history["loss"]) < 0)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["along", "against"])
def test_a_carried_direction_that_would_not_descend_is_dropped(sign: float):
    strength, share = 0.5, jnp.asarray(0.9)
    _, eta = bent(FAR, START, ng.L2(), 1, strength)
    previous = sign * 50.0 * eta
    (found,), _ = bent(FAR, START, ng.L2(), 1, strength, momentum=share, previous=previous)
    carried = tikhonov(START, np.asarray(previous), 0.9, strength)
    gradient = np.asarray(jax.grad(lambda t: FAR.loss(FAR.model(t)))(START))
    assert (gradient @ carried < 0) == (sign > 0)
    close(found, carried if sign > 0 else eta, 1e-9)


def test_what_was_rejected_is_forgotten():
    seen = []

    class Watched(ng.NaturalGradient):
        def try_step(self, local, state):
            theta, new, record = super().try_step(local, state)
            eta = (np.asarray(theta) - np.asarray(local.setup.theta)) / 3.0
            seen.append((np.asarray(state.previous), bool(record.accepted), eta))
            return theta, new, record

    damping = ng.LevenbergMarquardt(initial=1e-6, decrease=0.01)
    settings = {"damping": damping, "step": ng.FixedStep(3.0), "momentum": 0.9}
    run(FAR, START, kind=Watched, **settings, iterations=4)
    fates = [accepted for _, accepted, _ in seen]
    assert True in fates
    assert False in fates
    np.testing.assert_array_equal(seen[0][0], 0.0)
    for (_, accepted, eta), (previous, _, _) in pairwise(seen):
        if accepted:
            np.testing.assert_allclose(previous, eta, rtol=1e-12, atol=1e-15)
        else:
            np.testing.assert_array_equal(previous, 0.0)


def test_without_momentum_and_curve_a_run_is_the_plain_one():
    plain = run(FAR, START)
    same = run(FAR, START, momentum=0.0, order=1)
    np.testing.assert_array_equal(plain.theta, same.theta)
    for name in set(plain.history) - {"seconds"}:
        np.testing.assert_array_equal(plain.history[name], same.history[name])


def test_a_new_momentum_reuses_the_program():
    run(FAR, START, momentum=0.5)
    with compiled() as programs:
        run(FAR, START, momentum=0.6)
    assert not programs
