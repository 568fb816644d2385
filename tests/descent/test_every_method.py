"""What holds for every method and every step: a new one is a line in `cases`."""

import functools
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng
import natgrad.descent.run
from cases import BASIS, METHODS, ROSENBROCK, SOLVERS, START, STEPS, bent_entry
from problems_for_tests import compiled, with_slow

COUNT = 4
FAST = ("NaturalGradient", "levenberg_marquardt", "GradientDescent", "Newton", "LBFGS")
every_method = pytest.mark.parametrize("name", with_slow(METHODS, {*METHODS} - {*FAST}))


def run(method, count: int = COUNT, checkpoint=None) -> ng.Result:
    stop = ng.Stop(iterations=count, gradient=0.0)
    return ng.minimize(ROSENBROCK, START, method, stop=stop, checkpoint=checkpoint)


def step(method, theta, state):
    return method.step(ROSENBROCK, theta, state)


@every_method
def test_steps_descend_and_are_those_of_minimize(name: str):
    """Driven by `minimize`, and in a loop of one's own."""
    method = METHODS[name]
    result = run(method)
    assert result.iterations == COUNT
    assert np.all(np.diff(result.history["loss"]) < 0)
    check_steps(step, method, result)


# One of each kind of program: of one try, of tries until one is accepted, of no linear system.
FAST = ("NaturalGradient", "rejected steps", "LBFGS")


@pytest.mark.parametrize("name", with_slow(METHODS, set(METHODS) - {*FAST}))
def test_a_compiled_step_is_that_of_minimize(name: str):
    check_steps(eqx.filter_jit(step), METHODS[name], run(METHODS[name]))


def check_steps(iterate, method, result: ng.Result) -> None:
    theta, state, values = START, method.init(ROSENBROCK, START), []
    for _ in range(COUNT):
        theta, state, record = iterate(method, theta, state)
        values.append(float(record.value))
    np.testing.assert_allclose(theta, result.theta, rtol=1e-9)
    np.testing.assert_allclose(values, result.history["loss"][1:], rtol=1e-9)


@every_method
def test_a_run_in_two_parts_is_the_run_in_one(name: str, tmp_path):
    method, path = METHODS[name], tmp_path / "run.npz"
    run(method, 2, path)
    resumed, whole = run(method, checkpoint=path), run(method)
    np.testing.assert_array_equal(resumed.theta, whole.theta)
    np.testing.assert_array_equal(resumed.history["loss"], whole.history["loss"])


# --- budgets: no step is tried once one is spent, and what was not paid is no part of the run


class Counted:
    """Rosenbrock's residuals outside JAX, on a clock that stands still but for calls."""

    now = 0

    def call(self, value):
        """What a call has found, a second later."""
        self.now += 1
        return value

    def jacobian(self, theta):
        return np.array([[-20.0 * theta[0], 10.0], [-1.0, 0.0]])

    def model(self) -> ng.ExternalModel:
        return ng.ExternalModel(
            lambda t: self.call(np.array([10.0 * (t[1] - t[0] ** 2), 1.0 - t[0]])),
            lambda t, v: self.call(self.jacobian(t) @ v),
            lambda t, w: self.call(self.jacobian(t).T @ w),
        )


CLOCK = Counted()
SPENDING = METHODS | {
    "momentum": ng.NaturalGradient(ng.L2(), solver=ng.CG(1e-3, 3), damping=1e-2, momentum=0.5)
}
TARGET = ng.LeastSquares(jnp.array([0.3, -2.0, 1.0, 4.0, -1.0, 0.5]))
KINDS = {
    "in JAX": (
        ROSENBROCK,
        ("NaturalGradient", "rejected steps", "matrix-free", "Newton", "LBFGS"),
        None,
    ),
    "outside": (
        ng.Problem(CLOCK.model(), ng.LeastSquares(jnp.zeros(2))),
        ("NaturalGradient", "rejected steps", "matrix-free", "LBFGS", "momentum"),
        None,
    ),
    "batches": (
        ng.Problem(ng.Pointwise(bent_entry, BASIS), TARGET),
        ("NaturalGradient", "rejected steps", "spring"),
        ng.MiniBatch(3, seed=1),
    ),
}
EXACT = ("Cholesky", "QR", "PivotedQR", "SVD", "Kernel", "CG", "LSMR")
ENTRIES = [(kind, name) for kind, (_, names, _) in KINDS.items() for name in names]


