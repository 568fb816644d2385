"""Bad input is an error that names the argument, says what was wrong and what to try."""

import pickle
import subprocess
import sys
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng
import natgrad.core.compiled
import natgrad.direction.linearise
from natgrad import errors
from natgrad.core.compiled import release_programs
from natgrad.parameters import check_parameters
from problems_for_tests import assert_input_error, bumps_problem, linear_problem

GRID = ng.Grid((0.0, 0.0), (1.0, 1.0), (4, 5))


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


def direction(model, theta=None, metric=None, loss=None, **settings):
    loss = (lambda rho: jnp.sum(rho**2)) if loss is None else loss
    theta = jnp.ones(2) if theta is None else theta
    metric = ng.L2(GRID) if metric is None else metric
    return ng.natural_gradient(ng.Problem(model, loss), theta, metric=metric, **settings)


def state(theta):
    return theta[0] * jnp.ones((4, 5)) + theta[1]


POINTS = jnp.linspace(0.0, 1.0, 4)[:, None]


def flat(theta, x):
    return theta[0] + theta[1] * x[0]


def pinn(function=flat, points=POINTS, weight=1.0, **more):
    return ng.Collocation(inside=ng.Residual(function, points, weight), **more)


def trained(
    function=flat, model=None, problem=None, theta=None, metric=None, batch=None, **settings
):
    """A run on residuals, by a method with these settings."""
    model = pinn(function) if model is None else model
    problem = model.problem if problem is None else problem
    metric = model.metric if metric is None else metric
    method = ng.NaturalGradient(metric, **({"damping": 1e-3} | settings))
    theta = jnp.ones(2) if theta is None else theta
    return ng.minimize(problem, theta, method, batch=batch, stop=ng.Stop(iterations=2))


def drawn(draw, model=None, **settings):
    return trained(model=model, batch=ng.Resampled(draw), **settings)


def failing(theta, x):
    raise ValueError("my equation failed")


@jax.custom_vjp
def one_sided(theta):
    return state(theta)


one_sided.defvjp(lambda t: jax.vjp(state, t), lambda pull, xi: pull(xi))


def looped(theta):
    return jax.lax.while_loop(lambda u: u[0, 0] < 9.0, lambda u: 2.0 * u, state(theta))


def called(theta):
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((4, 5), float), state(theta))


def solved(function, **settings):
    """A run on the grid, by a method with these settings."""
    method = ng.NaturalGradient(ng.L2(GRID), **settings)
    return ng.minimize(ng.Problem(function, lambda rho: jnp.sum(rho**2)), jnp.ones(2), method)


class Host(ng.ExternalModel):
    def __init__(self):
        super().__init__(lambda t: np.asarray(t), lambda t, v: v, lambda t, u: u)


