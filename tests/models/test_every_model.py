"""What holds for every model: a new one is a line in `cases.MODELS`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from cases import MODELS, THETA
from natgrad.parameters import flatten
from problems_for_tests import close

every_model = pytest.mark.parametrize("case", MODELS, ids=str)


def stacked(columns) -> np.ndarray:
    """Columns of Z in one matrix p × k, whatever the state is."""
    leaves = [np.asarray(leaf).reshape(THETA.size, -1) for leaf in jax.tree.leaves(columns)]
    return np.concatenate(leaves, axis=1)


def loss(rho):
    return 0.5 * sum(jnp.sum((leaf - 0.3) ** 2) for leaf in jax.tree.leaves(rho))


@every_model
def test_products_are_adjoint_and_those_of_the_derivative(case):
    report = ng.checks.check_adjoint(case.model, THETA, verbose=False)
    assert report.passed, str(report)


@every_model
def test_the_jacobian_is_that_of_the_plain_function(case):
    flat, unravel = flatten(THETA)
    compute = (lambda f: f) if case.model.on_host else jax.jit
    rho, columns, _ = compute(lambda flat: case.model.jacobian(unravel, flat))(flat)
    expected = jax.jit(jax.jacobian(case.function))(THETA)
    assert jax.tree.structure(rho) == jax.tree.structure(expected)
    close(stacked(columns).T, np.concatenate([*map(np.asarray, jax.tree.leaves(expected))]), 1e-9)


@every_model
@pytest.mark.parametrize(
    "solver", [pytest.param(ng.SVD(), marks=pytest.mark.slow), ng.CG(1e-13)], ids=["SVD", "CG"]
)
def test_the_direction_is_that_of_the_plain_function(case, solver):
    expected = ng.natural_gradient(ng.Problem(case.function, loss), THETA, metric=case.metric)
    d = ng.natural_gradient(ng.Problem(case.model, loss), THETA, metric=case.metric, solver=solver)
    close(d.eta, expected.eta, 1e-7)
