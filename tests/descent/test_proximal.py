"""Proximal steps: implicit Euler in the metric, by its distance, and in θ."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import bumps_problem, with_slow

METHODS = {
    "L2": lambda grid: partial(ng.NaturalGradient, ng.L2(grid)),
    "FisherRao": lambda grid: partial(ng.NaturalGradient, ng.FisherRao(grid)),
    "Sum": lambda grid: partial(ng.NaturalGradient, ng.FisherRao(grid) + 0.5 * ng.L2(grid)),
    "gradient": lambda grid: ng.GradientDescent,
}
PRECISE = {"tolerance": 1e-8, "max_iterations": 300}


def move(method, size, nearness="information", damping=0.0, problem=None) -> np.ndarray:
    """θ⁺ − θ after one proximal step of the kind of method."""
    given, start, _, _ = bumps_problem()
    step = ng.ProximalStep(size, nearness, **PRECISE)
    result = ng.minimize(
        given if problem is None else problem,
        start,
        method(damping=damping, step=step),
        stop=ng.Stop(iterations=1),
    )
    return np.asarray(result.theta - start)


@pytest.mark.parametrize("damping", with_slow([0.0, 0.3], [0.3]))
@pytest.mark.parametrize("nearness", ["information", "distance"])
@pytest.mark.parametrize("name", with_slow(METHODS, ["L2", "Sum"]))
def test_all_agree_with_the_explicit_step_to_first_order(name: str, nearness: str, damping: float):
    problem, start, _, grid = bumps_problem()
    kind, absolute = METHODS[name](grid), ng.AbsoluteDamping(damping)
    method = kind(damping=absolute)
    local = method.linearise(problem, start, method.init(problem, start))
    eta = np.asarray(local.solve(jnp.asarray(damping)).eta)
    sizes = (4e-3, 2e-3) if name != "gradient" else (4e-4, 2e-4)
    coarse, fine = (
        np.linalg.norm(move(kind, size, nearness, absolute) / size - eta) for size in sizes
    )
    assert fine < 0.1 * np.linalg.norm(eta)
    assert 1.7 < coarse / fine < 2.3  # the difference per τ is O(τ)


@pytest.mark.slow
def test_the_distance_on_a_line_is_that_of_transport():
    """One mean of a Gaussian in W₂, where G = 1: the step is τ/(1 + τ) of the way for f = ½W₂²."""
    grid = ng.Grid(-6.0, 6.0, 600)
    x = grid.points[..., 0]
    gaussian = lambda mean: jnp.exp(-((x - mean[0]) ** 2) / 2) / jnp.sqrt(2 * jnp.pi)
    metric, target = ng.Wasserstein(grid), gaussian(jnp.array([1.0]))
    loss = lambda rho: 0.5 * metric.squared_distance(rho, target)
    step = ng.ProximalStep(2.0, "distance", **PRECISE)
    problem = ng.Problem(gaussian, loss)
    result = ng.minimize(
        problem,
        jnp.array([-0.5]),
        ng.NaturalGradient(metric, step=step),
        stop=ng.Stop(iterations=1),
    )
    np.testing.assert_allclose(result.theta, [-0.5 + 1.5 * 2 / 3], atol=1e-4)


def test_the_inner_problem_of_a_linear_model_in_closed_form():
    rng = np.random.default_rng(0)
    Z, target = rng.normal(size=(12, 4)), rng.normal(size=12)
    theta, A = jnp.ones(4), np.diag(np.linspace(1.0, 2.0, 12))
    G, H, g = Z.T @ A @ Z, Z.T @ Z, Z.T @ (Z @ np.ones(4) - target)
    problem = ng.Problem(lambda t: jnp.asarray(Z) @ t, ng.LeastSquares(jnp.asarray(target)))
    D = np.linspace(1.0, 3.0, 4)
    for nearness in ("information", "distance"):
        result = ng.minimize(
            problem,
            theta,
            ng.NaturalGradient(
                ng.MatrixMetric(A),
                damping=ng.ParameterDamping(D, 0.5),
                step=ng.ProximalStep(0.7, nearness, **PRECISE),
            ),
            stop=ng.Stop(iterations=1),
        )
        expected = -np.linalg.solve(H + (G + 0.5 * np.diag(D)) / 0.7, g)
        np.testing.assert_allclose(result.theta - theta, expected, rtol=1e-6)


@pytest.mark.parametrize("nearness", ["information", "distance"])
def test_a_model_outside_jax_and_every_propagation_counted(nearness: str):
    rng = np.random.default_rng(1)
    Z, target, calls = rng.normal(size=(10, 3)), rng.normal(size=10), []
    told = lambda name, value: calls.append(name) or value
    model = ng.ExternalModel(
        lambda t: told("forward", np.sin(Z @ t)),
        lambda t, v: told("linearised", np.cos(Z @ t) * (Z @ v)),
        lambda t, w: told("adjoint", Z.T @ (np.cos(Z @ t) * w)),
    )
    result = ng.minimize(
        ng.Problem(model, ng.LeastSquares(target)),
        jnp.full(3, 0.1),
        ng.NaturalGradient(
            ng.MatrixMetric(np.eye(10)), solver=ng.CG(1e-10), step=ng.ProximalStep(0.5, nearness)
        ),
        stop=ng.Stop(iterations=3),
    )
    assert result.iterations == 3
    assert np.all(np.diff(result.history["loss"]) < 0)
    for name in ("forward", "linearised", "adjoint"):
        assert result.history[name][-1] == calls.count(name)


def test_a_run_converges_with_long_steps_and_within_bounds():
    problem, start, truth, grid = bumps_problem()
    step = ng.ProximalStep(100.0, "distance")
    result = ng.minimize(
        problem, start, ng.NaturalGradient(ng.L2(grid), step=step), stop=ng.Stop(gradient=1e-4)
    )
    assert result.converged
    np.testing.assert_allclose(result.theta, truth, atol=1e-3)
    upper = start + 0.01
    held = ng.minimize(
        problem,
        start,
        ng.NaturalGradient(ng.L2(grid), step=step),
        stop=ng.Stop(iterations=2),
        bounds=(None, upper),
    )
    assert np.all(held.theta <= upper)
    assert held.loss < held.history["loss"][0]


def test_an_objective_of_the_parameters():
    problem, _, _, grid = bumps_problem()
    objective = ng.Problem(problem.model, objective=lambda t: problem.loss(problem.model(t)))
    for nearness in ("information", "distance"):
        direct = move(METHODS["L2"](grid), 0.1, nearness)
        by_objective = move(METHODS["L2"](grid), 0.1, nearness, problem=objective)
        np.testing.assert_allclose(by_objective, direct, rtol=1e-4)


MOBILITY = ng.Mobility(bumps_problem()[3], 0.8)


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("nearness", lambda: ng.ProximalStep(1.0, "near")),  # pyright: ignore
        ("size", lambda: ng.ProximalStep(-1.0)),
        ("metric", lambda: move(partial(ng.NaturalGradient, MOBILITY), 0.1, "distance")),
    ],
)
def test_bad_input(argument: str, make):
    with pytest.raises(ng.InputError) as error:
        make()
    assert error.value.argument == argument
