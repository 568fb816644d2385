"""A direction under `jit`, `vmap` and `grad`, and what cannot be traced says so."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng

GRID = ng.Grid(0.0, 1.0, 24)
X = GRID.points[:, 0]


def state(theta):
    return jnp.exp(-((X - theta[0]) ** 2) / 0.02) + (1.5 + theta[1]) * X + 0.5


PROBLEM = ng.Problem(state, ng.LeastSquares(state(jnp.array([0.6, 0.3])), GRID))
THETA = jnp.array([0.4, 0.0])
METRICS = {
    "L2": ng.L2(GRID),
    "H-1": ng.Sobolev(GRID, -1),
    "Fisher": ng.FisherRao(GRID),
    "W2": ng.Wasserstein(GRID),
}
SOLVERS = {
    "Auto": ng.Auto(),
    "Cholesky": ng.Cholesky(),
    "SVD": ng.SVD(),
    "CG": ng.CG(1e-13),
    "LSMR": ng.LSMR(1e-13),
}
DAMPINGS = {
    "none": 0.0,
    "relative": 1e-2,
    "absolute": ng.AbsoluteDamping(0.1),
    "prior": ng.ParameterDamping(jnp.array([1.0, 3.0]), 0.1),
}


def direction(metric="L2", solver="Auto", damping="none", problem=PROBLEM):
    parts = {"metric": METRICS[metric], "solver": SOLVERS[solver], "damping": DAMPINGS[damping]}
    return lambda theta: ng.natural_gradient(problem, theta, **parts)


@cache
def functions(metric: str, solver: str, damping: str):
    """η at many θ, and its derivative, compiled."""
    eta = lambda theta: direction(metric, solver, damping)(theta).eta
    return jax.jit(jax.vmap(eta)), jax.jit(jax.jacrev(eta))


def agree(metric: str, solver: str, damping: str, theta) -> None:
    """η of jit and vmap is that of a plain call, and dη that of differences."""
    plain, (many, slope) = direction(metric, solver, damping), functions(metric, solver, damping)
    h = 1e-5
    points = jnp.stack([theta, *(theta + s * h * e for e in jnp.eye(2) for s in (1, -1))])
    found = many(points)
    size = np.abs(found).max()
    np.testing.assert_allclose(found[0], plain(theta).eta, rtol=1e-7, atol=1e-9 * size)
    differences = np.stack([found[1] - found[2], found[3] - found[4]], 1) / (2 * h)
    size = np.abs(differences).max()
    np.testing.assert_allclose(slope(theta), differences, rtol=1e-3, atol=1e-4 * size)


@pytest.mark.parametrize(
    ("metric", "solver", "damping"),
    [
        ("L2", "Auto", "none"),
        pytest.param("W2", "Cholesky", "relative", marks=pytest.mark.slow),
    ],
)
def test_directions_are_compiled_mapped_and_differentiated(metric, solver, damping):
    agree(metric, solver, damping, THETA)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.sampled_from([*METRICS]),
    st.sampled_from([*SOLVERS]),
    st.sampled_from([*DAMPINGS]),
    st.floats(0.2, 0.8),
    st.floats(-0.5, 0.5),
)
def test_any_direction_is_compiled_mapped_and_differentiated(metric, solver, damping, a, b):
    if damping == "relative" and solver in ("CG", "LSMR"):
        damping = "absolute"  # an estimated trace has no derivative
    agree(metric, solver, damping, jnp.array([a, b]))


def test_both_modes_agree_and_data_and_damping_have_derivatives():
    eta = lambda theta: direction()(theta).eta
    forward, reverse = jax.jit(lambda t: (jax.jacfwd(eta)(t), jax.jacrev(eta)(t)))(THETA)
    np.testing.assert_allclose(forward, reverse, atol=1e-12)

    def of(scale, damping):
        loss = ng.LeastSquares(scale * jnp.ones(24), GRID)
        made = ng.Problem(state, loss)
        return ng.natural_gradient(made, THETA, metric=METRICS["L2"], damping=damping).eta

    h, point = 1e-6, (1.0, 0.1)
    both = jax.jit(jax.jacrev(of, argnums=(0, 1)))(*point)
    for which, slope in enumerate(both):
        moved = [tuple(x + s * h * (i == which) for i, x in enumerate(point)) for s in (1, -1)]
        np.testing.assert_allclose(slope, (of(*moved[0]) - of(*moved[1])) / (2 * h), rtol=1e-5)


def test_what_the_solver_saw_is_there_in_arrays():
    @jax.jit
    def seen(theta):
        found = direction()(theta)
        return found.loss, found.info.rank, found.info.status, found.gradient

    plain, (loss, rank, status, gradient) = direction()(THETA), seen(THETA)
    assert (loss, rank) == (plain.loss, plain.info.rank)
    assert status == plain.info.status.code
    np.testing.assert_allclose(gradient, plain.gradient)


OUTSIDE = ng.Problem(ng.ExternalModel(np.sin, lambda t, v: v, lambda t, w: w), jnp.sum)
BEHIND = ng.Problem(
    ng.ImplicitModel(lambda u, t: u - t, initial=jnp.zeros(2), linear=True), jnp.sum
)


@jax.custom_vjp
def one_sided(theta):
    return state(theta)


one_sided.defvjp(lambda t: jax.vjp(state, t), lambda pull, xi: pull(xi))
ONE_SIDED = ng.Problem(ng.models.Explicit(one_sided, mode="reverse"), jnp.sum)
CG_RELATIVE = direction(solver="CG", damping="relative")
METHOD = ng.NaturalGradient(METRICS["L2"])
UNTRACEABLE = {
    "minimize": (jax.jit(lambda t: ng.minimize(PROBLEM, t, METHOD).theta), "theta0: .*method.step"),
    "compare": (
        jax.jit(lambda t: ng.compare(PROBLEM, t, {"a": METHOD}).results["a"].theta),
        "theta0: is being traced",
    ),
    "minimize mapped": (
        lambda t: jax.vmap(lambda t: ng.minimize(PROBLEM, t, METHOD).theta)(t[None]),
        "theta0: is being traced",
    ),
    "outside code": (
        jax.jit(lambda t: ng.natural_gradient(OUTSIDE, t, metric=ng.L2()).eta),
        "model: is code outside JAX",
    ),
    "behind an equation": (
        jax.grad(lambda t: ng.natural_gradient(BEHIND, t, metric=ng.L2()).eta.sum()),
        "model: .*equation, has no derivative",
    ),
    "estimated trace": (jax.grad(lambda t: CG_RELATIVE(t).eta.sum()), "damping: .* estimate"),
    "without a rule": (
        jax.grad(lambda t: ng.natural_gradient(ONE_SIDED, t, metric=ng.L2()).eta.sum()),
        "metric: the model or the metric has no derivative",
    ),
    "spectrum": (
        jax.jit(lambda t: ng.information_spectrum(PROBLEM, t, metric=ng.L2(), rank=1).values),
        "theta: is being traced",
    ),
    "checks": (
        jax.jit(lambda t: (ng.checks.check_gradient(PROBLEM, t), t)[1]),
        "theta: is being traced",
    ),
}


@pytest.mark.parametrize("case", UNTRACEABLE)
def test_what_cannot_be_traced_says_so(case: str):
    call, message = UNTRACEABLE[case]
    with pytest.raises(ng.InputError, match=message):
        call(THETA)


def trace_slope(most: int) -> int:
    """How often a model is called while its direction is differentiated; no more than `most`."""
    calls = []

    def model(theta):
        calls.append(1)
        if len(calls) > most:
            raise ValueError("mine")
        return state(theta)

    problem = ng.Problem(model, PROBLEM.loss)
    find = lambda t: ng.natural_gradient(problem, t, metric=METRICS["L2"]).eta.sum()
    jax.eval_shape(jax.grad(find), THETA)
    return len(calls)


def test_an_error_of_the_user_stays_what_it_is():
    """Wherever in the tracing of a direction and its derivative it is raised."""
    for most in range(trace_slope(10**6)):
        with pytest.raises(ValueError, match="mine") as caught:
            trace_slope(most)
        assert not isinstance(caught.value, ng.InputError)
