"""Newton's method as a baseline: Hessian products by second-order adjoints."""

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
    return ng.SparseLU(sparse.csc_matrix(matrix))


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


@pytest.mark.parametrize("name", with_slow(MODELS, ["gmres", "host"]))
def test_the_direction_is_that_of_the_dense_hessian(name: str):
    g, H = oracle(False)
    damping = 2 * max(0.0, -float(np.linalg.eigvalsh(H)[0])) + 0.05
    d = ng.natural_gradient(
        ng.Problem(MODELS[name], LOSS),
        THETA,
        metric=ng.Newton(),
        solver=EXACT,
        damping=ng.AbsoluteDamping(damping),
    )
    np.testing.assert_allclose(d.gradient, g, atol=1e-9 * np.linalg.norm(g))
    expected = -np.linalg.solve(H + damping * np.eye(N), g)
    np.testing.assert_allclose(d.eta, expected, atol=1e-8 * np.linalg.norm(expected))
    assert d.info.status == "converged"
    steps = d.info.iterations
    assert d.info.counts == (1, steps, steps + 1)  # one product: one linearised, one adjoint


@pytest.mark.parametrize("name", ["explicit", "host"])
def test_a_regulariser_adds_its_own_hessian(name: str):
    g, H = oracle(True)
    problem = ng.Problem(MODELS[name], LOSS, regulariser=lambda t: 0.5 * regularise(t))
    d = ng.natural_gradient(problem, THETA, metric=ng.Newton(), solver=EXACT)
    np.testing.assert_allclose(d.eta, -np.linalg.solve(H, g), rtol=1e-7)


@pytest.mark.parametrize("name", with_slow(["explicit", "gmres", "host"], ["gmres", "host"]))
def test_quadratic_convergence_on_a_regularised_problem(name: str):
    problem = ng.Problem(MODELS[name], LOSS, regulariser=lambda t: 0.5 * regularise(t))
    result = ng.minimize(problem, THETA, metric=ng.Newton(), solver=EXACT, tolerance=1e-12)
    assert result.status in ("converged", "precision")
    norms = result.history["gradient_norm"] / result.history["gradient_norm"][0]
    assert result.iterations <= 6
    assert norms[3] < 1e-6
    assert np.all(result.history["step"][:3] == 1.0)


def test_negative_curvature_still_descends():
    objective = lambda t: jnp.sum(jnp.cos(t)) + 0.05 * jnp.sum(t**2)
    start = jnp.array([0.1, 0.2, -0.3])  # ∇² = −cos + 0.1 < 0
    problem = ng.Problem(lambda t: t, objective=objective)
    d = ng.natural_gradient(problem, start, metric=ng.Newton(), solver=ng.CG())
    assert d.info.status == "breakdown"
    assert float(jnp.vdot(d.eta, d.gradient)) < 0
    result = ng.minimize(problem, start, metric=ng.Newton(), tolerance=1e-10)
    assert result.converged
    stationary = np.abs(np.asarray(result.theta))
    np.testing.assert_allclose(np.sin(stationary), 0.1 * stationary, atol=1e-7)


def test_bounds_and_a_parameter_operator():
    D = np.linspace(1.0, 2.0, N)
    problem = ng.Problem(MODELS["gmres"], LOSS, regulariser=lambda t: 0.5 * regularise(t))
    settings = {"metric": ng.Newton(), "solver": EXACT, "max_iterations": 3}
    damping = ng.ParameterDamping(D, 0.1)
    start = jnp.maximum(THETA, -0.1)
    held = ng.minimize(problem, start, bounds=(-0.1, None), damping=damping, **settings)
    assert float(jnp.min(held.theta)) >= -0.1
    assert np.all(np.diff(held.history["loss"]) < 0)


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        ("solver", {"solver": ng.Cholesky()}),
        ("solver", {"solver": ng.LSMR()}),
        ("metric", {"model": ng.ExternalModel(np.sin, lambda t, v: v, lambda t, w: w)}),
        ("metric", {"metric": ng.Newton() + 0.1 * ng.MatrixMetric(np.eye(N))}),
    ],
)
def test_what_newton_does_not_do(argument: str, settings: dict):
    problem = ng.Problem(settings.pop("model", MODELS["explicit"]), LOSS)
    settings = {"metric": ng.Newton(), "solver": ng.CG()} | settings
    with pytest.raises(ng.InputError) as error:
        ng.natural_gradient(problem, THETA, **settings)
    assert error.value.argument == argument
