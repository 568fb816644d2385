"""Small surveys for kernels of waves, and what they compute against XLA."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from natgrad import waves


def make(
    engine,
    order=4,
    dtype=jnp.float64,
    on_grid=True,
    every=3,
    absorbing=8,
    shape=(34, 28),
    spacing=(10.0, 12.0, 11.0),
    devices=None,
    steps=None,
    **storage,
):
    d = len(shape)
    spacing, rng = spacing[:d], np.random.default_rng(0)
    steps = steps or (30 if d == 2 else 16)
    place = lambda n: rng.uniform(0, 1, (n, d)) * (np.array(shape) - 1) * spacing
    sources, receivers = place(2), place(9)
    if on_grid:
        sources, receivers = (spacing * np.round(x / spacing) for x in (sources, receivers))
    wavelet = waves.ricker(12.0, 0.0015, steps, 0.01)
    survey = waves.Survey(shape, spacing, 0.0015, sources, receivers, wavelet)
    velocity = 2000.0 + 300 * rng.normal(size=shape).clip(-1, 1)
    settings = {"order": order, "absorbing": absorbing, "stored_every": every, "dtype": dtype}
    settings |= {"devices": devices} | storage
    return waves.Acoustic(survey, velocity, engine=engine, **settings)


@eqx.filter_jit
def everything(model, eta, xi):
    unravel = lambda flat: flat.reshape(model.survey.shape)
    known = model.evaluate(model.start)
    products = model.products(unravel, model.start.ravel(), known)
    return model(model.start), *known, products.push(eta), products.pull(xi)


CASES = {
    "between cells": {"on_grid": False, "shape": (29, 41), "every": 1, "absorbing": 5},
    "order 8": {"order": 8},
    "single precision": {"dtype": jnp.float32},
    "no layer": {"absorbing": 0, "on_grid": False},
    "equal spacing": {"spacing": (11.0, 11.0), "dtype": jnp.float32, "absorbing": 6},
    "equal spacing, order 8": {"spacing": (11.0, 11.0), "order": 8},
    # longer than numbers that double at every step stay finite
    "many steps": {"dtype": jnp.float32, "steps": 190, "shape": (46, 40), "absorbing": 10},
    "bfloat16": {"dtype": jnp.float32, "stored_as": jnp.bfloat16, "on_grid": False},
    "bfloat16, rows that are not aligned": {"shape": (33, 27), "stored_as": jnp.bfloat16},
    "3D": {"shape": (9, 7, 36), "absorbing": 3, "on_grid": False},
    "3D, order 8": {"shape": (9, 7, 124), "absorbing": 4, "order": 8, "dtype": jnp.float32},
    "3D, bfloat16": {"shape": (9, 7, 36), "absorbing": 3, "stored_as": jnp.bfloat16},
}


def check(settings, engine, devices=None):
    model, other = make("xla", **settings), make(engine, devices=devices, **settings)
    rng = np.random.default_rng(1)
    eta = jnp.asarray(rng.normal(size=model.start.size))
    xi = jnp.asarray(rng.normal(size=model.survey.data_shape))
    exact, found = everything(model, eta, xi), everything(other, eta, xi)
    limit = 1e-5 if model.start.dtype == jnp.float32 else 1e-12
    # All but q, whose order differs. Numbers on both sides of a tie are rounded apart:
    limits = [limit] * 2 + [1e-3 if "stored_as" in settings else limit] * 2
    for x, y, near in zip(found[:2] + found[3:], exact[:2] + exact[3:], limits, strict=True):
        assert np.linalg.norm(x - y) <= near * np.linalg.norm(y)
    born, image = (np.asarray(x, float) for x in found[3:])
    dot = np.vdot(born, xi)
    assert abs(dot - image @ eta) <= limit * np.linalg.norm(born) * np.linalg.norm(xi)


def check_a_source(engine, shape):
    """Its cell scatters waves as it should: those that arrive and the force nearly cancel there."""
    spacing, dt = 25.0, 0.004
    at, wavelet = [[12 * spacing, 9 * spacing]], waves.ricker(4.0, dt, 150, 0.3)
    survey = waves.Survey(
        shape, spacing, dt, at, [[x * spacing, 50.0] for x in range(shape[0])], wavelet
    )
    given = {"absorbing": 6, "stored_every": 2}
    make = lambda **more: waves.Acoustic(survey, np.full(shape, 2000.0), **given, **more)
    models = make(engine="xla"), make(engine=engine, stored_as=jnp.bfloat16)
    cell = jnp.zeros(shape).at[12, 9].set(1.0).ravel()
    exact, found = (everything(model, cell, jnp.ones(survey.data_shape))[3] for model in models)
    assert np.linalg.norm(found - exact) <= 3e-3 * np.linalg.norm(exact)
