"""What a run is known by: problems by what they do, functions by their code and data."""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import natgrad as ng
from natgrad.devices import Devices
from natgrad.identity import digest
from problems_for_tests import assert_same

MATRIX = np.random.default_rng(0).standard_normal((12, 3))


class Linear(eqx.Module):
    """θ ↦ Mθ; M is a leaf, so that another one compiles nothing."""

    matrix: jax.Array

    def __call__(self, theta):
        return self.matrix @ theta


class Ramp(eqx.Module):
    """θ ↦ θx."""

    x: jax.Array

    def __call__(self, theta):
        return theta * self.x


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
    with pytest.raises(ng.InputError, match=f"a run that differs in its {name}"):
        go(other, 2)
    go(one, 2)


@pytest.mark.slow
def test_one_value_of_a_million_is_another_target(tmp_path):
    x = jnp.linspace(0.0, 1.0, 10**6)
    go = lambda target: ng.minimize(
        ng.Problem(Ramp(x), ng.LeastSquares(target)),
        *(jnp.zeros(()), ng.GradientDescent(step=ng.FixedStep(1e-7))),
        stop=ng.Stop(iterations=1),
        checkpoint=tmp_path / "run.npz",
    )
    go(x)
    with pytest.raises(ng.InputError, match="differs in its problem"):
        go(x.at[7].add(0.1))


def test_a_comparison_goes_on_with_its_own_problem_only(tmp_path):
    go = lambda weight: ng.compare(
        linear(weight=weight), jnp.zeros(3), {"L²": L2}, folder=tmp_path, stop=ng.Stop(iterations=2)
    )
    go(0.0)
    assert go(0.0).results["L²"].converged
    with pytest.raises(ng.InputError, match="differs in its problem"):
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
            with pytest.raises(ng.InputError, match="differs in its problem"):
                go(linear(**change))


class Settings:
    """A class of a user, of which nothing is known."""

    def __init__(self, **given):
        self.__dict__ |= given

    def scale(self, theta):
        return self.factor * theta  # pyright: ignore


class Held(eqx.Module):
    """A function that is no leaf."""

    function: Any = eqx.field(static=True)

    def __call__(self, theta):
        return self.function(theta)


GLOBAL = 0.0


def closure(number, array, flag, text):
    """The same four values, in every place that a function may have them from."""
    data = {"a": jnp.asarray(array), "b": [number, {text, "x"}]}
    long = np.zeros(5000)
    long[2500] = number
    inner = lambda theta: theta * data["a"][0] + len(data["b"][1])
    bound = Settings(factor=long, more=(flag, text)).scale
    held = Held(eqx.filter_jit(lambda theta, *, flag=flag: theta if flag else number * theta))
    chosen = jnp.sin if flag else jnp.cos
    return [
        functools.partial(lambda scale, theta: scale * inner(theta) if flag else theta, number),
        jax.vmap(bound, in_axes=int(flag)),
        Settings(inner=inner, held=held, chosen=chosen),
    ]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given_by_hypothesis(data=st.data(), place=st.integers(0, 2))
def test_functions_are_told_apart_by_their_data(data, place):
    values = st.tuples(
        st.integers(0, 2),
        st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=2),
        st.booleans(),
        st.sampled_from("xy"),
    )
    one, other = data.draw(values), data.draw(values)
    # what each of them refers to
    part = (lambda v: v, lambda v: (v[0], v[2:]), lambda v: v)[place]
    inside = lambda value: digest(closure(*value)[place], inside=True)
    assert inside(one) == inside(one)
    assert (inside(one) == inside(other)) == (part(one) == part(other))


