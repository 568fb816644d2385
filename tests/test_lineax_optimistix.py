"""G in the solvers of lineax, solvers of natgrad in lineax, natural gradients in optimistix."""

import sys

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import assert_input_error, bumps_problem, close, with_slow

PROBLEM, THETA, TRUTH, GRID = bumps_problem()


def value(theta, args=None):
    return PROBLEM.value(theta, PROBLEM.model(theta))


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(lx.CG(rtol=1e-13, atol=1e-13), id="CG"),
        pytest.param(lx.Cholesky(), id="Cholesky"),
    ],
)
@pytest.mark.slow  # the documentation runs the like
def test_lineax_solves_with_g(solver):
    metric = ng.FisherRao(GRID)
    G = ng.information_operator(PROBLEM, THETA, metric=metric)
    expected = ng.natural_gradient(PROBLEM, THETA, metric=metric)
    close(lx.linear_solve(G, -expected.gradient, solver).value, expected.eta, 1e-9)


@pytest.mark.slow  # the documentation runs the like
def test_the_factor_in_a_solver_of_natgrad():
    """min ‖b + Yη‖ by lineax with our pivoted QR is the natural gradient."""
    metric = ng.Sobolev(GRID, -1)
    Y = ng.information_factor(PROBLEM, THETA, metric=metric)
    rho = PROBLEM.model(THETA)
    b = metric.whiten(rho, jax.grad(PROBLEM.loss)(rho))
    solution = lx.linear_solve(Y, -b, ng.as_lineax_solver(ng.PivotedQR()))
    close(solution.value, ng.natural_gradient(PROBLEM, THETA, metric=metric).eta, 1e-9)
    assert int(solution.stats["rank"]) == 4


RANDOM = np.random.default_rng(0)
SHAPES = {"tall": (7, 4, 4), "wide": (4, 7, 4), "deficient": (7, 4, 2)}
SOLVERS = {
    "PivotedQR": ng.PivotedQR(),
    "SVD": ng.SVD(),
    "Kernel": ng.Kernel(),
    "Cholesky": ng.Cholesky(),
    "LSMR": ng.LSMR(1e-14),
    "CG": ng.CG(1e-14),
}
FAST = {"deficient-SVD", "wide-Kernel", "tall-LSMR"}


@pytest.mark.parametrize(
    "case", with_slow(every := [f"{s}-{n}" for s in SHAPES for n in SOLVERS], {*every} - FAST)
)
def test_least_squares_of_minimum_norm(case):
    """Y†b for every shape, by every solver, from flat vectors to a tree."""
    shape, name = case.split("-")
    k, p, rank = SHAPES[shape]
    matrix = RANDOM.normal(size=(k, rank)) @ RANDOM.normal(size=(rank, p))
    b = RANDOM.normal(size=k)
    operator = lx.MatrixLinearOperator(jnp.asarray(matrix))
    solver = ng.as_lineax_solver(SOLVERS[name])
    solution = lx.linear_solve(operator, jnp.asarray(b), solver, throw=False)
    close(solution.value, np.linalg.pinv(matrix) @ b, 1e-7)


def test_the_solve_is_differentiated_by_lineax():
    """dx for a change of Y and b, compared with finite differences; the remainder is O(h²)."""
    matrix, b = jnp.asarray(RANDOM.normal(size=(5, 3))), jnp.asarray(RANDOM.normal(size=5))
    change = jnp.asarray(RANDOM.normal(size=(5, 3))), jnp.asarray(RANDOM.normal(size=5))
    solver = ng.as_lineax_solver(ng.PivotedQR())

    def solve(matrix, b):
        return lx.linear_solve(lx.MatrixLinearOperator(matrix), b, solver).value

    @jax.jit
    def remainders():
        x, dx = jax.jvp(solve, (matrix, b), change)
        ahead = lambda h: solve(matrix + h * change[0], b + h * change[1]) - x - h * dx
        return [jnp.linalg.norm(ahead(h)) for h in (1e-3, 5e-4)]

    first, second = remainders()
    assert float(jnp.log2(first / second)) == pytest.approx(2.0, abs=0.05)


def test_a_solve_that_was_not_finished_says_so():
    solver = ng.as_lineax_solver(ng.CG(1e-14, max_iterations=1))
    matrix = jnp.asarray(RANDOM.normal(size=(5, 3)))
    solution = lx.linear_solve(lx.MatrixLinearOperator(matrix), jnp.ones(5), solver, throw=False)
    assert solution.result == lx.RESULTS.max_steps_reached
    assert_input_error("solver", "class CG", lambda: ng.as_lineax_solver(ng.CG))


@pytest.mark.slow
def test_gauss_newton_of_optimistix_on_whitened_residuals():
    """L(ρ − ρ*) as residuals: a step of Gauss–Newton is one along the natural gradient."""
    optx = pytest.importorskip("optimistix")
    metric, target = ng.Sobolev(GRID, -1), PROBLEM.loss.target
    L = metric.factor(target)
    solver = optx.GaussNewton(rtol=1e-9, atol=1e-9)
    residual = lambda theta, args: L.mv(PROBLEM.model(theta) - target)
    # the first step that optimistix takes evaluates the start, the second moves
    found = optx.least_squares(residual, solver, THETA, max_steps=2, throw=False)
    problem = ng.Problem(PROBLEM.model, ng.SquaredDistance(target, metric))
    eta = ng.natural_gradient(problem, THETA, metric=metric).eta
    close(found.value, THETA + eta, 1e-9)


@pytest.fixture(scope="module")
def optimistix_module():
    pytest.importorskip("optimistix")
    import natgrad.interop.optimistix as module

    return module


def descent(module, **more):
    settings = {"metric": ng.FisherRao(GRID), "damping": 1e-6, "rtol": 1e-9, "atol": 1e-9}
    return module.NaturalGradientDescent(PROBLEM.model, **settings, **more)


def test_a_descent_of_optimistix_takes_the_steps_of_minimize(optimistix_module):
    import optimistix as optx

    solver = descent(optimistix_module, search=optx.LearningRate(0.5))
    found = optx.minimise(value, solver, THETA, max_steps=4, throw=False)
    expected = ng.minimize(
        PROBLEM,
        THETA,
        metric=ng.FisherRao(GRID),
        damping=1e-6,
        step=ng.FixedStep(0.5),
        max_iterations=3,  # the first step of optimistix evaluates the start
    )
    close(found.value, expected.theta, 1e-11)


@pytest.mark.slow  # the documentation runs the like
def test_a_descent_of_optimistix_with_armijo_converges(optimistix_module):
    import optimistix as optx

    close(optx.minimise(value, descent(optimistix_module), THETA, max_steps=60).value, TRUTH, 1e-6)


def test_bad_input_of_a_descent(optimistix_module):
    make = optimistix_module.NaturalDescent
    assert_input_error("metric", "Newton", lambda: make(PROBLEM.model, metric=ng.Newton()))
    following = lambda: make(PROBLEM.model, metric=ng.L2(), damping=ng.LevenbergMarquardt())
    assert_input_error("damping", "Levenberg", following)
    query = lambda: make(PROBLEM.model, metric=ng.L2()).query(THETA, object(), THETA)
    assert_input_error("f_info", "gradient", query)


def test_without_optimistix(monkeypatch):
    monkeypatch.setitem(sys.modules, "optimistix", None)
    monkeypatch.delitem(sys.modules, "natgrad.interop.optimistix", raising=False)

    def load():
        import natgrad.interop.optimistix  # noqa: F401

    assert_input_error("optimistix", r"natgrad\[optimistix\]", load)
