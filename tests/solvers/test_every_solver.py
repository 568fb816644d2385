"""What holds for every solver: a new one is a line in `cases.SOLVERS`."""

import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from cases import SOLVERS, SYSTEMS
from problems_for_tests import close, linear_problem, with_slow


@pytest.mark.parametrize("system", with_slow(SYSTEMS, ["wide"]))  # test_solvers.py has those
@pytest.mark.parametrize("name", SOLVERS)
def test_the_direction_is_the_dense_one(name: str, system: str):
    """−(ZᵀZ + λI)†∂_θ f, without λ and with it."""
    k, p, rank = SYSTEMS[system]
    problem, theta, Z, target = linear_problem(k, p, rank, grading=0.1)
    gradient = Z.T @ (Z @ theta - target)
    for damping in (0.0, 0.05):
        expected = -np.linalg.pinv(Z.T @ Z + damping * np.eye(p), rcond=1e-10) @ gradient
        strength = ng.AbsoluteDamping(jnp.asarray(damping))
        d = ng.natural_gradient(
            problem, theta, metric=ng.L2(), solver=SOLVERS[name], damping=strength
        )
        close(d.eta, expected, 1e-7)
