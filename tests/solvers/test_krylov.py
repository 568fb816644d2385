"""Matrix-free solvers: the dense direction from products alone, and an honest account of them."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng
from cases import CASES, density
from natgrad.metrics import Geometry
from natgrad.parameters import flatten
from natgrad.solvers import auto
from problems_for_tests import Linear, bumps_problem, close, linear_problem, with_slow

SOLVERS = {"CG": ng.CG(1e-13), "LSMR": ng.LSMR(1e-13)}
every_solver = pytest.mark.parametrize("name", SOLVERS)
EYE = ng.MatrixMetric(np.eye(20))
small = lru_cache(lambda: linear_problem(20, 6, 6, grading=0.1))


def direction(solver: ng.solvers.Solver, damping=0.0, problem: ng.Problem | None = None):
    default, theta, _, _ = small()
    return ng.natural_gradient(
        problem or default, theta, metric=EYE, solver=solver, damping=damping
    )


# --- the products


@pytest.mark.parametrize("kind", ["forward", "reverse", "pointwise", "pytree"])
def test_products_are_those_of_the_jacobian_and_adjoint(kind: str):
    points = jnp.linspace(0.0, 1.0, 8).reshape(4, 2, 1)
    u = lambda t, x: jnp.sin(t["a"] @ t["a"] * x[0] + t["b"])
    theta = {"a": jnp.array([0.3, 0.8, -0.2]), "b": jnp.asarray(0.7)}
    if kind == "pointwise":
        model = ng.Pointwise(u, points)
    elif kind == "pytree":
        model = ng.models.Explicit(lambda t: {"x": jnp.outer(t["a"], t["a"]), "y": jnp.exp(t["b"])})
    else:
        model = ng.models.Explicit(lambda t: jax.vmap(lambda x: u(t, x))(points[:, 0]), mode=kind)
    flat, unravel = flatten(theta)
    vector = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]

    @eqx.filter_jit
    def linearised(flat):
        rho, columns, _ = model.jacobian(unravel, flat)
        return model.products(unravel, flat), rho, vector(rho), jax.vmap(vector)(columns).T

    @eqx.filter_jit
    def applied(products, rho, eta, xi):
        covector = jax.flatten_util.ravel_pytree(rho)[1](xi)
        return vector(products.rho), vector(products.push(eta)), products.pull(covector)

    products, rho, values, Z = linearised(flat)  # the products cross the boundary of a program
    values, Z, rng = np.asarray(values), np.asarray(Z), np.random.default_rng(0)
    eta, xi = rng.normal(size=Z.shape[1]), rng.normal(size=Z.shape[0])
    found, pushed, pulled = map(np.asarray, applied(products, rho, eta, xi))
    close(found, values, 1e-15)
    close(pushed, Z @ eta, 1e-13)
    close(pulled, Z.T @ xi, 1e-13)
    assert xi @ pushed == pytest.approx(eta @ pulled, rel=1e-12)


def test_a_model_with_a_rule_for_its_transpose_only():
    @jax.custom_vjp
    def cubes(v):
        return v**3

    cubes.defvjp(lambda v: (v**3, v), lambda v, xi: (3 * v**2 * xi,))
    model = ng.models.Explicit(lambda t: cubes(t), mode="reverse")
    problem = ng.Problem(model, ng.LeastSquares(jnp.ones(3)))
    result = ng.minimize(
        problem,
        jnp.array([0.5, 2.0, 1.5]),
        ng.NaturalGradient(ng.MatrixMetric(np.eye(3)), solver=ng.CG(1e-8)),
    )
    close(result.theta, np.ones(3), 1e-5)


# --- the direction


@pytest.mark.parametrize("name", with_slow(SOLVERS, ["LSMR"]))
def test_every_metric_gives_the_dense_oracle(name: str):
    """All metrics at once, as blocks of one state, each weighing as much as the others."""
    problem, metric, G = all_blocks()
    d = ng.natural_gradient(problem, jnp.zeros(5), metric=metric, solver=SOLVERS[name])
    close(d.eta, -np.linalg.solve(G, np.asarray(d.gradient)))
    assert d.info.status == "converged"


@lru_cache
def all_blocks() -> tuple[ng.Problem, ng.metrics.Metric, np.ndarray]:
    # one of each kind will do: diagonal, dense, by a symbol of either sign, by transport, a sum
    skipped = ("(0)", "(2)", "(-2)", "(3)", "(-3)", "Mobility", "collocated", "forward")
    skipped = (*skipped, "fourth_order", "L2()", "diagonals", "FactorMetric", "Homogeneous")
    cases = [case for case in CASES if case.name.endswith("-7-neumann")]
    cases = [case for case in cases if not any(order in case.name for order in skipped)]
    grid, rho = cases[0].grid, density(cases[0].grid, 0)
    tangents = np.random.default_rng(3).normal(size=(len(cases), grid.size, 5))
    Z = jnp.asarray(tangents * np.asarray(rho)[:, None])
    model = lambda t: tuple(rho + jnp.sin(z @ t) for z in Z)
    parts = [
        np.asarray(z.T @ case.dense(np.asarray(rho)) @ z) for case, z in zip(cases, Z, strict=True)
    ]
    weights = [1.0 / np.trace(part) for part in parts]
    metric = ng.Blocks(*(w * case.metric for w, case in zip(weights, cases, strict=True)))
    loss = ng.LeastSquares((jnp.ones(grid.size),) * len(cases))
    return ng.Problem(model, loss), metric, np.tensordot(weights, np.stack(parts), 1)


@pytest.mark.parametrize(
    ("name", "damping"),
    [("CG", 0.0), ("LSMR", 0.0), ("CG", 1e-2), ("LSMR", 1e-2), ("CG", ng.LevenbergMarquardt(0.3))],
    ids=["CG", "LSMR", "CG-relative", "LSMR-relative", "CG-adaptive"],
)
def test_damping(name: str, damping):
    _, theta, Z, target = small()
    d = direction(SOLVERS[name], damping)
    H = Z.T @ Z + d.info.damping * np.eye(6)
    close(d.eta, -np.linalg.solve(H, Z.T @ (Z @ np.asarray(theta) - target)))
    assert d.info.residual <= 1e-13


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("LSMR", "matrix"),
        ("CG", "diagonal"),
        ("CG", "operator"),
        pytest.param("LSMR", "operator", marks=pytest.mark.slow),
    ],
)
def test_damping_by_an_operator_on_parameters(name: str, kind: str):
    _, theta, Z, target = small()
    root = np.random.default_rng(1).normal(size=(6, 6))
    D = np.diag(np.arange(1.0, 7.0)) if kind == "diagonal" else root @ root.T + np.eye(6)
    apply = lambda v: jnp.asarray(D) @ v
    given = {
        "matrix": D,
        "diagonal": np.diag(D),
        "operator": ng.metrics.AdjointOperator(apply, apply, theta, theta),
    }[kind]
    damping = ng.ParameterDamping(given, strength=0.3)
    if (name, kind) == ("LSMR", "operator"):
        with pytest.raises(ng.InputError, match="LSMR needs a factor"):
            direction(SOLVERS[name], damping)
        return
    expected = -jnp.linalg.solve(Z.T @ Z + 0.3 * D, Z.T @ (Z @ theta - target))
    close(direction(SOLVERS[name], damping).eta, expected)
    if kind == "operator":
        close(direction(ng.Cholesky(), damping).eta, expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CG", "objective"),
        pytest.param("LSMR", "objective", marks=pytest.mark.slow),
        ("LSMR", "regulariser"),
    ],
)
def test_a_gradient_that_is_not_all_in_the_state(name: str, kind: str):
    _, theta, Z, target = small()
    extra = lambda t: 0.1 * jnp.sum(jnp.sin(t))
    loss = ng.LeastSquares(target)
    if kind == "objective":
        problem = ng.Problem(lambda t: Z @ t, objective=lambda t: loss(Z @ t) + extra(t))
    else:
        problem = ng.Problem(lambda t: Z @ t, loss, regulariser=extra)
    g = Z.T @ (Z @ np.asarray(theta) - target) + 0.1 * np.cos(theta)
    d = direction(SOLVERS[name], 0.0, problem)
    close(d.gradient, g, 1e-13)
    close(d.eta, -np.linalg.solve(Z.T @ Z, g))


@pytest.mark.parametrize(("name", "k", "p"), [("CG", 30, 8), ("LSMR", 8, 30)])
def test_minimum_norm_where_the_jacobian_is_deficient(name: str, k: int, p: int):
    problem, theta, Z, target = linear_problem(k, p, 5, grading=0.1)
    metric = ng.MatrixMetric(np.eye(k))
    d = ng.natural_gradient(problem, theta, metric=metric, solver=SOLVERS[name])
    close(d.eta, -np.linalg.pinv(np.asarray(Z), rcond=1e-10) @ np.asarray(Z @ theta - target))
    assert d.info.iterations <= 7
    assert d.info.rank is None


def test_relative_damping_from_a_counted_estimate_of_the_trace():
    _, _, Z, _ = small()
    exact = float(jnp.sum(Z**2)) / 6
    plain, relative = (
        direction(SOLVERS["CG"], ng.AbsoluteDamping(1e-2)),
        direction(SOLVERS["CG"], 1e-2),
    )
    assert relative.info.damping == pytest.approx(1e-2 * exact, rel=0.5)
    assert relative.info.damping == direction(SOLVERS["LSMR"], 1e-2).info.damping  # seeded
    assert plain.info.counts.linearised == plain.info.iterations
    assert relative.info.counts.linearised == relative.info.iterations + 8


def test_single_precision_of_any_magnitude_and_no_warning():
    _, theta, Z, target = small()
    expected = -jnp.linalg.solve(Z.T @ Z, Z.T @ (Z @ theta - target))
    single, tiny = Z.astype(jnp.float32), jnp.float32(1e-24)
    loss = lambda rho: tiny * ng.LeastSquares(target.astype(jnp.float32))(rho)
    d = ng.natural_gradient(
        ng.Problem(lambda t: single @ t, loss),
        theta.astype(jnp.float32),
        metric=ng.FactorMetric(jnp.eye(20, dtype=jnp.float32)),
        solver=ng.CG(1e-6),
    )
    assert d.eta.dtype == jnp.float32
    close(d.eta / tiny, expected, 1e-3)


# --- what happens on the way


def test_truncated_cg_descends_and_keeps_the_model_identity():
    _, _, Z, _ = small()
    lengths = []
    for steps in range(1, 6):
        d = direction(ng.CG(0.0, max_iterations=steps), ng.AbsoluteDamping(1e-3))
        H = Z.T @ Z + 1e-3 * jnp.eye(6)
        slope = float(d.gradient @ d.eta)
        assert (d.info.iterations, d.info.status) == (steps, "max_iterations")
        assert d.info.counts == ng.models.Counts(1, steps, steps + 1)
        assert slope < 0
        assert float(d.eta @ H @ d.eta) == pytest.approx(-slope, rel=1e-10)
        residual = jnp.linalg.norm(H @ d.eta + d.gradient) / jnp.linalg.norm(d.gradient)
        assert d.info.residual == pytest.approx(float(residual), rel=1e-8)
        lengths.append(float(jnp.linalg.norm(d.eta)))
    assert np.all(np.diff(lengths) > 0)


def test_lsmr_residuals_are_true_and_never_grow():
    _, _, Z, _ = small()
    residuals = []
    for steps in range(1, 6):
        d = direction(ng.LSMR(0.0, max_iterations=steps), ng.AbsoluteDamping(1e-3))
        true = Z.T @ (Z @ d.eta) + 1e-3 * d.eta + d.gradient
        relative = float(jnp.linalg.norm(true) / jnp.linalg.norm(d.gradient))
        assert d.info.residual == pytest.approx(relative, rel=1e-8)
        residuals.append(relative)
    assert np.all(np.diff(residuals) < 0)
    assert 1.0 <= direction(ng.LSMR(1e-13)).info.condition <= 10.0 * (1 + 1e-8)


@every_solver
def test_a_run_is_that_of_the_dense_solver_and_counts_every_product(name: str):
    problem, start, _, grid = bumps_problem(mass_varies=True)
    bounds = (jnp.array([-jnp.inf, 0.42, -jnp.inf, -jnp.inf, -jnp.inf]), jnp.array([jnp.inf] * 5))
    start = start.at[1].set(0.42)
    solver = {"CG": ng.CG(1e-12), "LSMR": ng.LSMR(1e-12)}[name]
    dense, result = (
        ng.minimize(
            problem,
            start,
            ng.NaturalGradient(ng.L2(grid), solver=solver, damping=ng.AbsoluteDamping(1e-6)),
            bounds=bounds,
            stop=ng.Stop(iterations=4),
        )
        for solver in (ng.Cholesky(), solver)
    )
    close(result.theta, dense.theta, 1e-8)
    h = result.history
    steps = h["solver_iterations"][:-1]
    assert result.info is not None
    assert result.info.solver == name
    # nothing but the iterations: ModelStep reads the Zη that the solver carries
    assert h["linearised"][-1] == steps.sum()
    assert h["adjoint"][-1] == steps.sum() + len(steps)
    assert h["forward"][-1] == dense.history["forward"][-1]


def test_nothing_is_compiled_again_from_one_iteration_to_the_next():
    traces = []

    def model(theta):
        traces.append(1)
        return jnp.tanh(theta * jnp.arange(1.0, 5.0)) + theta[0]

    problem = ng.Problem(model, ng.LeastSquares(jnp.full(4, 0.3)))
    metric = ng.MatrixMetric(np.eye(4))
    run = lambda damping, solver, steps: ng.minimize(
        problem,
        jnp.ones(4),
        ng.NaturalGradient(metric, solver=solver, damping=damping),
        stop=ng.Stop(iterations=steps, gradient=0.0),
    )
    run(1e-3, ng.CG(1e-2, 3), 1)
    before = len(traces)
    run(1e-2, ng.CG(1e-1, 4), 6)
    checked = 2  # before a run the shape and the value of the state are looked at
    assert len(traces) - before <= checked


class Given(ng.metrics.Metric):
    """A "metric" with any matrix for A, also one that is none."""

    A: jax.Array

    def factor(self, rho):
        product = lambda x: self.A @ x
        return ng.metrics.AdjointOperator(product, lambda y: self.A.T @ y, rho, rho)

    def whiten(self, rho, c):
        return c

    def at(self, rho):
        return GivenGeometry(self, rho)


class GivenGeometry(Geometry):
    @property
    def gram(self):
        return self.factor


def test_a_breakdown_is_a_status_and_the_iterate_so_far():
    problem, theta, _, _ = small()
    metric = Given(jnp.asarray(np.diag(np.r_[np.ones(17), -2 * np.ones(3)])))
    d = ng.natural_gradient(problem, theta, metric=metric, solver=ng.CG(1e-13))
    assert d.info.status == "breakdown"
    assert 1 < d.info.iterations < 6
    assert np.all(np.isfinite(d.eta))
    assert float(d.gradient @ d.eta) < 0
    metric = Given(-jnp.eye(20))
    with pytest.raises(ng.InputError, match="metric: is not positive") as raised:
        ng.minimize(problem, theta, ng.NaturalGradient(metric, solver=ng.CG(1e-13)))
    result = raised.value.natgrad_result  # pyright: ignore
    assert (result.info.status, result.info.iterations) == ("breakdown", 2)  # with and without M
    np.testing.assert_array_equal(result.theta, theta)


@every_solver
def test_a_gradient_that_the_metric_does_not_see_is_a_breakdown(name: str):
    _, _, Z, _ = linear_problem(20, 6, 4, grading=0.1)
    problem = ng.Problem(lambda t: Z @ t, objective=lambda t: jnp.sum(jnp.sin(t)))
    d = direction(SOLVERS[name], 0.0, problem)
    assert d.info.status == "breakdown"
    assert d.info.iterations <= 6
    assert float(d.gradient @ d.eta) < 0
    unseen = d.gradient - np.linalg.pinv(Z, rcond=1e-9) @ (Z @ d.gradient)
    close(Z.T @ (Z @ d.eta) + d.gradient, unseen, 1e-6)  # least residual: that is all that is left
    assert d.info.residual == pytest.approx(np.linalg.norm(unseen) / np.linalg.norm(d.gradient))


class Slope(eqx.Module):
    """θ ↦ ⟨g, θ⟩, with g as data."""

    gradient: jax.Array

    def __call__(self, theta):
        return self.gradient @ theta


SINGULAR = {
    "CG": ng.CG(1e-12),
    "LSMR": ng.LSMR(1e-12),
    "CG, preconditioned": ng.CG(1e-12, preconditioner=ng.solvers.Nystrom(3)),
    "LSMR, preconditioned": ng.LSMR(1e-12, preconditioner=ng.solvers.Nystrom(3)),
}
singular = {
    "seed": st.integers(0, 2**31),
    "rank": st.integers(1, 7),
    "grading": st.floats(0, 4),
    "share": st.floats(-3, 8),
    "scale": st.floats(-3, 3),
}


def check_the_shortest_solution(name, seed, rank, grading, share, scale):
    """Whatever part of the gradient G does not see, η is −G†∂_θ f, as the direct solvers find."""
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(8, rank)))
    V, _ = np.linalg.qr(rng.normal(size=(10, rank)))
    Z = (U * 10**scale * np.geomspace(1.0, 10**-grading, rank)) @ V.T
    g = V @ rng.normal(size=rank) + 10**-share * rng.normal(size=10)
    problem = ng.Problem(Linear(jnp.asarray(Z)), objective=Slope(jnp.asarray(g)))
    d = ng.natural_gradient(problem, jnp.zeros(10), metric=ng.L2(), solver=SINGULAR[name])
    inverse = np.linalg.pinv(Z, rcond=1e-6)
    close(d.eta, -inverse @ (inverse.T @ g), 1e-3)
    assert d.info.status == "breakdown"


@pytest.mark.parametrize("name", ["CG", "LSMR"])
@given(**singular)
def test_a_singular_system_has_the_shortest_solution(name, **case):
    check_the_shortest_solution(name, **case)


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGULAR)
@settings(max_examples=200)
@given(**singular)
def test_every_singular_system_has_the_shortest_solution(name, **case):
    check_the_shortest_solution(name, **case)


@pytest.mark.parametrize(
    "name", with_slow(["Hdot1 + Hdot-1", "Hdot-2", "W2"], ["Hdot1 + Hdot-1", "W2"])
)
def test_more_parameters_than_values_and_a_metric_that_is_blind_to_the_mean(name: str):
    grid, rng = ng.Grid(0.0, 1.0, 12), np.random.default_rng(0)
    Z, c = jnp.asarray(rng.normal(size=(12, 18))), jnp.asarray(rng.normal(size=12))
    problem = ng.Problem(lambda t: 1 + 0.1 * (Z @ t), lambda rho: c @ rho)
    metric = {
        "Hdot1 + Hdot-1": ng.HomogeneousSobolev(grid, 1) + 0.5 * ng.HomogeneousSobolev(grid, -1),
        "Hdot-2": ng.HomogeneousSobolev(grid, -2),
        "W2": ng.Wasserstein(grid),
    }[name]
    find = lambda s: ng.natural_gradient(problem, jnp.zeros(18), metric=metric, solver=s)
    exact = find(ng.SVD())
    for solver in (ng.CG(), ng.LSMR()):
        d = find(solver)
        close(d.eta, exact.eta, 1e-5)
        assert d.info.status == "breakdown"


def test_a_run_by_cg_stays_where_the_metric_cannot_see():
    """Pairs of earlier iterations precondition the later ones; noise must not pass for a G."""
    grid = ng.Grid(0.0, 1.0, 30)
    x = grid.points[:, 0]
    modes = jnp.stack([jnp.cos(jnp.pi * x), jnp.cos(2 * jnp.pi * x), jnp.ones(30)])
    problem = ng.Problem(lambda t: t @ modes, ng.LeastSquares(jnp.exp(x), grid))
    method = ng.NaturalGradient(ng.HomogeneousSobolev(grid, 1), solver=ng.CG(1e-6))
    result = ng.minimize(problem, jnp.array([1.0, 0.5, 0.0]), method, stop=ng.Stop(iterations=12))
    assert abs(result.theta[2]) < 1e-10
    assert np.nanmax(result.history["step_norm"]) < 3


@every_solver
def test_what_is_not_finite_is_named_and_kept_out(name: str):
    problem, theta, _, _ = small()
    metric = Given(jnp.eye(20).at[3, 4].set(jnp.nan))
    d = ng.natural_gradient(problem, theta, metric=metric, solver=SOLVERS[name])
    assert d.info.status == "not_finite"
    np.testing.assert_array_equal(d.eta, np.zeros(6))


@every_solver
def test_at_a_minimum_there_is_nothing_to_do(name: str):
    _, theta, Z, _ = small()
    problem = ng.Problem(small()[0].model, ng.LeastSquares(Z @ theta))
    d = direction(SOLVERS[name], 0.0, problem)
    assert (d.info.status, d.info.iterations) == ("converged", 0)
    np.testing.assert_array_equal(d.eta, np.zeros(6))


# --- choices and input


def test_auto_goes_matrix_free_past_a_size_in_memory(monkeypatch):
    assert ng.Auto().matrix_free(2**31, 0) is None  # bytes
    assert ng.Auto().matrix_free(2**31 + 1, 0).name == "CG"
    assert ng.Cholesky().matrix_free(2**40, 0) is None
    assert ng.Auto().matrix_free(2**20, 101) is not None  # 101 solves with a PDE
    assert ng.Auto().matrix_free(2**20, 100) is None
    monkeypatch.setattr(auto, "DENSE_LIMIT", 0)
    problem, theta, *_ = linear_problem(19, 5, 5)  # of a size whose programs no other test has
    found = ng.natural_gradient(problem, theta, metric=ng.MatrixMetric(np.eye(19)), damping=0.0)
    assert found.info.solver == "CG"


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("tolerance", lambda: ng.CG(1.0)),
        ("max_iterations", lambda: ng.CG(max_iterations=0)),
        ("max_iterations", lambda: ng.LSMR(max_iterations=2.5)),  # pyright: ignore
        ("operator", lambda: ng.ParameterDamping(np.array([1.0, -1.0]))),
        ("operator", lambda: ng.ParameterDamping(as_operator(-np.eye(3)))),
        ("operator", lambda: ng.ParameterDamping(as_operator(np.triu(np.ones((3, 3)))))),
        ("preconditioner", lambda: ng.CG(preconditioner="jacobi")),  # pyright: ignore
        ("preconditioner", lambda: ng.LSMR(preconditioner=ng.solvers.Recycled())),
        ("pairs", lambda: ng.solvers.Recycled(0)),
        ("samples", lambda: ng.solvers.Diagonal(0)),
        ("rank", lambda: ng.solvers.Nystrom(-1)),
    ],
)
def test_bad_input(argument: str, make):
    with pytest.raises(ng.InputError) as error:
        make()
    assert error.value.argument == argument


def as_operator(matrix):
    product = lambda v: jnp.asarray(matrix) @ v
    return ng.metrics.AdjointOperator(product, product, jnp.zeros(3), jnp.zeros(3))
