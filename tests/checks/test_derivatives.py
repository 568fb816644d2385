"""The checks of derivatives: every kind of model passes, and what is wrong is named."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from equations_for_tests import (
    CODE,
    GRID,
    KINDS,
    SYMMETRIC,
    THETA,
    UPWIND,
    jacobian,
    model,
    parameters,
    state,
)
from problems_for_tests import with_slow

Z, RHO = jacobian(UPWIND, 0.0, THETA), state(UPWIND, 0.0, THETA)
CURVATURE = {"explicit forward": UPWIND, "cg": SYMMETRIC}


def right_forward(theta):
    return state(UPWIND, 0.0, theta)


def right_jvp(theta, eta):
    return jacobian(UPWIND, 0.0, theta) @ eta


def right_vjp(theta, xi):
    return jacobian(UPWIND, 0.0, theta).T @ xi


def wrong_jvp(theta, eta):
    return right_jvp(theta, eta) + 1e-3 * eta[0]


def wrong_vjp(theta, xi):
    return right_vjp(theta, xi) * (1 + 1e-3 * np.arange(4))


def transposed_wrong_jvp(theta, xi):
    return right_vjp(theta, xi) + 1e-3 * np.sum(xi) * np.eye(4)[0]


@lru_cache
def checked(kind: str):
    CODE.clear()
    return ng.checks.check_adjoint(model(kind), parameters(kind), trials=2, verbose=False)


FURTHER = (
    *("explicit reverse", "gmres", "cg", "preconditioned", "newton", "host newton", "solve"),
    *("observed", "observed nonlinear"),
)


@pytest.mark.parametrize("kind", with_slow(KINDS, FURTHER))
def test_every_kind_of_model_is_adjoint_and_second_order(kind: str):
    report = checked(kind)
    assert report.passed, str(report)
    assert report.asymmetry <= 1e-12
    assert report.jvp.error < 1e-5  # the last step
    if kind != "external pytree":
        assert 1.9 < report.jvp.order < 2.2


def products_of(made: ng.models.Model, theta, eta, xi):
    """ρ, Zη and Zᵀξ."""
    products = made.products(lambda flat: flat, theta)
    return products.rho, products.push(eta), products.pull(xi)


@pytest.mark.parametrize(
    "kind", with_slow(["gmres", "cg", "host", "solve", "external", "observed"], ["gmres", "cg"])
)
def test_products_are_those_of_the_dense_jacobian(kind: str):
    c = 0.5 if kind in ("solve", "observed") else 0.0
    matrix = SYMMETRIC if kind == "cg" else UPWIND
    columns, rho = jacobian(matrix, c, THETA), state(matrix, c, THETA)
    if kind == "observed":
        columns, rho = columns[::5], rho[::5]
    eta, xi = np.sin(np.arange(4.0)), np.cos(np.arange(float(len(rho))))
    made = model(kind)
    compute = products_of if made.on_host else eqx.filter_jit(products_of)
    found = compute(made, *map(jnp.asarray, (THETA, eta, xi)))
    np.testing.assert_allclose(found[0], rho, rtol=1e-10)
    np.testing.assert_allclose(found[1], columns @ eta, rtol=1e-9)
    np.testing.assert_allclose(found[2], columns.T @ xi, rtol=1e-9)


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ((wrong_jvp, right_vjp), "jvp is not the derivative of forward, while vjp"),
        ((right_jvp, wrong_vjp), "vjp is not the transpose of jvp, which is right"),
        ((wrong_jvp, transposed_wrong_jvp), "jvp is not the derivative of forward\n"),
        ((wrong_jvp, wrong_vjp), "and vjp is not the transpose of jvp"),
    ],
    ids=["jvp", "vjp", "both the same way", "both"],
)
def test_the_function_at_fault_is_named(functions, says: str, capsys):
    outside = ng.ExternalModel(right_forward, *functions)
    report = ng.checks.check_adjoint(outside, jnp.asarray(THETA))
    assert not report.passed
    assert says in str(report)
    assert "Try: " in str(report)
    assert capsys.readouterr().out == f"{report}\n"
    assert (report.asymmetry > 1e-6) != ("of forward\n" in says)


def test_products_that_are_not_finite_and_calls_that_fail():
    CODE.clear()
    CODE.spoil = {"vjp": 1}
    report = ng.checks.check_adjoint(model("external"), jnp.asarray(THETA), trials=1, verbose=False)
    assert not report.passed
    assert "vjp is not finite" in str(report)
    CODE.clear()
    CODE.fail = {"jvp": 1}
    with pytest.raises(ArithmeticError, match="jvp failed") as caught:
        ng.checks.check_adjoint(model("external"), jnp.asarray(THETA))
    assert caught.value.__notes__ == ["raised by jvp of the model"]
    CODE.clear()


def single(theta):
    return jnp.sin(jnp.outer(theta, jnp.arange(1.0, 6.0, dtype=jnp.float32))).ravel()


@jax.custom_jvp
def broken_sine(x):
    return jnp.sin(x)


@broken_sine.defjvp
def _(primals, tangents):
    return jnp.sin(primals[0]), 0.9 * jnp.cos(primals[0]) * tangents[0]


def test_plain_functions_and_single_precision():
    theta = jnp.asarray(THETA, jnp.float32)
    assert ng.checks.check_adjoint(single, theta, verbose=False).passed
    assert ng.checks.check_adjoint(
        lambda t: 1e6 + single(t), theta, verbose=False, seed=1
    ).jvp.steps
    report = ng.checks.check_adjoint(lambda t: broken_sine(single(t)), theta, verbose=False)
    assert "jvp is not the derivative" in str(report)
    gradient = ng.checks.check_gradient(
        ng.Problem(single, lambda r: jnp.sum(r**2)), theta, verbose=False
    )
    assert gradient.passed, str(gradient)


def test_noise_of_an_iterative_solve_is_no_error():
    """A forward solve to 1e-7: the remainders rise again long before they are small."""
    noise = np.random.default_rng(0)
    forward = lambda t: right_forward(t) * (1 + 1e-7 * noise.normal(size=12))
    noisy = ng.ExternalModel(forward, right_jvp, right_vjp)
    assert ng.checks.check_adjoint(noisy, jnp.asarray(THETA), verbose=False).passed
    wrong = ng.ExternalModel(forward, lambda t, v: 1.05 * right_jvp(t, v), right_vjp)
    assert not ng.checks.check_adjoint(wrong, jnp.asarray(THETA), verbose=False).passed


# --- gradients

LOSS = ng.LeastSquares(jnp.ones(12), GRID)
square = lambda t: jnp.sum(t**4)
broken = lambda t: jnp.sum(broken_sine(t))
objective = lambda t: jnp.sum(jnp.cos(t) * t)


@pytest.mark.parametrize("kind", with_slow(["lu", "host", "external"], ["lu"]))
def test_gradients_are_right(kind: str):
    for settings in ({"loss": LOSS, "regulariser": square}, {"objective": objective}):
        problem = ng.Problem(model(kind), **settings)
        report = ng.checks.check_gradient(problem, jnp.asarray(THETA), trials=1, verbose=False)
        assert report.passed, str(report)
        assert report.gradient.order > 1.9
        assert set(report.parts) == ({"loss", "regulariser"} if "loss" in settings else set())


def test_the_part_of_a_gradient_at_fault_is_named(capsys):
    theta = jnp.asarray(THETA)
    vjp = ng.ExternalModel(right_forward, right_jvp, wrong_vjp)
    for problem, says in (
        (ng.Problem(vjp, LOSS), "check_adjoint"),
        (ng.Problem(model("external"), broken), "derivative of the loss is wrong"),
        (ng.Problem(model("external"), LOSS, regulariser=broken), "of the regulariser is wrong"),
        (ng.Problem(model("external"), objective=broken), "not the gradient of the objective"),
    ):
        report = ng.checks.check_gradient(problem, theta, trials=1)
        assert not report.passed
        assert says in str(report)
        assert capsys.readouterr().out == f"{report}\n"


def test_a_gradient_at_a_minimum_is_right():
    problem = ng.Problem(model("external"), ng.LeastSquares(jnp.asarray(RHO), GRID))
    report = ng.checks.check_gradient(problem, jnp.asarray(THETA), verbose=False)
    assert report.passed, str(report)


def test_a_loss_of_positive_states_is_tested_on_those():
    grid = ng.Grid(0.0, 10.0, 50)
    bump = lambda mean: jnp.exp(-0.5 * (grid.points[:, 0] - mean) ** 2)  # 1e-22 at the far end
    problem = ng.Problem(bump, ng.KullbackLeibler(bump(4.0), grid))
    report = ng.checks.check_gradient(problem, jnp.asarray(3.0), trials=1, verbose=False)
    assert report.passed, str(report)


def test_products_that_are_only_near_the_derivative_say_so():
    velocity = np.full((20, 16), 3000.0)
    survey = ng.waves.Survey.line((20, 16), 50.0, dt=0.006, steps=150, shots=1, frequency=3.0)
    whole = ng.waves.Acoustic(survey, velocity, stored_every=1)
    assert not whole.approximates
    model = ng.waves.Acoustic(survey, velocity)
    report = ng.checks.check_adjoint(model, model.start, trials=1, verbose=False)
    assert not report.passed
    assert "Try: a model with stored_every=1: here waves are stored at every" in str(report)


def test_arguments_are_checked():
    for call, argument in (
        (lambda: ng.checks.check_adjoint(3.0, jnp.ones(2)), "model"),
        (lambda: ng.checks.check_adjoint(single, jnp.ones(2), trials=0), "trials"),
        (lambda: ng.checks.check_gradient(single, jnp.ones(2)), "problem"),
        (lambda: ng.checks.check_adjoint(lambda t: t * jnp.nan, jnp.ones(2)), "model"),
        (lambda: ng.checks.check_adjoint(lambda t: np.sin(np.asarray(t)), jnp.ones(2)), "model"),
    ):
        with pytest.raises(ng.InputError) as caught:
            call()
        assert caught.value.argument == argument