def spend(kind: str, name: str, seed: int, checkpoint=None, **budget) -> ng.Result:
    """At most five iterations, on a clock that the test turns."""
    problem, _, batch = KINDS[kind]
    size = 3 if kind == "batches" else 2
    theta = START if seed == 0 else np.random.default_rng(seed).normal(size=size)
    CLOCK.now, asked = 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(natgrad.descent.run, "time", SimpleNamespace(perf_counter=lambda: CLOCK.now))
        result = ng.minimize(
            *(problem, jnp.asarray(theta), SPENDING[name]),
            stop=ng.Stop(iterations=5, gradient=0.0, **budget),
            batch=batch,
            callbacks=[lambda progress: CLOCK.call(asked.append(1))],
            checkpoint=checkpoint,
        )
    if kind == "outside" and checkpoint is None:  # every call is counted, and once
        assert CLOCK.now == len(asked) + result.spent("propagations")[-1]
    return result


spend_all = functools.cache(spend)


def check_budget(kind: str, name: str, seed: int, means: str, share: float) -> None:
    """Zero means no step; a run that goes on with more to spend is the one that had it at once."""
    whole = spend_all(kind, name, seed)
    spent, counts = whole.spent(means), whole.spent("propagations")
    budget = int(share * (spent[-1] + 2))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        cut = spend(kind, name, seed, path, **{means: budget})
        again = spend(kind, name, seed, path, **{means: budget})
        resumed = spend(kind, name, seed, path)
    count, taken = cut.iterations, whole.history["step"] > 0
    begun = np.sum(spent[taken] < budget)
    rejected = cut.history["step"][-1] == 0  # tries have spent the rest
    assert count == begun or (rejected and count == begun - 1)
    assert cut.status == f"max_{means}" or cut.status == whole.status
    once = np.max(np.diff(spent), initial=spent[0])  # the most that a try or a gradient takes
    assert cut.spent(means)[-1] <= max(budget - 1, 0) + once + 1
    if budget == 0:
        assert count == 0
    for one, other in ((cut, again), (resumed, whole)):
        np.testing.assert_array_equal(one.theta, other.theta)
        np.testing.assert_array_equal(one.history["loss"], other.history["loss"])
        np.testing.assert_array_equal(one.spent("propagations"), other.spent("propagations"))
    rows = len(cut.history["loss"]) - 1
    np.testing.assert_array_equal(cut.history["loss"][:rows], whole.history["loss"][:rows])
    np.testing.assert_array_equal(cut.spent("propagations")[:rows], counts[:rows])


@pytest.mark.parametrize("solver", with_slow(EXACT, {*EXACT} - {"Cholesky", "QR"}))
def test_a_second_run_with_a_model_outside_jax_compiles_nothing(solver: str):
    """Each try of a direct solver compiled its branches anew, which took seconds."""
    method = ng.NaturalGradient(ng.L2(), solver=SOLVERS[solver], damping=1e-3)
    stop = ng.Stop(iterations=2, gradient=0.0)
    losses = []
    for _ in range(2):
        with compiled() as names:
            losses.append(ng.minimize(KINDS["outside"][0], START, method, stop=stop).loss)
    assert names == []
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", ["in JAX", "outside"])
def test_a_budget_ends_a_run_before_a_try_and_does_not_change_its_path(kind: str):
    for means, share in (("propagations", 0.0), ("propagations", 0.6), ("seconds", 0.0)):
        check_budget(kind, "rejected steps", 0, means, share)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    entry=st.sampled_from(ENTRIES),
    seed=st.integers(1, 3),
    means=st.sampled_from(["propagations", "seconds"]),
    share=st.floats(0.0, 1.0),
)
def test_no_run_spends_more_than_its_budget_and_a_try(entry, seed, means, share):
    check_budget(*entry, seed, means, share)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_decreases_the_loss(name: str):
    result = run(ng.NaturalGradient(ng.L2(), step=STEPS[name]))
    assert result.iterations == COUNT
    assert np.all(np.diff(result.history["loss"]) < 0)
