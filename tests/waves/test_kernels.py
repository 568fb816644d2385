"""The CUDA kernels against XLA: their source runs on the CPU here, a coroutine for each thread."""

import equinox as eqx
import host_kernels
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad import waves
from natgrad.waves import kernels, propagation

needs_compiler = pytest.mark.skipif(host_kernels.COMPILER is None, reason="needs g++")


@pytest.fixture
def on_cpu(monkeypatch):
    """Kernels take the place of XLA, planned for a Hopper GPU."""
    device = kernels.Device()

    def prepare(task):
        plan = kernels.plan_kernel(task, device)
        return plan if isinstance(plan, str) else kernels.launch(task, plan, device)

    def over_groups(function, carry, rows, kernel=None):
        if kernel is None:
            return original(function, carry, rows)
        used.append(kernel)
        return kernel(carry, rows)

    used, original = [], propagation.over_groups
    host_kernels.install()
    monkeypatch.setattr(kernels, "prepare", prepare)
    monkeypatch.setattr(propagation, "over_groups", over_groups)
    return used


def make(engine, order=4, dtype=jnp.float64, on_grid=True, every=3, absorbing=8, shape=(34, 28)):
    spacing, steps, rng = (10.0, 12.0), 30, np.random.default_rng(0)
    place = lambda n: rng.uniform(0, 1, (n, 2)) * (np.array(shape) - 1) * spacing
    sources, receivers = place(2), place(9)
    if on_grid:
        sources, receivers = (spacing * np.round(x / spacing) for x in (sources, receivers))
    wavelet = waves.ricker(12.0, 0.0015, steps, 0.01)
    survey = waves.Survey(shape, spacing, 0.0015, sources, receivers, wavelet)
    velocity = 2000.0 + 300 * rng.normal(size=shape).clip(-1, 1)
    settings = {"order": order, "absorbing": absorbing, "stored_every": every, "dtype": dtype}
    return waves.Acoustic(survey, velocity, engine=engine, **settings)


@eqx.filter_jit
def everything(model, eta, xi):
    unravel = lambda flat: flat.reshape(model.survey.shape)
    known = model.evaluate(model.start)
    products = model.products(unravel, model.start.ravel(), known)
    return model(model.start), *known, products.push(eta), products.pull(xi)


CASES = {
    "order 4": {},
    "order 8": {"order": 8},
    "between cells": {"on_grid": False, "shape": (29, 41), "every": 1},
    "single precision": {"dtype": jnp.float32, "on_grid": False, "absorbing": 5},
    "no layer": {"absorbing": 0},
}


@needs_compiler
@pytest.mark.filterwarnings("ignore::natgrad.errors.PrecisionWarning")
@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_what_xla_does(case, on_cpu):
    settings = CASES[case]
    model = make("xla", **settings)
    rng = np.random.default_rng(1)
    eta = jnp.asarray(rng.normal(size=model.start.size))
    xi = jnp.asarray(rng.normal(size=model.survey.data_shape))
    exact = everything(model, eta, xi)
    assert not on_cpu
    found = everything(make("kernels", **settings), eta, xi)
    assert len(on_cpu) == 4
    limit = 3e-5 if model.start.dtype == jnp.float32 else 1e-12
    for x, y in zip(found[:2] + found[3:], exact[:2] + exact[3:], strict=True):  # all but q
        assert np.linalg.norm(x - y) <= limit * np.linalg.norm(y)
    born, image = (np.asarray(x, float) for x in found[3:])
    dot = np.vdot(born, xi)
    assert abs(dot - image @ eta) <= limit * np.linalg.norm(born) * np.linalg.norm(xi)
