"""Models behind an equation: directions of every solver, statuses, and input that cannot be."""

from dataclasses import dataclass
from functools import lru_cache

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st
from scipy import sparse

import natgrad as ng
from equations_for_tests import (
    CODE,
    GRID,
    LINEAR,
    LOSS,
    METRICS,
    NONLINEAR,
    SOLVERS,
    START,
    TARGET,
    THETA,
    UPWIND,
    ZEROS,
    N,
    Z,
    jacobian,
    matches_the_oracle,
    model,
    state,
)
from problems_for_tests import assert_input_error, close, with_slow

# --- directions

FAST_ON_THE_HOST = {"CG", "CG given", "CG none", "Cholesky"}


@pytest.mark.parametrize("metric", with_slow(METRICS, ["H-1"]))
@pytest.mark.parametrize("solver", with_slow(SOLVERS, SOLVERS.keys() - FAST_ON_THE_HOST))
def test_the_direction_is_the_dense_one_on_the_host(metric: str, solver: str):
    CODE.clear()
    d = matches_the_oracle("host", *METRICS[metric], solver)
    assert d.info.status in ("converged", "ok")
    assert CODE.count("factorise") == 1


COMPILED = [("gmres", "H-1", "CG"), ("lu", "L2", "Cholesky")]
MORE = [("lu", metric, solver) for metric in METRICS for solver in SOLVERS]


