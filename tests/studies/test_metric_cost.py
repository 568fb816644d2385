"""The metric cost study: one tiny run for several checks, and its parts by themselves."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.report import plain
from natgrad_studies.appendix_b import CollocatedTransport
from natgrad_studies.keeping import Kept
from natgrad_studies.metric_cost import run as study
from natgrad_studies.metric_cost import sparse_qr
from natgrad_studies.metric_cost.measure import Measurement, Timing, compile_afresh, cpu_time
from natgrad_studies.metric_cost.methods import methods
from natgrad_studies.metric_cost.page import summary
from natgrad_studies.metric_cost.run import fit_growth, local_exponent
from natgrad_studies.metric_cost.settings import METRICS, PRESETS, Settings
from natgrad_studies.mixtures import START, cell_grid, problem_on
from natgrad_studies.running import run_study

TINY = Settings(
    metrics=("L2", "Hm1", "W2", "W2_sparse", "W2_qr"),
    points=(8, 16),
    transport_points=(16,),
    fit_from=8,
    repeats=1,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a tiny run, its result, and what it said."""
    output = tmp_path_factory.mktemp("cost") / "result"
    said: list[str] = []
    page, result = run_study(replace(TINY, output=output), said.append)
    assert page == output / "index.html"
    return output, result, said


@pytest.mark.slow
def test_a_tiny_run_leaves_numbers_figures_and_a_page(tiny):
    output, result, _ = tiny
    numbers = json.loads((output / "results.json").read_text())
    assert set(numbers["methods"]) == {entry.method.key for entry in result.methods}
    for entry in numbers["methods"].values():
        assert set(entry["measured"]) == ({"16"} if "W₂" in entry["name"] else {"8", "16"})
        for cell in entry["measured"].values():
            assert cell["cpu_seconds"]["direction"]["seconds"] > 0
            assert (cell["cpu_seconds"]["set_up"] is None) != entry["changes_with_rho"]
    page = (output / "index.html").read_text()
    assert "data:image/png;base64," not in page
    assert page.count('data-kind="curves">') == 5
    assert all(table.rows for table in summary(result))


@pytest.mark.slow
def test_finished_methods_are_taken_up(tiny, monkeypatch):
    output, result, _ = tiny
    monkeypatch.setattr(study, "measure_costs", lambda *parts: pytest.fail("computed again"))
    kept = Kept(output / "runs", *study.KEPT)
    again = study.compute(replace(TINY, output=output), lambda line: None, kept)
    assert plain(again.numbers()["methods"]) == plain(result.numbers()["methods"])


@pytest.mark.slow
def test_a_method_finds_the_direction_of_its_metric(tiny):
    _, result, _ = tiny
    grid = cell_grid(16)
    for key, metric in (("L2", ng.L2(grid)), ("Hm1", ng.Sobolev(grid, -1))):
        problem, start = problem_on(grid), jnp.array(START)
        expected = ng.natural_gradient(problem, start, metric=metric, solver=ng.Cholesky()).eta
        assert np.allclose(result[key].measured[16].eta, expected, rtol=1e-9)


@pytest.mark.slow
def test_transport_directions_agree_with_their_reference(tiny):
    _, result, _ = tiny
    for key in ("W2", "W2_sparse") if sparse_qr.is_installed() else ("W2",):
        points, difference = result.eta_difference(result[key])
        assert points == 16
        assert difference < 1e-10
    assert all(found.iterations > 0 for found in result["W2"].measured.values())


@pytest.mark.slow
def test_compilation_is_measured_apart(tiny):
    _, result, _ = tiny
    direction = result["W2"].measured[16].direction
    assert direction.compilation > 10 * direction.seconds


def test_without_suitesparse_its_row_is_left_out_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_qr, "is_installed", lambda: False)
    said: list[str] = []
    settings = replace(TINY, metrics=("W2_qr",), output=tmp_path / "result")
    page, result = run_study(settings, said.append)
    assert result.methods == []
    for told in (said[0], page.read_text()):
        assert "pip install natgrad[suitesparse]" in told


def test_what_takes_too_long_is_left_out_with_a_reason():
    settings = replace(TINY, metrics=("L2",), max_seconds=1e-9)
    costs = study.compute(settings, lambda line: None)["L2"]
    assert list(costs.measured) == [8]
    assert "would take about" in costs.left_out[16]


