"""The Darcy study: its equation against dense oracles, its prior, and one tiny run."""

import json
from dataclasses import replace
from types import SimpleNamespace as Entry
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.report import plain
from natgrad_studies.darcy import run as study
from natgrad_studies.darcy.methods import METRICS, Method
from natgrad_studies.darcy.page import _winner, expected, level_table, propagation_table, summary
from natgrad_studies.darcy.problem import (
    Balance,
    Inversion,
    Smoothness,
    centres,
    coarsen,
    inflows,
    log_permeability,
    observe,
    pressure,
    stiffness,
    wells,
)
from natgrad_studies.darcy.settings import ENTRANTS, METHODS, PRESETS, Settings
from natgrad_studies.keeping import Kept
from natgrad_studies.running import run_study

TINY = Settings(
    cells=16,
    methods=("GD", "L2", "LBFGS_prior", "L2_prior", "L2_damped"),
    noise=0.05,
    pairs=12,
    max_propagations=120,
    posterior_rank=20,
)

# --- the equation --------------------------------------------------------------------------------


def dense_stiffness(m: np.ndarray) -> np.ndarray:
    """K(m) face by face, with two-point fluxes written out."""
    n, permeability = len(m), np.exp(m)
    K = np.zeros((n * n, n * n))
    for i in range(n):
        for j in range(n):
            here = i * n + j
            for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                a, b = i + di, j + dj
                if 0 <= a < n and 0 <= b < n:
                    one, other = permeability[i, j], permeability[a, b]
                    flux = 2 * one * other / (one + other)
                    K[here, a * n + b] -= flux
                else:
                    flux = 2 * permeability[i, j]
                K[here, here] += flux
    return K


def test_the_matrix_and_the_residual_are_those_of_two_point_fluxes():
    rng = np.random.default_rng(0)
    m, u = rng.normal(size=(6, 6)), rng.normal(size=(4, 6, 6))
    q = rng.normal(size=(4, 6, 6))
    K = dense_stiffness(m)
    assert np.allclose(stiffness(m).toarray(), K, rtol=1e-13, atol=1e-13)
    h = eqx.filter_jit(Balance(jnp.asarray(q)))(jnp.asarray(u), jnp.asarray(m))
    assert np.allclose(h, (u.reshape(4, -1) @ K).reshape(u.shape) - q, rtol=1e-12, atol=1e-12)


def test_the_matrix_is_symmetric_and_positive_and_its_solutions_are_positive():
    m = 2.0 * np.random.default_rng(1).normal(size=(12, 12))
    K = stiffness(m).toarray()
    assert np.array_equal(K, K.T)
    assert np.linalg.eigvalsh(K).min() > 0
    assert pressure(m, inflows(12, 3, 0.05)).min() > 0


def test_a_permeability_beyond_the_range_of_doubles_has_no_solution():
    m, inflow = np.zeros((8, 8)), inflows(8, 1, 0.2)
    m[2:5, 2:5] = -80.0
    assert np.all(pressure(m, inflow) >= 0)
    for far in (800.0, np.nan):
        m[2, 2] = far
        with pytest.raises(np.linalg.LinAlgError):
            pressure(m, inflow)


def test_a_manufactured_solution_converges_at_second_order():
    """u = sin πx sin 2πy with m = 0.8 sin(3x) cos(2y), its source by hand."""
    errors = []
    for n in (16, 32, 64):
        x, y = np.moveaxis(centres(n), -1, 0)
        m = 0.8 * np.sin(3 * x) * np.cos(2 * y)
        u = np.sin(np.pi * x) * np.sin(2 * np.pi * y)
        along_x = np.pi * np.cos(np.pi * x) * np.sin(2 * np.pi * y)
        along_y = 2 * np.pi * np.sin(np.pi * x) * np.cos(2 * np.pi * y)
        slope_x = 2.4 * np.cos(3 * x) * np.cos(2 * y)
        slope_y = -1.6 * np.sin(3 * x) * np.sin(2 * y)
        q = np.exp(m) * (5 * np.pi**2 * u - slope_x * along_x - slope_y * along_y)
        found = pressure(m, q[None] / n**2)[0]
        errors.append(np.sqrt(np.mean((found - u) ** 2)))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 2) < 0.1)


def test_sources_have_unit_mass_and_lie_where_the_wells_are():
    q = inflows(48, 3, 0.05)
    assert np.allclose(q.sum(axis=(1, 2)), 1)
    means = np.einsum("sij,ijd->sd", q, centres(48))
    assert np.abs(means - wells(3)).max() < 0.01


