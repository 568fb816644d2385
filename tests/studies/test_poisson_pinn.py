"""The PINN study: its problem and operators against reference values, and one tiny run."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad.report import plain
from natgrad_studies.keeping import Kept
from natgrad_studies.poisson_pinn import run as study
from natgrad_studies.poisson_pinn.descents import Doubling
from natgrad_studies.poisson_pinn.methods import Method
from natgrad_studies.poisson_pinn.metrics import (
    ClippedMetric,
    InsideAndBoundary,
    authors_metrics,
    mean_part,
    our_metrics,
)
from natgrad_studies.poisson_pinn.page import claim_table, run_table, summary, time_table
from natgrad_studies.poisson_pinn.problem import (
    Pinn,
    Points,
    initial,
    network,
    resample,
    solution,
    source,
    value_batch,
)
from natgrad_studies.poisson_pinn.run import Run, claims
from natgrad_studies.poisson_pinn.settings import BATCHED, METHODS, METRICS, PRESETS, Settings
from natgrad_studies.running import run_study

TINY = Settings(
    points=8,
    layers=(6,),
    methods=("GD", "L2", "Hm1", "LBFGS", "Adam", "LM3"),
    batched=("L2",),
    batch=32,
    seconds=0.3,
    max_iterations=8,
)
PAPER = Pinn(PRESETS["paper"])
WEIGHT = PAPER.points.grid.cell_volume
OURS = ("L2", "FR", "H1", "Hm1")
AUTHORS = {"H1": "H1_auth", "dotH1": "H1d_auth", "Hm1": "Hm1_auth", "dotHm1": "Hm1d_auth"}


@pytest.fixture(scope="module")
def reference(read_reference) -> dict:
    """Reference values of the paper's problem, where the shared folder is present."""
    return read_reference("poisson_pinn_seed0.json")


@pytest.fixture(scope="module")
def columns() -> jax.Array:
    """Zᵀ at θ₀ of the paper's problem, one array of values for each parameter."""
    flat, unravel = ravel_pytree(PAPER.start)
    model = PAPER.values_problem("L2").model
    return jax.jit(lambda v: model.jacobian(unravel, v)[1])(flat)


@pytest.fixture(scope="module")
def values() -> jax.Array:
    """ρ at θ₀ of the paper's problem."""
    model = PAPER.values_problem("L2").model
    return jax.jit(lambda theta: model(theta))(PAPER.start)


def information(metric: ng.metrics.Metric, rho: jax.Array, columns: jax.Array) -> jax.Array:
    """G from a Z at hand."""
    return jax.jit(lambda rho, columns: metric.at(rho).information(columns)[0])(rho, columns)


# --- the problem ---------------------------------------------------------------------------------


def test_the_source_is_that_of_the_solution():
    u = lambda x: solution(x)
    for x in jnp.asarray([[0.3, -0.2], [0.71, 0.55], [-0.9, 0.1]]):
        assert float(ng.laplacian(u, x) + source(x)) == pytest.approx(0, abs=1e-11)
    edge = np.array([[1.0, 0.37], [-1.0, -0.2], [0.11, 1.0]])
    assert np.allclose(solution(edge), 3, atol=1e-14)


def test_the_points_are_those_of_the_paper():
    points = Points(50)
    assert points.inside.shape == (2304, 2)
    assert points.boundary.shape == (196, 2)
    assert np.allclose(points.grid.axes[0], np.linspace(-1, 1, 50), atol=1e-15)
    assert np.allclose(points.inner_grid.points.reshape(-1, 2), points.inside, atol=1e-15)
    assert points.grid.cell_volume == pytest.approx((2 / 49) ** 2)


def test_the_network_starts_where_the_reference_does(reference: dict):
    theta, known = initial((20, 30, 20), 0), reference["theta0"]
    flat = ravel_pytree(theta)[0]
    assert flat.size == known["p"] == PAPER.parameters
    assert float(flat.sum()) == pytest.approx(known["sum"], rel=1e-12)
    assert float(jnp.linalg.norm(flat)) == pytest.approx(known["norm"], rel=1e-12)
    assert np.allclose(flat[:3], known["first3"], rtol=1e-14)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(theta))


