"""Waves: products against dense derivatives, storage, devices, surveys, shots, bad input."""

import json
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng
import natgrad.errors
from natgrad import waves
from natgrad.core.compiled import jit_forwarding
from natgrad.core.selection import Functions
from natgrad.core.settings import replace_fields
from natgrad.waves.propagation import simulate
from natgrad.waves.scheme import Medium, Scheme, Storage
from natgrad.waves.storage import choose_every, count_bytes, plan_storage
from problems_for_tests import with_slow

SHAPE, SPACING, DT, STEPS = (14, 12), 25.0, 0.003, 41
pytestmark = pytest.mark.filterwarnings("ignore:.*dispersed", "ignore:.*products are rough")


def survey_of(shape=SHAPE, between=False, shots=2, steps=STEPS) -> waves.Survey:
    """Shots over a small model; `between` the grid points or on them."""
    off = 0.3 * SPACING if between else 0.0
    side = (shape[0] - 2) * SPACING
    middle = [SPACING * (n // 2) for n in shape[1:-1]]
    place = lambda x, z: [x + off, *middle, z + off]
    sources = [place(x, SPACING) for x in np.linspace(0, side, shots)]
    receivers = [place(SPACING * i, 2 * SPACING) for i in range(0, shape[0] - 1, 2)]
    return waves.Survey(shape, SPACING, DT, sources, receivers, waves.ricker(12.0, DT, steps))


def velocity_of(shape=SHAPE) -> np.ndarray:
    return 1800 + 60.0 * np.arange(shape[-1]) + 300 * np.random.default_rng(0).random(shape)


def model_of(survey=None, storage=None, **options) -> waves.Acoustic:
    survey = survey_of() if survey is None else survey
    options = {"absorbing": 5, "dtype": jnp.float64} | options
    model = waves.Acoustic(survey, velocity_of(survey.shape), **options)
    if storage is None:
        return model
    scheme = Scheme.of(survey, model.order, model.scheme.absorbing, storage)
    return replace_fields(model, storage=storage, scheme=scheme)


def theta_of(model) -> jax.Array:
    return jnp.asarray(waves.squared_slowness(velocity_of(model.survey.shape)))


@eqx.filter_jit
def products_of(model, theta):
    return model.products(lambda flat: flat.reshape(theta.shape), theta.ravel())


push = eqx.filter_jit(lambda products, eta: products.push(eta))
pull = eqx.filter_jit(lambda products, xi: products.pull(xi))
simulated = eqx.filter_jit(lambda model, theta: model(theta))

OPTIONS = {
    "plain": {"stored_every": 1},
    "order 8": {"stored_every": 1, "order": 8},
    "every 2": {"stored_every": 2},
    "every 3": {"stored_every": 3},
    "every 4": {"stored_every": 4},
    "bfloat16": {"stored_every": 2, "stored_as": jnp.bfloat16},
    "checkpoints": {"storage": Storage(1, 14, 0)},
    "checkpoints every 2": {"storage": Storage(2, 5, 0)},
    "boundary": {"storage": Storage(1, None, 0, boundary=True)},
    "boundary every 3": {
        "storage": Storage(3, None, 0, boundary=True),
        "order": 8,
        "survey": survey_of(between=True),
    },
    "no layer": {"stored_every": 1, "absorbing": 0},
    "mask": {"stored_every": 1, "update": np.linspace(0, 1, 12) * np.ones(SHAPE)},
    "between": {"stored_every": 1, "survey": survey_of(between=True)},
    "3D": {"stored_every": 1, "survey": survey_of((7, 6, 8), steps=21), "absorbing": 3},
    "3D checkpoints": {
        "storage": Storage(1, 7, 0),
        "survey": survey_of((7, 6, 8), between=True, steps=21),
        "absorbing": 3,
    },
    "3D boundary": {
        "storage": Storage(2, None, 0, boundary=True),
        "survey": survey_of((7, 6, 8), between=True, steps=21),
        "absorbing": 3,
    },
}


def dot_test(model, seed=1) -> float:
    theta, random = theta_of(model), np.random.default_rng(seed)
    products = products_of(model, theta)
    eta = jnp.asarray(random.standard_normal(theta.size), theta.dtype)
    xi = jnp.asarray(random.standard_normal(model.survey.data_shape), model.start.dtype)
    image, gradient = push(products, eta), pull(products, xi)
    assert image.shape == model.survey.data_shape
    size = float(jnp.linalg.norm(image) * jnp.linalg.norm(xi))
    return abs(float(jnp.vdot(image, xi) - eta @ gradient)) / size


FURTHER = (
    "order 8",
    "between",
    "every 2",
    "every 3",
    "every 4",
    "bfloat16",
    "checkpoints",
    "boundary",
    "3D checkpoints",
    "3D boundary",
    "no layer",
)


@pytest.mark.parametrize("name", with_slow(OPTIONS, FURTHER))
def test_born_and_adjoint_are_transposes(name):
    model = model_of(**OPTIONS[name])
    assert model.scheme.recomputes == ("checkpoints" in name or "boundary" in name)
    assert dot_test(model) < 1e-13


AS_LARGE = ("every 3", "checkpoints every 2", "boundary every 3", "3D", "no layer")


@pytest.mark.parametrize("name", with_slow(AS_LARGE, AS_LARGE[1:]))
def test_the_layout_of_large_models_gives_the_numbers_of_small_ones(name, monkeypatch):
    models = [model_of(**OPTIONS[name])]
    monkeypatch.setattr("natgrad.waves.scheme.LARGE", 0)
    models.append(model_of(**OPTIONS[name]))
    assert models[0].scheme.lead != models[1].scheme.lead
    random, theta = np.random.default_rng(0), theta_of(models[0])
    eta, xi = random.normal(size=theta.size), random.normal(size=models[0].survey.data_shape)
    both = [products_of(model, theta) for model in models]
    finds = (
        lambda x: x.rho,
        lambda x: push(x, jnp.asarray(eta)),
        lambda x: pull(x, jnp.asarray(xi)),
    )
    for find in finds:
        small, large = map(find, both)
        assert jnp.linalg.norm(large - small) < 1e-12 * jnp.linalg.norm(small)


@pytest.mark.parametrize(
    "name",
    with_slow(
        ["plain", "checkpoints every 2", "boundary every 3", "every 3"],
        ["plain", "checkpoints every 2", "boundary every 3"],
    ),
)
def test_they_are_transposes_in_single_precision(name):
    model = model_of(**OPTIONS[name] | {"dtype": jnp.float32})
    assert dot_test(model) < 1e-5


@pytest.mark.parametrize(
    "name",
    with_slow(
        ["plain", "order 8", "checkpoints", "mask", "between", "3D"], ["plain", "checkpoints"]
    ),
)
def test_the_born_data_are_the_derivative(name):
    """Taylor: what the linearisation leaves is of second order in the step."""
    model = model_of(**OPTIONS[name])
    theta = theta_of(model)
    eta = 0.05 * theta * jnp.asarray(np.random.default_rng(2).standard_normal(theta.shape))
    data, image = simulated(model, theta), push(products_of(model, theta), eta.ravel())
    left = lambda h: float(jnp.linalg.norm(simulated(model, theta + h * eta) - data - h * image))
    steps = [left(h) for h in (1e-2, 5e-3, 2.5e-3)]
    slopes = np.log2(np.array(steps[:-1]) / np.array(steps[1:]))
    assert np.all(np.abs(slopes - 2) < 0.05)


@pytest.mark.parametrize("name", with_slow(["checkpoints", "boundary"], ["checkpoints"]))
def test_waves_computed_again_give_the_products_of_those_kept(name):
    whole, again = model_of(**OPTIONS["plain"]), model_of(**OPTIONS[name])
    theta = theta_of(whole)
    eta = jnp.asarray(np.random.default_rng(3).standard_normal(theta.size))
    one, other = products_of(whole, theta), products_of(again, theta)
    assert np.allclose(one.rho, other.rho, rtol=1e-12)
    assert np.allclose(push(one, eta), push(other, eta), rtol=1e-10, atol=1e-12)
    xi = one.rho
    assert np.allclose(pull(one, xi), pull(other, xi), rtol=1e-10, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(jnp.float32, 1e-4), (jnp.float64, 1e-12)])
def test_waves_run_backwards_for_2000_steps_are_those_that_ran_forwards(dtype, limit):
    """Rounding grows slowly: the scheme is stable in both directions of time."""
    survey, found = survey_of((40, 30), steps=2000), []
    for boundary in (False, True):
        storage = Storage(3, None, 0, boundary)
        model = model_of(survey, storage, dtype=dtype, absorbing=10)
        theta = theta_of(model).astype(dtype)
        products = products_of(model, theta)
        found.append(np.asarray(pull(products, products.rho), float))
    assert np.linalg.norm(found[1] - found[0]) < limit * np.linalg.norm(found[0])
    assert dot_test(model) < (1e-13 if dtype == jnp.float64 else 1e-5)


def test_what_a_thinned_field_leaves_out_is_beyond_the_band_of_the_wavelet():
    """Sources at every third step add frequencies that no band-limited covector sees."""
    steps = 300
    wavelet = waves.ricker(6.0, DT, steps, delay=0.2)
    survey = eqx.tree_at(lambda s: s.wavelet, survey_of(steps=steps), wavelet)
    found = {}
    for every in (1, 3):
        model = model_of(survey, stored_every=every, absorbing=12)
        theta = theta_of(model)
        products = products_of(model, theta)
        eta = jnp.asarray(np.random.default_rng(3).standard_normal(theta.size))
        found[every] = (np.asarray(push(products, eta)), np.asarray(pull(products, products.rho)))
    relative = [
        np.linalg.norm(thin - whole) / np.linalg.norm(whole)
        for thin, whole in zip(found[3], found[1], strict=True)
    ]
    assert relative[0] < 3e-2
    assert relative[1] < 1e-6


def test_the_jacobian_is_the_products_and_the_public_checks_pass():
    model = model_of(survey_of((9, 8), steps=25), stored_every=1, absorbing=3)
    theta = theta_of(model)
    rho, columns, counts = eqx.filter_jit(
        lambda model, theta: model.jacobian(lambda flat: flat.reshape(theta.shape), theta.ravel())
    )(model, theta)
    assert columns.shape == (theta.size, *rho.shape)
    assert (int(counts.forward), int(counts.linearised)) == (1, theta.size)
    eta = jnp.ones(theta.size)
    direct = push(products_of(model, theta), eta)
    assert np.allclose(jnp.tensordot(eta, columns, 1), direct, rtol=1e-9, atol=1e-12)
    assert ng.checks.check_adjoint(model, theta).passed
    data = simulated(model, 1.03 * theta)
    problem = ng.Problem(model, ng.LeastSquares(data, model.survey.gather_grid))
    assert ng.checks.check_gradient(problem, theta).passed


def small_inversion(**options):
    model = model_of(stored_every=1, dtype=jnp.float32, **options)
    theta = theta_of(model).astype(jnp.float32)
    truth = theta * (1 + 0.05 * jnp.sin(jnp.arange(SHAPE[0]) / 2.0)[:, None])
    data = simulated(model, truth)
    grid = model.survey.gather_grid
    return ng.Problem(model, ng.LeastSquares(data, grid)), theta, model


def test_an_inversion_descends_and_stays_within_its_bounds():
    problem, theta, model = small_inversion()
    result = ng.minimize(
        problem,
        theta,
        ng.NaturalGradient(ng.L2(model.survey.gather_grid), solver=ng.CG(0.0, 4)),
        stop=ng.Stop(iterations=5),
        bounds=model.bounds(1500.0, 3500.0),
    )
    assert result.loss < 0.02 * result.history["loss"][0]
    assert result.history["forward"][-1] == 1 + np.sum(result.history["halvings"][:-1] + 1)
    velocity = waves.velocity_of(result.theta)
    assert np.all((velocity > 1499) & (velocity < 3501))


def test_a_batch_of_shots_propagates_only_those():
    problem, theta, model = small_inversion()
    rows = jnp.array([1])
    part = model.restricted(Functions(rows, 2))
    assert np.allclose(simulated(part, theta), simulated(model, theta)[1:], rtol=1e-5, atol=1e-7)
    result = ng.minimize(
        problem,
        theta,
        ng.NaturalGradient(ng.L2(model.survey.gather_grid), solver=ng.CG(0.0, 3)),
        stop=ng.Stop(iterations=4),
        batch=ng.MiniBatch(1, of="functions"),
    )
    assert result.loss < problem.value(theta, simulated(model, theta))
    with pytest.raises(ng.InputError, match="whole shots"):
        ng.minimize(problem, theta, ng.NaturalGradient(ng.L2()), batch=ng.MiniBatch(5))


@pytest.mark.slow
def test_shots_on_two_devices_give_the_run_of_one():
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    survey = survey_of(shots=3)
    one, two = (model_of(survey, stored_every=1, devices=d) for d in (None, jax.devices()[:2]))
    assert two.mesh.size == 2
    theta = theta_of(one)
    data = simulated(one, 1.02 * theta)
    assert np.allclose(simulated(two, 1.02 * theta), data, rtol=1e-12, atol=1e-14)
    grid = survey.gather_grid
    method = ng.NaturalGradient(ng.L2(grid), solver=ng.CG(0.0, 3))
    runs = [
        ng.minimize(
            ng.Problem(model, ng.LeastSquares(data, grid)),
            theta,
            method,
            stop=ng.Stop(iterations=3),
        )
        for model in (one, two)
    ]
    assert np.allclose(runs[0].theta, runs[1].theta, rtol=1e-8)


def test_a_compiled_function_hands_on_what_it_does_not_change():
    field = jnp.arange(5.0)
    function = jit_forwarding(lambda tree, x, k=1: {"same": tree, "new": k * x + tree[0]})
    for _ in range(2):
        found = function((field, "text"), 2.0, k=3)
        assert found["same"][0] is field
        assert found["same"][1] == "text"
        assert np.array_equal(found["new"], field + 6)


# --- surveys, shots, wavelets --------------------------------------------------------------------


def test_a_line_has_its_sources_and_receivers_on_the_grid():
    survey = waves.Survey.line((30, 12), 20.0, dt=0.002, steps=50, shots=4, frequency=8.0)
    assert survey.data_shape == (4, 30, 50)
    assert np.all(survey.sources[:, 1] == 40.0)
    assert survey.sources[-1, 0] == survey.receivers[-1, 0] == 29 * 20.0
    assert survey.gather_grid.shape == (30, 50)
    assert survey.trace_grid.shape == (50,)


def test_shots_are_scaled_with_their_wavelet_saved_and_loaded(tmp_path):
    survey = survey_of()
    model = model_of(survey)
    data = np.asarray(simulated(model, theta_of(model)))
    shots = waves.Shots(survey, data).scaled()
    assert np.isclose(np.sqrt(np.mean(shots.data**2)), 1.0)
    again = np.asarray(simulated(model_of(shots.survey), theta_of(model)))
    assert np.allclose(again, shots.data, rtol=1e-10, atol=1e-12)
    shots.save(tmp_path / "shots.npz")
    loaded = waves.Shots.load(tmp_path / "shots.npz")
    assert np.array_equal(loaded.data, shots.data)
    assert loaded.survey.spacing == survey.spacing
    assert np.array_equal(loaded.survey.wavelet, shots.survey.wavelet)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(ng.InputError, match="holds no shots"):
        waves.Shots.load(tmp_path / "bad.npz")


def test_integers_become_floats_and_a_folder_is_no_archive(tmp_path):
    survey = survey_of()
    data = np.random.default_rng(4).integers(-9, 9, survey.data_shape, np.int16)
    shots = waves.Shots(survey, data)
    assert shots.data.dtype == np.float32
    np.testing.assert_allclose(shots.scaled().data, data / np.sqrt(np.mean(data**2.0)), rtol=1e-6)
    expected = waves.low_pass(data.astype(float), DT, 20.0)
    np.testing.assert_allclose(shots.band(20.0).data, expected, atol=1e-4)
    (tmp_path / "shots").mkdir()
    shots.save(tmp_path / "shots")
    assert np.array_equal(waves.Shots.load(tmp_path / "shots").data, data)


def test_numbers_of_other_libraries_become_pythons_own():
    bfloat16, plain = jnp.bfloat16, model_of(stored_every=2, memory=2**29)
    survey = waves.Survey(
        jnp.array(SHAPE),
        np.float32(SPACING),
        jnp.float64(DT),
        jnp.asarray(plain.survey.sources),
        plain.survey.receivers.tolist(),
        waves.ricker(bfloat16(12.0), np.float64(DT), np.int64(STEPS)),
    )
    whole = {"order": np.int64(4), "absorbing": np.uint8(5), "stored_every": np.int32(2)}
    model = model_of(survey, **whole, memory=jnp.float32(2.0**29))
    assert eqx.tree_equal(model, plain)
    settings = (model.scheme, model.storage, model.order, model.memory, model.stored_every)
    assert json.loads(json.dumps(settings))[2:] == [4, 2**29, 2]
    assert model_of(memory=0.6 * 2**30).memory == int(0.6 * 2**30)
    pairs = zip(model.bounds(bfloat16(1504.0), 3000), model.bounds(1504.0, 3e3), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    assert waves.Shots(survey, jnp.ones(survey.data_shape, bfloat16)).data.dtype == np.float32


def test_a_band_of_the_data_is_the_data_of_the_band():
    survey = survey_of(steps=240)
    model = model_of(survey)
    shots = waves.Shots(survey, np.asarray(simulated(model, theta_of(model))))
    low = shots.band(8.0)
    direct = np.asarray(simulated(model_of(low.survey), theta_of(model)))
    assert np.allclose(direct, low.data, rtol=1e-9, atol=1e-12)
    spectrum = lambda wavelet: np.abs(np.fft.rfft(wavelet))
    share = spectrum(low.survey.wavelet) / spectrum(survey.wavelet)
    frequency = np.fft.rfftfreq(240, DT)
    assert np.all(share[(frequency > 1) & (frequency < 5)] > 0.9)
    assert np.all(share[(frequency > 16) & (frequency < 30)] < 0.05)
    with pytest.raises(ng.InputError, match="corner"):
        shots.band(1e4)


def test_the_storage_is_the_way_of_fewest_propagations_that_fits_or_of_fewest_bytes():
    def plan(memory, every=None, steps=900):
        settings = {"dt": 0.001, "steps": steps, "shots": 3, "frequency": 10.0}
        survey = waves.Survey.line((300, 200), 10.0, **settings)
        return plan_storage(survey, 4, 20, jnp.float32, memory, every)

    field = 3 * 4 * 344 * 240  # rows are whole numbers of vectors
    assert plan(900 * field) == (9, None, 100 * field, False, False)  # at 4 samples a period, 26 Hz
    assert plan(300 * field, 3) == (3, None, 300 * field, False, False)
    checkpoints = plan(100 * field - 1)
    assert checkpoints.segment is not None
    boundary = plan(40 * field - 1, steps=400)
    frame = 340 * 240 - 298 * 198
    strips, last = 400 * 4 * (298 + 198), 2 * 302 * 202
    assert boundary == (10, None, 3 * 4 * (strips + 40 * frame + last), True, False)
    assert plan(1) == checkpoints
    assert plan(1, steps=400) == boundary
    lines = [str(way) for way in (plan(900 * field), boundary, checkpoints)]
    assert (
        lines[0] == "the source waves at every 9 steps, 94.5 MiB; a product takes one propagation"
    )
    assert lines[1].startswith("the boundary of the source waves, ")
    assert lines[2].startswith("checkpoints of the source waves, ")
    assert lines[2].endswith("two propagations")
    slower = waves.Survey.line((30, 20), 25.0, dt=0.002, steps=400, shots=3, frequency=6.0)
    assert choose_every(slower, None) == 8  # the same, 15.4 Hz
    with pytest.warns(ng.errors.PrecisionWarning, match=r"stored_every: 20 is 2 times in the"):
        plan(900 * field, 20)
    with pytest.raises(ng.InputError, match="stored_every: 90 steps are more than half a period"):
        plan(900 * field, 90)


def test_responses_in_bfloat16_take_a_half_and_are_near_those_of_the_waves():
    survey = survey_of(steps=120)
    given = {"stored_every": 1, "dtype": jnp.float32}
    whole, half = (model_of(survey, stored_as=x, **given) for x in (None, jnp.bfloat16))
    assert whole.storage.bytes == 2 * half.storage.bytes
    assert "in bfloat16, " in str(half.storage)
    assert "stored_as=None" in half.approximates
    one = half.restricted(Functions(jnp.array([1]), 2))
    assert one.storage.bfloat16
    assert one.storage.bytes * 2 == half.storage.bytes
    kept = [model.evaluate(theta_of(model)).kept for model in (whole, half)]
    assert kept[1].nbytes == half.storage.bytes
    kept[1] = jax.lax.bitcast_convert_type(kept[1], jnp.bfloat16)
    assert jnp.all(jnp.abs(kept[1] - kept[0]) <= 2**-8 * jnp.abs(kept[0]))
    random, theta = np.random.default_rng(0), theta_of(whole)
    eta, xi = random.normal(size=theta.size), random.normal(size=survey.data_shape)
    both = [products_of(model, theta) for model in (whole, half)]
    for find in (lambda x: push(x, jnp.asarray(eta)), lambda x: pull(x, jnp.asarray(xi))):
        exact, found = map(find, both)
        assert 0 < jnp.linalg.norm(found - exact) < 5e-3 * jnp.linalg.norm(exact)
    # Waves go on from a boundary and from checkpoints, so these are never rounded.
    tight = model_of(survey, memory=half.storage.bytes - 1, stored_as=jnp.bfloat16, **given)
    assert tight.scheme.recomputes
    assert not tight.storage.bfloat16
    image = lambda theta: push(products_of(half, theta), jnp.asarray(eta)).sum()
    with pytest.raises(ng.InputError, match="stored_as: is bfloat16"):
        jax.grad(image)(theta)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 4])