def test_a_direction_that_is_not_one_is_left_out(monkeypatch):
    moment = Timing(1e-3, 0.0)
    lost = Measurement(None, moment, moment, moment, np.full(2, np.nan), 200)
    monkeypatch.setattr(study, "measure", lambda *arguments: lost)
    costs = study.compute(replace(TINY, metrics=("W2",)), lambda line: None)["W2"]
    assert costs.left_out == {16: "did not converge"}
    assert not costs.measured


def test_a_report_of_nothing_says_why(tmp_path):
    settings = replace(TINY, metrics=("L2",), max_gigabytes=1e-9, output=tmp_path / "result")
    page, result = run_study(settings)
    assert not result["L2"].measured
    assert result["L2"].left_out[16] in page.read_text()


# --- the paper's sparse QR -----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["W2_qr", "W2_collocated_qr"])
def test_sparse_qr_has_the_operators_of_the_metric(key):
    pytest.importorskip("sparseqr")
    method = methods()[key]
    grid = method.grid(12)
    metric = {"staggered": ng.Wasserstein, "collocated": CollocatedTransport}[method.scheme](grid)
    problem = problem_on(grid)
    theta = jnp.array([3.0, 2.0])
    rho, columns = problem.model(theta), jnp.moveaxis(jax.jacfwd(problem.model)(theta), -1, 0)
    rows = np.asarray(eqx.filter_jit(lambda rho: metric.at(rho).image(columns)[0])(rho))
    factor = sparse_qr.TransportQR.of(grid, rho, method.scheme)
    close = lambda found, known: np.allclose(found, known, rtol=0, atol=1e-8 * np.abs(known).max())
    # B is unique up to its sign.
    assert close(np.abs(factor.product(columns[0])), np.abs(rows[0]))
    assert close(factor.information(columns), rows @ rows.T)
    whitened = np.concatenate([np.ravel(flux) for flux in metric.whiten(rho, columns[0])])
    assert close(np.abs(factor.whiten(columns[0])), np.abs(whitened))


# --- the parts -----------------------------------------------------------------------------------


def test_growth_of_a_power_is_its_exponent_over_the_range_asked_for():
    seconds = {n: 1e-3 + (1.0 if n < 50 else 0.0) * 5 for n in (10, 20)}
    seconds |= {n: 1e-6 * n**2.5 for n in (50, 100, 200)}
    growth = fit_growth(seconds, 50)
    assert growth is not None
    assert growth.exponent == pytest.approx(1.25)
    assert (growth.lower, growth.upper) == (50, 200)
    assert fit_growth({10: 1.0}, 0) is None
    assert local_exponent("k^1.25", 10, 20) == 1.25


def test_the_clock_returns_the_first_value_and_gives_each_call_a_new_argument():
    seen: list[int] = []
    timing, first = cpu_time(lambda i: seen.append(i) or i, lambda i: i, repeats=3, enough=10.0)
    assert first == 0
    assert seen == list(range(len(seen)))
    assert len(seen) >= 4
    assert timing.seconds >= 0


def test_the_cache_of_programs_is_off_inside_a_measurement_and_restored_after_it():
    before = jax.config.jax_enable_compilation_cache
    inside = []

    def fail():
        with compile_afresh():
            inside.append(jax.config.jax_enable_compilation_cache)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [False]
    assert jax.config.jax_enable_compilation_cache == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": ("L7",)}, "'L7' is unknown"),
        ({"metrics": ()}, "are empty"),
        ({"points": ()}, "points: are empty"),
        ({"transport_points": (64, 65)}, "65 is odd"),
        ({"points": (4, 64)}, "from 8 to"),
        ({"repeats": 0}, "repeats"),
        ({"max_seconds": 0.0}, "positive"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ng.InputError, match=message):
        replace(TINY, **change).check()


def test_the_paper_preset_has_every_metric_and_the_sizes_of_the_paper():
    paper = PRESETS["paper"]
    paper.check()
    assert paper.metrics == METRICS == tuple(methods())
    assert paper.points[0] == 70
    assert paper.points[-1] == 2240