CASES = {
    "no blocks of residuals": ("blocks", "none", lambda: ng.Collocation()),
    "residual that is a function": ("inside", "function", lambda: ng.Collocation(inside=flat)),
    "residual not callable": ("inside", "not callable", lambda: pinn(3.0)),
    "points of a residual without axes": ("inside", r"\(4,\).*x\[:, None\]", lambda: pinn(points=POINTS[:, 0])),
    "no collocation points": ("inside", r"\(0, 1\).*at least one", lambda: pinn(points=POINTS[:0])),
    "boundary without points": ("edge", r"\(0, 1\).*at least one", lambda: pinn(edge=ng.Residual(flat, jnp.zeros((0, 1))))),
    "points of text": ("points", "str", lambda: pinn(points="inside")),
    "weight of text": ("weight", "str", lambda: pinn(weight="heavy")),
    "weight of another length": ("inside", r"weight.*\(3,\).*4 points", lambda: pinn(weight=jnp.ones(3))),
    "weight a value": ("inside", r"weight.*\(4, 1\)", lambda: pinn(weight=jnp.ones((4, 1)))),
    "weight negative": ("inside", "positive", lambda: pinn(weight=-1.0)),
    "weight of one point zero": ("inside", "positive", lambda: pinn(weight=jnp.array([1.0, 0.0, 1.0, 1.0]))),
    "weight NaN": ("inside", "finite", lambda: pinn(weight=jnp.nan)),
    "residual of a matrix": ("inside", r"shape=\(2, 2\).*scalar", lambda: trained(lambda t, x: t[0] * jnp.ones((2, 2)))),
    "residual of a tuple": ("inside", r"returns \(.*scalar", lambda: trained(lambda t, x: (t[0], t[1]))),
    "residual of an integer": ("inside", "returns 3", lambda: trained(lambda t, x: 3)),
    "residual of integers": ("inside", "int", lambda: trained(lambda t, x: jnp.arange(2))),
    "residual complex": ("inside", "complex", lambda: trained(lambda t, x: t[0] + 1j)),
    "residual None": ("inside", "None", lambda: trained(lambda t, x: None)),
    "residual that fails": ("inside", r"\(1,\).*my equation failed", lambda: trained(failing)),
    "residual of too many arguments": ("inside", "positional", lambda: trained(lambda t, x, y: t[0])),
    "residual of the first two coordinates": ("inside", r"no axis of a point of shape \(1,\). Try: axis 0\.(\n|$)", lambda: trained(lambda t, x: ng.derivative(lambda y: t[0] * y[0], x, 1))),
    "residual NaN at the start": ("inside", "1 of its 4 residuals is not finite", lambda: trained(lambda t, x: t[0] / x[0])),
    "points NaN": ("inside", "1 of its 4 points is not finite", lambda: trained(model=pinn(points=POINTS.at[2].set(jnp.nan)))),
    "target NaN": ("target", "1 of its 20 values is not finite", lambda: trained(problem=ng.Problem(state, ng.LeastSquares(jnp.ones((4, 5)).at[1, 1].set(jnp.nan))), metric=ng.L2(GRID))),
    "target NaN in a dict": ("target", "1 of its 2 values is not", lambda: trained(problem=ng.Problem(lambda t: {"u": t}, ng.LeastSquares({"u": jnp.array([1.0, jnp.nan])})), metric=ng.Blocks(u=ng.L2()))),
    "outside the bounds": ("theta0", "spans 1 to 1, and they 1400 to 5000.*units", lambda: ng.minimize(pinn().problem, jnp.ones(2), ng.LBFGS(10), bounds=(1400.0, 5000.0))),
    "one negative entry": ("model", "1 negative entry, the lowest", lambda: direction(lambda t: state(t).at[0, 0].set(-1.0), metric=ng.Wasserstein(GRID))),
    "stop a number": ("stop", r"is an int. Try: ng.Stop\(iterations=10\)", lambda: ng.minimize(pinn().problem, jnp.ones(2), ng.LBFGS(10), stop=10)),
    "other points of no block": ("points", "'edge'.*inside", lambda: pinn().at({"edge": POINTS})),
    "other points of another dimension": ("points", r"inside have shape \(4, 2\).*\(n, 1\)", lambda: pinn().at({"inside": jnp.ones((4, 2))})),
    "draw a list": ("draw", "list", lambda: drawn(lambda key: [POINTS])),
    "draw not callable": ("draw", "dict", lambda: ng.Resampled({"inside": POINTS})),
    "draw of another dimension": ("draw", r"inside.*\(4, 2\).*\(n, 1\)", lambda: drawn(lambda key: {"inside": jnp.ones((4, 2))})),
    "draw without axes": ("draw", r"inside.*\(4,\)", lambda: drawn(lambda key: {"inside": jnp.ones(4)})),
    "draw of a list": ("draw", "list of 2 entries for inside", lambda: drawn(lambda key: {"inside": [POINTS, POINTS[:, 0]]})),
    "draw of three": ("draw", "tuple of 3 entries for inside", lambda: drawn(lambda key: {"inside": (POINTS, POINTS[:, 0], 1)})),
    "draw that asks elsewhere": ("draw", r"inside.*\(3, 2\).*\(n, 1\)", lambda: drawn(lambda key, theta, residual: {"inside": POINTS * residual("inside", jnp.ones((3, 2))).sum()})),
    "draw of text": ("draw", "inside", lambda: drawn(lambda key: {"inside": "x"})),
    "draw of nothing": ("inside", "at least one", lambda: drawn(lambda key: {"inside": POINTS[:0]})),
    "draw for no block": ("points", "'edge'", lambda: drawn(lambda key: {"edge": POINTS})),
    "draw with a weight a point": ("draw", "3 points of inside.*each of 4", lambda: drawn(lambda key: {"inside": POINTS[:3]}, pinn(weight=jnp.ones(4)))),
    "draw for an objective": ("batch", "objective", lambda: drawn(lambda key: {}, problem=ng.Problem(pinn(), objective=lambda t: t @ t))),
    "draw for another model": ("batch", "Explicit.*collocation", lambda: drawn(lambda key: {}, problem=ng.Problem(state, lambda r: jnp.sum(r**2)), metric=ng.L2(GRID))),
    "draw of period zero": ("period", "≥ 1", lambda: ng.Resampled(lambda key: {}, period=0)),
    "draw of seed -1": ("seed", "≥ 0", lambda: ng.Resampled(lambda key: {}, seed=-1)),
    "batch of collocation points": ("batch", "Resampled", lambda: trained(batch=ng.MiniBatch(2))),
    "batch of a number": ("batch", "is an int", lambda: trained(batch=3)),
    "order zero": ("order", "1 to 5", lambda: trained(order=0)),
    "order six": ("order", "1 to 5", lambda: trained(order=6)),
    "order of a float": ("order", "1 to 5", lambda: trained(order=2.0)),
    "order of a boolean": ("order", "1 to 5", lambda: trained(order=True)),
    "order with a proximal step": ("order", "ProximalStep.*Backtracking", lambda: trained(order=2, step=ng.ProximalStep(1.0))),
    "order outside JAX": ("order", "Host.*order=1", lambda: trained(order=2, problem=ng.Problem(Host(), jnp.sum), metric=ng.L2())),
    "order without forward derivatives": ("order", "2 takes.*custom_vjp.*order=1.*custom_jvp", lambda: solved(ng.models.Explicit(one_sided, mode="reverse"), order=2)),
    "order without reverse derivatives": ("order", "3 takes.*while loop.*order=1.*scan", lambda: solved(looped, order=3)),
    "no forward derivatives": ("problem", "custom_vjp.*custom_jvp.*reverse", lambda: solved(one_sided)),
    "no forward derivatives of a direction": ("problem", "custom_vjp", lambda: direction(one_sided)),
    "no reverse derivatives": ("problem", "while loop.*scan", lambda: solved(looped, solver=ng.CG())),
    "no derivatives": ("problem", "outside JAX.*ExternalModel", lambda: solved(called, order=2)),
    "momentum one": ("momentum", "1.0 is out of range", lambda: trained(momentum=1.0)),
    "momentum negative": ("momentum", "nonnegative", lambda: trained(momentum=-0.1)),
    "momentum of text": ("momentum", "number", lambda: trained(momentum="heavy")),
    "momentum NaN": ("momentum", "finite", lambda: trained(momentum=jnp.nan)),
    "momentum with a proximal step": ("momentum", "ProximalStep", lambda: trained(momentum=0.5, step=ng.ProximalStep(1.0))),
    "rows that do not fit": ("solver", "QR needs all 4 × 2.*memory=7.*Cholesky", lambda: trained(model=pinn(memory=7), solver=ng.QR())),
    "rows that do not fit, undamped": ("solver", "PivotedQR needs all.*damping", lambda: trained(model=pinn(memory=7), damping=0.0)),
    "rows that do not fit, sketched": ("solver", "NystromKernel needs all", lambda: trained(model=pinn(memory=7), solver=ng.NystromKernel(2))),
    "rows that do not fit, with D": ("solver", "Kernel with an operator D", lambda: trained(model=pinn(memory=7), solver=ng.Kernel(), damping=ng.ParameterDamping(np.eye(2)))),
    "sketch of rank zero": ("rank", "≥ 1", lambda: ng.NystromKernel(0)),
    "sketch of rank 2.0": ("rank", "≥ 1", lambda: ng.NystromKernel(2.0)),
    "derivative along no axis": ("axes", r"2 is no axis.*\(2,\)", lambda: ng.derivative(lambda y: y @ y, jnp.ones(2), 2)),
    "derivative along half an axis": ("axes", "0.5", lambda: ng.derivative(lambda y: y @ y, jnp.ones(2), 0.5)),
    "derivative at many points": ("x", r"\(3, 2\).*vmap", lambda: ng.derivative(lambda y: y @ y, jnp.ones((3, 2)), 0)),
    "laplacian at a number": ("x", r"shape \(\)", lambda: ng.laplacian(lambda y: y**2, jnp.ones(()))),
    "laplacian at integers": ("x", "int", lambda: ng.laplacian(lambda y: y @ y, jnp.arange(2))),
    "tuple state without a grid": ("metric", "tuple.*Blocks", lambda: direction(lambda t: (state(t), state(t)), loss=lambda r: jnp.sum(r[0]), metric=ng.L2())),
    "state and grid differ": ("model", r"\(5, 4\).*\(4, 5\)", lambda: direction(lambda t: t[0] * jnp.ones((5, 4)))),
    "flat state": ("model", "reshape", lambda: direction(lambda t: t[0] * jnp.ones(20))),
    "tuple state": ("metric", "Blocks", lambda: direction(lambda t: (state(t), state(t)), loss=lambda r: jnp.sum(r[0]))),
    "blocks do not match": ("metric", "entries", lambda: direction(lambda t: (state(t),), loss=lambda r: jnp.sum(r[0]), metric=ng.Blocks(ng.L2(GRID), ng.L2(GRID)))),
    "negative density": ("model", "negative", lambda: direction(lambda t: state(t) - 5.0, metric=ng.Wasserstein(GRID))),
    "negative density, Fisher–Rao": ("model", "negative", lambda: direction(lambda t: state(t) - 5.0, metric=ng.FisherRao(GRID))),
    "negative density in a loss": ("theta0", r"inf, where the state has negative values \(20 of 20\)", lambda: ng.minimize(ng.Problem(lambda t: state(t) - 5.0, ng.KullbackLeibler(jnp.ones((4, 5)), GRID)), jnp.ones(2), ng.NaturalGradient(ng.L2(GRID)))),
    "zero mass": ("model", "zero mass", lambda: direction(lambda t: 0.0 * state(t), metric=ng.Wasserstein(GRID))),
    "NaN state": ("model", "not finite", lambda: direction(lambda t: state(t) * jnp.nan)),
    "integer state": ("model", "int", lambda: direction(lambda t: jnp.ones((4, 5), int), loss=lambda r: 1.0 * jnp.sum(r))),
    "complex state": ("model", "complex", lambda: direction(lambda t: state(t) + 1j, loss=lambda r: jnp.sum(r.real))),
    "empty state": ("model", "no entries", lambda: direction(lambda t: t[:0])),
    "shape depends on theta": ("model", "values of theta", lambda: direction(lambda t: jnp.ones(int(t[0])) * t[1])),
    "branch on theta": ("model", "values of theta", lambda: direction(lambda t: state(t) if t[0] > 0 else -state(t))),
    "no parameters": ("theta", "p = 0", lambda: direction(state, theta=jnp.zeros(0))),
    "integer parameters": ("theta", "p = 0", lambda: direction(state, theta=jnp.arange(2))),
    "complex parameters": ("theta", "complex", lambda: direction(state, theta=jnp.ones(2) * 1j)),
    "NaN parameters": ("theta", "not finite", lambda: direction(state, theta=jnp.array([1.0, jnp.nan]))),
    "vector loss": ("loss", "scalar", lambda: direction(state, loss=lambda r: r)),
    "target of another shape": ("target", r"\(3,\)", lambda: direction(state, loss=ng.LeastSquares(jnp.ones(3)))),
    "metric class": ("metric", "class L2", lambda: direction(state, metric=ng.L2)),
    "metric class of a method": ("metric", "class L2", lambda: ng.NaturalGradient(ng.L2)),
    "method as a metric": ("metric", "GradientDescent", lambda: direction(state, metric=ng.GradientDescent())),
    "metric as a method": ("method", r"is an L2. Try: ng.NaturalGradient\(", lambda: ng.minimize(pinn().problem, jnp.ones(2), ng.L2())),
    "solver class": ("solver", "class QR", lambda: direction(state, solver=ng.QR)),
    "solver class of a method": ("solver", "class QR", lambda: trained(solver=ng.QR)),
    "negative damping": ("damping", "nonnegative", lambda: direction(state, damping=-1.0)),
    "damping of another size": ("damping", "3 parameters", lambda: direction(state, damping=ng.ParameterDamping(np.eye(3)))),
    "damping not positive": ("operator", "positive definite", lambda: ng.ParameterDamping(-np.eye(3))),
    "unknown boundary": ("boundary", "reflecting", lambda: ng.Grid(0, 1, 4, "reflecting")),
    "grid of four dimensions": ("shape", "4 dimensions", lambda: ng.Grid((0,) * 4, (1,) * 4, (2,) * 4)),
    "grid of one cell": ("shape", "fewer than 2", lambda: ng.Grid((0, 0), (1, 1), (4, 1))),
    "grid of lengths that differ": ("lower, upper, shape", "entries", lambda: ng.Grid((0, 0), 1, (4, 4))),
    "grid upside down": ("upper", "exceed", lambda: ng.Grid(1, 0, 4)),
    "grid shape of floats": ("shape", "integers", lambda: ng.Grid(0, 1, 4.5)),
    "s not an integer": ("s", "integer", lambda: ng.Sobolev(GRID, 0.5)),
    "s a boolean": ("s", "integer", lambda: ng.HomogeneousSobolev(GRID, True)),
    "transport on dirichlet": ("grid", "mass", lambda: ng.Wasserstein(ng.Grid(0, 1, 4, "dirichlet"))),
    "negative mobility": ("exponent", "≥ 0", lambda: ng.Mobility(GRID, -1.0)),
    "negative weight": ("weight", "positive", lambda: -1.0 * ng.L2(GRID)),
    "matrix not square": ("A", "shape", lambda: ng.MatrixMetric(np.ones((2, 3)))),
    "matrix not symmetric": ("A", "symmetric", lambda: ng.MatrixMetric(np.array([[1.0, 2.0], [0.0, 1.0]]))),
    "matrix not positive": ("A", "eigenvalue", lambda: ng.MatrixMetric(-np.eye(2))),
    "matrix of another size": ("A", "unknowns", lambda: direction(state, metric=ng.MatrixMetric(np.eye(3)))),
    "sum with a number": ("metric", "both sides", lambda: ng.L2(GRID) + 1.0),
    "no blocks": ("metrics", "positional", lambda: ng.Blocks()),
    "no grid": ("grid", "is a float.*ng.fem", lambda: ng.L2(3.0)),
    "no grid for transport": ("grid", "is a tuple", lambda: ng.Wasserstein((4, 5))),
    "blocks in a dict": ("metrics", "entry 0 is a dict.*Blocks\\(\\*\\*", lambda: ng.Blocks({"u": ng.L2()})),
    "loss and objective": ("loss, objective", "exactly one", lambda: ng.Problem(state)),
    "model not callable": ("model", "float.*swapped.*callable", lambda: ng.Problem(3.0, jnp.sum)),
    "loss in place of the model": ("model", "LeastSquares.*swapped", lambda: ng.Problem(ng.LeastSquares(POINTS), flat)),
    "model in place of the loss": ("loss", "Collocation.*swapped", lambda: ng.Problem(jnp.sum, pinn())),
    "data in place of the loss": ("loss", r"is an array.*ng.LeastSquares\(data\)", lambda: ng.Problem(state, POINTS)),
    "regulariser a number": ("regulariser", "is a float, not a function", lambda: ng.Problem(state, jnp.sum, regulariser=1e-3)),
    "bounds of another shape": ("bounds", r"\(3,\), theta has \(2,\).*scalar", lambda: ng.minimize(pinn().problem, jnp.ones(2), ng.LBFGS(10), bounds=(jnp.zeros(3), None))),
    "a float for a number of points": ("n", "Try: n=1000", lambda: ng.pinn.Box(0.0, 1.0).sobol(1e3)),
    "target NaN of a density": ("target", "1 entry not finite. Try: data", lambda: ng.KullbackLeibler(jnp.ones((4, 5)).at[0, 0].set(jnp.nan), GRID)),
    "sum with a method": ("metric", "both sides", lambda: ng.L2(GRID) + ng.GradientDescent()),
    "negative target": ("target", "negative", lambda: ng.KullbackLeibler(-jnp.ones((4, 5)), GRID)),
    "step of zero": ("size", "positive", lambda: ng.FixedStep(0.0)),
    "step of text": ("size", "number", lambda: ng.FixedStep("big")),
    "points without axes": ("points", "shape", lambda: ng.Pointwise(lambda t, x: x, jnp.ones(3))),
    "network with vector output": ("function", "scalar", lambda: direction(ng.Pointwise(lambda t, x: x, GRID.points))),
    "namedtuple state": ("metric", "plain tuple", lambda: direction(lambda t: Pair(state(t), state(t)), loss=lambda r: jnp.sum(r[0]), metric=ng.Blocks(ng.L2(GRID), ng.L2(GRID)))),
    "grid of the loss": ("model", "grid", lambda: direction(state, loss=ng.LeastSquares(jnp.ones((4, 5)), ng.Grid((0, 0), (1, 1), (8, 8))))),
    "half precision": ("model", "half", lambda: direction(lambda t: state(t).astype(jnp.bfloat16))),
    "damping of the gradient": ("damping", "gradient descent", lambda: ng.GradientDescent(damping=ng.ParameterDamping(np.eye(2)))),
    "negative damping as an array": ("damping", "nonnegative", lambda: direction(state, damping=jnp.asarray(-0.5))),
    "shrink of two": ("shrink", "range", lambda: ng.Backtracking(shrink=2.0)),
    "increase below one": ("increase", "range", lambda: ng.LevenbergMarquardt(increase=0.5)),
    "floor of zero": ("floor", "islands", lambda: ng.Wasserstein(GRID, floor=0.0)),
    "zero factor": ("L", "zero", lambda: ng.FactorMetric(np.zeros((3, 3)))),
    "unknown mode": ("mode", "sideways", lambda: ng.models.Explicit(state, mode="sideways")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_message_names_the_argument(case: str):
    assert_input_error(*CASES[case])


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"bounds": (0.0, 0.5)}, "theta0"),
        ({"bounds": (1.0, -1.0)}, "bounds"),
        ({"bounds": 3.0}, "bounds"),
        ({"bounds": ({"a": 1.0}, 2.0)}, "bounds"),
        ({"bounds": (jnp.nan, 9.0)}, "bounds"),
        ({"stop": 10}, "stop"),
        ({"callbacks": [3]}, "callbacks"),
        ({"callbacks": print}, "callbacks"),
        ({"callback": print}, "callback"),
        ({"max_iterations": 3}, "max_iterations"),
    ],
)
def test_minimize_checks_its_own_arguments(settings: dict, argument: str):
    problem, theta, _, _ = linear_problem(6, 3, 3)
    method = ng.NaturalGradient(ng.MatrixMetric(np.eye(6)))
    with pytest.raises(ng.InputError) as caught:
        ng.minimize(problem, theta + 2.0, method, **settings)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: ng.NaturalGradient(ng.L2(), step=0.1), "step"),  # pyright: ignore
        (lambda: ng.GradientDescent(step=0.1), "step"),  # pyright: ignore
        (lambda: ng.Newton(step=0.1), "step"),  # pyright: ignore
        (lambda: ng.Stop(iterations=0), "iterations"),
        (lambda: ng.Stop(iterations=2.0), "iterations"),  # pyright: ignore
        (lambda: ng.Stop(gradient=-1.0), "gradient"),
        (lambda: ng.Stop(gradient=jnp.nan), "gradient"),
        (lambda: ng.Stop(gradient="1e-3"), "gradient"),  # pyright: ignore
        (lambda: ng.NaturalGradient(ng.L2(), momentum=jnp.nan), "momentum"),
        (lambda: ng.NaturalGradient(ng.L2(), dampening=1.0), "dampening"),  # pyright: ignore
        (lambda: ng.Problem(state, losses=jnp.sum), "losses"),  # pyright: ignore
        (lambda: ng.Checkpoint("x", seconds="1"), "seconds"),  # pyright: ignore
        (lambda: ng.Checkpoint(3), "path"),  # pyright: ignore
        (lambda: ng.Stop(step=jnp.nan), "step"),
        (lambda: ng.Stop(loss=jnp.nan), "loss"),
    ],
)
def test_methods_and_stops_check_what_they_are_made_of(make, argument: str):
    with pytest.raises(ng.InputError) as caught:
        make()
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: ng.NaturalGradient(ng.L2), r"metric: is the class L2. Try: ng.L2\(grid\)"),  # pyright: ignore
        (lambda: direction(state, metric=ng.Sobolev), r"Try: ng.Sobolev\(grid, s\)"),
        (lambda: ng.NaturalGradient(ng.L2(), solver=ng.CG), r"Try: ng.CG\(\)"),  # pyright: ignore
        (lambda: ng.NaturalGradient(ng.L2(), damping=ng.LevenbergMarquardt), "damping: is the class"),  # pyright: ignore
        (lambda: ng.NaturalGradient("L2"), r"metric: is a str. Try: ng.L2\(grid\)"),  # pyright: ignore
        (lambda: ng.NaturalGradient(pinn()), "metric: is a Collocation. Try: its .metric"),  # pyright: ignore
        (lambda: ng.minimize(pinn(), jnp.ones(2), ng.LBFGS(10)), "Try: its .problem"),  # pyright: ignore
        (lambda: direction(state, solvers=ng.CG()), "solvers: is no argument .* Try: solver"),
        (lambda: ng.compare(3, 3, {}, budget=3), r"Try: stop=ng.Stop\("),  # pyright: ignore
        (lambda: ng.Stop(iteration=5), "iteration: is no argument of Stop. Try: iterations"),  # pyright: ignore
        (lambda: ng.CG(tol=1e-3), "Try: tolerance"),  # pyright: ignore
        (lambda: ng.CG(maxiter=3), "Try: max_iterations"),  # pyright: ignore
    ],
)  # fmt: skip
def test_the_advice_is_what_was_meant(make, advice: str):
    with pytest.raises(ng.InputError, match=advice):
        make()


