"""Operators of natgrad in SciPy, and operators and sparse matrices of SciPy in natgrad."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.optimize
from scipy import sparse
from scipy.sparse import linalg

import natgrad as ng
from natgrad.core.compiled import can_call_back
from natgrad.core.sparse import sparse_root
from problems_for_tests import all_metrics, assert_input_error, bumps_problem, close, with_slow

PROBLEM, THETA, _, GRID = bumps_problem()
RHO = PROBLEM.model(THETA)
RANDOM = np.random.default_rng(0)
TALL = sparse.random_array((9, 6), density=0.5, rng=RANDOM)
CHAIN = sparse.diags_array([-np.ones(5), 2.5 * np.ones(6), -np.ones(5)], offsets=[-1, 0, 1])


def dense(operator: linalg.LinearOperator) -> np.ndarray:
    return operator @ np.eye(operator.shape[1])


def transposed(operator: linalg.LinearOperator) -> np.ndarray:
    return operator.rmatmat(np.eye(operator.shape[0])).T


@pytest.mark.parametrize("name", with_slow(every := [*all_metrics(GRID)], {*every} - {"L2"}))
def test_operators_of_a_metric_and_of_g_in_scipy(name):
    """Each is the matrix that it should be, and has its transpose."""
    metric = all_metrics(GRID)[name]
    L, A = (ng.interop.as_linear_operator(o) for o in (metric.factor(RHO), metric.at(RHO).gram))
    Y, G = (
        ng.interop.as_linear_operator(make(PROBLEM, THETA, metric=metric))
        for make in (ng.interop.information_factor, ng.interop.information_operator)
    )
    for operator in (L, A, Y, G):
        np.testing.assert_allclose(transposed(operator), dense(operator), rtol=1e-10, atol=1e-11)
    x, y = RANDOM.normal(size=4), RANDOM.normal(size=Y.shape[0])
    assert y @ Y.matvec(x) == pytest.approx(Y.rmatvec(y) @ x, rel=1e-11)
    Z = np.asarray(jax.jit(jax.jacobian(PROBLEM.model))(THETA)).reshape(GRID.size, -1)
    close(dense(Y), dense(L) @ Z, 1e-10)
    close(dense(G), Z.T @ dense(A) @ Z, 1e-10)
    close(dense(G), ng.information_matrix(PROBLEM, THETA, metric=metric), 1e-10)


def test_a_tree_of_parameters_is_flattened():
    """In the order of `ravel_pytree`; None stands for what is no parameter."""
    x = jnp.linspace(0.0, 1.0, 5)
    theta = {"scale": jnp.array(2.0), "name": None, "shift": jnp.ones(3)}
    model = lambda t: t["scale"] * x[:, None] + t["shift"]
    problem = ng.Problem(model, lambda rho: jnp.sum(rho**2))
    G = ng.interop.information_operator(problem, theta, metric=ng.L2())
    assert G.in_structure()["name"] is None
    expected = ng.information_matrix(problem, theta, metric=ng.L2())
    close(dense(ng.interop.as_linear_operator(G)), expected, 1e-13)


@pytest.mark.slow  # the documentation runs the like
def test_scipy_finds_the_spectrum_and_the_direction():
    """eigsh gives `information_spectrum`, cg and lsmr `natural_gradient`."""
    metric = ng.L2(GRID)
    G = ng.interop.as_linear_operator(
        ng.interop.information_operator(PROBLEM, THETA, metric=metric)
    )
    spectrum = ng.information_spectrum(PROBLEM, THETA, metric=metric, rank=3)
    close(linalg.eigsh(G, k=3)[0][::-1], spectrum.values, 1e-10)
    expected = ng.natural_gradient(PROBLEM, THETA, metric=metric)
    eta, failed = linalg.cg(G, -np.asarray(expected.gradient), rtol=1e-13)
    assert not failed
    close(eta, expected.eta, 1e-10)
    Y = ng.interop.as_linear_operator(ng.interop.information_factor(PROBLEM, THETA, metric=metric))
    b = metric.whiten(RHO, jax.grad(PROBLEM.loss)(RHO))
    close(linalg.lsmr(Y, -np.ravel(b), atol=1e-14, btol=1e-14)[0], expected.eta, 1e-10)


@pytest.mark.slow  # the documentation runs the like
def test_g_as_the_hessian_of_scipy_optimize():
    """trust-ncg with Gv in place of the Hessian is Gauss–Newton on a least-squares loss."""
    problem, start, truth, grid = bumps_problem()
    value_and_gradient = jax.jit(jax.value_and_grad(lambda t: problem.value(t, problem.model(t))))

    def hessp(theta, v):
        G = ng.interop.information_operator(problem, jnp.asarray(theta), metric=ng.L2(grid))
        return ng.interop.as_linear_operator(G) @ v

    found = scipy.optimize.minimize(
        lambda t: [np.asarray(x) for x in value_and_gradient(t)],
        np.asarray(start),
        jac=True,
        method="trust-ncg",
        hessp=hessp,
        options={"gtol": 1e-9},
    )
    assert found.nit < 10
    np.testing.assert_allclose(found.x, truth, atol=1e-5)


CALLS_BACK = pytest.mark.skipif(not can_call_back(), reason="compiled code waits on one core")


def as_callback(matrix) -> linalg.LinearOperator:
    return linalg.LinearOperator(
        matrix.shape, lambda x: matrix @ x, lambda y: matrix.T @ y, dtype=float
    )


@pytest.mark.parametrize(
    "kind", [sparse.csr_array, sparse.coo_matrix, pytest.param(as_callback, marks=CALLS_BACK)]
)
def test_operators_of_scipy_in_lineax(kind):
    """The matrix, its transpose, compiled, mapped and differentiated."""
    A, operator = TALL.toarray(), ng.interop.as_lineax_operator(kind(TALL))
    x, y, step = (jnp.asarray(RANDOM.normal(size=n)) for n in (6, 9, 6))
    half = lambda x: 0.5 * jnp.sum(operator.mv(x) ** 2)

    @jax.jit
    def everything():
        slope, curvature = jax.jvp(jax.grad(half), (x,), (step,))
        # a quadratic function has no remainder beyond its second-order expansion
        remainder = half(x + step) - half(x) - slope @ step - 0.5 * step @ curvature
        products = operator.mv(x), operator.T.mv(y), operator.as_matrix(), operator.T.as_matrix()
        return *products, slope, curvature, remainder

    *found, remainder = everything()
    for actual, expected in zip(
        found, (A @ x, A.T @ y, A, A.T, A.T @ (A @ x), A.T @ (A @ step)), strict=True
    ):
        close(actual, expected, 1e-13)
    assert abs(float(remainder)) < 1e-12


def test_a_matrix_of_integers_and_an_empty_row():
    matrix = sparse.csr_array(np.array([[0, 0], [3, 0], [1, 2]]))
    close(ng.interop.as_lineax_operator(matrix).as_matrix(), matrix.toarray(), 1e-15)


MODEL_MATRIX = RANDOM.normal(size=(6, 3))
SMALL = ng.Problem(
    lambda t: (MODEL_MATRIX @ t).reshape(2, 3), ng.LeastSquares(jnp.arange(6.0).reshape(2, 3))
)


METRICS = {
    "sparse factor": lambda: ng.FactorMetric(TALL),
    "operator": lambda: ng.FactorMetric(as_callback(TALL)),
    "sparse matrix": lambda: ng.MatrixMetric(CHAIN),
}
METHODS = {"Auto": ng.Auto(), "CG": ng.CG(1e-13), "LSMR": ng.LSMR(1e-13)}
FAST = {"sparse factor-Auto", "operator-CG", "sparse matrix-LSMR"}


@pytest.mark.parametrize(
    "case", with_slow(cases := [f"{m}-{s}" for m in METRICS for s in METHODS], {*cases} - FAST)
)
def test_metrics_of_scipy(case):
    """The direction of the same matrix written out, on a state that is no vector."""
    name, solver = case.split("-")
    if name == "operator" and not can_call_back():
        pytest.skip("compiled code waits on one core")
    metric, theta, solver = METRICS[name](), jnp.ones(3), METHODS[solver]
    A = CHAIN.toarray() if isinstance(metric, ng.MatrixMetric) else (TALL.T @ TALL).toarray()
    rho = SMALL.model(theta)
    close(dense(ng.interop.as_linear_operator(metric.at(rho).gram)), A, 1e-12)
    L = dense(ng.interop.as_linear_operator(metric.factor(rho)))
    close(L.T @ L, A, 1e-12)
    found = ng.natural_gradient(SMALL, theta, metric=metric, solver=solver)
    G = MODEL_MATRIX.T @ A @ MODEL_MATRIX
    close(found.eta, -np.linalg.solve(G, found.gradient), 1e-9)


def test_the_root_of_a_sparse_matrix_stays_sparse():
    """On a grid of 30 × 30 cells: LᵀL = A, with fewer entries than a tenth of a dense L."""
    line = sparse.diags_array([-np.ones(29), 2 * np.ones(30), -np.ones(29)], offsets=[-1, 0, 1])
    one = sparse.eye_array(30)
    A = sparse.kron(line, one) + sparse.kron(one, line) + 0.1 * sparse.eye_array(900)
    L = sparse_root(A)
    assert abs(L.T @ L - A).max() < 1e-13 * abs(A).max()
    assert L.nnz < 0.1 * 900**2


@pytest.mark.parametrize(
    "jacobian",
    [
        pytest.param(lambda t: MODEL_MATRIX, id="array"),
        pytest.param(lambda t: sparse.csr_array(MODEL_MATRIX), id="sparse"),
        pytest.param(lambda t: as_callback(MODEL_MATRIX), id="operator"),
    ],
)
def test_a_model_by_its_jacobian(jacobian):
    """θ is a tree, ρ has two axes; Z is asked for once, and not for the trial points."""
    calls = []

    def counted(theta):
        calls.append(theta)
        return jacobian(theta)

    def forward(theta):
        return (MODEL_MATRIX @ np.append(theta["a"], theta["b"])).reshape(2, 3)

    model = ng.ExternalModel.from_jacobian(forward, counted)
    theta = {"a": jnp.ones(2), "b": jnp.zeros(())}
    problem = ng.Problem(model, SMALL.loss)
    found = ng.natural_gradient(problem, theta, metric=ng.L2(), solver=ng.CG(1e-13))
    assert len(calls) == 1
    expected = ng.natural_gradient(SMALL, jnp.array([1.0, 1.0, 0.0]), metric=ng.L2())
    close(jnp.append(found.eta["a"], found.eta["b"]), expected.eta, 1e-10)
    # its G in SciPy, called from Python; lineax would compile it
    G = ng.interop.information_operator(problem, theta, metric=ng.L2())
    close(dense(ng.interop.as_linear_operator(G)), MODEL_MATRIX.T @ MODEL_MATRIX, 1e-12)
    solve = lambda: lx.linear_solve(G, theta, lx.CG(rtol=1e-8, atol=1e-8))
    assert_input_error("model", "outside JAX.*compiled", solve)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(as_callback, marks=CALLS_BACK),
        pytest.param(sparse.csr_array, marks=pytest.mark.slow),
    ],
)
def test_a_preconditioner_of_scipy(kind):
    """The inverse of G as an operator: one iteration is enough."""
    G = MODEL_MATRIX.T @ MODEL_MATRIX
    solver = ng.CG(1e-10, preconditioner=kind(np.linalg.inv(G)))
    found = ng.natural_gradient(SMALL, jnp.ones(3), metric=ng.L2(), solver=solver)
    assert found.info.iterations == 1
    close(found.eta, -np.linalg.solve(G, found.gradient), 1e-10)


def test_an_operator_needs_a_second_core(monkeypatch):
    monkeypatch.setattr("natgrad.core.sparse.can_call_back", lambda: False)
    convert = lambda: ng.interop.as_lineax_operator(as_callback(TALL))
    assert_input_error("operator", "second CPU core", convert)


def jacobian_of(matrix):
    model = ng.ExternalModel.from_jacobian(lambda t: MODEL_MATRIX @ t, lambda t: matrix)
    problem = ng.Problem(model, lambda rho: jnp.sum(rho**2))
    return ng.natural_gradient(problem, jnp.ones(3), metric=ng.L2())


BAD = {
    "an array as operator": (
        "operator",
        "is an array",
        lambda: ng.interop.as_linear_operator(np.eye(2)),
    ),
    "an array into lineax": (
        "operator",
        "MatrixLinear",
        lambda: ng.interop.as_lineax_operator(np.eye(2)),
    ),
    "a complex matrix": ("operator", "complex", lambda: ng.interop.as_lineax_operator(1j * TALL)),
    "a matrix with NaN": (
        "operator",
        "not finite",
        lambda: ng.interop.as_lineax_operator(np.nan * TALL),
    ),
    "a sparse A that is not square": ("A", r"\(9, 6\)", lambda: ng.MatrixMetric(TALL)),
    "a sparse A that is complex": ("A", "complex", lambda: ng.MatrixMetric(1j * CHAIN)),
    "a sparse A with NaN": ("A", "not finite", lambda: ng.MatrixMetric(np.nan * CHAIN)),
    "a sparse A that is not symmetric": (
        "A",
        "not symmetric",
        lambda: ng.MatrixMetric(sparse.diags_array([np.ones(5), np.ones(4)], offsets=[0, 1])),
    ),
    "a sparse A that is negative": ("A", "positive", lambda: ng.MatrixMetric(-CHAIN)),
    "a sparse A that is indefinite": (
        "A",
        "positive",
        lambda: ng.MatrixMetric(sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))),
    ),
    "a sparse A that is singular": (
        "A",
        r"positive.*toarray",
        lambda: ng.MatrixMetric(sparse.csr_array(np.array([[1.0, -1.0], [-1.0, 1.0]]))),
    ),
    "A as an operator": ("A", "FactorMetric", lambda: ng.MatrixMetric(as_callback(CHAIN))),
    "a factor of another size": (
        "L",
        "6 unknowns",
        lambda: ng.natural_gradient(PROBLEM, THETA, metric=ng.FactorMetric(TALL)),
    ),
    "a Jacobian of another shape": (
        "jacobian",
        r"\(3, 6\).*\(6, 3\)",
        lambda: jacobian_of(MODEL_MATRIX.T),
    ),
    "a Jacobian that is a list": ("jacobian", "list", lambda: jacobian_of([1.0])),
    "no function for the Jacobian": (
        "jacobian",
        "callable",
        lambda: ng.ExternalModel.from_jacobian(lambda t: t, np.eye(2)),
    ),
    "no rmatvec": (
        "operator",
        "rmatvec cannot be used on 6",
        lambda: ng.FactorMetric(linalg.LinearOperator((6, 6), matvec=lambda x: x, dtype=float)),
    ),
    "G of the plain gradient": (
        "metric",
        "GradientDescent",
        lambda: ng.interop.information_operator(PROBLEM, THETA, metric=ng.GradientDescent()),
    ),
}


def test_products_with_complex_vectors():
    G = ng.interop.as_linear_operator(
        ng.interop.information_operator(PROBLEM, THETA, metric=ng.L2())
    )
    v = np.arange(1.0, 1.0 + G.shape[1])
    assert np.allclose(G @ (2j * v), 2j * (G @ v))
    assert np.linalg.norm(G @ v) > 0


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    argument, pattern, call = BAD[case]
    assert_input_error(argument, pattern, call)