def test_xla_copies_no_more_fields_where_waves_are_stored_in_bfloat16(every):
    """It copies a whole field where it cannot order a reading of it before what is written."""

    def count_copies(stored_as):
        given = {"stored_every": every, "stored_as": stored_as, "engine": "xla"}
        model = waves.Acoustic(survey_of((150, 130)), np.full((150, 130), 2000.0), **given)
        medium = Medium(model.slowness(model.start), model.layer, model.scheme)
        program = simulate.lower(medium, model.gathers, True, None).compile().as_text()
        sides = ",".join(map(str, medium.rest(1).now.u.shape))
        return program.count(f"f32[{sides}]{{2,1,0}} copy(")

    assert 0 < count_copies(jnp.bfloat16) <= count_copies(None)


@pytest.mark.parametrize("name", ["boundary", "checkpoints"])
def test_the_planned_bytes_are_those_of_the_arrays(name):
    model = model_of(**OPTIONS[name])
    kept = jax.eval_shape(lambda theta: model.evaluate(theta).kept, theta_of(model))
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept))
    between = 8 * model.survey.shots * (model.scheme.segment or 0) * np.prod(np.array(SHAPE) + 10)
    planned = count_bytes(model.survey, 4, 5, jnp.float64, model.storage, model.survey.shots)
    assert planned.bytes == size + between