@pytest.mark.parametrize(
    ("kind", "metric", "solver"),
    [*COMPILED, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_the_direction_is_the_dense_one_compiled(kind: str, metric: str, solver: str):
    matches_the_oracle(kind, *METRICS[metric], solver)


def test_the_information_matrix():
    problem = ng.Problem(model("host"), LOSS)
    metric, A = METRICS["W2"]
    close(ng.information_matrix(problem, START, metric=metric), Z.T @ A @ Z)


def test_a_factorisation_for_one_right_hand_side_at_a_time():
    """Its columns are solved one by one, or p = k right-hand sides would pass for a matrix."""
    problem = ng.Problem(model("host newton"), LOSS)
    d = ng.natural_gradient(problem, START, metric=METRICS["L2"][0], solver=ng.QR())
    dense, rho = jacobian(UPWIND, 0.5, THETA), state(UPWIND, 0.5, THETA)
    close(d.eta, -np.linalg.lstsq(dense, rho - TARGET, rcond=None)[0])
    assert d.info.counts == (1, 4, 0)


# --- costs


@pytest.mark.parametrize("kind", ["host", "lu"])
def test_a_direction_of_k_steps_costs_2k_plus_2_propagations(kind: str):
    CODE.clear()
    solver = ng.CG(0.0, max_iterations=3)
    problem = ng.Problem(model(kind), LOSS)
    d = ng.natural_gradient(problem, START, metric=METRICS["L2"][0], solver=solver)
    assert d.info.counts == (1, 3, 4)
    assert sum(d.info.counts) == 2 * 3 + 2
    assert CODE.count("factorise") == (1 if kind == "host" else 0)


METHODS = {
    "CG": ng.NaturalGradient(ng.L2(GRID), solver=ng.CG(1e-10)),
    "Cholesky": ng.NaturalGradient(ng.L2(GRID), solver=ng.Cholesky()),
    "gradient": ng.GradientDescent(),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_factorises_once_for_each_point(name: str):
    CODE.clear()
    problem = ng.Problem(model("host"), LOSS)
    result = ng.minimize(problem, START, METHODS[name], stop=ng.Stop(iterations=4))
    points = [tuple(theta) for theta in CODE.calls["factorise"]]
    assert len(points) == len(set(points))
    assert len(points) == result.history["forward"][-1]
    assert result.iterations >= 3
    if name != "gradient":
        assert result.loss < 1e-10 * result.history["loss"][0]


def test_compiled_and_host_runs_are_the_same():
    runs = [
        ng.minimize(
            ng.Problem(model(kind), LOSS),
            START,
            ng.NaturalGradient(ng.L2(GRID), solver=ng.CG(1e-10)),
        ).history
        for kind in ("host", "lu")
    ]
    for name in ("loss", "forward", "linearised", "adjoint", "solver_iterations"):
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=1e-6, atol=1e-20)


@lru_cache
def recycling_runs():
    """A linear model, so that G stays what it is; one damped step does not end the run."""
    rng = np.random.default_rng(0)
    columns = jnp.asarray(rng.normal(size=(20, 10)) * np.geomspace(1, 0.05, 10))
    target = jnp.asarray(rng.normal(size=20))
    problem = ng.Problem(lambda t: columns @ t, ng.LeastSquares(target))
    run = lambda M: ng.minimize(
        problem,
        jnp.zeros(10),
        ng.NaturalGradient(
            ng.MatrixMetric(np.eye(20)),
            solver=ng.CG(1e-9, preconditioner=M),
            step=ng.FixedStep(0.7),
        ),
        stop=ng.Stop(iterations=8, gradient=1e-12),
    )
    return run(ng.solvers.Recycled(20)), run(None)


def test_recycled_pairs_save_products_and_change_nothing_else():
    recycled, plain = recycling_runs()
    assert plain.history["solver_iterations"][0] == recycled.history["solver_iterations"][0] >= 10
    assert np.all(plain.history["solver_iterations"][1:-1] >= 10)
    assert np.all(recycled.history["solver_iterations"][1:-1] <= 3)
    np.testing.assert_allclose(recycled.theta, plain.theta, rtol=1e-6)
    np.testing.assert_allclose(recycled.history["loss"], plain.history["loss"], rtol=1e-8)


# --- input that cannot be


@dataclass
class Unhashable:
    def __call__(self, u, theta):
        raise NotImplementedError


class Lame:
    def solve(self, b):
        return b


class Short(Lame):
    def solve(self, b):
        return b[:3]

    solve_transposed = solve


def implicit(residual=LINEAR, *args, **settings):
    made = ng.ImplicitModel(residual, *args, **({"initial": ZEROS} | settings))
    return ng.natural_gradient(ng.Problem(made, LOSS), START, metric=ng.L2(GRID))


def singular_matrix(u, theta):
    return ng.models.SparseLU(sparse.csc_matrix(UPWIND - UPWIND[:, :1]))


laplacian = lambda u, theta: jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1) + theta[0] * jnp.arange(N)
no_root = lambda u, theta: u**2 + jnp.exp(theta[0])
CASES = {
    "residual of another shape": ("residual", r"\(11,\).*\(12,\)", lambda: implicit(lambda u, t: u[1:] - t[0])),
    "residual of another structure": ("residual", "structure", lambda: implicit(lambda u, t: {"u": u - t[0]})),
    "residual not callable": ("residual", "callable", lambda: implicit(3.0)),
    "solve not callable": ("solve", "callable", lambda: implicit(LINEAR, 3.0)),
    "observe not callable": ("observe", "callable", lambda: implicit(observe=3.0)),
    "factorise not callable": ("factorise", "callable", lambda: implicit(factorise=3.0)),
    "factorise cannot be hashed": ("factorise", "hashed", lambda: implicit(factorise=Unhashable())),
    "preconditioner not callable": ("preconditioner", "callable", lambda: implicit(preconditioner=3.0)),
    "linear solver of another kind": ("linear_solver", "str", lambda: implicit(linear_solver="lu")),
    "neither solve nor initial": ("solve", "Newton", lambda: ng.ImplicitModel(LINEAR)),
    "singular on the host": ("residual", "singular", lambda: implicit(linear=True, factorise=singular_matrix)),
    "singular for LU": ("residual", "singular", lambda: implicit(laplacian, linear=True, linear_solver=lx.LU())),
    "singular for GMRES": ("residual", "singular", lambda: implicit(laplacian, linear=True)),
    "solve of another equation": ("solve", "residual of", lambda: implicit(LINEAR, lambda t: t[0] * jnp.ones(N))),
    "solve gives NaN": ("solve", "no finite state", lambda: implicit(LINEAR, lambda t: t[0] * jnp.nan * ZEROS)),
    "linear, but it is not": ("linear", "affine", lambda: implicit(NONLINEAR, linear=True, linear_solver=lx.LU())),
    "no root": ("residual", "no finite state", lambda: implicit(no_root, linear_solver=lx.LU(), initial=ZEROS + 1)),
    "no method solve_transposed": ("factorise", "solve_transposed", lambda: implicit(factorise=lambda u, t: Lame())),
    "solution of another shape": ("solve", r"\(3,\)", lambda: implicit(factorise=lambda u, t: Short())),
    "matrix not square": ("matrix", "shape", lambda: ng.models.SparseLU(np.ones((2, 3)))),
    "matrix not finite": ("matrix", "finite", lambda: ng.models.SparseLU(np.full((2, 2), np.nan))),
    "complex matrix": ("matrix", "complex", lambda: ng.models.SparseLU(1j * np.eye(2))),
    "right-hand side of another size": ("b", "multiple", lambda: ng.models.SparseLU(np.eye(2)).solve(np.ones(3))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_message_names_the_argument(case: str):
    assert_input_error(*CASES[case])


# --- failures of an algorithm


def free_constant(u, theta):
    """Neumann's problem with a source of mean zero: solvable, but for a constant."""
    flux = jnp.diff(u)
    source = theta[0] * jnp.sin(2 * jnp.pi * (jnp.arange(N) + 0.5) / N)
    return jnp.concatenate([flux, jnp.zeros(1)]) - jnp.concatenate([jnp.zeros(1), flux]) - source


class Bent(eqx.Module):
    """u + b u³ = θ, which is linear for b = 0 alone."""

    bend: np.ndarray

    def __call__(self, u, theta):
        return u + self.bend * u**3 - theta


def false_linear(bend: float, target, method, **settings) -> bool:
    """Whether a run that is told h is linear is refused; if it is not, it is right."""
    residual = Bent(np.asarray(bend))
    model = ng.ImplicitModel(residual, initial=jnp.zeros(3), linear=True, **settings)
    problem = ng.Problem(model, ng.LeastSquares(jnp.asarray(target)))
    try:
        found = ng.minimize(problem, jnp.full(3, 1e-3), method, stop=ng.Stop(iterations=20))
    except ng.InputError as error:
        return bend > 0 and str(error).startswith("linear: ") and hasattr(error, "natgrad_result")
    left = residual(model(found.theta), found.theta)
    assert np.linalg.norm(left) <= 1.1e-4 * np.linalg.norm(found.theta)
    return False


@pytest.mark.parametrize(
    "method", [ng.NaturalGradient(ng.L2()), pytest.param(ng.LBFGS(3), marks=pytest.mark.slow)]
)
def test_a_false_linear_is_found_during_the_run(method):
    assert false_linear(0.3, [1.0, 0.5, 2.0], method)
    assert not false_linear(0.0, [1.0, 0.5, 2.0], method)


IDENTITY = lambda u, theta: ng.models.SparseLU(sparse.eye(3))


@pytest.mark.slow
@of_hypothesis(max_examples=200)
@given(
    st.sampled_from([0.0, 1e-9, 1e-5, 1e-3, 0.1, 10.0]),
    st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3),
    st.sampled_from([ng.NaturalGradient(ng.L2()), ng.GradientDescent(), ng.LBFGS(3)]),
    st.sampled_from([{}, {"factorise": IDENTITY}]),
)
def test_a_run_with_linear_is_right_or_refused(bend, target, method, how):
    assert false_linear(bend, target, method, **how) in (False, bend > 0)


def test_an_equation_that_leaves_a_constant_free_is_an_error_or_a_status():
    made = ng.ImplicitModel(free_constant, initial=ZEROS, linear=True)
    problem = ng.Problem(made, lambda u: jnp.sum((u - 1.0) ** 2))
    d = ng.natural_gradient(problem, START, metric=ng.L2(GRID), solver=ng.CG())
    assert d.info.status == "not_finite"


def goes_bad(u, theta):
    """No state where θ₀ > 0.4."""
    return LINEAR(u, theta) + jnp.where(theta[0] > 0.4, jnp.nan, 0.0)


@pytest.mark.parametrize("factorise", [None, CODE.factorise], ids=["compiled", "host"])
def test_a_trial_without_a_state_is_rejected_and_the_run_goes_on(factorise):
    CODE.clear()
    made = ng.ImplicitModel(
        goes_bad, initial=ZEROS, linear=True, linear_solver=lx.LU(), factorise=factorise
    )
    result = ng.minimize(
        ng.Problem(made, LOSS),
        START,
        ng.NaturalGradient(ng.L2(GRID), solver=ng.CG(1e-10)),
        stop=ng.Stop(iterations=3),
    )
    assert result.history["halvings"][0] > 0
    assert result.iterations == 3
    assert float(result.theta[0]) <= 0.4
    assert np.isfinite(result.loss)


def logarithms(u, theta):
    """−∞ at u = 0, so that the residual there is no measure."""
    return jnp.log(u) + 0.1 * u - theta[0] * jnp.linspace(0.0, 1.0, N)


def test_newton_where_the_residual_at_zero_is_infinite():
    made = ng.ImplicitModel(logarithms, initial=jnp.ones(N), linear_solver=lx.LU())
    u = np.asarray(eqx.filter_jit(made)(START))
    assert np.max(np.abs(np.log(u) + 0.1 * u - 0.3 * np.linspace(0, 1, N))) < 1e-9
    nowhere = ng.ImplicitModel(logarithms, initial=-jnp.ones(N))
    assert np.all(np.isnan(eqx.filter_jit(nowhere)(START)))


@pytest.mark.slow
def test_single_precision():
    theta = START.astype(jnp.float32)

    def single(u, t):
        diffusion = jnp.diff(jnp.concatenate([u[:1], u, u[-1:]]), n=2)
        return jnp.exp(t[0]) * u + 0.1 * u**3 - diffusion - t[1] * jnp.arange(12.0, dtype=u.dtype)

    made = ng.ImplicitModel(single, initial=np.ones(12, np.float32))
    report = ng.checks.check_adjoint(made, theta[:2], verbose=False, trials=1)
    assert report.passed, str(report)
    assert report.tolerance > 1e-4


def test_exceptions_name_the_call():
    def bad(*_):
        raise KeyError("mine")

    for settings, name in (
        ({"residual": bad}, "residual"),
        ({"solve": bad}, "solve"),
        ({"observe": bad}, "observe"),
        ({"initial": bad}, "initial"),
        ({"preconditioner": bad}, "preconditioner"),
        ({"factorise": bad}, "factorise"),
        ({"factorise": lambda u, t: Broken()}, "solve of the factorisation"),
    ):
        with pytest.raises(KeyError, match="mine") as caught:
            implicit(**settings)
        assert caught.value.__notes__[0] == f"raised by {name} of the model"


class Broken(Lame):
    def solve(self, b):
        raise KeyError("mine")

    solve_transposed = solve


# --- the factorisation on the host


@pytest.mark.parametrize("symmetric", [False, True])
def test_sparse_lu_solves_with_the_matrix_and_its_transpose(symmetric: bool):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(6, 6)) + 4 * np.eye(6)
    if symmetric:  # and indefinite, with nothing on the diagonal
        A = np.array([[1e-18, 1.0, 0], [1, 0, 2], [0, 2, 3]])
        A = np.kron(A, np.eye(2))
    factor = ng.models.SparseLU(sparse.csr_matrix(A), symmetric=symmetric)
    b = rng.normal(size=(20, 2, 3))
    rows = b.reshape(20, 6)
    np.testing.assert_allclose(factor.solve(b).reshape(20, 6) @ A.T, rows, rtol=1e-10, atol=1e-12)
    back = factor.solve_transposed(b)
    np.testing.assert_allclose(back.reshape(20, 6) @ A, rows, rtol=1e-10, atol=1e-12)
    assert back.shape == b.shape


def test_a_trial_point_without_a_factorisation_is_a_rejected_step():
    """tan θ₀ u = 1, with a factorisation that gives up beyond θ₀ = 1."""
    seen = []

    def factorise(u, theta):
        seen.append(float(theta[0]))
        if theta[0] > 1.0:
            raise np.linalg.LinAlgError("no pivot")
        return ng.models.SparseLU(sparse.eye(N) * np.tan(theta[0]))

    model = ng.ImplicitModel(
        lambda u, theta: jnp.tan(theta[0]) * u - 1.0,
        initial=ZEROS,
        linear=True,
        factorise=factorise,
    )
    result = ng.minimize(
        ng.Problem(model, ng.LeastSquares(jnp.ones(N), GRID)),
        START.at[0].set(0.2),
        ng.NaturalGradient(ng.L2(GRID), solver=ng.CG(1e-10), step=ng.Backtracking(16.0)),
        stop=ng.Stop(gradient=1e-8),
    )
    assert result.converged
    assert max(seen) > 1.0
    np.testing.assert_allclose(result.theta[0], np.pi / 4, rtol=1e-6)
