"""Models outside JAX: the same directions, every call accounted for, and errors that say where."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator

import natgrad as ng
from equations_for_tests import (
    CODE,
    GRID,
    LOSS,
    METRICS,
    SOLVERS,
    START,
    THETA,
    UPWIND,
    N,
    Z,
    matches_the_oracle,
    model,
    outside_split_forward,
    outside_split_jvp,
    outside_split_vjp,
    split,
    state,
)
from natgrad.metrics import Geometry, Metric
from problems_for_tests import assert_input_error, with_slow

PROBLEM = ng.Problem(model("external"), LOSS)
SHARED = ng.Problem(model("external linearize"), LOSS)
ALONE = ng.Problem(model("external only linearize"), LOSS)
L2 = ng.L2(GRID)
TRUTH = THETA + np.array([0.2, 0.1, -0.3, 0.2])


@pytest.fixture(autouse=True)
def _clean():
    CODE.clear()
    yield
    CODE.clear()


def natural(metric: ng.metrics.Metric = L2, **settings) -> ng.NaturalGradient:
    return ng.NaturalGradient(metric, **({"solver": ng.CG(1e-10)} | settings))


def run(problem: ng.Problem = PROBLEM, method=natural(), **settings):
    return ng.minimize(problem, START, method, **settings)


# --- directions and counts


@pytest.mark.parametrize("metric", with_slow(METRICS, ["H-1", "W2"]))
@pytest.mark.parametrize(
    "solver", with_slow(SOLVERS, ["CG diagonal", "CG Nystrom", "RandomizedSVD"])
)
def test_the_direction_is_the_dense_one(metric: str, solver: str):
    d = matches_the_oracle("external linearize", *METRICS[metric], solver)
    assert CODE.count("linearize") == CODE.count("forward") == 1
    assert d.info.counts == (2, CODE.count("jvp"), CODE.count("vjp"))


@pytest.mark.parametrize("kind", ["external", "external only linearize"])
def test_a_direction_of_k_steps_costs_2k_plus_2_propagations(kind: str):
    problem = ng.Problem(model(kind), LOSS)
    d = ng.natural_gradient(problem, START, metric=L2, solver=ng.CG(0.0, max_iterations=3))
    assert d.info.counts == (1, 3, 4)
    assert CODE.count("forward") + CODE.count("linearize") == 1
    assert (CODE.count("jvp"), CODE.count("vjp")) == (3, 4)


METHODS = {
    "CG": natural(),
    "LSMR": natural(solver=ng.LSMR(1e-10)),
    "dense": natural(solver=ng.PivotedQR()),
    "relative damping": natural(damping=1e-6),
    "adaptive": natural(damping=ng.LevenbergMarquardt(), step=ng.FixedStep(1.0)),
    "Nystrom": natural(solver=ng.CG(1e-10, preconditioner=ng.solvers.Nystrom(20)), damping=1e-6),
    "Diagonal": natural(solver=ng.CG(1e-10, preconditioner=ng.solvers.Diagonal(3))),
    "low rank": natural(solver=ng.RandomizedSVD(3)),
    "gradient": ng.GradientDescent(),
    "bounds": natural(),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "problem",
    [PROBLEM, SHARED, pytest.param(ALONE, marks=pytest.mark.slow)],
    ids=["plain", "shared", "alone"],
)
def test_a_run_counts_its_calls_and_never_evaluates_a_point_twice(problem, name: str):
    bounds = (-0.45, 0.55) if name == "bounds" else None
    stop = ng.Stop(iterations=3, gradient=1e-14)
    result = run(problem, METHODS[name], bounds=bounds, stop=stop)
    assert result.iterations == 3
    forward, shared = CODE.calls.get("forward", []), CODE.calls.get("linearize", [])
    for calls in (forward, shared):
        assert len({theta.tobytes() for theta in calls}) == len(calls)
    if problem is SHARED:
        assert len(shared) == 3  # once for each iteration
    counts = [result.history[name][-1] for name in ("forward", "linearised", "adjoint")]
    assert counts == [len(forward) + len(shared), CODE.count("jvp"), CODE.count("vjp")]
    assert result.history["forward"][0] >= 1


def test_a_run_finds_the_parameters():
    result = run(stop=ng.Stop(iterations=10))
    np.testing.assert_allclose(result.theta, TRUTH, rtol=1e-5)
    assert result.converged


def test_pytrees_travel_in_their_own_shape():
    theta = split(START)
    target = {"u": jnp.ones(5), "v": jnp.ones((1, 7))}
    problem = ng.Problem(model("external pytree"), ng.LeastSquares(target))
    metric = ng.Blocks(u=ng.MatrixMetric(np.eye(5)), v=ng.MatrixMetric(np.eye(7)))
    for solver in (ng.CG(1e-12), ng.SVD()):
        d = ng.natural_gradient(problem, theta, metric=metric, solver=solver)
        expected = -np.linalg.lstsq(Z, state(UPWIND, 0.0, THETA) - 1.0, rcond=None)[0]
        np.testing.assert_allclose(np.concatenate([d.eta["a"], d.eta["b"]]), expected, rtol=1e-7)
        assert d.eta["name"] is None


def test_more_parameters_than_values_are_pulled_back():
    rng = np.random.default_rng(0)
    A, target = rng.normal(size=(3, 7)), np.ones(3)
    wide = ng.ExternalModel(lambda t: A @ t, lambda t, v: A @ v, lambda t, w: A.T @ w)
    problem = ng.Problem(wide, ng.LeastSquares(jnp.asarray(target)))
    metric, theta = ng.MatrixMetric(np.eye(3)), rng.normal(size=7)
    d = ng.natural_gradient(problem, jnp.asarray(theta), metric=metric)
    np.testing.assert_allclose(d.eta, -np.linalg.pinv(A) @ (A @ theta - target), rtol=1e-8)
    assert d.info.counts == (1, 0, 3)


def test_an_objective_of_the_parameters_with_the_metric_of_an_outside_model():
    problem = ng.Problem(model("external"), objective=lambda t: jnp.sum((t - 0.1) ** 2))
    for method in (natural(), ng.GradientDescent()):
        CODE.clear()
        result = run(problem, method, stop=ng.Stop(iterations=40))
        np.testing.assert_allclose(result.theta, 0.1, atol=0.02)  # L2 is far from its Hessian


# --- arrays that the outside code uses again


def aligned(*shape: int, offset: int) -> np.ndarray:
    """An array that begins so many bytes past a multiple of 64, where JAX would share its memory."""
    size = 8 * int(np.prod(shape))
    room = np.zeros(size + 128, np.uint8)  # the start of a Newton iteration too
    start = -room.ctypes.data % 64 + offset
    return room[start : start + size].view(float).reshape(shape)


class Thrifty:
    """θ ↦ Aθ by code with one array for all states, one for all θ, one for all matrices.

    It writes into its arguments too.
    """

    def __init__(self, k: int, p: int, offset: int, seed: int):
        self.A = np.random.default_rng(seed).normal(size=(k, p))
        self.rho, self.theta = aligned(k, offset=offset), aligned(p, offset=offset)
        self.matrix = aligned(k, p, offset=offset)

    def forward(self, theta):
        self.matrix.fill(np.nan)
        return self.spoil(theta, np.matmul(self.A, theta, out=self.rho))

    def jvp(self, theta, eta):
        return self.spoil(eta, np.matmul(self.A, eta, out=self.rho))

    def vjp(self, theta, xi):
        return self.spoil(xi, np.matmul(self.A.T, xi, out=self.theta))

    def jacobian(self, theta):
        self.matrix[:] = self.A
        return self.matrix

    def operator(self, theta):
        jvp, vjp = (lambda x: self.jvp(None, np.array(x))), (lambda x: self.vjp(None, np.array(x)))
        return LinearOperator(self.A.shape, jvp, vjp, dtype=float)  # pyright: ignore

    def solve(self, b):
        self.rho[:] = b
        return self.spoil(b, self.rho)

    solve_transposed = solve

    def spoil(self, argument, result):
        argument[:] = np.nan
        return result

    def model(self, kind: str) -> ng.models.Model:
        if kind == "products":
            return ng.ExternalModel(self.forward, self.jvp, self.vjp)
        if kind in ("jacobian", "operator"):
            return ng.ExternalModel.from_jacobian(self.forward, getattr(self, kind))
        h = lambda rho, theta: rho - jnp.asarray(self.A) @ theta
        solve = (lambda theta: self.forward(np.array(theta))) if kind == "solve" else None
        factorise = lambda rho, theta: self
        return ng.ImplicitModel(h, solve, initial=self.rho.copy(), linear=True, factorise=factorise)


KINDS = ["products", "jacobian", "operator", "factorise", "solve"]
OTHER_SOLVERS = {
    "QR": ng.PivotedQR(),
    "Cholesky": ng.Cholesky(),
    "CG": ng.CG(1e-12),
    "CG Nystrom": ng.CG(1e-12, preconditioner=ng.solvers.Nystrom(3)),
    "CG diagonal": ng.CG(1e-12, preconditioner=ng.solvers.Diagonal(4)),
    "LSMR": ng.LSMR(1e-12),
    "RandomizedSVD": ng.RandomizedSVD(4),
}


def meets_the_pseudoinverse(kind, solver, wide, offset, seed):
    """η = −A⁺(Aθ − 1), whatever the outside code does with its arrays."""
    code = Thrifty(*((4, 12) if wide else (12, 4)), offset, seed)
    k, p = code.A.shape
    theta = np.random.default_rng(seed + 1).normal(size=p)
    problem = ng.Problem(code.model(kind), ng.LeastSquares(jnp.ones(k)))
    found = OTHER_SOLVERS[solver]
    d = ng.natural_gradient(problem, jnp.asarray(theta), metric=ng.L2(), solver=found)
    expected = -np.linalg.pinv(code.A) @ (code.A @ theta - 1.0)
    np.testing.assert_allclose(d.eta, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", with_slow([False, True], [False]))
def test_outside_code_may_use_its_arrays_again(kind: str, wide: bool):
    meets_the_pseudoinverse(kind, "QR", wide, 0, 0)


@pytest.mark.parametrize("solver", ["CG Nystrom", "CG diagonal", "RandomizedSVD"])
def test_outside_code_may_use_its_arrays_again_without_z(solver: str):
    meets_the_pseudoinverse("products", solver, False, 0, 0)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([*OTHER_SOLVERS]),
    st.booleans(),
    st.sampled_from([0, 16, 32]),
    st.integers(0, 2**31),
)
def test_outside_code_may_use_its_arrays_again_everywhere(kind, solver, wide, offset, seed):
    if wide and solver in ("Cholesky", "CG Nystrom", "CG diagonal"):
        solver = "QR"  # G is singular, and these need not find the shortest η
    meets_the_pseudoinverse(kind, solver, wide, offset, seed)


# --- exceptions


@pytest.mark.parametrize(
    ("name", "call"), [("forward", 4), ("linearize", 3), ("jvp", 6), ("vjp", 7)]
)
def test_an_exception_keeps_its_type_and_brings_the_run(name: str, call: int):
    CODE.fail = {name: call}
    seen = []
    record = lambda progress: seen.append((np.asarray(progress.theta), progress.loss))
    with pytest.raises(ArithmeticError, match=f"{name} failed") as caught:
        run(SHARED, callbacks=[record], stop=ng.Stop(gradient=1e-14))
    assert caught.value.__notes__ == [f"raised by {name} of the model"]
    result = caught.value.natgrad_result  # pyright: ignore
    assert result.status == ng.Status.FAILED
    assert result.iterations == len(seen) >= 1
    np.testing.assert_array_equal(result.theta, seen[-1][0])
    assert result.loss == seen[-1][1]
    assert len(result.history["loss"]) == len(seen) + 1
    assert result.history["loss"][-1] == result.loss


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_exception_in_a_callback_brings_the_run(error: BaseException):
    def callback(progress):
        if progress.iteration == 2:
            raise error

    for method in (natural(), ng.LBFGS(10)):
        with pytest.raises(type(error)) as caught:
            run(method=method, stop=ng.Stop(iterations=1000), callbacks=[callback])
        result = caught.value.natgrad_result  # pyright: ignore
        assert (result.status, result.iterations) == (ng.Status.FAILED, 2)
        assert len(result.history["loss"]) == 3


def test_an_exception_under_lbfgs_brings_the_run():
    CODE.fail = {"vjp": 5}
    with pytest.raises(ArithmeticError) as caught:
        ng.minimize(PROBLEM, START, ng.LBFGS(10), stop=ng.Stop(iterations=1000))
    assert caught.value.__notes__ == ["raised by vjp of the model"]
    result = caught.value.natgrad_result  # pyright: ignore
    assert result.iterations >= 1
    assert result.loss < result.history["loss"][0]


# --- values that are not finite


@pytest.mark.parametrize("name", ["jvp", "vjp"])
@pytest.mark.parametrize("solver", [ng.CG(1e-10), ng.LSMR(1e-10)], ids=["CG", "LSMR"])
def test_products_that_turn_bad_end_the_run(name: str, solver: ng.solvers.Solver):
    CODE.spoil = {name: 7}
    result = run(method=natural(solver=solver), stop=ng.Stop(gradient=1e-14))
    assert result.status == ng.Status.NOT_FINITE
    assert 1 <= result.iterations <= 2  # a direction may be cut short before it fails
    assert np.all(np.isfinite(result.theta))
    assert result.history["forward"][-1] == CODE.count("forward")
    assert not any(np.any(np.isnan(theta)) for theta in CODE.calls["forward"])


def test_another_damping_is_not_tried_on_products_that_turned_bad():
    CODE.spoil = {"jvp": 7}
    result = run(method=natural(damping=ng.LevenbergMarquardt()), stop=ng.Stop(gradient=1e-14))
    assert result.status == ng.Status.NOT_FINITE
    assert CODE.count("jvp") <= 10


def test_a_jacobian_that_turns_bad_ends_the_run():
    CODE.spoil = {"jvp": 6}
    result = run(method=natural(solver=ng.Cholesky()), stop=ng.Stop(gradient=1e-14))
    assert result.status == ng.Status.NOT_FINITE
    assert result.iterations == 1
    assert not any(np.any(np.isnan(theta)) for theta in CODE.calls["forward"])


def test_a_trial_that_is_not_finite_is_rejected_and_the_run_goes_on():
    spoilt = ng.ExternalModel(bad_beyond, CODE.jvp, CODE.vjp)
    result = run(ng.Problem(spoilt, LOSS), stop=ng.Stop(iterations=3))
    assert result.iterations == 3
    assert result.history["halvings"][0] > 0
    assert float(result.theta[0]) <= 0.4
    stuck = run(ng.Problem(spoilt, LOSS), natural(step=ng.FixedStep(1.0)))
    assert stuck.status == ng.Status.NOT_FINITE
    found = ng.minimize(ng.Problem(spoilt, LOSS), START, ng.LBFGS(10), stop=ng.Stop(iterations=20))
    assert found.loss < 0.5 * found.history["loss"][0]
    assert float(found.theta[0]) <= 0.4


def bad_beyond(theta):
    return state(UPWIND, 0.0, theta) * (np.nan if theta[0] > 0.4 else 1.0)


class Indefinite(Metric):
    """No metric: A = diag(1, −1, 1, …)."""

    def factor(self, rho):
        return ng.metrics.AdjointOperator(lambda x: x, lambda x: x, rho, rho)

    def whiten(self, rho, c):
        return c

    def at(self, rho):
        return IndefiniteGeometry(self, rho)


class IndefiniteGeometry(Geometry):
    @property
    def gram(self):
        signs = jnp.where(jnp.arange(N) < 6, 1.0, -5.0)
        return ng.metrics.AdjointOperator(
            lambda x: signs * x, lambda x: signs * x, self.rho, self.rho
        )


def test_a_metric_that_is_not_positive_is_a_breakdown():
    d = ng.natural_gradient(PROBLEM, START, metric=Indefinite(), solver=ng.CG(1e-10))
    assert d.info.status == "breakdown"
    with pytest.raises(ng.InputError, match="metric: is not positive") as caught:
        run(method=natural(Indefinite()))
    assert caught.value.natgrad_result.info.status == "breakdown"  # pyright: ignore


# --- input that cannot be


def outside(forward=bad_beyond, jvp=CODE.jvp, vjp=CODE.vjp, linearize=None):
    made = ng.ExternalModel(forward, jvp, vjp, linearize)
    return ng.natural_gradient(ng.Problem(made, LOSS), START, metric=L2, solver=ng.CG())


def split_problem(jvp=outside_split_jvp, vjp=outside_split_vjp):
    made = ng.ExternalModel(outside_split_forward, jvp, vjp)
    metric = ng.Blocks(u=ng.MatrixMetric(np.eye(5)), v=ng.MatrixMetric(np.eye(7)))
    loss = lambda rho: jnp.sum(rho["u"] ** 2) + jnp.sum(rho["v"])
    problem = ng.Problem(made, loss)
    return ng.natural_gradient(problem, split(START), metric=metric, solver=ng.CG())


CASES = {
    "forward not callable": ("forward", "callable", lambda: outside(forward=3.0)),
    "jvp not callable": ("jvp", "callable", lambda: outside(jvp=None)),
    "vjp not callable": ("vjp", "callable", lambda: outside(vjp="text")),
    "linearize not callable": ("linearize", "callable", lambda: outside(linearize=1)),
    "no forward": ("forward", "linearize", lambda: outside(forward=None)),
    "linearize without the state": ("linearize", "rho", lambda: outside(forward=None, linearize=lambda t: 3)),
    "jvp of another shape": ("jvp", r"\(3,\).*\(12,\)", lambda: outside(jvp=lambda t, v: np.ones(3))),
    "vjp of another shape": ("vjp", r"\(12,\).*\(4,\)", lambda: outside(vjp=lambda t, w: w)),
    "jvp of another structure": ("jvp", "structure", lambda: split_problem(jvp=lambda t, v: (np.ones(5), np.ones((1, 7))))),
    "vjp of another structure": ("vjp", "structure", lambda: split_problem(vjp=lambda t, w: np.ones(4))),
    "vjp of another shape in a dict": ("vjp", r"\(2,\)", lambda: split_problem(vjp=lambda t, w: t | {"a": np.ones(2)})),
    "forward of text": ("forward", "str", lambda: outside(forward=lambda t: "text")),
    "forward of nothing": ("model", "no entries", lambda: outside(forward=lambda t: None)),
    "integer state": ("model", "int", lambda: outside(forward=lambda t: np.arange(12))),
    "state of another shape": ("target", r"\(3,\)", lambda: outside(forward=lambda t: np.ones(3))),
    "NaN at the start": ("model", "not finite", lambda: outside(forward=lambda t: np.full(12, np.nan))),
    "NaN at the start of a run": ("model", "not finite", lambda: ng.minimize(ng.Problem(ng.ExternalModel(lambda t: np.full(12, np.nan), CODE.jvp, CODE.vjp), LOSS), START, ng.LBFGS(10), stop=ng.Stop(iterations=1000))),
    "NumPy in a plain function": ("model", "ExternalModel", lambda: ng.natural_gradient(ng.Problem(lambda t: np.sin(np.asarray(t)), jnp.sum), START, metric=L2)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_message_names_the_argument(case: str):
    assert_input_error(*CASES[case])


@pytest.mark.parametrize("name", ["jvp", "vjp"])
def test_a_complex_product_is_refused(name: str):
    products = {"jvp": lambda t, eta: 2.0 * eta, "vjp": lambda t, xi: 2.0 * xi}
    real = products[name]
    products[name] = lambda t, v: (1 + 0.5j) * real(t, v)
    model = ng.ExternalModel(lambda t: 2.0 * t, products["jvp"], products["vjp"])
    problem = ng.Problem(model, ng.LeastSquares(jnp.ones(3)))
    with pytest.raises(ng.InputError, match=f"{name}: returns complex"):
        ng.natural_gradient(problem, jnp.ones(3), metric=ng.L2(), solver=ng.CG())


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(
    "solver", [ng.CG(1e-3, 3), pytest.param(ng.LSMR(1e-3, 3), marks=pytest.mark.slow)], ids=str
)
def test_every_call_is_counted_with_and_without_momentum(momentum, solver):
    A, calls = np.random.default_rng(0).normal(size=(16, 5)), []

    def forward(t):
        calls.append(t)
        return np.exp(0.3 * A @ t)

    push = lambda t, eta: np.exp(0.3 * A @ t) * (0.3 * A @ eta)
    pull = lambda t, xi: 0.3 * A.T @ (np.exp(0.3 * A @ t) * xi)
    model = ng.ExternalModel(forward, push, pull)
    problem = ng.Problem(model, ng.LeastSquares(jnp.asarray(np.exp(0.2 * A.sum(1)))))
    method = ng.NaturalGradient(ng.L2(), solver=solver, damping=1e-2, momentum=momentum)
    result = ng.minimize(problem, jnp.zeros(5), method, stop=ng.Stop(iterations=5, gradient=0.0))
    assert int(result.history["forward"][-1]) == len(calls)
    assert len(calls) == 1 + np.sum(1 + result.history["halvings"][:-1])
