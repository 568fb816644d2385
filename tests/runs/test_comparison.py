"""Several metrics under one budget, and the pictures of what they did."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import natgrad as ng
from natgrad.report.iterates import iterate_plots

GRID = ng.Grid((-3.0,), (3.0,), (40,))
X = GRID.points[..., 0]


def bump(theta):
    return jnp.exp(-((X - theta[0]) ** 2) / (0.5 + theta[1] ** 2))


PROBLEM = ng.Problem(bump, ng.LeastSquares(bump(jnp.array([1.0, 0.8])), GRID))
START = jnp.array([-0.5, 0.3])
METRICS = {"L2": ng.L2(GRID), "GD": ng.Euclidean()}


@pytest.fixture(scope="module")
def found() -> ng.Comparison:
    return ng.compare(PROBLEM, START, metrics=METRICS, budget=ng.Budget(iterations=12))


@pytest.fixture(autouse=True)
def figures_closed():
    yield
    plt.close("all")


def test_every_method_has_its_run_under_the_same_budget(found):
    assert list(found.results) == ["L2", "GD", "L-BFGS"]
    alone = ng.minimize(PROBLEM, START, metric=METRICS["L2"], max_iterations=12)
    np.testing.assert_array_equal(found.results["L2"].history["loss"], alone.history["loss"])
    assert all(result.iterations <= 12 for result in found.results.values())


def _result(losses, seconds, status=ng.Status.MAX_ITERATIONS) -> ng.Result:
    count = np.arange(len(losses), dtype=float)
    zero = np.zeros(len(losses))
    history = {"loss": np.array(losses), "seconds": np.array(seconds)}
    history |= {"forward": 2 * count, "linearised": zero, "adjoint": count}
    return ng.Result(jnp.zeros(1), losses[-1], status, len(losses) - 1, history, None)


def test_the_winner_depends_on_what_is_spent():
    slow = _result([1.0, 0.1, 0.01], [0.0, 5.0, 10.0])
    quick = _result([1.0, 0.5, 0.2], [0.0, 1.0, 2.0])
    both = ng.Comparison({"slow": slow, "quick": quick}, ng.Budget(iterations=2))
    assert both.winner("iterations") == "slow"
    assert both.extent("seconds") == 2.0
    assert both.winner("seconds") == "quick"
    assert both.winner("seconds", at=6.0) == "slow"
    assert both.lowest("slow", "propagations", 3) == 0.1


def test_of_equals_the_first_to_get_there_wins():
    first = _result([1.0, 1e-20, 1e-20], [0.0, 1.0, 2.0])
    later = _result([1.0, 0.5, 0.0], [0.0, 1.0, 2.0])
    assert ng.Comparison({"later": later, "first": first}, ng.Budget()).winner() == "first"


def test_with_a_target_the_first_to_reach_it_wins():
    first = _result([1.0, 0.09], [0.0, 1.0], ng.Status.LOSS_REACHED)
    lower = _result([1.0, 0.5, 0.01], [0.0, 1.0, 2.0], ng.Status.LOSS_REACHED)
    results = {"lower": lower, "first": first}
    assert ng.Comparison(results, ng.Budget()).winner() == "lower"
    assert ng.Comparison(results, ng.Budget(), loss_target=0.1).winner() == "first"


def test_a_run_that_ended_by_itself_stays_where_it_is():
    done = _result([1.0, 0.1], [0.0, 1.0], ng.Status.CONVERGED)
    going = _result([1.0, 0.5, 0.3], [0.0, 4.0, 8.0])
    both = ng.Comparison({"done": done, "going": going}, ng.Budget())
    assert both.extent("seconds") == 8.0
    assert both.winner("seconds") == "done"


def test_tables_name_every_method_and_the_winners(found):
    printed = str(found)
    for name in (*found.results, "iterations", "propagations", "seconds", "25%"):
        assert name in printed
    rows = {row[0]: row for row in found.table().rows}
    assert rows["L2"][3] == f"{found.results['L2'].history['loss'].min():.6g}"
    assert found.winners().rows[0][-1].startswith(found.winner("iterations"))


def test_solvers_times_metrics_and_settings_of_ones_own():
    metrics = {"L2": ng.L2(GRID), "short": {"metric": ng.L2(GRID), "step": ng.FixedStep(0.125)}}
    solvers = {"QR": ng.QR(), "CG": ng.CG(1e-12)}
    found = ng.compare(
        PROBLEM,
        START,
        metrics=metrics,
        solvers=solvers,
        budget=ng.Budget(iterations=2),
        lbfgs=False,
    )
    assert list(found.results) == ["L2, QR", "L2, CG", "short, QR", "short, CG"]
    np.testing.assert_allclose(found.results["short, QR"].history["step"][:2], 0.125)
    np.testing.assert_allclose(
        found.results["L2, QR"].theta, found.results["L2, CG"].theta, rtol=1e-6
    )


def test_a_metric_may_measure_another_state():
    """The residual as the state: in L² the same directions, by another problem."""
    target = PROBLEM.loss.target
    missing = ng.Problem(lambda t: bump(t) - target, ng.LeastSquares(jnp.zeros(40), GRID))
    metrics = {"values": ng.L2(GRID), "missing": {"metric": ng.L2(GRID), "problem": missing}}
    found = ng.compare(PROBLEM, START, metrics=metrics, budget=ng.Budget(iterations=2), lbfgs=False)
    thetas = [result.theta for result in found.results.values()]
    np.testing.assert_allclose(*thetas, rtol=1e-12)


def test_what_cannot_run_is_listed_and_the_rest_goes_on():
    signed = ng.Problem(lambda t: bump(t) - 0.5, ng.LeastSquares(jnp.zeros(40), GRID))
    metrics = [ng.FisherRao(GRID), ng.L2(GRID), ng.Sobolev(GRID, -1)]
    found = ng.compare(signed, START, metrics=metrics, budget=ng.Budget(iterations=2), lbfgs=False)
    assert list(found.results) == ["L2", "Sobolev -1"]
    assert "negative" in found.failures["FisherRao"]
    assert "FisherRao could not run" in str(found)
    with pytest.raises(ng.InputError, match="negative"):
        ng.compare(signed, START, metrics=metrics[:1], lbfgs=False)


def test_a_folder_keeps_the_runs(tmp_path):
    few, more = ng.Budget(iterations=3), ng.Budget(iterations=6)
    arguments = {"metrics": METRICS, "folder": tmp_path}
    ng.compare(PROBLEM, START, budget=few, **arguments)
    assert len(list(tmp_path.glob("*.npz"))) == 3
    resumed = ng.compare(PROBLEM, START, budget=more, **arguments)
    whole = ng.compare(PROBLEM, START, budget=more, metrics=METRICS)
    for name in whole.results:
        np.testing.assert_array_equal(resumed.results[name].theta, whole.results[name].theta)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": {}}, "metrics: are empty"),
        ({"metrics": "L2"}, "metrics: are a str"),
        ({"metrics": {"L2": 3}}, "metrics: 'L2' is no metric"),
        ({"metrics": [ng.L2(GRID), ng.L2(GRID)]}, "same name twice"),
        ({"metrics": METRICS, "solvers": {"QR": 1}}, "solvers"),
        ({"metrics": METRICS, "budget": 10}, "budget: is a int"),
        ({"metrics": METRICS, "max_seconds": 3.0}, r"Budget\(seconds"),
        ({"metrics": METRICS, "checkpoint": "x"}, "folder="),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ng.InputError, match=message):
        ng.compare(PROBLEM, START, **arguments)


def test_the_page_has_tables_curves_and_paths(found, tmp_path):
    page = found.report(tmp_path / "comparison.html").read_text()
    assert "http" not in page
    for text in ("Who wins", "gradient norm", "over the level sets of f"):
        assert text in page


def test_the_page_of_one_run(found, tmp_path):
    page = found.results["L2"].report(tmp_path / "fit.html", PROBLEM).read_text()
    for text in ("<title>fit</title>", "over the level sets of f", "JAX devices"):
        assert text in page


def test_fields_of_several_runs_share_a_slider():
    square = ng.Problem(lambda t: t, ng.LeastSquares(jnp.ones((3, 4))))
    arguments = {"metrics": [ng.L2()], "budget": ng.Budget(iterations=2), "snapshots": 3}
    found = ng.compare(square, jnp.zeros((3, 4)), **arguments)
    (plot,) = iterate_plots(found.results)
    assert list(plot.data()["runs"]) == ["L2", "L-BFGS"]


def test_pictures_are_axes_with_a_line_for_every_result(found):
    ax = found.plot("seconds")
    assert [line.get_label() for line in ax.lines] == list(found.results)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), found.results["L2"].history["loss"])
    assert ax.get_yscale() == "log"
    assert ng.plot.history(found.results["L2"], column="step", ax=ax) is ax
    ax = ng.plot.path(found.results, PROBLEM, points=9)
    np.testing.assert_array_equal(ax.lines[0].get_xdata()[0], START[0])
    assert ax.collections


def test_fields_of_one_and_two_dimensions(found):
    result = found.results["L2"]
    lines = ng.plot.fields(result, of=bump, grid=GRID, count=3)
    np.testing.assert_allclose(lines[-1].lines[0].get_ydata(), bump(result.theta))
    images = ng.plot.fields(result, of=lambda t: jnp.outer(bump(t), X), count=2)
    assert images[0].images[0].get_clim() == images[1].images[0].get_clim()


def test_the_landscape_is_the_loss(found):
    seen = ng.plot.landscape(PROBLEM, START, np.array([[0.0, 0.0], [1.0, 2.0]]), points=4)
    place = jnp.array([seen.x[1], seen.y[3]])
    assert seen.values[1, 3] == pytest.approx(float(PROBLEM.value(place, bump(place))))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda r: ng.plot.history(r, column="speed"), "column: 'speed'"),
        (lambda r: ng.plot.history(r, against="money"), "'money' cannot be spent"),
        (lambda r: ng.plot.history({}), "results: are no results"),
        (lambda r: ng.plot.fields(r, of=lambda t: t.sum()), "of: has shape"),
        (lambda r: ng.plot.fields(r, count=0), "count"),
        (lambda r: ng.plot.path(_result([1.0, 0.5], [0.0, 1.0])), "1 parameters"),
        (lambda r: ng.plot.fields(_result([1.0], [0.0])), "snapshots=20"),
    ],
)
def test_pictures_that_cannot_be_drawn(draw, message, found):
    with pytest.raises(ng.InputError, match=message):
        draw(found.results["L2"])
