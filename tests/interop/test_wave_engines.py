"""Waves by PyTorch, deepwave and devito: those of `waves.Acoustic`, and derivatives that are."""

import importlib.util
import json
from dataclasses import replace
from functools import cache

import engine_cases
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad import waves
from natgrad.core.selection import Functions
from natgrad.interop.deepwave import Deepwave
from natgrad.interop.devito import Devito
from natgrad_studies.running import run_study
from problems_for_tests import assert_input_error, with_slow
from studies_for_tests import TINY_INVERSION

pytestmark = pytest.mark.filterwarnings("ignore:.*dispersed", "ignore:.*products are rough")
OUTSIDE = {"deepwave": Deepwave, "devito": Devito}
SHAPE, SPACING = (14, 12), 20.0
SURVEY = waves.Survey(
    SHAPE,
    SPACING,
    0.004,
    [[93.0, 60.0], [160.0, 120.0], [200.0, 47.0]],  # two of them between cells
    [[40.0, 100.0], [111.0, 151.0], [260.0, 220.0]],
    np.stack([waves.ricker(f, 0.004, 30) for f in (14.0, 12.0, 16.0)]),
)
LONG = waves.Survey(  # for which checkpoints need fewer bytes than all waves
    *(SHAPE, SPACING, 0.004, SURVEY.sources, SURVEY.receivers),
    np.pad(SURVEY.wavelet, [(0, 0), (0, 170)]),
)
RANDOM = np.random.default_rng(0)
VELOCITY = RANDOM.uniform(1800.0, 2200.0, SHAPE)
UPDATE = RANDOM.uniform(0.0, 1.0, SHAPE)
THETA = waves.squared_slowness(VELOCITY * RANDOM.uniform(0.98, 1.02, SHAPE))


def needs(package: str) -> None:
    """Skip without it; one thread, since the tests have a core each."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    if package in ("torch", "deepwave"):
        pytest.importorskip("torch").set_num_threads(1)


@cache
def case(cells: int) -> engine_cases.Case:
    return engine_cases.case(cells)


@cache
def own(cells: int) -> engine_cases.Found:
    return engine_cases.found(case(cells), "jax")


def model(engine: str, survey=SURVEY, **settings):
    arguments = {"update": UPDATE, "absorbing": 4, "dtype": np.float64} | settings
    return OUTSIDE[engine](survey, VELOCITY, **arguments)


def products(engine: str, **settings):
    return model(engine, **settings).products(
        lambda v: v.reshape(SHAPE), jnp.asarray(THETA).ravel()
    )


# --- the same data, gradients and directions


@pytest.mark.parametrize(
    "engine", with_slow(["torch", "deepwave", "devito"], ["torch", "deepwave"])
)
def test_data_gradients_and_directions_are_those_of_jax(engine: str):
    """To rounding, and what the edges return of the waves' first faint front."""
    needs(engine)
    differences = engine_cases.found(case(48), engine).differences(own(48))
    assert max(differences) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "torch", "deepwave", "devito"])
def test_another_discretisation_differs_by_its_error(engine: str):
    """Order 8 against order 4 in space: what is left is the error of the latter."""
    needs(engine)
    found = [engine_cases.found(case(n), engine, 8).differences(own(n)) for n in (48, 96)]
    rates = np.log2(np.divide(*found))
    np.testing.assert_allclose(rates, 4.0, atol=0.25)


# --- derivatives


@pytest.mark.parametrize("engine", OUTSIDE)
def test_products_are_transposes(engine: str):
    """With cells at the edge, update weights, points between cells and a wavelet for each shot."""
    needs(engine)
    found = products(engine)
    eta, xi = RANDOM.normal(size=THETA.size), RANDOM.normal(size=SURVEY.data_shape)
    image, back = found.push(jnp.asarray(eta)), found.pull(jnp.asarray(xi))
    assert np.vdot(image, xi) == pytest.approx(np.vdot(back, eta), rel=1e-10)


@pytest.mark.parametrize("engine", OUTSIDE)
def test_products_are_the_derivative(engine: str):
    needs(engine)
    found, eta = products(engine), RANDOM.normal(size=THETA.shape) * 1e-2
    image, forward = found.push(jnp.asarray(eta).ravel()), model(engine)
    remainder = lambda h: np.linalg.norm(forward(THETA + h * eta) - found.rho - h * image)
    assert np.log2(remainder(0.2) / remainder(0.1)) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("engine", OUTSIDE)