def test_finer_grids_sample_the_same_permeability():
    coarse, fine = log_permeability(64, 2), log_permeability(128, 2)
    assert np.abs(coarsen(fine) - coarse).mean() < 0.01
    assert np.ptp(fine) > np.log(50)


# --- the prior -----------------------------------------------------------------------------------


def test_the_prior_is_the_square_of_a_shifted_laplacian():
    n, length = 8, 0.2
    prior = Smoothness(n, length, 0.7)
    second = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    second[0, 0] = second[-1, -1] = 1  # no flux
    laplacian = n**2 * (np.kron(second, np.eye(n)) + np.kron(np.eye(n), second))
    M = np.eye(n * n) + length**2 * laplacian
    gain2 = 0.49 / np.mean(np.diag(np.linalg.inv(M @ M)))
    v = np.random.default_rng(0).normal(size=(n, n))

    @jax.jit
    def applied(v):
        product = prior.precision().mv(v)
        back = prior.covariance().mv(product)
        return product, back, prior.field(prior.coordinates(v)), prior.variance()

    product, back, again, variance = map(np.asarray, applied(v))
    assert np.allclose(product.ravel(), M @ M @ v.ravel() / gain2, rtol=1e-10)
    assert np.allclose(back, v, rtol=1e-9, atol=1e-9)
    assert np.allclose(again, v, rtol=1e-10, atol=1e-10)
    expected = gain2 * np.diag(np.linalg.inv(M @ M)).reshape(n, n)
    assert np.allclose(variance, expected, rtol=1e-10)
    assert np.mean(variance) == pytest.approx(0.49)


# --- the model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inversion():
    return Inversion.of("wells", TINY)