@pytest.mark.skipif("jax.device_count() < 2")
def test_silent_shots_that_fill_up_the_devices_count_as_memory():
    survey = survey_of(shots=3)
    one = model_of(survey, stored_every=1)
    model = model_of(survey, stored_every=1, devices=jax.devices()[:2])
    assert model.storage.bytes * 3 == one.storage.bytes * 4
    for some in (model, model.restricted(Functions(jnp.array([2]), 3))):
        kept = jax.eval_shape(lambda theta, some=some: some.evaluate(theta).kept, theta_of(model))
        assert some.storage.bytes == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept))
    tight = model_of(survey, stored_every=1, devices=jax.devices()[:2], memory=one.storage.bytes)
    assert tight.scheme.recomputes


@pytest.mark.slow
@settings(max_examples=200)
@given(st.floats(5.0, 40.0), st.sampled_from([2, 3, 4, 6, 9, 12, 20, 40]), st.integers(0, 99))
def test_products_of_a_thinned_field_are_good_or_it_says_otherwise(frequency, every, seed):
    survey = survey_with(wavelet=waves.ricker(frequency, DT, 200))
    natgrad.errors._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            thinned = model_of(survey, stored_every=every)
        except ng.InputError as error:
            assert str(error).startswith("stored_every: ")  # noqa: PT017
            return
    if not any("products are rough" in str(warning.message) for warning in caught):
        random, theta = np.random.default_rng(seed), theta_of(thinned)
        eta = jnp.asarray(random.normal(size=theta.size))
        xi = in_band(random.normal(size=survey.data_shape), survey)
        both = [products_of(model, theta) for model in (thinned, model_of(survey, stored_every=1))]
        found, exact = (in_band(push(products, eta), survey) for products in both)
        assert jnp.linalg.norm(found - exact) < 0.05 * jnp.linalg.norm(exact)
        found, exact = (pull(products, xi) for products in both)
        assert jnp.linalg.norm(found - exact) < 0.05 * jnp.linalg.norm(exact)