def test_some_of_the_shots_are_those_rows(engine: str):
    needs(engine)
    whole = model(engine)
    some = ng.Problem(whole, ng.LeastSquares(jnp.zeros(SURVEY.data_shape))).model.restricted(
        Functions(jnp.array([2, 0]), 3)
    )
    np.testing.assert_allclose(some(THETA), whole(THETA)[jnp.array([2, 0])], rtol=1e-12)


@pytest.mark.parametrize(
    ("engine", "survey", "settings"),
    [("deepwave", LONG, {"memory": 1_500_000}), ("devito", SURVEY, {"stored_every": 3})],
)
def test_less_memory_leaves_them_transposes(engine: str, survey, settings):
    needs(engine)
    found, exact = products(engine, survey=survey, **settings), products(engine, survey=survey)
    eta = jnp.asarray(RANDOM.normal(size=THETA.size))
    image = found.push(eta)
    assert np.vdot(image, image) == pytest.approx(np.vdot(found.pull(image), eta), rel=1e-9)
    if engine == "deepwave":  # checkpoints lose nothing
        np.testing.assert_allclose(image, exact.push(eta), rtol=1e-12)


@pytest.mark.slow
def test_devito_thins_like_jax():
    needs("devito")
    arguments = {"update": UPDATE, "absorbing": 4, "dtype": np.float64, "stored_every": 3}
    ours = waves.Acoustic(SURVEY, VELOCITY, **arguments)
    ours = ours.products(lambda v: v.reshape(SHAPE), jnp.asarray(THETA).ravel())
    found, eta = products("devito", stored_every=3), jnp.asarray(RANDOM.normal(size=THETA.size))
    np.testing.assert_allclose(found.rho, ours.rho, atol=1e-12 * float(jnp.abs(ours.rho).max()))
    image, back = ours.push(eta), ours.pull(ours.rho)
    np.testing.assert_allclose(found.push(eta), image, atol=1e-11 * float(jnp.abs(image).max()))
    np.testing.assert_allclose(found.pull(ours.rho), back, atol=1e-11 * float(jnp.abs(back).max()))


# --- the study


@pytest.mark.slow
@pytest.mark.parametrize("engine", OUTSIDE)
@pytest.mark.parametrize("batch", [0, 1])
def test_the_study_with_another_engine(engine: str, batch: int, tmp_path):
    needs(engine)
    settings = replace(
        TINY_INVERSION,
        output=tmp_path,
        engine=engine,
        devices=0,
        methods=("L2",),
        batch=batch,
        max_propagations=90 if batch else 24,  # the first four draws are of the same shot
    )
    _, result = run_study(settings)
    assert result.runs[0].loss[-1] < 0.2
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert numbers["settings"]["engine"] == engine
    assert engine in numbers["device"]


# --- input that cannot be


def test_a_study_without_the_package_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "devito", None)
    settings = replace(TINY_INVERSION, output=tmp_path / "out", engine="devito", devices=0)
    assert_input_error("engine", r"not installed.*natgrad\[devito\]", lambda: run_study(settings))
    assert not settings.output.exists()


@pytest.mark.parametrize(
    ("engine", "name", "why"), [("cake", "engine", "cake"), ("devito", "devices", "1 parts")]
)
def test_bad_settings_are_named(engine: str, name: str, why: str):
    assert_input_error(name, why, lambda: replace(TINY_INVERSION, engine=engine).check())


CASES = {
    "theta of another shape": ("deepwave", "theta", "shape", lambda: model("deepwave")(THETA[1:])),
    "unstable": ("deepwave", "dt", "unstable", lambda: Deepwave(SURVEY, 9 * VELOCITY)),
    "order": ("deepwave", "order", "6", lambda: model("deepwave", order=6)),
    "no divisor": ("deepwave", "stored_every", "divide", lambda: model("deepwave", stored_every=7)),
    "no checkpoints": ("devito", "memory", "devito", lambda: model("devito", LONG, memory=200_000)),
    "receiver outside": ("deepwave", "receivers", "outside", lambda: Deepwave(replace(SURVEY, receivers=np.array([[-5.0, 0.0]])), VELOCITY)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_message_names_the_argument(name: str):
    package, *expected = CASES[name]
    needs(package)
    assert_input_error(*expected)


@pytest.mark.skipif(bool(importlib.util.find_spec("devito")), reason="devito is installed")
def test_a_model_without_its_package_says_what_to_install():
    assert_input_error("Devito", r"natgrad\[devito\]", lambda: model("devito"))
