"""Newton's method as a baseline: Hessian products by second-order adjoints."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from scipy import sparse

import natgrad as ng
from problems_for_tests import with_slow

N = 12
TRUTH = jnp.full(N, 0.2)
THETA = jnp.asarray(0.3 * np.sin(2 * np.pi * np.arange(N) / N))
SHIFT = np.roll(np.eye(N), 1, axis=0)
EXACT = ng.CG(1e-12, preconditioner=None)


def residual(u, theta):
    """−u″ + e^θ u + u³ = 1 on a ring."""
    return jnp.exp(theta) * u + 0.3 * u**3 - 1.0 - jnp.roll(u, 1) + 2 * u - jnp.roll(u, -1)


def observe(u):
    return jnp.tanh(3 * u)


def factorise(u, theta):
    matrix = np.diag(np.exp(theta) + 0.9 * u**2 + 2) - SHIFT - SHIFT.T
    return ng.models.SparseLU(sparse.csc_matrix(matrix))


def explicit(theta):
    """The same state by Newton's method written out, which JAX can differentiate twice."""

    def step(u, _):
        J = jnp.diag(jnp.exp(theta) + 0.9 * u**2 + 2) - SHIFT - SHIFT.T
        return u - jnp.linalg.solve(J, residual(u, theta)), None

    return observe(jax.lax.scan(step, jnp.zeros(N), None, length=6)[0])


MODELS = {
    "explicit": explicit,
    "gmres": ng.ImplicitModel(residual, initial=jnp.zeros(N), observe=observe),
    "lu": ng.ImplicitModel(residual, initial=jnp.zeros(N), observe=observe, linear_solver=lx.LU()),
    "host": ng.ImplicitModel(residual, initial=jnp.zeros(N), observe=observe, factorise=factorise),
}
LOSS = ng.LeastSquares(explicit(TRUTH))


@lru_cache
def oracle(regularised: bool):
    extra = lambda t: 0.5 * regularise(t) if regularised else 0.0
    objective = lambda t: LOSS(explicit(t)) + extra(t)
    return jax.jit(lambda t: (jax.grad(objective)(t), jax.hessian(objective)(t)))(THETA)


def regularise(theta):
    return jnp.sum(jnp.cosh(theta))


def direction(problem: ng.Problem, theta=THETA, solver=EXACT, damping: float = 0.0):
    """The system at θ, its solution, and the diagnosis with all that was spent."""
    method = ng.Newton(solver=solver, damping=ng.AbsoluteDamping(damping))
    known = method.check(problem, theta)
    state = method.init(problem, theta, known=known)
    local = method.linearise(problem, theta, state)
    solution = local.solve(jnp.asarray(damping))
    info = local.describe(solution.info, damping, True, np.nan)
    spent = info.counts.plus(forward=int(state.known is not None))
    return local, solution.eta, dataclasses.replace(info, counts=spent)


@pytest.mark.parametrize("name", with_slow(MODELS, ["explicit", "gmres", "host"]))
def test_the_direction_is_that_of_the_dense_hessian(name: str):
    g, H = oracle(False)
    damping = 2 * max(0.0, -float(np.linalg.eigvalsh(H)[0])) + 0.05
    local, eta, info = direction(ng.Problem(MODELS[name], LOSS), damping=damping)
    np.testing.assert_allclose(local.gradient, g, atol=1e-9 * np.linalg.norm(g))
    expected = -np.linalg.solve(H + damping * np.eye(N), g)
    np.testing.assert_allclose(eta, expected, atol=1e-8 * np.linalg.norm(expected))
    assert info.status == "converged"
    steps = info.iterations
    assert info.counts == (1, steps, steps + 1)  # one product: one linearised, one adjoint


@pytest.mark.parametrize("name", with_slow(["explicit", "host"], ["host"]))
def test_a_regulariser_adds_its_own_hessian(name: str):
    g, H = oracle(True)
    problem = ng.Problem(MODELS[name], LOSS, regulariser=lambda t: 0.5 * regularise(t))
    _, eta, _ = direction(problem)
    np.testing.assert_allclose(eta, -np.linalg.solve(H, g), rtol=1e-7)


@pytest.mark.parametrize("name", with_slow(["explicit", "gmres", "host"], ["gmres", "host"]))
def test_quadratic_convergence_on_a_regularised_problem(name: str):
    problem = ng.Problem(MODELS[name], LOSS, regulariser=lambda t: 0.5 * regularise(t))
    result = ng.minimize(problem, THETA, ng.Newton(solver=EXACT), stop=ng.Stop(gradient=1e-12))
    assert result.status in ("converged", "precision")
    norms = result.history["gradient_norm"] / result.history["gradient_norm"][0]
    assert result.iterations <= 6
    assert norms[3] < 1e-6
    assert np.all(result.history["step"][:3] == 1.0)


def test_negative_curvature_still_descends():
    objective = lambda t: jnp.sum(jnp.cos(t)) + 0.05 * jnp.sum(t**2)
    start = jnp.array([0.1, 0.2, -0.3])  # ∇² = −cos + 0.1 < 0
    problem = ng.Problem(lambda t: t, objective=objective)
    local, eta, info = direction(problem, start, ng.CG())
    assert info.status == "breakdown"
    assert float(jnp.vdot(eta, local.gradient)) < 0
    result = ng.minimize(problem, start, ng.Newton(), stop=ng.Stop(gradient=1e-10))
    assert result.converged
    stationary = np.abs(np.asarray(result.theta))
    np.testing.assert_allclose(np.sin(stationary), 0.1 * stationary, atol=1e-7)


def test_bounds_and_a_parameter_operator():
    D = np.linspace(1.0, 2.0, N)
    problem = ng.Problem(MODELS["gmres"], LOSS, regulariser=lambda t: 0.5 * regularise(t))
    method = ng.Newton(solver=EXACT, damping=ng.ParameterDamping(D, 0.1))
    start, stop = jnp.maximum(THETA, -0.1), ng.Stop(iterations=3)
    held = ng.minimize(problem, start, method, bounds=(-0.1, None), stop=stop)
    assert float(jnp.min(held.theta)) >= -0.1
    assert np.all(np.diff(held.history["loss"]) < 0)


OUTSIDE = ng.ExternalModel(np.sin, lambda t, v: v, lambda t, w: w)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("solver", lambda: ng.Newton(solver=ng.Cholesky())),
        ("solver", lambda: ng.Newton(solver=ng.LSMR())),
        ("method", lambda: ng.minimize(ng.Problem(OUTSIDE, LOSS), THETA, ng.Newton())),
        ("metric", lambda: ng.NaturalGradient(ng.Newton())),  # pyright: ignore
    ],
)
def test_what_newton_does_not_do(argument: str, call):
    with pytest.raises(ng.InputError) as error:
        call()
    assert error.value.argument == argument