def test_the_loss_its_gradient_and_the_error_at_the_start(reference: dict):
    known = reference["theta0"]
    loss, gradient = jax.jit(jax.value_and_grad(PAPER.objective))(PAPER.start)
    assert float(loss) == pytest.approx(known["loss"], rel=1e-9)
    norm = float(jnp.linalg.norm(ravel_pytree(gradient)[0]))
    assert norm == pytest.approx(known["gradnorm"], rel=1e-9)
    assert PAPER.error(PAPER.start) == pytest.approx(known["relerr_101"], rel=1e-9)


# --- the metrics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", OURS)
def test_information_matrices_are_the_reference_times_the_volume(
    reference: dict, values: jax.Array, columns: jax.Array, key: str
):
    G = information(our_metrics(PAPER.points.grid)[key], values, columns)
    known = reference["metrics"][key]
    assert float(jnp.trace(G)) == pytest.approx(WEIGHT * known["traceG"], rel=1e-8)
    assert float(jnp.linalg.norm(G)) == pytest.approx(WEIGHT * known["froG"], rel=1e-8)


@pytest.mark.parametrize("key", AUTHORS)
def test_the_authors_operators(reference: dict, values: jax.Array, columns: jax.Array, key: str):
    edge = PAPER.points.on_boundary
    split = lambda x: {
        "inside": x[..., 1:-1, 1:-1],
        "boundary": x.reshape(*x.shape[:-2], -1)[..., edge],
    }
    metric = authors_metrics(PAPER.points.inner_grid, len(PAPER.points.boundary))[key]
    rows = jax.jit(lambda rho, zetas: metric.at(rho).image(zetas)[0])(split(values), split(columns))
    trace = reference["metrics"][AUTHORS[key]]["traceG"]
    assert float(jnp.sum(rows**2)) == pytest.approx(trace, rel=1e-8)


def test_the_authors_wasserstein_metric(reference: dict, values: jax.Array, columns: jax.Array):
    metric = authors_metrics(PAPER.points.inner_grid, len(PAPER.points.boundary))["W2"]
    inner = lambda x: x[..., 1:-1, 1:-1]
    G = information(metric, inner(values), inner(columns))
    known = reference["metrics"]["W2_auth"]
    assert float(jnp.trace(G)) == pytest.approx(known["traceG"], rel=1e-8)
    assert float(jnp.linalg.norm(G)) == pytest.approx(known["froG"], rel=1e-8)


def test_the_state_of_the_authors_is_the_grid_in_two_parts():
    pinn = Pinn(replace(TINY, fidelity="authors", batched=()))
    assert len(pinn.residuals.blocks["interior"].points) == 64
    model = pinn.values_problem("H1").model
    assert isinstance(model, InsideAndBoundary)
    rho = model(pinn.start)
    assert rho["inside"].shape == (6, 6)
    expected = network(pinn.start, (pinn.points.boundary[3] + 1) / 2)
    assert float(rho["boundary"][3]) == pytest.approx(float(expected), rel=1e-14)
    with pytest.raises(ng.InputError, match="batched"):
        replace(TINY, fidelity="authors").check()


def test_the_mean_has_its_length_in_l2_and_nothing_else_has():
    grid = Points(6).grid
    factor = mean_part(grid).factor(jnp.zeros(grid.shape))
    length = lambda zeta: float(jnp.sum(factor.mv(zeta) ** 2))
    assert length(jnp.full(grid.shape, 2.0)) == pytest.approx(4 * 2.4**2)
    wave = grid.points[..., 0]
    assert length(wave) == pytest.approx(0, abs=1e-25)


