"""Y by rows: blocks of any size, and directions, are those of the dense Jacobian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad.direction.damping import AbsoluteDamping, Undamped
from natgrad.direction.dense import Dense
from natgrad.direction.linearise import choose, linearise
from natgrad.direction.local import Setup
from natgrad.direction.matrix_free import MatrixFree
from natgrad.direction.rows import ByRows, ProductMatrix, Rows
from natgrad.models.base import Evaluation
from natgrad.parameters import Bounds, flatten
from natgrad.pinn.collocation import Weights
from problems_for_tests import close, with_slow

RNG = np.random.default_rng(4)
LINE = ng.Grid(0.0, 1.0, 9)
THETA = {"a": jnp.asarray(RNG.normal(size=3)), "b": jnp.asarray(RNG.normal(size=(3, 2)))}
P = 9
FLAT = ravel_pytree(THETA)[0]
LAMBDA = 1e-2


def scalar(theta, x):
    return theta["a"] @ jnp.tanh(theta["b"] @ jnp.stack([x[0], 1.0 + 0 * x[0]]))


def positive(theta, x):
    return jnp.exp(0.3 * scalar(theta, x))


def vector(theta, x):
    return jnp.stack([scalar(theta, x), scalar(theta, x) ** 2 + x[1] * theta["a"][0]])


def collocation(memory: int) -> ng.Collocation:
    """Blocks whose order is not that of a pytree: 7 values, then 5 × 2 with a weight a point."""
    weights = jnp.asarray(np.random.default_rng(1).uniform(0.5, 2.0, 5))
    points = jnp.asarray(np.random.default_rng(2).normal(size=(5, 2)))
    return ng.Collocation(
        one=ng.Residual(scalar, jnp.linspace(-1.0, 1.0, 7)[:, None], weight=3.0),
        flow=ng.Residual(vector, points, weight=weights),
        memory=memory,
    )


def pointwise(memory: int) -> ng.Pointwise:
    return ng.Pointwise(positive, LINE.points, memory=memory)


# Memory, and the blocks that it makes of the 5 points with two values and of the 7 with one. The
# last block is padded where there are two of either.
ROW = 9 * 8
BLOCKS = {
    "one block": (2**30, [1, 1]),
    "two blocks": (4 * 5 * ROW, [2, 2]),
    "three blocks": (4 * 4 * ROW, [3, 2]),
    "a block a point": (1, [5, 7]),
}


@eqx.filter_jit
def everything(model, flat, unravel, root, free, v, u):
    """Each of the operations on Y."""
    rows = Rows(model, unravel, flat, root, free)
    scale = ravel_pytree(root)[0]
    Y = ProductMatrix(model.products(unravel, flat), scale, free, (scale.size, flat.size))
    Z = jnp.concatenate([rows.reshape(-1, flat.size) for rows in model.rows(unravel, flat)[1]])
    whole = Z * scale[:, None] * (1.0 if free is None else free)
    return whole, rows.gram(), rows.outer(), Y @ v, Y.T @ u, Y.T.T @ v


@eqx.filter_jit
def dense_jacobian(model, theta):
    flat, unravel = flatten(theta)
    return jax.jacfwd(lambda v: ravel_pytree(model(unravel(v)))[0])(flat)


def check_everything(memory: int, dtype, held: bool, tolerance: float) -> None:
    model = collocation(memory)
    model = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, model)
    theta = jax.tree.map(lambda x: x.astype(dtype), THETA)
    flat, unravel = ravel_pytree(theta)
    rng = np.random.default_rng(3)
    root = {"one": rng.uniform(1.0, 2.0, 7), "flow": rng.uniform(1.0, 2.0, (5, 2))}
    root = jax.tree.map(lambda x: jnp.asarray(x, dtype), root)
    free = jnp.asarray(np.arange(P) % 3 != 1, dtype) if held else None
    v, u = (jnp.asarray(rng.normal(size=n), dtype) for n in (P, 17))
    found = everything(model, flat, unravel, root, free, v, u)
    Z = np.asarray(dense_jacobian(collocation(2**30), THETA))
    Y = np.asarray(ravel_pytree(root)[0], float)[:, None] * Z
    Y = Y if free is None else Y * np.asarray(free)
    expected = (Y, Y.T @ Y, Y @ Y.T, Y @ v, Y.T @ u, Y @ v)
    for result, wanted in zip(found, expected, strict=True):
        assert result.dtype == dtype
        close(result, wanted, tolerance)


@pytest.mark.parametrize(
    "name", with_slow(BLOCKS, ["one block", "three blocks", "a block a point"])
)
def test_blocks_of_rows_are_those_of_the_dense_jacobian(name: str):
    memory, counts = BLOCKS[name]
    model = collocation(memory)
    root = jax.tree.map(jnp.ones_like, model(THETA))
    rows = Rows(model, ravel_pytree(THETA)[1], FLAT, root)
    assert [len(rows._blocks(part.points, root)[0]) for part, root in rows._parts] == counts
    check_everything(memory, jnp.float64, held=name != "two blocks", tolerance=1e-13)


@pytest.mark.slow
def test_blocks_of_rows_in_single_precision():
    check_everything(BLOCKS["two blocks"][0] // 2, jnp.float32, held=True, tolerance=3e-6)


METRICS = {
    "L2": (pointwise, ng.L2(LINE)),
    "FisherRao": (pointwise, ng.FisherRao(LINE)),
    "Weights": (pointwise, Weights(jnp.linspace(1.0, 2.0, 9))),
    "Sum": (pointwise, ng.L2(LINE) + 0.3 * ng.FisherRao(LINE)),
    "Blocks": (collocation, ng.Blocks(flow=2.0 * ng.L2(), one=ng.L2() + ng.L2())),
    "Collocation": (collocation, collocation(1).metric),
}
SOLVERS = {"Cholesky": ng.Cholesky(), "Kernel": ng.Kernel()}


def square(state):
    """A loss on any state."""
    return sum(jnp.sum((leaf - 0.3) ** 2) for leaf in jax.tree.leaves(state))


def problem(make, memory: int) -> ng.Problem:
    return ng.Problem(make(memory), square)


def oracle(model, metric):
    """A diagonal, Z and ∂_ρ f, dense."""
    rho = model(THETA)
    A = np.asarray(ravel_pytree(metric.at(rho).diagonal)[0])
    return (
        A,
        np.asarray(dense_jacobian(model, THETA)),
        np.asarray(ravel_pytree(jax.grad(square)(rho))[0]),
    )


def system_of(problem: ng.Problem, metric: ng.metrics.Metric) -> type:
    """The class of system that is put together at θ."""
    return choose(Setup(problem, THETA, metric, ng.Cholesky()))[0]


PAIRS = [(solver, name) for solver in SOLVERS for name in METRICS]
FAST = [
    ("Cholesky", "Sum"),
    ("Kernel", "Collocation"),
]


@pytest.mark.parametrize(
    ("solver", "name"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in FAST)) for pair in PAIRS],
)
def test_a_direction_from_blocks_of_rows_is_the_dense_one(name: str, solver: str):
    make, metric = METRICS[name]
    model = make(2**30)
    assert system_of(ng.Problem(model, square), metric) is ByRows
    A, Z, c = oracle(model, metric)
    d = ng.natural_gradient(
        problem(make, 4 * 3 * ROW),
        THETA,
        metric=metric,
        solver=SOLVERS[solver],
        damping=AbsoluteDamping(LAMBDA),
    )
    G = Z.T @ (A[:, None] * Z)
    expected = -np.linalg.solve(G + LAMBDA * np.eye(P), Z.T @ c)
    close(ravel_pytree(d.eta)[0], expected, 1e-10)
    close(ravel_pytree(d.gradient)[0], Z.T @ c, 1e-12)
    share = (Z.T @ c) @ -expected / np.sum(c**2 / A)
    assert d.info.reachable == pytest.approx(share, rel=1e-10)
    assert d.info.solver == solver


class Keeping(ng.QR):
    """QR that keeps Y, b and r."""

    def prepare(self, Y, b, r):
        return super().prepare(Y, b, r), (Y, b, r)

    def solve(self, prepared, damping):
        return super().solve(prepared[0], damping)


DAMPING = ng.ParameterDamping(np.diag(np.linspace(1.0, 3.0, P)) + 0.1, strength=LAMBDA)


def held_box(gradient: np.ndarray) -> Bounds:
    """A box on whose sides parameters 0 and 4 lie, so that a descent would leave it."""
    lower, upper = np.full(P, -9.0), np.full(P, 9.0)
    for i in (0, 4):
        (lower if gradient[i] > 0 else upper)[i] = FLAT[i]
    return Bounds(jnp.asarray(lower), jnp.asarray(upper))


@pytest.mark.parametrize("name", ["FisherRao", "Collocation"])
def test_rows_and_columns_make_the_same_system(name: str):
    """With an operator D and bounds: Y, b and r of the same function as a plain model."""
    make, metric = METRICS[name]
    model = make(2**30)
    _, Z, c = oracle(model, metric)
    box = held_box(Z.T @ c)
    by_columns = ng.Problem(ng.models.Explicit(lambda t: model(t)), square)
    assert system_of(by_columns, metric) is Dense
    systems = []
    for one in (by_columns, problem(make, 2**30)):
        local = linearise(Setup(one, THETA, metric, Keeping(), DAMPING, box))
        np.testing.assert_array_equal(local.free, np.where(np.isin(np.arange(P), [0, 4]), 0, 1))
        systems.append((*local.prepared[1], local.gradient, local.trace, local.energy, local.loss))
    columns, rows = systems
    for found, expected in zip(rows, columns, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


FEWER = ng.Cholesky(), ng.Kernel(), ng.CG(1e-12)
MORE = ng.NystromKernel(rank=9), ng.LSMR(1e-12), ng.QR(), ng.PivotedQR(), ng.SVD()


@pytest.mark.parametrize("solver", with_slow([*FEWER, *MORE], MORE), ids=lambda s: s.name)
def test_every_solver_by_rows_with_an_operator_and_bounds(solver: ng.solvers.Solver):
    make, metric = METRICS["FisherRao"]
    model = make(2**30)
    A, Z, c = oracle(model, metric)
    box, free = held_box(Z.T @ c), ~np.isin(np.arange(P), [0, 4])
    local = linearise(Setup(problem(make, 2**30), THETA, metric, solver, DAMPING, box))
    eta = np.asarray(local.solve(jnp.asarray(LAMBDA)).eta)
    D = np.diag(np.linspace(1.0, 3.0, P)) + 0.1
    G = (Z.T @ (A[:, None] * Z) + LAMBDA * D)[np.ix_(free, free)]
    close(eta[free], -np.linalg.solve(G, (Z.T @ c)[free]), 1e-9)
    np.testing.assert_allclose(eta[~free], 0.0, atol=1e-15 * np.linalg.norm(eta))


def test_cholesky_takes_an_operator_and_bounds_from_blocks():
    make, metric = METRICS["Collocation"]
    A, Z, c = oracle(make(1), metric)
    box, free = held_box(Z.T @ c), ~np.isin(np.arange(P), [0, 4])
    local = linearise(Setup(problem(make, 4 * 3 * ROW), THETA, metric, ng.Cholesky(), DAMPING, box))
    eta = np.asarray(local.solve(jnp.asarray(LAMBDA)).eta)
    D = np.diag(np.linspace(1.0, 3.0, P)) + 0.1
    G = (Z.T @ (A[:, None] * Z) + LAMBDA * D)[np.ix_(free, free)]
    close(eta[free], -np.linalg.solve(G, (Z.T @ c)[free]), 1e-10)
    np.testing.assert_array_equal(eta[~free], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "solver"),
    [("Collocation", "Cholesky"), ("Sum", "Kernel")],
)
def test_a_run_with_little_memory_is_the_run_with_all_of_z(name: str, solver: str):
    make, metric = METRICS[name]
    runs = [
        ng.minimize(
            problem(make, memory),
            THETA,
            ng.NaturalGradient(
                metric,
                solver=SOLVERS[solver],
                damping=AbsoluteDamping(LAMBDA),
                step=ng.Backtracking(),
                order=2,
                momentum=0.3,
            ),
            stop=ng.Stop(iterations=4),
            bounds=(None, {"a": THETA["a"] + jnp.array([0.01, 9.0, 9.0]), "b": 9.0}),
        )
        for memory in (2**30, 4 * 2 * ROW)
    ]
    assert runs[0].loss < runs[0].history["loss"][0]
    np.testing.assert_allclose(runs[1].history["loss"], runs[0].history["loss"], rtol=1e-10)
    close(ravel_pytree(runs[1].theta)[0], ravel_pytree(runs[0].theta)[0], 1e-9)


PRECISE = [ng.Cholesky(), ng.Kernel(), ng.PivotedQR()]


@pytest.mark.parametrize("solver", with_slow(PRECISE, PRECISE[2:]), ids=str)
@pytest.mark.parametrize("single", ["theta", "state"])
def test_theta_and_state_may_differ_in_precision(single: str, solver, monkeypatch):
    monkeypatch.setattr("natgrad.errors._warned", {"float32"})
    lower = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)
    function = (lambda t, x: lower(positive(t, x))) if single == "state" else positive
    theta = lower(THETA) if single == "theta" else THETA
    _, Z, c = oracle(pointwise(1), ng.L2(LINE))
    expected = -np.linalg.solve(Z.T @ Z / 9 + LAMBDA * np.eye(P), Z.T @ c)
    memory = 2**30 if solver.name == "PivotedQR" else 4 * 3 * ROW
    model = ng.Pointwise(function, LINE.points, memory=memory)
    d = ng.natural_gradient(
        ng.Problem(model, square),
        theta,
        metric=ng.L2(LINE),
        solver=solver,
        damping=AbsoluteDamping(LAMBDA),
    )
    eta = ravel_pytree(d.eta)[0]
    assert eta.dtype == ravel_pytree(theta)[0].dtype
    close(eta, expected, 2e-4)


@pytest.mark.parametrize(
    ("damping", "metric", "held"),
    [
        (AbsoluteDamping(LAMBDA), ng.L2(LINE), 5 * 5),  # G or K is enough
        (Undamped(), ng.L2(LINE), 9 * 5),
        (AbsoluteDamping(LAMBDA), ng.Sobolev(LINE, 1), 9 * 5),  # Z by columns
    ],
    ids=["blocks", "undamped", "not diagonal"],
)
def test_auto_looks_at_what_would_be_held(monkeypatch, damping, metric, held: int):
    known = Evaluation(jax.ShapeDtypeStruct((9,), jnp.float64))
    given = problem(pointwise, 2**30), jnp.ones(5), metric, ng.Auto(), damping
    monkeypatch.setattr("natgrad.solvers.auto.DENSE_LIMIT", held * 8)
    assert choose(Setup(*given, known=known))[0] is not MatrixFree
    monkeypatch.setattr("natgrad.solvers.auto.DENSE_LIMIT", held * 8 - 1)
    system, solver = choose(Setup(*given, known=known))
    assert system is MatrixFree
    assert isinstance(solver, ng.CG)