ROOMS = (ng, ng.descent, ng.direction, ng.fem, ng.metrics, ng.models, ng.samples, ng.solvers)
ROOMS += (ng.interop, ng.pinn, ng.waves)
CLASSES = {getattr(room, name) for room in ROOMS for name in room.__all__}
# What natgrad makes, and what an implementation of a part is handed.
MADE = (
    "Comparison Evaluation Geometry InputError Local Outcome Path Products Progress Record Result"
)
MADE += " Setup Solution SolveInfo State Status System Trial Watch WrappedGeometry Counts"
MADE += " AdjointOperator Best March Shape Stages Staged"


def test_every_public_constructor_refuses_keywords_it_does_not_know():
    makes = [x for x in CLASSES if isinstance(x, type) and x.__name__ not in MADE.split()]
    assert len(makes) > 80
    for make in makes:
        with pytest.raises(ng.InputError, match="nonsense"):
            make(nonsense=3)


def test_a_class_of_a_user_refuses_keywords_it_does_not_know():
    class Scaled(ng.L2):
        scale: float = 1.0

    assert Scaled(GRID, scale=2.0).scale == 2.0
    with pytest.raises(ng.InputError, match="scales: is no argument of Scaled"):
        Scaled(GRID, scales=2.0)  # pyright: ignore