def test_clipped_metrics_are_those_of_the_density_and_defined_below_zero():
    grid = Points(6).grid
    metric = ClippedMetric(ng.FisherRao(grid), 0.1)
    rho = jnp.linspace(-1.0, 3.0, grid.size).reshape(grid.shape)
    diagonal = metric.at(rho).diagonal
    assert bool(metric.admissible(rho))
    assert np.allclose(diagonal[rho > 0.1], grid.cell_volume / rho[rho > 0.1])
    assert np.allclose(diagonal[rho <= 0.1], grid.cell_volume / 0.1)
    assert float(metric.at(rho).report()["clipped"]) == pytest.approx(float(jnp.mean(rho < 0.1)))


# --- descent -------------------------------------------------------------------------------------


class DividedByThree(ng.LevenbergMarquardt):
    """λ of the reference, which does not fall faster where the model foresaw the decrease."""

    def update(self, strength, outcome):
        return super().update(strength, outcome._replace(ratio=jnp.zeros_like(outcome.ratio)))


def marquardt(iterations: int) -> ng.Result:
    """The reference's rule; its G is JᵀJ and ours 2JᵀJ, so its λ is half of ours."""
    return ng.minimize(
        PAPER.residuals.problem,
        PAPER.start,
        ng.NaturalGradient(
            PAPER.residuals.metric,
            damping=DividedByThree(initial=2e-3),
            step=ng.Backtracking(max_halvings=12),
        ),
        stop=ng.Stop(gradient=0.0, iterations=iterations),
    )


@pytest.mark.slow
@pytest.mark.parametrize("last", [2, 50])
def test_levenberg_marquardt_follows_the_reference(reference: dict, last: int):
    losses = marquardt(last).history["loss"]
    for iteration, (loss, _) in reference["LM_LS_loss_after"].items():
        if int(iteration) <= last:
            assert losses[int(iteration)] == pytest.approx(loss, rel=1e-3)


def test_the_information_matrix_of_the_residuals(reference: dict):
    problem, metric = PAPER.residuals.problem, PAPER.residuals.metric
    G = ng.information_matrix(problem, PAPER.start, metric=metric)
    known = reference["metrics"]["res"]
    assert float(jnp.trace(G)) == pytest.approx(2 * known["traceG"], rel=1e-8)
    assert float(jnp.linalg.norm(G)) == pytest.approx(2 * known["froG"], rel=1e-8)


def descend(key: str, iterations: int) -> list[float]:
    """Losses with the reference's unweighted G, damping r·trace(G) and line search."""
    metric = (1 / WEIGHT) * our_metrics(PAPER.points.grid)[key]
    method = ng.NaturalGradient(metric, damping=1e-6 * PAPER.parameters, step=Doubling())
    stop = ng.Stop(iterations=iterations, gradient=0.0)
    losses = []
    ng.minimize(
        PAPER.values_problem(key),
        PAPER.start,
        method,
        stop=stop,
        callbacks=[lambda progress: losses.append(progress.loss)],
    )
    return losses


@pytest.mark.parametrize(
    ("key", "last"), [("L2", 1), *(pytest.param(key, 10, marks=pytest.mark.slow) for key in OURS)]
)
def test_damped_natural_gradients_follow_the_reference(reference: dict, key: str, last: int):
    losses = descend(key, last)
    for iteration, loss in reference["metrics"][key]["loss_after"].items():
        if int(iteration) <= last:
            assert losses[int(iteration) - 1] == pytest.approx(loss, rel=1e-6)


def test_batches_estimate_the_loss_without_bias():
    pinn = Pinn(TINY)
    method = ng.NaturalGradient(pinn.metrics["L2"])
    sampler = value_batch(pinn).sampler(pinn.values_problem("L2"), method, pinn.start, None)
    start = pinn.start
    value = jax.jit(lambda objective: objective(start))
    losses = [float(value(sampler(i)[0].objective)) for i in range(200)]
    spread = np.std(losses) / np.sqrt(len(losses))
    assert abs(np.mean(losses) - pinn.loss(pinn.start)) < 4 * spread


def test_resampled_points_lie_in_the_square_and_on_its_boundary():
    drawn = resample(Pinn(TINY)).draw(jax.random.key(3))
    inside, edge = np.asarray(drawn["interior"]), np.asarray(drawn["boundary"])
    assert len(inside) + len(edge) == TINY.batch
    assert np.abs(inside).max() < 1
    assert np.allclose(np.abs(edge).max(axis=1), 1)


