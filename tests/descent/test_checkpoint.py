"""Checkpoints and saved results: the same run after any interruption, refusals, whole files."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import killed_run
import natgrad as ng
from natgrad.core.archive import read_archive, replace_file, write_archive
from natgrad.identity import digest

GRID = ng.Grid((-1.0,), (1.0,), (40,))
THETA0 = {"centre": jnp.array(0.5), "rest": (jnp.array([0.7, 0.2]),)}


def bump(theta):
    x = GRID.points[:, 0]
    width, height = theta["rest"][0]
    return (1.0 + height) * jnp.exp(-((x - theta["centre"]) ** 2) / (0.1 + width**2))


TARGET = bump({"centre": jnp.array(-0.2), "rest": (jnp.array([0.4, 0.6]),)})
PROBLEM = ng.Problem(bump, ng.LeastSquares(TARGET, GRID))
METRIC = ng.L2(GRID)
METHODS = {
    "LM": ng.NaturalGradient(METRIC, damping=ng.LevenbergMarquardt()),
    "CG": ng.NaturalGradient(METRIC, solver=ng.CG(tolerance=0.0, max_iterations=2), damping=1e-6),
    "momentum": ng.NaturalGradient(METRIC, damping=1e-2, momentum=0.5),
    "batch": ng.NaturalGradient(METRIC, damping=1e-2),
    "gradient": ng.GradientDescent(step=ng.FixedStep(0.3)),
}
TOTAL = 9


def run(name, iterations=TOTAL, checkpoint=None, callbacks=()):
    return ng.minimize(
        PROBLEM,
        THETA0,
        METHODS[name],
        stop=ng.Stop(iterations=iterations, gradient=0.0),
        batch=ng.MiniBatch(12, seed=3) if name == "batch" else None,
        checkpoint=checkpoint,
        callbacks=callbacks,
    )


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one.theta), jax.tree.leaves(other.theta), strict=True):
        assert np.array_equal(a, b)
    assert one.status == other.status
    assert one.iterations == other.iterations
    assert one.loss == other.loss
    for name, column in one.history.items():
        if name != "seconds":
            assert np.array_equal(column, other.history[name], equal_nan=True), name


@pytest.mark.parametrize("name", METHODS)
def test_a_run_in_two_parts_is_the_run_in_one(name, tmp_path):
    path = tmp_path / "run.npz"
    run(name, 4, checkpoint=path)
    resumed = run(name, checkpoint=path)
    assert_same(run(name), resumed)
    assert_same(run(name, checkpoint=path), resumed)  # nothing is left to do


def test_ctrl_c_leaves_a_checkpoint_of_the_last_whole_iteration(tmp_path):
    path = tmp_path / "run.npz"

    def interrupt(progress):
        if progress.iteration == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        run("LM", checkpoint=path, callbacks=[interrupt])
    assert f"kept in {path}: the same call goes on" in stopped.value.__notes__[0]
    assert read_archive(path, "checkpoint")[0]["iteration"] == 3
    assert_same(run("LM"), run("LM", checkpoint=path))


def test_a_run_that_reached_its_goal_stays_there(tmp_path):
    path = tmp_path / "run.npz"
    go = lambda: ng.minimize(
        PROBLEM,
        THETA0,
        ng.NaturalGradient(METRIC, damping=ng.LevenbergMarquardt()),
        checkpoint=path,
    )
    first = go()
    assert first.status == "converged"
    assert_same(first, go())


def test_lbfgs_is_replayed_without_a_propagation(tmp_path):
    path, calls = tmp_path / "run.npz", []
    go = lambda budget, checkpoint=None: ng.minimize(
        PROBLEM,
        THETA0,
        ng.LBFGS(10),
        stop=ng.Stop(propagations=budget),
        checkpoint=checkpoint,
        callbacks=[lambda progress: calls.append(progress.iteration)],
    )
    whole = go(60)
    go(20, path)
    resumed = go(60, path)
    assert_same(whole, resumed)
    assert np.all(np.diff(resumed.history["seconds"]) >= 0)
    before = path.read_bytes()
    go(20, ng.Checkpoint(path, seconds=0.0))  # ends before all is replayed
    assert path.read_bytes() == before


CHANGES = {
    "theta0": lambda path: ng.minimize(
        PROBLEM, {**THETA0, "centre": jnp.array(0.4)}, METHODS["LM"], checkpoint=path
    ),
    "damping": lambda path: ng.minimize(
        PROBLEM, THETA0, ng.NaturalGradient(METRIC), checkpoint=path
    ),
    "metric": lambda path: ng.minimize(
        PROBLEM, THETA0, METHODS["LM"].map_metric(lambda _: ng.Sobolev(GRID, 1)), checkpoint=path
    ),
    "problem": lambda path: ng.minimize(
        ng.Problem(bump, ng.LeastSquares(1.1 * TARGET, GRID)),
        THETA0,
        METHODS["LM"],
        checkpoint=path,
    ),
    "method": lambda path: ng.minimize(
        PROBLEM, THETA0, ng.LBFGS(10), stop=ng.Stop(iterations=1000), checkpoint=path
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_checkpoint_of_another_run_is_refused_by_name(name, tmp_path):
    path = tmp_path / "run.npz"
    run("LM", 2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ng.InputError, match=f"belongs to a run with another .*{name}|memory"):
        CHANGES[name](path)
    assert path.read_bytes() == before


# --- a problem is known by what it does -----------------------------------------------------------

MATRIX = np.random.default_rng(0).standard_normal((12, 3))


class Linear(eqx.Module):
    """θ ↦ Mθ; M is a leaf, so that another one compiles nothing."""

    matrix: jax.Array

    def __call__(self, theta):
        return self.matrix @ theta


class Size(eqx.Module):
    """w‖θ‖²."""

    weight: jax.Array

    def __call__(self, theta):
        return self.weight * jnp.sum(theta**2)


def linear(matrix=MATRIX, target=np.ones(12), weight=0.0, objective=False):
    """½‖Mθ − y‖² + w‖θ‖²: f(0) sees neither M nor w, nor the sign of y."""
    model, loss = Linear(jnp.asarray(matrix)), ng.LeastSquares(jnp.asarray(target))
    if objective:
        return ng.Problem(model, objective=lambda theta: loss(model(theta)))
    return ng.Problem(model, loss, regulariser=Size(jnp.asarray(weight)))


def other_matrix(row=0, column=0, by=1.0):
    changed = MATRIX.copy()
    changed[row, column] += by
    return changed


def external(matrix):
    products = lambda t: matrix @ t, lambda t, v: matrix @ v, lambda t, w: matrix.T @ w
    return ng.Problem(ng.ExternalModel(*products), ng.LeastSquares(jnp.ones(12)))


def given(diagonal, place):
    """A method that has an operator without content of its own, as a metric or a preconditioner."""
    operator = aslinearoperator(np.diag(diagonal))
    if place == "metric":
        return ng.NaturalGradient(ng.FactorMetric(operator), step=ng.FixedStep(0.1))
    solver = ng.CG(max_iterations=1, preconditioner=operator)
    return ng.NaturalGradient(ng.L2(), solver=solver, step=ng.FixedStep(0.1))


L2 = ng.NaturalGradient(ng.L2())
OTHERS = {
    "regulariser": ("problem", (linear(), L2), (linear(weight=10.0), L2)),
    "target": ("problem", (linear(), L2), (linear(target=-np.ones(12)), L2)),
    "model": ("problem", (linear(), L2), (linear(other_matrix()), L2)),
    "metric": (
        *("metric", (linear(), given(np.ones(12), "metric"))),
        (linear(), given(np.linspace(1.0, 100.0, 12), "metric")),
    ),
}
SLOW_OTHERS = {
    "L-BFGS": ("problem", (linear(), ng.LBFGS()), (linear(weight=10.0), ng.LBFGS())),
    "objective": (
        *("problem", (linear(objective=True), ng.GradientDescent())),
        (linear(other_matrix(), objective=True), ng.GradientDescent()),
    ),
    "outside": ("problem", (external(MATRIX), L2), (external(other_matrix()), L2)),
    "preconditioner": (
        *("solver", (linear(), given(np.ones(3), "solver"))),
        (linear(), given(np.array([1.0, 1.0, 5.0]), "solver")),
    ),
}


@pytest.mark.parametrize(
    "case", [*OTHERS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_OTHERS)]
)
def test_a_problem_that_does_something_else_is_another(case, tmp_path):
    name, one, other = (OTHERS | SLOW_OTHERS)[case]
    go = lambda pair, n: ng.minimize(
        *(pair[0], jnp.zeros(3), pair[1]),
        stop=ng.Stop(iterations=n),
        checkpoint=tmp_path / "run.npz",
    )
    go(one, 1)
    with pytest.raises(ng.InputError, match=f"belongs to a run with another {name}"):
        go(other, 2)
    go(one, 2)


def test_a_comparison_goes_on_with_its_own_problem_only(tmp_path):
    go = lambda weight: ng.compare(
        linear(weight=weight), jnp.zeros(3), {"L²": L2}, folder=tmp_path, stop=ng.Stop(iterations=2)
    )
    go(0.0)
    assert go(0.0).results["L²"].converged
    with pytest.raises(ng.InputError, match="another problem"):
        go(10.0)


@pytest.mark.slow
def test_a_model_that_is_defined_at_theta0_alone_has_checkpoints(tmp_path):
    def forward(theta):
        if np.any(theta > 0):
            raise RuntimeError("out of range")
        return MATRIX @ theta

    model = ng.ExternalModel(forward, lambda t, v: MATRIX @ v, lambda t, w: MATRIX.T @ w)
    problem = ng.Problem(model, ng.LeastSquares(jnp.asarray(-MATRIX @ np.ones(3))))
    go = lambda: ng.minimize(problem, jnp.zeros(3), L2, checkpoint=tmp_path / "run.npz")
    assert_same(go(), go())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given_by_hypothesis(
    place=st.tuples(st.integers(0, 11), st.integers(0, 2)),
    by=st.sampled_from([-3.0, 1e-2, 0.5]),
    what=st.sampled_from(["matrix", "target", "weight", "nothing"]),
    method=st.sampled_from([L2, ng.LBFGS(), ng.GradientDescent()]),
    start=st.sampled_from([0.0, 1.0]),
)
def test_any_other_problem_is_refused_and_the_same_goes_on(place, by, what, method, start):
    change = {
        "matrix": {"matrix": other_matrix(*place, by)},
        "target": {"target": np.ones(12) + by * np.eye(12)[place[0]]},
        "weight": {"weight": abs(by)},
        "nothing": {},
    }[what]
    with tempfile.TemporaryDirectory() as folder:
        go = lambda problem: ng.minimize(
            *(problem, jnp.full(3, start), method),
            stop=ng.Stop(iterations=2),
            checkpoint=Path(folder) / "run.npz",
        )
        first = go(linear())
        if what == "nothing":
            assert_same(first, go(linear()))
        else:
            with pytest.raises(ng.InputError, match="another problem"):
                go(linear(**change))


@pytest.mark.parametrize("method", ["LM", "gradient", "L-BFGS"])
def test_a_run_that_reached_its_goal_goes_on_to_a_farther_one(method, tmp_path):
    method = ng.LBFGS(10) if method == "L-BFGS" else METHODS[method]
    go = lambda checkpoint, **goal: ng.minimize(
        PROBLEM, THETA0, method, stop=ng.Stop(iterations=25, **goal), checkpoint=checkpoint
    )
    goals = {
        "gradient": ({"gradient": 0.5}, {"gradient": 1e-2}),
        "loss": ({"loss": 0.05, "gradient": 0.0}, {"loss": 1e-3, "gradient": 0.0}),
        "step": ({"step": 1.0, "gradient": 0.0}, {"step": 1e-3, "gradient": 0.0}),
    }
    for name, (near, far) in goals.items():
        path = tmp_path / f"{name}.npz"
        assert go(path, **near).iterations < go(None, **far).iterations
        farther = go(path, **far)
        assert_same(go(None, **far), farther)
        assert_same(go(path, **near), farther)  # a nearer goal has been reached


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text", "result"])
def test_a_damaged_checkpoint_is_refused_and_left_alone(damage, tmp_path):
    path = tmp_path / "run.npz"
    run("LM", 2, checkpoint=path)
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    bad = {"truncated": content[:-40], "flipped": content, "empty": b"", "text": b"hello"}
    if damage == "result":
        run("LM", 2).save(path)
    else:
        path.write_bytes(bytes(bad[damage]))
    before = path.read_bytes()
    with pytest.raises(ng.InputError, match=r"path: .*run\.npz"):
        run("LM", checkpoint=path)
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def kept_run(tmp_path_factory):
    """A run that goes on from its file, what it ends with, and what is in the file before."""
    path = tmp_path_factory.mktemp("kept") / "run.npz"
    go = lambda iterations, method=ng.GradientDescent(step=ng.FixedStep(1e-3)): ng.minimize(
        *(linear(), jnp.zeros(3), method), stop=ng.Stop(iterations=iterations), checkpoint=path
    )
    go(2)
    content = path.read_bytes()
    return path, lambda: go(4), go(4), content


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given_by_hypothesis(data=st.data())
def test_any_damage_is_refused_or_does_no_harm(data, kept_run):
    path, go, whole, content = kept_run
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.sampled_from([0, 1, 2, 8, 10**6]))
        content[at : at + length] = data.draw(st.binary(max_size=8))
    path.write_bytes(content)
    with suppress(ng.InputError):
        assert_same(whole, go())


def test_a_full_disk_ends_no_run_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    run("LM", 2, checkpoint=path)
    before, whole = path.read_bytes(), run("LM")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        resumed = run("LM", checkpoint=ng.Checkpoint(path, seconds=0.0))
    assert_same(whole, resumed)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]  # nothing half-written is left


@pytest.mark.parametrize(
    ("given", "message"),
    [(3.0, "is a float"), ("folder", "is a folder"), (lambda: 0, "is a function")],
)
def test_what_is_no_path_is_refused(given, message, tmp_path):
    given = tmp_path if given == "folder" else given
    with pytest.raises(ng.InputError, match=message):
        run("LM", checkpoint=given)
    with pytest.raises(ng.InputError, match=r"seconds: -1.0 is not finite and nonnegative"):
        ng.Checkpoint(tmp_path / "a", seconds=-1.0)


def start(path: Path) -> subprocess.Popen:
    command = [sys.executable, killed_run.__file__, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ends_the_same(path: Path, kills: int, seed: int) -> None:
    """Kill at random moments after a first checkpoint, as often, and let the last one finish."""
    random = np.random.default_rng(seed)
    for _ in range(kills):
        process, before = start(path), path.stat().st_mtime_ns if path.exists() else 0
        while process.poll() is None:
            if path.exists() and path.stat().st_mtime_ns != before:
                time.sleep(float(random.uniform(0.0, 1.0)))
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert start(path).communicate(timeout=120)[0].strip() == killed_run.run(None)


def test_a_killed_run_ends_in_the_same_theta(tmp_path):
    ends_the_same(tmp_path / "run.npz", kills=1, seed=0)


@pytest.mark.slow
def test_fifty_killed_runs_end_in_the_same_theta(tmp_path):
    ends_the_same(tmp_path / "run.npz", kills=50, seed=1)


# --- saved results and the file format ------------------------------------------------------------


def test_a_saved_result_is_the_result(tmp_path):
    path = tmp_path / "result.npz"
    result = run("LM")
    result.save(path)
    assert_same(result, ng.load_result(path, like=THETA0))
    assert set(ng.load_result(path).theta) == {"['centre']", "['rest'][0]"}
    assert repr(ng.load_result(path).info) == repr(result.info)
    with pytest.raises(ng.InputError, match="other leaves"):
        ng.load_result(path, like={"centre": jnp.array(0.0)})
    with pytest.raises(ng.InputError, match="there is no file"):
        ng.load_result(tmp_path / "none.npz")


def test_every_type_of_array_comes_back(tmp_path):
    arrays = {
        "bfloat16": jnp.arange(3, dtype=jnp.bfloat16),
        "key": jax.random.key(7),
        "bool": np.array([True, False]),
        "complex": np.array([1 + 2j]),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": jnp.array(2.0, jnp.float32),
    }
    write_archive(tmp_path / "a.npz", "test", {"x": [1.5, None]}, arrays)
    values, found = read_archive(tmp_path / "a.npz", "test")
    assert values == {"x": [1.5, None]}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
    assert jax.random.uniform(found["key"]) == jax.random.uniform(arrays["key"])
    assert np.array_equal(found["bfloat16"], arrays["bfloat16"])


def test_a_file_is_replaced_in_one_move(tmp_path):
    path = tmp_path / "folder" / "file"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def closure(number, array, flag, text):
    data = {"a": jnp.asarray(array), "b": [number, {text, "x"}]}
    inner = lambda theta: theta * data["a"][0] + len(data["b"][1])
    return functools.partial(lambda scale, theta: scale * inner(theta) if flag else theta, number)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given_by_hypothesis(data=st.data())
def test_functions_are_told_apart_by_their_data(data):
    values = st.tuples(
        st.integers(0, 2),
        st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=2),
        st.booleans(),
        st.sampled_from("xy"),
    )
    one, other = data.draw(values), data.draw(values)
    inside = lambda value: digest(closure(*value), inside=True)
    assert inside(one) == inside(one)
    assert (inside(one) == inside(other)) == (one == other)


def test_a_function_is_its_code_and_what_it_refers_to():
    inside = functools.partial(digest, inside=True)
    assert inside(lambda x: x + 1) == inside(lambda x: x + 1)
    assert inside(lambda x: x + 1) != inside(lambda x: x + 2)
    assert inside(lambda x: x + 1) != inside(lambda x: x - 1)
    assert inside(linear()) == inside(linear())
    assert inside(linear()) != inside(linear(other_matrix()))
    assert inside(closure(1, [1.0], True, "x")) != inside(closure(1, [0.0], True, "x"))
    assert inside(jax.jit(lambda x: x + 1)) != inside(jax.jit(lambda x: x + 2))
    assert inside(np.ones(3).__add__) == inside(np.ones(3).__add__)


def test_a_key_among_the_leaves_is_kept_and_seen(tmp_path):
    model = lambda t: t["w"] * (1 + jax.random.uniform(t["key"]))
    problem = ng.Problem(model, ng.LeastSquares(jnp.zeros(2)))
    theta, path = {"w": jnp.ones(2), "key": jax.random.key(3)}, tmp_path / "c.npz"
    runs = [ng.minimize(problem, theta, ng.GradientDescent(), checkpoint=path) for _ in range(2)]
    assert runs[0].status == runs[1].status
    other = theta | {"key": jax.random.key(4)}
    with pytest.raises(ng.InputError, match="another theta0"):
        ng.minimize(problem, other, ng.GradientDescent(), checkpoint=path)


def test_a_digest_sees_values_and_structure_but_no_addresses():
    assert digest(ng.CG(1e-3)) == digest(ng.CG(1e-3))
    assert digest(ng.CG(1e-3)) != digest(ng.CG(1e-4))
    assert digest((bump, 1)) == digest((bump, 1))
    assert digest(THETA0) != digest({**THETA0, "centre": jnp.array(0.4)})