def in_band(data, survey) -> jax.Array:
    """The part of the data at the frequencies of the wavelet: images of the samples lie above."""
    spectrum, frequencies = jnp.fft.rfft(data), jnp.fft.rfftfreq(survey.steps, survey.dt)
    return jnp.fft.irfft(
        jnp.where(frequencies > survey.highest_frequency, 0, spectrum), survey.steps
    )


def test_data_and_batches_need_no_memory_for_all_shots():
    """Where the waves of all shots do not fit, products say so, and those of a batch are had."""
    least = plan_storage(survey_of(), 4, 5, jnp.float64, 1, 1).bytes
    whole, tight = model_of(stored_every=1), model_of(stored_every=1, memory=least - 1)
    theta = theta_of(whole)
    np.testing.assert_array_equal(simulated(tight, theta), simulated(whole, theta))
    with pytest.raises(ng.InputError, match=f"memory: .* cannot hold .*memory={least:_}, .*batch"):
        products_of(tight, theta)
    with pytest.raises(
        ng.InputError, match=r"for 1 shot need: .* propagations?. Try: memory=[0-9_]*, or fewer"
    ):
        products_of(model_of(survey_of(shots=1), memory=1), theta)
    half, eta = Functions(jnp.array([1]), 2), jnp.ones(theta.size)
    found, expected = (push(products_of(m.restricted(half), theta), eta) for m in (tight, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


# --- bad input -----------------------------------------------------------------------------------


def survey_with(**changes):
    survey = survey_of()
    given = {
        "shape": survey.shape,
        "spacing": SPACING,
        "dt": DT,
        "sources": survey.sources,
        "receivers": survey.receivers,
        "wavelet": survey.wavelet,
    }
    return waves.Survey(**given | changes)


def line_with(**changes) -> waves.Survey:
    given = {"dt": DT, "steps": STEPS, "shots": 2, "frequency": 12.0}
    return waves.Survey.line(SHAPE, SPACING, **given | changes)


def with_mean() -> waves.Survey:
    """A wavelet that has half of its energy at 0 Hz."""
    return survey_with(wavelet=0.5 + waves.ricker(12.0, DT, STEPS))


def velocity_with(value):
    velocity = velocity_of()
    velocity[3, 4] = value
    return velocity


BAD = {
    "unstable": (lambda: model_of(survey_with(dt=0.01)), "dt: 0.01 s is unstable at .* limit"),
    "units": (lambda: model_of(survey_with(dt=10.0)), "if units are right: spacing in m, velocity"),
    "outside": (
        lambda: model_of(survey_with(sources=[[0.0, 10.0], [1e4, 0.0]])),
        "sources: number 1 at .* lies outside the model",
    ),
    "receiver": (lambda: model_of(survey_with(receivers=[[-1.0, 0.0]])), "receivers: number 0"),
    "nan": (
        lambda: waves.Acoustic(survey_of(), velocity_with(np.nan)),
        "velocity: 1 of its 168 cells is not",
    ),
    "negative": (lambda: waves.Acoustic(survey_of(), velocity_with(-2.0)), "velocity: 1 of"),
    "shape": (lambda: waves.Acoustic(survey_of(), np.ones((3, 3))), "velocity: has shape"),
    "memory": (lambda: model_of(memory="2GB"), f"memory: '2GB' is not .*memory={2**31}"),
    "no memory": (lambda: model_of(memory=0.0), f"memory: 0.0 is not .*memory={2**31}"),
    "survey": (lambda: waves.Acoustic("x", velocity_of()), "survey: is a str"),
    "engine": (lambda: model_of(engine="kernel"), "engine: 'kernel' is unknown"),
    "integers": (lambda: model_of(dtype=int), "dtype: .*int"),
    "no dtype": (lambda: model_of(dtype=None), "dtype: None is not"),
    "unknown dtype": (lambda: model_of(dtype="float31"), "dtype: .float31."),
    "half precision": (lambda: model_of(dtype=jnp.float16), "dtype: .*float16"),
    "km/s": (lambda: waves.Acoustic(survey_of(), np.full(SHAPE, 2.0)), "velocity: 2 m/s .*km/s"),
    "theta of velocities": (
        lambda: model_of().check(jnp.full(SHAPE, 2000.0), None),
        r"velocity: 22.*km/s; theta is squared slowness.*squared_slowness\(velocity\)",
    ),
    "too few samples": (lambda: model_of(stored_every=40), "stored_every: 40 steps"),
    "constant wavelet": (lambda: survey_with(wavelet=np.ones(40)), "wavelet: does not oscillate"),
    "one sample": (lambda: survey_with(wavelet=np.ones(1)), "wavelet: does not oscillate"),
    "more steps than there are": (
        lambda: choose_every(with_mean(), 10**4),
        "stored_every: 10000 is more than the 41 steps",
    ),
    "order": (lambda: model_of(order=6), "order: 6 is not implemented"),
    "float order": (lambda: model_of(order=4.0), "order: 4.0 is not"),
    "list of orders": (lambda: model_of(order=[4]), r"order: \[4\] is not"),
    "absorbing": (lambda: model_of(absorbing=-1), "absorbing: -1"),
    "stored_every": (lambda: model_of(stored_every=0), "stored_every: 0"),
    "stored_as": (lambda: model_of(stored_as="int8"), "stored_as: 'int8' .* Try: jnp.bfloat16"),
    "stored_as a number": (lambda: model_of(stored_as=16), "stored_as: 16 is not"),
    "stored_as no type": (lambda: model_of(stored_as="f4,,"), "stored_as: 'f4,,' is not"),
    "no type": (lambda: model_of(dtype="f4,,"), "dtype: 'f4,,' is not"),
    "bytes swapped": (lambda: model_of(dtype=">f4"), "dtype: '>f4' is not a precision"),
    "no velocity": (lambda: waves.Acoustic(survey_of(), "x"), "velocity: 'x' holds no real"),
    "no weights": (lambda: model_of(update="x"), "update: 'x' holds no real"),
    "no devices": (lambda: model_of(devices=2), r"devices: 2 is no device. Try: jax.devices\(\)"),
    "a device twice": (
        lambda: model_of(devices=jax.devices()[:1] * 2),
        "devices: has one of them twice",
    ),
    "devices by name": (lambda: model_of(devices="cpu"), "devices: 'cpu' is no device"),
    "bounds of words": (lambda: model_of().bounds("a", 3000.0), "lowest: 'a' is not a real"),
    "bounds of lists": (
        lambda: model_of().bounds(1400.0, [3000.0]),
        r"highest: \[3000.0\] is not a real number. Try: highest=5000.0",
    ),
    "no dt": (lambda: survey_with(dt=None), "dt: None is not a real number. Try: dt=0.001"),
    "negative dt": (lambda: survey_with(dt=-0.1), "dt: -0.1 is not .*positive. Try: dt=0.001"),
    "ragged dt": (lambda: survey_with(dt=[1, [2]]), r"dt: \[1, \[2\]\] is not a real number"),
    "shape without sides": (lambda: survey_with(shape=np.array(20)), "shape: 20 is no grid"),
    "delay of words": (lambda: waves.ricker(6.0, DT, 9, "a"), "delay: 'a' holds no real numbers"),
    "band of words": (lambda: waves.low_pass(np.ones(9), DT, "a"), "corner: 'a' is not a real"),
    "ragged shape": (lambda: survey_with(shape=((1, 2), 3)), "shape: .* is no grid"),
    "spacing of words": (lambda: survey_with(spacing="x"), "spacing: 'x' holds no real"),
    "sources of words": (lambda: survey_with(sources="x"), "sources: 'x' holds no real"),
    "ragged receivers": (lambda: survey_with(receivers=[[0.0], [1.0, 2.0]]), "receivers: .* holds"),
    "wavelet of words": (lambda: survey_with(wavelet="x"), "wavelet: 'x' holds no real"),
    "part of a shot": (lambda: line_with(shots=2.5), "shots: 2.5 is not an integer"),
    "part of a step": (lambda: line_with(steps=41.5), "steps: 41.5 is not an integer"),
    "frequency of a line": (
        lambda: line_with(frequency=0.0),
        "frequency: 0.0 is not .*Try: frequency=6.0",
    ),
    "update": (lambda: model_of(update=np.full(SHAPE, 2.0)), "update: is not between"),
    "no update": (lambda: model_of(update=np.zeros(SHAPE)), "update: is zero in all cells"),
    "update shape": (lambda: model_of(update=np.ones(3)), "update: has shape"),
    "bounds": (lambda: model_of().bounds(1500.0, 1e5), "dt: .* unstable at 100000 m/s"),
    "bounds order": (
        lambda: model_of().bounds(3000.0, 1500.0),
        r"lowest: 3000.0 m/s is not below 1500.0 m/s. Try: bounds\(1500.0, 3000.0\)",
    ),
    "equal bounds": (lambda: model_of().bounds(3e3, 3e3), "lowest: .*not below .*two velocities"),
    "bounds sign": (lambda: model_of().bounds(-100.0, 3000.0), "lowest: -100.0 .* not .*positive"),
    "data": (
        lambda: waves.Shots(survey_of(), np.zeros((2, STEPS, 7))),
        r"data: has shape \(2, 41, 7\), .*swapaxes",
    ),
    "shots without survey": (lambda: waves.Shots("x", np.ones(3)), "survey: is a str"),
    "data ragged": (lambda: waves.Shots(survey_of(), [[1], [1, 2]]), "data: is no array"),
    "data bool": (
        lambda: waves.Shots(survey_of(), np.ones(survey_of().data_shape, bool)),
        "data: has values of bool",
    ),
    "data complex": (
        lambda: waves.Shots(survey_of(), 1j * np.ones(survey_of().data_shape)),
        "data: has values of complex128",
    ),
    "data nan": (
        lambda: waves.Shots(survey_of(), np.full(survey_of().data_shape, np.nan)),
        "data: .* not finite",
    ),
    "wavelet": (lambda: survey_with(wavelet=np.zeros(9)), "wavelet: is zero"),
    "wavelet rows": (lambda: survey_with(wavelet=np.ones((3, 9))), "wavelet: has 3 rows for 2"),
    "spacing": (lambda: survey_with(spacing=-1.0), "spacing"),
    "spacing nan": (lambda: survey_with(spacing=(np.nan, 25.0)), "spacing: .*nan"),
    "spacing inf": (lambda: survey_with(spacing=np.inf), "spacing: .*inf"),
    "cells": (lambda: survey_with(shape=(30.7, 24)), r"shape: \(30.7, 24\) is no grid"),
    "one side": (
        lambda: waves.Survey.line(9, 1.0, dt=DT, steps=9, shots=1, frequency=1.0),
        "shape: 9 is no grid",
    ),
    "no sources": (lambda: survey_with(sources=np.zeros((0, 2))), r"sources: have shape \(0, 2\)"),
    "no receivers": (lambda: survey_with(receivers=[]), r"receivers: have shape \(1, 0\)"),
    "dt": (lambda: survey_with(dt=0.0), "dt: 0.0 is not .*positive"),
    "frequency": (lambda: waves.ricker(-1.0, DT, 9), "frequency: -1.0"),
    "shots": (
        lambda: waves.Survey.line(SHAPE, 1.0, dt=DT, steps=9, shots=0, frequency=1.0),
        "shots: 0",
    ),
    "theta": (
        lambda: ng.minimize(
            ng.Problem(model_of(), ng.LeastSquares(jnp.zeros(survey_of().data_shape))),
            jnp.ones((3, 3)),
            ng.NaturalGradient(ng.L2()),
        ),
        "theta",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    make, message = BAD[name]
    with pytest.raises(ng.InputError, match=message):
        make()


def test_a_precision_has_names_and_a_double_one_needs_x64():
    for dtype in ("float32", np.dtype("float32"), float):
        assert model_of(dtype=dtype).start.dtype == np.dtype(dtype)
    with (
        jax.enable_x64(False),
        pytest.raises(ng.InputError, match=r"dtype: is float64, .*jax_enable_x64"),
    ):
        model_of(dtype=jnp.float64)


def test_a_grid_too_coarse_for_the_wavelet_is_warned_of():
    fine = survey_with(wavelet=waves.ricker(45.0, DT, STEPS))
    with pytest.warns(
        ng.errors.PrecisionWarning, match=r"spans only .* be dispersed. Try: a spacing of"
    ) as caught:
        waves.Acoustic(fine, velocity_of() * 0.5, absorbing=2)
    assert caught[0].filename == __file__