@pytest.mark.parametrize("white", [False, True])
def test_products_of_the_model_are_adjoint_and_those_of_its_derivative(inversion, white):
    problem = inversion.white_problem if white else inversion.problem
    rng = np.random.default_rng(2)
    theta = jnp.asarray(0.5 * rng.normal(size=(16, 16)))
    flat, shaped = theta.ravel(), lambda v: v.reshape(16, 16)
    products = problem.model.products(shaped, flat)
    eta, xi = rng.normal(size=256), rng.normal(size=inversion.data.observed.shape)
    image = np.asarray(products.push(jnp.asarray(eta)))
    assert np.sum(image * xi) == pytest.approx(
        float(products.pull(jnp.asarray(xi)) @ eta), rel=1e-10
    )
    field = (lambda v: inversion.field(v)) if white else np.asarray
    state = lambda t: observe(
        pressure(field(shaped(np.asarray(flat) + t * eta)), inversion.data.inflow), 4
    )
    errors = [np.linalg.norm((state(t) - state(-t)) / (2 * t) - image) for t in (2e-3, 1e-3)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@pytest.mark.slow
def test_the_prior_as_damping_is_white_damping_in_its_coordinates(inversion):
    """The same truncated conjugate gradients in either coordinates, so the same direction."""
    prior, strength = inversion.prior, 1e-4
    field = jnp.asarray(0.3 * np.random.default_rng(3).normal(size=(16, 16)))
    settings = {"metric": ng.L2(inversion.grid)}
    damped = ng.natural_gradient(
        inversion.problem,
        field,
        solver=ng.CG(0.0, 5, preconditioner=prior.covariance()),
        damping=ng.ParameterDamping(prior.precision(), strength),
        **settings,
    )
    white = ng.natural_gradient(
        inversion.white_problem,
        prior.coordinates(field),
        solver=ng.CG(0.0, 5, preconditioner=None),
        damping=ng.AbsoluteDamping(strength),
        **settings,
    )
    assert np.allclose(prior.field(white.eta), damped.eta, rtol=1e-6, atol=1e-8)


def test_one_direction_costs_two_propagations_a_step_and_one_factorisation(inversion):
    inversion.factorisations = 0
    found = ng.natural_gradient(
        inversion.problem,
        inversion.start,
        metric=ng.L2(inversion.grid),
        solver=ng.CG(0.0, 5, preconditioner=None),
    )
    assert sum(found.info.counts) == 2 * 5 + 2
    assert inversion.factorisations == 1


@pytest.mark.parametrize(
    ("totals", "told"),
    [
        ({"LBFGS": 63, "LBFGS_long": 59, "L2": 70}, "first, after 59 propagations."),
        (
            {"LBFGS_prior": 20, "LBFGS": 80, "L2_prior": 10},
            "first, after 10 propagations, the best L-BFGS with the prior after 20.",
        ),
        ({"LBFGS_prior": 20, "L2": 10}, "first, after 10 propagations."),
    ],
)
def test_the_winner_is_compared_with_a_rival_of_the_same_prior(totals, told):
    runs: Any = [Entry(method=Method(key), reached=True, total=n) for key, n in totals.items()]
    grid: Any = Entry(variant="wells", grid=Entry(shape=(8, 8)))
    assert _winner(study.VariantResult(grid, runs, None)).endswith(f" reaches the noise {told}")


# --- the study -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a tiny run, its result, and what it said."""
    output = tmp_path_factory.mktemp("darcy") / "result"
    said: list[str] = []
    page, result = run_study(replace(TINY, output=output), said.append)
    assert page == output / "index.html"
    return output, result, said


@pytest.mark.slow
def test_a_tiny_run_leaves_numbers_figures_and_a_page(tiny):
    output, result, said = tiny
    numbers = json.loads((output / "results.json").read_text())
    runs = numbers["variants"]["wells"]["runs"]
    assert set(runs) == set(TINY.methods)
    for run in runs.values():
        assert len(run["error"]) == len(run["misfit_over_noise"]) == len(run["propagations"])
        assert run["error"][0] == pytest.approx(1)
        total = run["forward"] + run["linearised"] + run["adjoint"]
        assert run["propagations"][-1] == total
    page = (output / "index.html").read_text()
    assert "data:image/png;base64," not in page
    assert page.count('data-kind="curves">') == 6
    assert page.count('data-kind="frames">') == 6
    assert len(said) == len(TINY.methods) + 1
    assert all(table.rows for table in summary(result))


@pytest.mark.slow
def test_finished_runs_are_taken_up(tiny, monkeypatch):
    output, result, _ = tiny
    never = lambda *parts: pytest.fail("computed again")
    monkeypatch.setattr(study, "run_method", never)
    monkeypatch.setattr(study, "posterior", never)
    kept = Kept(output / "runs", *study.KEPT)
    again = study.compute(replace(TINY, output=output), lambda line: None, kept)
    assert plain(again.numbers()["variants"]) == plain(result.numbers()["variants"])
    one, other = (found.variants["wells"]["L2_prior"] for found in (again, result))
    assert np.array_equal(one.field, other.field)
    assert one.method.key == "L2_prior"


@pytest.mark.slow
def test_runs_stop_at_the_noise_and_not_before(tiny):
    variant = tiny[1].variants["wells"]
    assert variant["L2_prior"].reached
    assert variant["LBFGS_prior"].reached
    data = variant.inversion.data
    for run in variant.runs:
        there = run.misfit <= TINY.discrepancy
        assert there[-1] == run.reached
        assert not there[:-1].any()
        rms = np.sqrt(np.mean((observe(pressure(run.field, data.inflow), 4) - data.observed) ** 2))
        assert run.misfit[-1] == pytest.approx(rms / data.noise, rel=1e-6)
        assert run.error[-1] == pytest.approx(variant.inversion.error(run.field), rel=1e-6)


@pytest.mark.slow
def test_propagations_are_those_of_the_formula(tiny):
    variant = tiny[1].variants["wells"]
    for key in ("GD", "L2", "L2_prior", "L2_damped"):
        run = variant[key]
        forward, adjoint, linearised = expected(run)
        assert run.forward >= forward  # backtracking costs more
        assert (run.adjoint, run.linearised) == (adjoint, linearised)
    assert variant["L2_prior"].factorisations == variant["L2_prior"].forward
    assert len(propagation_table(variant).rows) == 3
    assert variant["L2"].until(1e9) == variant["L2"].propagations[0]
    assert len(level_table(variant).rows) == len(TINY.methods)


@pytest.mark.slow
def test_the_posterior_is_narrower_than_the_prior(tiny):
    found = tiny[1].variants["wells"].posterior
    assert np.all(np.diff(found.values) <= 0)
    assert np.all(found.deviation <= found.prior_deviation + 1e-12)
    assert found.deviation.mean() < found.prior_deviation.mean()


# --- the settings --------------------------------------------------------------------------------


def test_every_method_of_the_settings_is_there():
    assert all(Method(key).name for key in METHODS)
    assert set(METRICS) | {"GD", "Newton", "LBFGS", "LBFGS_long"} == set(ENTRANTS)
    for preset in PRESETS.values():
        preset.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ("L7",)}, "'L7' is unknown"),
        ({"methods": ()}, "are empty"),
        ({"variants": ("nowhere",)}, "'nowhere' is unknown"),
        ({"cells": 20}, "a multiple of 8"),
        ({"noise": 0.0}, "noise"),
        ({"pairs": 0}, "pairs"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ng.InputError, match=message):
        replace(TINY, **change).check()