def test_callbacks_may_come_from_a_generator():
    problem, theta, _, _ = linear_problem(6, 3, 3)
    seen = []
    given = (add for add in [seen.append])
    found = ng.minimize(problem, theta, ng.GradientDescent(), callbacks=given)
    assert len(seen) == found.iterations > 0


# --- leaves of theta that would stay as they are


class Layer(eqx.Module):
    """In a module numbers and integers are its own business, as in equinox."""

    weight: jax.Array
    rate: float
    places: jax.Array


FIXED = ["tanh", jnp.tanh, None, True, 3, jnp.array([True]), jax.random.key(0), jnp.uint32([1, 2])]
FIXED += [Layer(jnp.ones(2), 0.5, jnp.arange(3))]
LEFT_OUT = [0.4, 1j, jnp.arange(3), np.arange(2), np.int8(3)]
FREE = [jnp.ones(2), np.zeros(3), np.float32(2.0), jnp.array(0.0)]


def nested(leaves):
    return st.recursive(
        leaves,
        lambda x: st.lists(x, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), x, min_size=1),
        max_leaves=6,
    )  # fmt: skip


def refused_if_left_out(theta, left_out: bool):
    theta = {"first": jnp.ones(1), "rest": theta}
    if not left_out:
        check_parameters(theta)
        return
    with pytest.raises(ng.InputError, match=r"theta: .*'rest'.* would not be optimised"):
        check_parameters(theta)


