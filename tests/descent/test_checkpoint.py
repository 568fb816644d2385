"""Checkpoints and saved results: the same run after any interruption, refusals, whole files."""

import os
import subprocess
import sys
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import settings
from hypothesis import strategies as st

import killed_run
import natgrad as ng
from natgrad.core.archive import read_archive, replace_file, write_archive
from natgrad.core.settings import replace_fields
from problems_for_tests import assert_same, with_slow

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


@pytest.mark.parametrize("name", with_slow(METHODS, ["CG", "momentum"]))
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
    assert f"kept in {path}: the same call resumes it" in stopped.value.__notes__[0]
    assert read_archive(path, "checkpoint")[0]["iteration"] == 3
    assert_same(run("LM"), run("LM", checkpoint=path))


def test_a_run_without_a_file_begins_before_it_is_known(tmp_path, monkeypatch):
    path, seen = tmp_path / "run.npz", []
    module = sys.modules["natgrad.descent.minimize"]
    identify = module.identify

    def watch(*args, **kwargs):
        seen.append("known")
        return identify(*args, **kwargs)

    monkeypatch.setattr(module, "identify", watch)
    note = lambda progress: seen.append(progress.iteration)
    run("LM", 3, checkpoint=path, callbacks=[note])
    assert seen == [1, "known", 2, 3]
    run("LM", 5, checkpoint=path, callbacks=[note])
    assert seen[4:] == ["known", 4, 5]
    with pytest.raises(ng.InputError, match="differs in its method"):
        run("gradient", 9, checkpoint=path, callbacks=[note])
    assert seen[7:] == ["known"]


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
    "order": lambda path: ng.minimize(
        PROBLEM, THETA0, replace_fields(METHODS["LM"], order=3), checkpoint=path
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
    with pytest.raises(ng.InputError, match=f"differs in its .*{name}|memory") as refused:
        CHANGES[name](path)
    assert not getattr(refused.value, "__notes__", [])  # the same call would not resume it
    assert path.read_bytes() == before


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
    run("gradient", 2, checkpoint=path)
    content = path.read_bytes()
    go = lambda: run("gradient", 4, checkpoint=path)
    return path, go, go(), content


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


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 20])
def test_a_killed_run_ends_in_the_same_theta(tmp_path, kills):
    command = [sys.executable, killed_run.__file__, str(tmp_path / "run.npz"), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = done.stdout.splitlines()
    assert set(ends) == {killed_run.run(None)}


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


def test_a_key_among_the_leaves_is_kept_and_seen(tmp_path):
    model = lambda t: t["w"] * (1 + jax.random.key_data(t["key"])[1] / 7)
    problem = ng.Problem(model, ng.LeastSquares(jnp.zeros(2)))
    theta, path = {"w": jnp.ones(2), "key": jax.random.key(3)}, tmp_path / "c.npz"
    runs = [ng.minimize(problem, theta, ng.GradientDescent(), checkpoint=path) for _ in range(2)]
    assert runs[0].status == runs[1].status
    other = theta | {"key": jax.random.key(4)}
    with pytest.raises(ng.InputError, match="differs in its theta0"):
        ng.minimize(problem, other, ng.GradientDescent(), checkpoint=path)
