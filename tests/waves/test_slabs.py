"""One shot on several devices: data and products equal those of one, by exchanges of neighbours."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad import waves
from natgrad.core.settings import replace_fields
from natgrad.core.sharding import row_mesh
from natgrad.waves import slabs
from natgrad.waves.scheme import Scheme, Storage
from problems_for_tests import with_slow

pytestmark = pytest.mark.filterwarnings("ignore:.*dispersed", "ignore:.*products are rough")


@pytest.fixture(autouse=True)
def _small_slabs(monkeypatch):
    """Grids of some hundred cells are cut too."""
    monkeypatch.setattr(slabs, "LEAST", 1)


def model_of(shape, shots=1, devices=1, storage=None, **options) -> waves.Acoustic:
    """Sources and receivers between grid points, on both sides of every cut."""
    h, across = 25.0, np.array(shape) - 2.0
    place = lambda share: (h * (across * share + 0.3)).tolist()
    sources = [place(x) for x in np.linspace(0.1, 0.9, shots)]
    receivers = [place(x) for x in np.linspace(0.0, 1.0, 9)]
    wavelet = waves.ricker(12.0, 0.003, 21)
    survey = waves.Survey(shape, h, 0.003, sources, receivers, wavelet)
    velocity = 1800 + 300 * np.random.default_rng(0).random(shape)
    options = {"absorbing": 3, "stored_every": 1, "dtype": jnp.float64} | options
    model = waves.Acoustic(survey, velocity, devices=jax.devices()[:devices], **options)
    if storage is None:
        return model
    scheme = Scheme.of(survey, model.order, model.scheme.absorbing, storage)
    return replace_fields(model, storage=storage, scheme=scheme)


@eqx.filter_jit
def everything(model, theta, eta, xi):
    products = model.products(lambda flat: flat.reshape(theta.shape), theta.ravel())
    return model(theta), products.rho, products.push(eta), products.pull(xi)


CASES = {  # shape, shots, devices, slabs of a shot, options
    "2D": ((30, 14), 1, 2, 2, {"stored_every": 2}),
    "shots and slabs": ((40, 34), 2, 4, 2, {"order": 8}),
    "checkpoints": ((30, 14), 1, 2, 2, {"storage": Storage(1, 7, 0)}),
    "bfloat16": ((30, 14), 1, 2, 2, {"stored_as": jnp.bfloat16}),
    "no layer": ((30, 16), 1, 4, 4, {"absorbing": 0}),
    "3D": ((7, 14, 15), 1, 2, 2, {}),
}


@pytest.mark.parametrize("name", with_slow(CASES, [*CASES][1:]))
def test_slabs_give_the_numbers_of_one_device(name):
    shape, shots, devices, count, options = CASES[name]
    one, many = (model_of(shape, shots, n, **options) for n in (1, devices))
    assert slabs.count_slabs(many.mesh, shots, shape, many.scheme) == count
    theta, random = one.start, np.random.default_rng(1)
    given = (random.standard_normal(theta.size), random.standard_normal(one.survey.data_shape))
    for x, y in zip(*(everything(model, theta, *given) for model in (one, many)), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-14 * float(jnp.max(jnp.abs(x))))


def test_only_neighbours_talk_while_waves_run():
    """Halos by permutations, and one sum of the traces at the end."""
    model = model_of((30, 14), devices=2)
    text = jax.jit(lambda theta: model(theta)).lower(model.start).compile().as_text()
    assert " collective-permute" in text
    assert "all-gather" not in text
    assert "all-to-all" not in text


def test_devices_share_a_shot_where_shots_are_few_and_slabs_are_thick(monkeypatch):
    mesh = row_mesh(jax.devices()[:4])
    model = model_of((60, 50))  # 56 cells across, and none may have less than ten
    count = lambda mesh, shots, shape=(60, 50): slabs.count_slabs(mesh, shots, shape, model.scheme)
    assert count(None, 1) == 1
    assert [count(mesh, shots) for shots in (1, 2, 3, 9)] == [4, 2, 1, 1]
    assert count(mesh, 1, (60, 48)) == 2  # four do not divide 54 cells
    assert count(mesh, 1, (60, 11)) == 1  # nor do two 17
    monkeypatch.setattr(slabs, "LEAST", 1500)
    assert count(mesh, 1) == 2


def test_slabs_keep_no_boundary():
    model = model_of((100, 82), memory=1_000_000, stored_every=1)
    assert model.scheme.boundary
    spread = model.distributed(row_mesh(jax.devices()[:4]))
    assert not spread.scheme.boundary


@pytest.mark.slow
def test_a_run_in_slabs_is_that_of_one_device():
    model = model_of((30, 14))
    data, grid = 1.1 * model(model.start), model.survey.gather_grid
    problem = ng.Problem(model, ng.LeastSquares(data, grid))
    method = ng.NaturalGradient(ng.L2(grid), solver=ng.CG(0.0, 3))
    mesh = jax.make_mesh((2,), ("devices",), devices=jax.devices()[:2])
    plain, spread = (
        ng.minimize(problem, model.start, method, stop=ng.Stop(iterations=3), mesh=mesh)
        for mesh in (None, mesh)
    )
    np.testing.assert_allclose(spread.theta, plain.theta, rtol=1e-9)