ROOM = st.sampled_from(FIXED + FREE)


@given(nested(ROOM), st.none() | st.sampled_from(LEFT_OUT))
def test_no_number_in_theta_stays_as_it_is_unasked(tree, extra):
    refused_if_left_out(tree if extra is None else [tree, {"x": extra}], extra is not None)


@pytest.mark.slow
@settings(max_examples=300)
@given(nested(ROOM), st.none() | st.sampled_from(LEFT_OUT))
def test_no_number_in_any_theta_stays_as_it_is_unasked(tree, extra):
    refused_if_left_out(tree if extra is None else [tree, {"x": extra}], extra is not None)


def test_a_python_number_beside_an_array_is_refused():
    theta = {"a": 0.4, "b": jnp.zeros(2)}
    with pytest.raises(ng.InputError, match=r"theta: \['a'\] is a Python float"):
        direction(lambda t: state(t["b"]) + t["a"], theta)


@pytest.mark.parametrize("method", [ng.GradientDescent, ng.Newton])
@pytest.mark.parametrize("setting", [{"order": 2}, {"momentum": 0.5}], ids=str)
def test_what_has_no_metric_takes_neither_a_curve_nor_momentum(method, setting: dict):
    with pytest.raises(ng.InputError, match=next(iter(setting))):
        method(**setting)