def test_a_function_is_its_code_and_what_it_refers_to(monkeypatch):
    inside = functools.partial(digest, inside=True)
    assert inside(lambda x: x + 1) == inside(lambda x: x + 1)
    assert inside(lambda x: x + 1) != inside(lambda x: x + 2)
    assert inside(lambda x: x + 1) != inside(lambda x: x - 1)
    assert inside(linear()) == inside(linear())
    assert inside(linear()) != inside(linear(other_matrix()))
    assert inside(closure(1, [1.0], True, "x")) != inside(closure(1, [0.0], True, "x"))
    assert inside(jax.jit(lambda x: x + 1)) != inside(jax.jit(lambda x: x + 2))
    assert inside(np.ones(3).__add__) == inside(np.ones(3).__add__)
    assert inside(lambda x: jnp.sin(x)) != inside(lambda x: jnp.cos(x))
    assert inside(jax.vmap(closure, 0)) != inside(jax.vmap(closure, 1))
    nested, found = (lambda x: jax.vmap(lambda y: GLOBAL * y)(x)), set()
    for value in (1.0, 2.0, 2.0):
        monkeypatch.setattr(sys.modules[__name__], "GLOBAL", value)
        found.add(inside(nested))
    assert len(found) == 2


@pytest.mark.slow
def test_a_digest_does_not_hang_on_the_seed_of_hashes():
    """Sets stand in the order of hashes, which another process has otherwise."""
    code = (
        "from natgrad.identity import digest;"
        "given = [lambda x: x in {'a', 'b', 'c', 'd'}, {('x', frozenset('yz'))}];"
        "print(digest(given, inside=True))"
    )
    run = lambda seed: subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    )
    assert len({run(seed).stdout for seed in "12"}) == 1


ARGUMENTS = {  # of `minimize`, each with others that are not equal to it
    "problem": [linear(), linear(other_matrix()), linear(target=np.zeros(12)), linear(weight=1.0)],
    "theta0": [jnp.zeros(3), jnp.ones(3), {"a": jnp.zeros(3)}, jnp.zeros(3, jnp.float32)],
    "method": [L2, ng.LBFGS(), ng.NaturalGradient(ng.L2(), damping=1e-3), None],
    "bounds": [None, (0.0, 1.0), (0.0, 2.0), (None, 1.0)],
    "stop": [ng.Stop(), ng.Stop(iterations=9), ng.Stop(seconds=1.0), ng.Stop(loss=0.0)],
    "batch": [None, ng.MiniBatch(3), ng.MiniBatch(3, seed=1), ng.Resampled(other_matrix)],
    "held_out": [
        *(None, linear(), ng.descent.HeldOut(linear())),
        ng.descent.HeldOut(linear(weight=1.0)),
    ],
    "checkpoint": [False, True],
    "snapshots": [None, 1, 2],
}
CHOICES = st.fixed_dictionaries(
    {name: st.sampled_from(range(len(values))) for name, values in ARGUMENTS.items()}
)


class Met(Devices):
    """One of two processes, with what the other has said."""

    others: dict[str, str] | None = None
    _alone = False

    def _exchange(self, mine):
        Met.others = mine if Met.others is None else Met.others
        return [mine, Met.others]


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given_by_hypothesis(first=CHOICES, other=CHOICES, changed=st.sets(st.sampled_from([*ARGUMENTS])))
def test_processes_with_any_argument_different_are_told_so(first, other, changed):
    Met.others, devices = None, Met.over(jax.make_mesh((1,), ("devices",)))
    given = lambda choice: [values[choice[name]] for name, values in ARGUMENTS.items()]
    check = lambda problem, theta, *rest: devices.check(
        problem, theta, **dict(zip([*ARGUMENTS][2:], rest, strict=True))
    )
    check(*given(first))
    second = {name: (other if name in changed else first)[name] for name in ARGUMENTS}
    for name in ARGUMENTS:
        if first[name] != second[name]:
            with pytest.raises(ng.InputError, match=f"{name}: differs from process to process"):
                check(*given(second))
            return
    check(*given(second))


def test_a_digest_sees_values_and_structure_but_no_addresses():
    assert digest(ng.CG(1e-3)) == digest(ng.CG(1e-3))
    assert digest(ng.CG(1e-3)) != digest(ng.CG(1e-4))
    assert digest((closure, 1)) == digest((closure, 1))
    assert digest({"a": jnp.zeros(2)}) != digest({"a": jnp.ones(2)})