# --- the study -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_study_runs_and_leaves_its_numbers(tmp_path, monkeypatch):
    report, result = run_study(replace(TINY, output=tmp_path / "out"))
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    text = report.read_text()
    assert "<figure>" not in text
    assert text.count('data-kind="frames">') == 2
    assert text.count('data-kind="curves">') == 2
    assert list(numbers["runs"]) == list(TINY.methods)
    for run in (*result.runs.values(), *result.batched.values()):
        assert run.losses[0] == pytest.approx(result.start_loss, rel=1e-12)
        assert run.final <= result.start_loss
        assert len(run.losses) == len(run.seconds)
        assert np.all(np.diff(run.seconds) >= 0)
        assert len(run.marks) == 3
    assert result.best.final == min(run.final for run in result.runs.values())
    tables = [*summary(result), run_table(result), time_table(result), claim_table(result)]
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    known = [claim["by_iterations"] for claim in numbers["claims_of_the_paper"]]
    assert [value is None for value in known] == [False, True, False, True]
    never = lambda *parts: pytest.fail("computed again")
    monkeypatch.setattr(study, "run_method", never)  # what is finished is taken up
    kept = Kept(tmp_path / "out" / "runs", *study.KEPT)
    again = study.compute(replace(TINY, output=tmp_path / "out"), lambda line: None, kept)
    assert plain(again.numbers()["runs"]) == numbers["runs"]
    for run in again.batched.values():
        assert again.pinn.loss(run.theta) == pytest.approx(run.final, rel=1e-12)


@pytest.mark.slow
def test_the_authors_algorithm_runs():
    chosen = ("GD", "L2", "dotH1", "W2")
    pinn = Pinn(replace(TINY, fidelity="authors", batched=(), methods=chosen))
    for method in map(Method, chosen):
        losses = []
        status = method.run(pinn, lambda progress, found=losses: found.append(progress.loss), 4)
        assert status in ("max_iterations", "no_decrease")
        assert losses[-1] < pinn.loss(pinn.start)
        assert np.all(np.diff(losses) <= 0)


def fake(key: str, losses: list[float]) -> Run:
    """A run with these losses, one a second."""
    seconds = np.arange(len(losses), dtype=float)
    return Run(Method(key), "max_seconds", np.array(losses), seconds, [], (), 0.0)


def test_claims_compare_what_they_say():
    falling = {"GD": 0.9, "L2": 0.3, "H1": 0.1, "dotH1": 0.2, "Hm1": 0.5, "dotHm1": 0.6, "W2": 0.4}
    runs = {key: fake(key, [rate**i for i in range(5)]) for key, rate in falling.items()}
    assert [claim.by_iterations for claim in claims(runs)] == [True] * 4
    runs["H1"] = fake("H1", [1.0, 0.9, 0.9, 0.9, 0.9])
    assert [claim.by_seconds for claim in claims(runs)] == [False, False, True, True]
    del runs["GD"], runs["W2"]
    assert [claim.by_seconds for claim in claims(runs)] == [None, False, True, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ("SGD",)}, "SGD"),
        ({"methods": ()}, "methods"),
        ({"methods": ("L2", "L2")}, "twice"),
        ({"batched": ("W2",)}, "W2"),
        ({"points": 9}, "points"),
        ({"layers": ()}, "layers"),
        ({"batch": 65}, "batch"),
        ({"gamma": 2.0}, "gamma"),
        ({"seconds": 0.0}, "seconds"),
    ],
)
def test_settings_that_make_no_sense(change: dict, message: str):
    with pytest.raises(ng.InputError, match=message):
        replace(TINY, **change).check()


def test_presets_are_settings_that_make_sense():
    for preset in PRESETS.values():
        preset.check()
    assert PRESETS["paper"].methods == METHODS
    assert set(METRICS) < set(METHODS)
    assert set(BATCHED) < set(METHODS)