def test_a_loss_that_is_infinite_at_the_start_is_an_error():
    problem = ng.Problem(state, lambda rho: jnp.sum(jnp.log(rho - 2.0)))
    with pytest.raises(ng.InputError, match="theta0"):
        ng.minimize(problem, jnp.ones(2), ng.NaturalGradient(ng.L2(GRID)))


def test_single_precision_warns_once_with_the_reason(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())
    single = lambda t: state(t).astype(jnp.float32)
    theta = jnp.ones(2, jnp.float32)
    with pytest.warns(ng.errors.PrecisionWarning, match="single precision") as caught:
        d = direction(single, theta=theta, damping=1e-3)
    direction(single, theta=theta, damping=1e-3)  # a second warning would be an error
    assert d.eta.dtype == jnp.float32
    assert caught[0].filename == __file__  # the line of the user, not of natgrad


def test_residuals_in_single_precision_warn_with_a_direct_solver(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())
    model = pinn(points=POINTS.astype(jnp.float32))
    theta = jnp.ones(2, jnp.float32)
    trained(model=model, theta=theta, solver=ng.CG(1e-4))  # a warning would be an error
    with pytest.warns(ng.errors.PrecisionWarning, match="single precision"):
        result = trained(model=model, theta=theta, solver=ng.Cholesky())
    assert result.theta.dtype == jnp.float32


