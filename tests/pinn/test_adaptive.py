"""Points and weights that follow the residual: laws, formulas, and the same run in two parts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import assert_same

BOX = ng.pinn.Box((0.0, -1.0), (1.0, 1.0))
THETA = jnp.array([0.4, -0.3, 0.2])


def equation(theta, x):
    """A system of two, large near x₁ = 1."""
    wave = theta[0] * jnp.sin(3 * x[0]) + theta[1] ** 2 * x[1]
    return jnp.stack([wave + 3 * x[1] ** 8, theta[2] * x[0] - 0.5])


def condition(theta, x):
    return 10 * (theta[0] + theta[1] * x[1])


PINN = ng.Collocation(
    interior=ng.Residual(equation, BOX.sobol(32), weight=2.0),
    start=ng.Residual(condition, BOX.face(0, 0).sobol(4)),
)
candidates = lambda key: {"interior": BOX.uniform(key, 100)}
values = jax.jit(jax.vmap(equation, (None, 0)))


@eqx.filter_jit
def evaluate(model, theta):
    return model(theta)


def weighted(rule, memory=None, iteration=0, theta=THETA, pinn=PINN):
    return rule.weigh(iteration, theta, pinn, memory)


def test_adaptive_points_follow_the_residual_and_leave_the_loss_unbiased():
    draw = ng.pinn.residual_adaptive(lambda _: {"interior": INSIDE}, 20, power=2.0, floor=0.5)
    INSIDE = candidates(jax.random.key(0))["interior"]
    residual = lambda name, x: jax.vmap(lambda y: equation(THETA, y))(x)
    many = jax.vmap(lambda key: draw(key, THETA, residual)["interior"])
    points, shares = jax.jit(many)(jax.random.split(jax.random.key(1), 3000))
    size = np.linalg.norm(values(THETA, INSIDE), axis=1) ** 2
    density = (size / size.mean() + 0.5) / 1.5
    assert np.all((shares > 0) & (shares <= 3.0 + 1e-12))
    order = np.argsort(INSIDE[:, 0])
    found = np.searchsorted(np.asarray(INSIDE)[order, 0], np.asarray(points[..., 0]))
    times = np.bincount(order[found].ravel(), minlength=100) / 3000
    np.testing.assert_allclose(times, 20 * density / 100, atol=0.05)
    f = lambda x: jnp.cos(x[..., 0]) + x[..., 1] ** 2
    means = np.mean(np.asarray(shares * f(points)), axis=1)
    assert np.mean(means) == pytest.approx(
        float(np.mean(f(INSIDE))), abs=5 * means.std() / 3000**0.5
    )


def test_causal_weights_are_those_of_the_formula_and_go_on_to_the_next_tolerance():
    rule = ng.pinn.Causal("interior", slabs=4, tolerances=(0.3, 5.0))
    weights, stage = weighted(rule)
    points = np.asarray(PINN.blocks["interior"].points)
    squares = np.sum(np.asarray(values(THETA, points)) ** 2, axis=1)
    slab = (4 * points[:, 0]).astype(int)
    losses = np.array([squares[slab == i].mean() for i in range(4)])
    for number, tolerance in enumerate((0.3, 5.0)):
        weights, after = weighted(rule, jnp.int32(number))
        factors = np.exp(-tolerance * (np.cumsum(losses) - losses))
        np.testing.assert_allclose(weights["interior"], 2 / 32 * factors[slab], rtol=1e-12)
        assert after == number
    assert stage == 0
    small = ng.pinn.Causal("interior", tolerances=(1e-9, 1e-8))
    assert [int(weighted(small, jnp.int32(i))[1]) for i in (0, 1)] == [1, 1]


def test_balanced_blocks_have_equal_traces():
    weights, factors = weighted(ng.pinn.Balanced(every=3))
    balanced = PINN.at({}, weights)
    rho = evaluate(balanced, THETA)
    Z = jax.jit(jax.jacobian(lambda t: balanced(t)))(THETA)
    A = balanced.metric.at(rho).diagonal
    traces = {name: np.sum(np.asarray(A[name])[..., None] * Z[name] ** 2) for name in Z}
    own = PINN.metric.at(rho).diagonal
    total = sum(np.sum(np.asarray(own[name])[..., None] * Z[name] ** 2) for name in Z)
    np.testing.assert_allclose([*traces.values()], total / 2, rtol=1e-12)
    kept, memory = weighted(ng.pinn.Balanced(every=3), factors, iteration=4, theta=2 * THETA)
    assert memory is factors
    assert weighted(ng.pinn.Balanced(every=3), factors, 6, 2 * THETA)[1] is not factors
    np.testing.assert_array_equal(kept["start"], weights["start"])


@pytest.mark.slow
def test_a_run_that_adapts_everything_is_the_same_in_two_parts(tmp_path):
    """Cut inside a period, so that points and weights come from the file."""
    rules = (ng.pinn.Balanced(every=3), ng.pinn.Causal("interior", slabs=4, tolerances=(0.01, 1.0)))
    batch = ng.Resampled(ng.pinn.residual_adaptive(candidates, 16), 3, 1, rules)
    method = ng.NaturalGradient(PINN.metric, damping=1e-3, step=ng.Backtracking())

    def run(iterations=8, **settings):
        stop = ng.Stop(iterations=iterations, gradient=0.0)
        return ng.minimize(PINN.problem, THETA, method, stop=stop, batch=batch, **settings)

    found = run()
    run(4, checkpoint=tmp_path / "run.npz")
    assert_same(found, run(checkpoint=tmp_path / "run.npz"))
    assert found.history["loss"][-1] < found.history["loss"][0]
    problem, again, memory = batch.sampler(PINN.problem, method, THETA, None)(0, THETA)
    block = problem.model.blocks["interior"]
    rho = evaluate(problem.model, THETA)
    assert float(problem.value(THETA, rho)) == pytest.approx(found.history["loss"][0], rel=1e-12)
    np.testing.assert_allclose(again.metric.metrics["interior"].weights, 2 * block.weight)
    assert block.points.shape == (16, 2)
    np.testing.assert_array_equal(memory[0]["interior"][0], block.points)


BAD = {
    "block: there is no block 'inner'": lambda: weighted(ng.pinn.Causal("inner")),
    "axis: the points have no axis 2": lambda: weighted(ng.pinn.Causal("start", axis=2)),
    "span: .* is no interval": lambda: ng.pinn.Causal("start", span=(1.0, 0.0)),
    "tolerances: .* are not positive": lambda: ng.pinn.Causal("start", tolerances=()),
    "slabs: 1 is not an integer": lambda: ng.pinn.Causal("start", slabs=1),
    "every: 0 is not an integer": lambda: ng.pinn.Balanced(every=0),
    "floor: 0.0 is not finite and positive": lambda: ng.pinn.residual_adaptive(
        candidates, 3, floor=0.0
    ),
    "draw: takes 2 arguments": lambda: ng.Resampled(lambda key, theta: {}),
    "weights: is an int": lambda: ng.Resampled(weights=3),
    "weights: the loss is not that": lambda: sample(
        ng.Resampled(weights=ng.pinn.Balanced()), ng.Problem(PINN, lambda r: jnp.sum(r["start"]))
    ),
    "draw: there is no block 'inner'": lambda: sample(
        ng.Resampled(ng.pinn.residual_adaptive(lambda key: {"inner": BOX.uniform(key, 5)}, 3))
    ),
    "draw: shares of shape": lambda: sample(
        ng.Resampled(lambda key: {"interior": (BOX.uniform(key, 5), jnp.ones(4))})
    ),
    "weights: there is no block 'inner'": lambda: PINN.at({}, {"inner": jnp.ones(2)}),
}


def sample(batch, problem=PINN.problem):
    return batch.sampler(problem, ng.NaturalGradient(PINN.metric), THETA, None)


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message: str):
    with pytest.raises(ng.InputError, match=message):
        BAD[message]()
