"""Vector code of our own on a CPU against XLA: every mode, and where XLA runs instead."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from kernel_cases import check, check_a_source, everything, make
from natgrad import waves
from natgrad.core import llvm
from natgrad.waves import kernels_cpu, propagation
from natgrad.waves.run_code import Task
from natgrad.waves.scheme import LARGE, Medium
from natgrad.waves.step_code import Grid

needs_llvm = pytest.mark.skipif(llvm.missing() is not None, reason="needs llvmlite")
pytestmark = pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")

slow = partial(pytest.param, marks=pytest.mark.slow)
BETWEEN = {"on_grid": False, "shape": (29, 41), "every": 1, "absorbing": 5, "steps": 70}
CASES = [
    pytest.param(BETWEEN, id="between cells"),
    pytest.param(BETWEEN | {"stored_as": jnp.bfloat16}, id="bfloat16"),
    slow({"order": 8, "dtype": jnp.float32, "steps": 70}, id="order 8, single precision"),
    slow({"order": 8, "on_grid": False, "absorbing": 0}, id="no layer"),
    slow({"shape": (160, 131), "absorbing": 11, "dtype": jnp.float32}, id="filled rows"),
    slow({"shape": (150, 181), "order": 8, "every": 2, "on_grid": False}, id="strips"),
    slow(
        {"shape": (160, 131), "stored_as": jnp.bfloat16, "dtype": jnp.float32}, id="bfloat16, rows"
    ),
]


@pytest.fixture
def ran(monkeypatch):
    """The modes that our code has run."""
    modes, original = [], kernels_cpu.call
    counted = lambda task, *given: modes.append(task.mode) or original(task, *given)
    monkeypatch.setattr(kernels_cpu, "call", counted)
    return modes


@needs_llvm
@pytest.mark.parametrize("settings", CASES)
def test_our_code_computes_what_xla_does(settings, ran):
    check(settings, "kernels")
    assert set(ran) == {"forward", "keep", "born", "adjoint"}


@needs_llvm
def test_what_a_source_makes_of_its_cell_is_rounded_once():
    check_a_source("kernels", (26, 24))


@needs_llvm
@pytest.mark.slow
def test_devices_share_the_shots(ran):
    check(BETWEEN, "kernels", jax.devices()[:2])
    assert len(ran) == 4


EVERY = (16, 32, 64)  # bytes of a register


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize(("columns", "layer"), [(326, 10), (346, 20), (353, 0), (113, 5), (9, 2)])
def test_every_cell_of_a_row_has_its_place(columns, layer, width):
    grid = Grid((7, columns + 3), columns, (1.0, 1.0), 4, layer, "float", width, 3)
    left, middle, right = grid.parts
    assert bool(middle) == (columns > 50)
    assert np.array_equal(grid.columns.ravel()[grid.places], np.arange(columns))
    assert np.count_nonzero(grid.columns >= 0) == columns
    inner = grid.columns[left : left + middle]  # the next vector has the next columns
    assert np.all(inner >= 0)
    assert np.all(np.diff(inner, axis=0) == 1)
    if middle and layer:
        assert left + right <= -(-2 * (layer + 1) // width) + 1
        assert min(grid.ends) > layer
    assert sum(grid.parts) == -(-columns // width)
    held = grid.held(np.arange(7)[:, None], np.arange(columns))
    assert np.array_equal(np.sort(held, axis=None), np.arange(7 * columns))
    x = np.random.default_rng(0).normal(size=(7, columns + 3))
    laid = grid.lay_out(x)
    np.testing.assert_array_equal(laid[:, grid.places], x[:, :columns])
    assert np.count_nonzero(laid) == 7 * columns
    assert grid.cut_ends(laid).shape == (7, (left + right) * width)


def products(settings):
    model, rng = make("kernels", **settings), np.random.default_rng(1)
    eta = jnp.asarray(rng.normal(size=model.start.size))
    found = everything(model, eta, jnp.asarray(rng.normal(size=model.survey.data_shape)))
    return found[:2] + found[3:]  # all but q, which our code keeps in an order of its own


@needs_llvm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "columns", "stored"),
    [(4, 37, None), (8, 90, None), (4, 54, None), (4, 54, "bfloat16")],
)
def test_vectors_of_any_length_give_the_same(order, columns, stored, monkeypatch):
    """47 columns with the layer are three parts of a row, or four vectors of 64 bytes between two
    ends, too few for a loop; 64 columns are whole vectors, which are written past the caches."""
    settings = BETWEEN | {"order": order, "shape": (19, columns), "stored_as": stored}
    found, near = [], 5e-3 if stored else 1e-12  # numbers on both sides of a tie are rounded apart
    for length in EVERY:
        monkeypatch.setattr(llvm, "vector_bytes", lambda length=length: length)
        kernels_cpu.prepare.cache_clear()
        jax.clear_caches()
        found.append(products(settings))
    kernels_cpu.prepare.cache_clear()
    for other in found[1:]:
        for x, y in zip(other, found[0], strict=True):
            assert np.linalg.norm(x - y) <= near * np.linalg.norm(y)


def test_only_what_is_kept_in_whole_vectors_is_written_past_the_caches():
    grid = Grid((7, 48), 47, (1.0, 1.0), 4, 5, "float", 16, 3)
    task = Task("keep", 1, 1, 1, grid, False)
    passes = kernels_cpu.passes_caches
    assert passes(task, 128)
    assert not passes(task, 96)
    assert not passes(task._replace(grid=grid._replace(shape=(7, 47))), 128)
    assert not passes(task._replace(mode="born"), 128)
    assert passes(task._replace(bfloat16=True), 96)


@pytest.mark.parametrize("engine", [slow("xla"), pytest.param("kernels", marks=needs_llvm)])
def test_what_memory_held_before_does_not_matter(engine, monkeypatch):
    """0 · NaN is NaN, and memory that is not set to zero may hold one."""
    monkeypatch.setattr(propagation, "LARGE", 0)
    model = make(engine, shape=(19, 38), steps=20)  # a size that no other test has compiled
    given = model.start.ravel(), model(model.start)
    expected = everything(model, *given)
    monkeypatch.setattr(kernels_cpu, "ask_for_large_pages", lambda x: x.fill(np.nan))
    found = everything(model, *given)
    for i in (0, 1, 3, 4):
        np.testing.assert_allclose(found[i], expected[i], rtol=1e-10)


@needs_llvm
def test_cores_share_the_shots(monkeypatch):
    settings = {"shape": (19, 37), "steps": 20}
    alone = products(settings)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    jax.tree.map(np.testing.assert_array_equal, products(settings), alone)


@needs_llvm
def test_products_are_derivatives(capsys):
    model = make("kernels", every=1, shape=(21, 26), steps=40)
    assert ng.checks.check_adjoint(model, model.start, trials=1).passed
    with pytest.raises(ng.InputError, match=r"model\.products, or engine='xla'"):
        jax.grad(lambda theta: jnp.sum(model(theta) ** 2))(model.start)


@needs_llvm
@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, ng.MiniBatch(1, of="functions")])
def test_an_inversion_goes_the_same_way(batch):
    found = []
    for engine in ("xla", "kernels"):
        model = make(engine, shape=(24, 20), steps=60, absorbing=6)
        data = 1.1 * model(model.start)
        problem = ng.Problem(model, ng.LeastSquares(data, model.survey.gather_grid))
        method = ng.NaturalGradient(
            ng.L2(model.survey.gather_grid), solver=ng.CG(0.0, max_iterations=2)
        )
        settings = {"stop": ng.Stop(iterations=2), "batch": batch, "progress": False}
        bounds = model.bounds(1400.0, 3000.0)
        found.append(ng.minimize(problem, model.start, method, bounds=bounds, **settings))
    xla, own = (np.asarray(result.history["loss"]) for result in found)
    np.testing.assert_allclose(own, xla, rtol=1e-9)
    np.testing.assert_allclose(found[1].theta, found[0].theta, rtol=1e-9)


@needs_llvm
@pytest.mark.filterwarnings("error::natgrad.errors.PrecisionWarning")
def test_a_cpu_chooses_our_code_for_large_grids_in_2d(monkeypatch):
    def engine(shape, **settings):
        survey = waves.Survey.line(shape, 25.0, dt=0.002, steps=10, shots=1, frequency=6.0)
        return waves.Acoustic(survey, np.full(shape, 2000.0), stored_every=1, **settings)

    large = (140, 130)
    assert np.prod(large) > LARGE
    assert engine(large).scheme.engine == "auto"
    assert engine(large, engine="xla").scheme.engine == "xla"
    assert engine((60, 50)).scheme.engine == "xla"
    monkeypatch.setattr(llvm, "missing", lambda: "llvmlite is not installed")
    assert engine(large).scheme.engine == "xla"


def medium_of(model):
    return Medium(model.slowness(model.start), model.layer, model.scheme)


def reason(mode="keep", **settings):
    model = make("kernels", **settings)
    return kernels_cpu.find(mode, medium_of(model), *model.gathers[1:])


def test_where_xla_runs_instead_a_line_says_why(monkeypatch):
    assert "2D" in reason(shape=(9, 7, 12), absorbing=0)
    assert "computed again" in reason(memory=200_000, steps=60)
    monkeypatch.setattr(llvm, "missing", lambda: "llvmlite is not installed")
    assert reason() == "llvmlite is not installed"
    model = make("kernels", shape=(12, 14), absorbing=0, steps=8)
    with pytest.warns(ng.errors.PrecisionWarning, match="XLA computes .* llvmlite is not"):
        assert np.isfinite(model(model.start)).all()
    monkeypatch.undo()
    monkeypatch.setattr(llvm.importlib.util, "find_spec", lambda name: None)
    assert "natgrad[cpu]" in llvm.missing()


@needs_llvm
def test_a_compiler_that_fails_is_a_reason(monkeypatch):
    def fail(*_):
        raise RuntimeError("LLVM IR parsing error\nat line 1")

    monkeypatch.setattr(llvm, "compile_code", fail)
    assert reason(shape=(13, 17)) == "RuntimeError: LLVM IR parsing error"
    model = make("kernels", shape=(13, 18), absorbing=0, steps=8)
    assert propagation.choose(lambda: None, "forward", medium_of(model), model.gathers) is None


@needs_llvm
def test_what_keeps_waves_and_what_reads_them_is_the_same_code(monkeypatch):
    """The order of what is kept is the code's own: if one mode fails, XLA has all of them."""
    prepare = kernels_cpu.prepare

    def fail_for_adjoint(task, past_caches):
        if task.mode == "adjoint":
            raise RuntimeError("of this test")
        return prepare(task, past_caches)

    monkeypatch.setattr(kernels_cpu, "prepare", fail_for_adjoint)
    for mode in ("keep", "born", "adjoint"):
        assert reason(mode) == "RuntimeError: of this test"
    assert not isinstance(reason("forward"), str)


def test_large_pages_are_only_asked_for():
    kernels_cpu.ask_for_large_pages(np.zeros(10))
    kernels_cpu.ask_for_large_pages(x := np.zeros(2**20))
    assert not x.any()