def test_single_precision_stays_single(monkeypatch):
    monkeypatch.setattr(errors, "_warned", {"float32"})
    problem, start, truth, grid = bumps_problem()
    single = lambda t: problem.model(t).astype(jnp.float32)
    target = problem.loss.target.astype(jnp.float32)
    low = ng.Problem(single, ng.LeastSquares(target, grid))
    for metric in (ng.L2(grid), ng.Sobolev(grid, -1), ng.Wasserstein(grid)):
        result = ng.minimize(
            low, start.astype(jnp.float32), ng.NaturalGradient(metric), stop=ng.Stop(iterations=30)
        )
        assert result.theta.dtype == jnp.float32
        np.testing.assert_allclose(result.theta, truth, atol=5e-3)


def test_importing_changes_no_global_setting_and_needs_nothing_of_the_studies():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'rich', 'tyro', 'PIL')));"
        "import natgrad.report as r; print(r.Page('A', 'b', []).html()[:15]);"
        "import jax; print(jax.config.jax_enable_x64)"
    )
    arguments = [sys.executable, "-c", code]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("<!doctype html>\nFalse\n", "")


def test_programs_are_let_go_before_they_are_too_many(monkeypatch):
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(1))
    monkeypatch.setattr(natgrad.core.compiled, "MOST_MAPS", 1.0)
    assert not release_programs()
    monkeypatch.setattr(natgrad.core.compiled, "MOST_MAPS", 0.0)
    assert release_programs() == sys.platform.startswith("linux") == bool(cleared)
    cleared.clear()
    monkeypatch.setattr(natgrad.direction.linearise, "BETWEEN_RELEASES", 1)
    direction(state)
    assert cleared or not sys.platform.startswith("linux")


