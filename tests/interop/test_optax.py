"""Natural gradients in a chain of optax: the same direction, in every kind of loop."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import (
    all_metrics,
    assert_input_error,
    bumps_problem,
    close,
    compiled,
    with_slow,
)

optax = pytest.importorskip("optax")

PROBLEM, THETA, _, GRID = bumps_problem()
GRADIENT = jax.grad(lambda t: PROBLEM.value(t, PROBLEM.model(t)))
SOLVERS = {"Auto": ng.Auto(), "Cholesky": ng.Cholesky(), "Kernel": ng.Kernel(), "CG": ng.CG(1e-13)}
PAIRS = [
    *[(metric, "Cholesky") for metric in all_metrics(GRID)],
    *[(metric, solver) for metric in ("L2", "FisherRao") for solver in ("Auto", "Kernel", "CG")],
]
FAST = ("FisherRao-CG",)


@pytest.mark.parametrize(
    "pair", with_slow(names := ["-".join(pair) for pair in PAIRS], {*names} - {*FAST})
)
def test_the_direction_is_that_of_natural_gradient(pair):
    """Up to rounding; its sign is that of the gradient."""
    name, solver = pair.rsplit("-", 1)
    settings = {
        "metric": all_metrics(GRID)[name],
        "solver": SOLVERS[solver],
        "damping": 0.0 if solver == "Auto" else 1e-3,
    }
    optimiser = ng.interop.scale_by_natural_gradient(PROBLEM.model, **settings)
    updates, state = optimiser.update(GRADIENT(THETA), optimiser.init(THETA), THETA)
    expected = ng.natural_gradient(PROBLEM, THETA, **settings)
    close(-updates, expected.eta, 1e-11)
    assert int(state.count) == 1
    assert float(state.damping) == pytest.approx(expected.info.damping)
    assert int(state.info.iterations) == expected.info.iterations
    rank = None if np.isnan(state.info.rank) else int(state.info.rank)
    assert rank == expected.info.rank


def test_a_plain_chain_takes_the_steps_of_minimize():
    """In a compiled scan, with the state as it was: the loop of natgrad with a fixed step."""
    metric = ng.L2(GRID)
    optimiser = optax.chain(
        ng.interop.scale_by_natural_gradient(PROBLEM.model, metric=metric, damping=1e-6),
        optax.scale(-0.5),
    )

    def step(carry, _):
        theta, state = carry
        updates, state = optimiser.update(GRADIENT(theta), state, theta)
        return (optax.apply_updates(theta, updates), state), None

    run = jax.jit(lambda theta: jax.lax.scan(step, (theta, optimiser.init(theta)), None, 4)[0])
    theta, state = run(THETA)
    expected = ng.minimize(
        PROBLEM,
        THETA,
        ng.NaturalGradient(metric, damping=1e-6, step=ng.FixedStep(0.5)),
        stop=ng.Stop(iterations=4),
    )
    close(theta, expected.theta, 1e-12)
    assert int(state[0].count) == 4
    assert int(state[0].info.rank) == 4


class Pair(NamedTuple):
    slope: jax.Array
    shift: jax.Array


X = jnp.linspace(-1.0, 1.0, 12)[:, None]
LINE = Pair(jnp.array([0.3, -0.2]), jnp.array(0.1))


def line(params, x):
    """tanh(⟨slope, (x, x²)⟩ + shift), at one point or at many."""
    powers = jnp.concatenate([x, x**2], axis=-1)
    return jnp.tanh(powers @ params.slope + params.shift)


def mean_squares(params, x):
    return 0.5 * jnp.mean((line(params, x) - 0.5 * x[..., 0] ** 2) ** 2)


def test_schedules_decay_clipping_and_momentum_are_those_of_optax():
    """The links before and after act on G⁻¹∂f as on any other update."""
    natural = ng.interop.scale_by_natural_gradient(line, metric=ng.L2(), damping=1e-3)
    rate = optax.linear_schedule(0.0, 1.0, 4)
    optimiser = optax.chain(
        optax.clip(0.01),
        natural,
        optax.add_decayed_weights(0.1),
        optax.trace(0.9),
        optax.scale_by_learning_rate(rate),
    )

    @jax.jit
    def step(state, params):
        gradient = jax.grad(mean_squares)(params, X)
        clipped = jax.tree.map(lambda g: jnp.clip(g, -0.01, 0.01), gradient)
        direction, _ = natural.update(clipped, natural.init(params), params, batch=X)
        return direction, *optimiser.update(gradient, state, params, batch=X)

    state, params = optimiser.init(LINE), LINE
    momentum = jax.tree.map(jnp.zeros_like, params)
    for count in range(3):
        direction, updates, state = step(state, params)
        momentum = jax.tree.map(lambda m, d, p: 0.9 * m + d + 0.1 * p, momentum, direction, params)
        expected = jax.tree.map(lambda m, n=count: -0.25 * n * m, momentum)
        jax.tree.map(lambda a, b: close(a, b, 1e-12), updates, expected)
        params = optax.apply_updates(params, updates)


def test_batches_are_arguments_of_a_function_or_points():
    """A network at the points of a batch, written as a function or as `Pointwise`: one direction,
    −G⁻¹∂f with every matrix written out."""
    batch, metric = X[3:9], (1 / 6) * ng.L2()
    models = line, ng.Pointwise(line, X)
    ravel = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]

    @jax.jit
    def everything():
        gradient = jax.grad(mean_squares)(LINE, batch)
        unravel = jax.flatten_util.ravel_pytree(LINE)[1]
        Z = jax.jacobian(lambda v: line(unravel(v), batch))(ravel(LINE))
        found = []
        for model in models:
            optimiser = ng.interop.scale_by_natural_gradient(model, metric=metric, damping=1e-2)
            updates, _ = optimiser.update(gradient, optimiser.init(LINE), LINE, batch=batch)
            found.append(ravel(updates))
        return ravel(gradient), Z, found

    gradient, Z, found = jax.tree.map(np.asarray, everything())
    G = Z.T @ Z / 6
    G += 1e-2 * np.trace(G) / 3 * np.eye(3)
    for direction in found:
        close(direction, np.linalg.solve(G, gradient), 1e-11)


def test_levenberg_marquardt_follows_the_loss():
    """λ falls after an update that lowered the loss, and rises after one that did not."""
    damping = ng.LevenbergMarquardt(initial=1.0, decrease=0.5, increase=4.0)
    optimiser = ng.interop.scale_by_natural_gradient(
        PROBLEM.model, metric=ng.L2(GRID), damping=damping
    )
    state, seen = optimiser.init(THETA), []
    for value in (3.0, 2.0, 1.0, 1.5):
        _, state = optimiser.update(GRADIENT(THETA), state, THETA, value=value)
        seen.append(float(state.damping))
    assert seen == [1.0, 0.5, 0.25, 1.0]


@pytest.mark.slow
def test_a_schedule_for_the_damping():
    """By optax.inject_hyperparams, without a new program for a new value."""
    static = ("model", "metric", "solver")
    make = optax.inject_hyperparams(ng.interop.scale_by_natural_gradient, static_args=static)
    optimiser = make(
        model=PROBLEM.model,
        metric=ng.L2(GRID),
        solver=ng.Cholesky(),
        damping=optax.exponential_decay(1.0, 1, 0.1),
    )
    state, update, gradient = optimiser.init(THETA), jax.jit(optimiser.update), GRADIENT(THETA)
    for damping in (1.0, 0.1):
        with compiled() as programs:
            updates, state = update(gradient, state, THETA)
        fixed = ng.natural_gradient(
            PROBLEM, THETA, metric=ng.L2(GRID), solver=ng.Cholesky(), damping=damping
        )
        close(-updates, fixed.eta, 1e-7)  # optax keeps the schedule in single precision
    assert not programs  # of the second call


@pytest.mark.slow
def test_a_mask_needs_the_other_parameters_in_the_batch():
    """Natural gradients for one part of the parameters, plain ones for the other."""

    def masked(x):
        return isinstance(x, optax.MaskedNode)

    def model(part, whole):
        together = jax.tree.map(lambda a, b: b if masked(a) else a, part, whole, is_leaf=masked)
        return line(together, X)

    optimiser = optax.partition(
        {
            "natural": ng.interop.scale_by_natural_gradient(model, metric=ng.L2(), damping=1e-3),
            "plain": optax.identity(),
        },
        Pair("natural", "plain"),
    )
    gradient, state = jax.grad(mean_squares)(LINE, X), optimiser.init(LINE)
    updates, _ = optimiser.update(gradient, state, LINE, batch=LINE)
    assert float(updates.shift) == float(gradient.shift)
    Z = jax.jacobian(lambda slope: line(Pair(slope, LINE.shift), X))(LINE.slope)
    G = Z.T @ Z
    G += 1e-3 * jnp.trace(G) / 2 * jnp.eye(2)
    close(updates.slope, jnp.linalg.solve(G, gradient.slope), 1e-11)
    assert_input_error("params", "masked", lambda: optimiser.update(gradient, state, LINE))


@pytest.mark.slow
def test_an_equinox_network_keeps_what_is_no_parameter():
    """Arrays only as params, or the whole module: None stays where there is no gradient."""
    net = eqx.nn.MLP(1, "scalar", 4, depth=1, activation=jnp.tanh, key=jax.random.key(0))
    loss = lambda net: jnp.mean((jax.vmap(net)(X) - X[:, 0]) ** 2)
    optimiser = optax.chain(
        ng.interop.scale_by_natural_gradient(
            ng.Pointwise(lambda net, x: net(x), X), metric=(2 / 12) * ng.L2(), damping=1e-3
        ),
        optax.scale(-1.0),
    )

    @eqx.filter_jit
    def step(net, state):
        gradient = eqx.filter_grad(loss)(net)
        updates, state = optimiser.update(gradient, state, net)
        return eqx.apply_updates(net, updates), state

    state, before = optimiser.init(net), loss(net)
    for _ in range(3):
        net, state = step(net, state)
    assert loss(net) < 0.1 * before


MATRIX = np.arange(12.0).reshape(4, 3) + np.eye(4, 3)
OUTSIDE = ng.ExternalModel(lambda t: MATRIX @ t, lambda t, v: MATRIX @ v, lambda t, w: MATRIX.T @ w)


def test_a_model_outside_jax_runs_outside_of_jit():
    optimiser = ng.interop.scale_by_natural_gradient(OUTSIDE, metric=ng.L2())
    theta, gradient = jnp.ones(3), jnp.array([1.0, 2.0, -1.0])
    state = optimiser.init(theta)
    updates, _ = optimiser.update(gradient, state, theta)
    close(updates, np.linalg.solve(MATRIX.T @ MATRIX, gradient), 1e-9)
    compiled = lambda: jax.jit(optimiser.update)(gradient, state, theta)
    assert_input_error("model", "outside JAX.*compiled program", compiled)


def updated(model=PROBLEM.model, gradient=None, params=THETA, metric=None, **more):
    settings = {key: more.pop(key) for key in ("solver", "damping") if key in more}
    metric = ng.L2(GRID) if metric is None else metric
    optimiser = ng.interop.scale_by_natural_gradient(model, metric=metric, **settings)
    gradient = THETA if gradient is None else gradient
    return optimiser.update(gradient, optimiser.init(THETA), params, **more)


BAD = {
    "no params": ("params", "not passed", lambda: updated(params=None)),
    "integer params": ("params", "floating", lambda: updated(params=jnp.arange(4))),
    "integer params at the start": (
        "params",
        "floating",
        lambda: ng.interop.scale_by_natural_gradient(line, metric=ng.L2()).init(jnp.arange(4)),
    ),
    "a gradient of another shape": ("updates", r"\(3,\)", lambda: updated(gradient=jnp.ones(3))),
    "a gradient of another tree": ("updates", "'a'", lambda: updated(gradient={"a": THETA})),
    "a state off the grid": ("model", r"\(4,\)", lambda: updated(lambda t: t)),
    "no state at all": ("model", "no entries", lambda: updated(lambda t: t[:0])),
    "an integer state": ("model", "int", lambda: updated(lambda t: jnp.ones((12, 12), int))),
    "a model that is no function": ("model", "float", lambda: updated(3.0)),
    "a class as metric": ("metric", "class L2", lambda: updated(metric=ng.L2)),
    "Newton": ("metric", "Newton", lambda: updated(metric=ng.Newton())),
    "a class as solver": ("solver", "class CG", lambda: updated(solver=ng.CG)),
    "negative damping": ("damping", "nonnegative", lambda: updated(damping=-1.0)),
    "D of another size": (
        "damping",
        "3 parameters",
        lambda: updated(damping=ng.ParameterDamping(np.eye(3))),
    ),
    "no loss to follow": ("value", "Levenb", lambda: updated(damping=ng.LevenbergMarquardt())),
    "a batch for a model without": (
        "batch",
        "ExternalModel",
        lambda: updated(OUTSIDE, batch=jnp.ones(2)),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    argument, pattern, call = BAD[case]
    assert_input_error(argument, pattern, call)


def test_without_optax(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optax", None)
    make = lambda: ng.interop.scale_by_natural_gradient(line, metric=ng.L2())
    assert_input_error("optax", r"natgrad\[optax\]", make)