NEW_CLOSURES = """
import jax, jax.numpy as jnp, natgrad as ng, numpy as np, natgrad.core.compiled as compiled
import natgrad.direction.linearise as linearise
maps = lambda: sum(1 for _ in open("/proc/self/maps"))
allowed, grid, seen = int(open("/proc/sys/vm/max_map_count").read()), ng.Grid(0.0, 1.0, 12), []
linearise.BETWEEN_RELEASES = 4
for i in range(25):
    Z = jnp.asarray(np.random.RandomState(i).standard_normal((12, 4)))
    problem = ng.Problem(lambda t: 1 + Z @ t, lambda r: jnp.sum(r**2))
    ng.natural_gradient(problem, jnp.zeros(4), metric=ng.Sobolev(grid, 1), solver=ng.SVD())
    seen.append(maps())
    if i == 4:
        compiled.MOST_MAPS = (seen[-1] + 300) / allowed
print(max(seen) - seen[4], seen[-1] - seen[4])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory maps are Linux's")
def test_a_new_closure_in_every_call_does_not_fill_the_process():
    done = subprocess.run([sys.executable, "-c", NEW_CLOSURES], capture_output=True, text=True)
    most, last = map(int, done.stdout.split())
    assert most < 1000  # 25 closures would have made 1500
    assert last < 1000


EQUAL_CLOSURES = """
import os, sys, jax, jax.numpy as jnp, natgrad as ng
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
for factor in (2.0, 2.0, 3.0):
    problem = ng.Problem(lambda t: factor * jnp.sin(t), lambda r: jnp.sum((r - 1.0) ** 2))
    method = ng.NaturalGradient(ng.L2(), solver=ng.Cholesky())
    result = ng.minimize(problem, jnp.ones(2), method, stop=ng.Stop(iterations=2, gradient=0.0))
    print(sum(name.endswith("-cache") for name in os.listdir(sys.argv[1])), result.loss < 1.0)
"""


@pytest.mark.slow
def test_closures_of_one_program_are_compiled_once_with_the_cache_of_jax(tmp_path):
    """As the quickstart says; another number in the closure is another program."""
    arguments = [sys.executable, "-c", EQUAL_CLOSURES, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    first, second, other = (line.split() for line in done.stdout.splitlines())
    assert first[1] == second[1] == other[1] == "True"
    assert int(other[0]) > int(second[0]) == int(first[0]) > 0


def test_an_input_error_travels_between_processes():
    error = ng.InputError("dt", "is 3", "0.1")
    error.add_note("in a pool")
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found)) == (ng.InputError, "dt: is 3. Try: 0.1.")
    assert (found.argument, found.__notes__) == ("dt", ["in a pool"])


def test_jit_errors_of_the_user_surface():
    def broken(theta):
        raise RuntimeError("my solver failed")

    with pytest.raises(RuntimeError, match="my solver failed") as caught:
        direction(broken)
    assert "Raised by the model at theta of shape (2,)." in caught.value.__notes__
    assert jax.config.jax_enable_x64
