"""Several methods under one budget, and the pictures of what they did."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import natgrad as ng
import natgrad.comparison
from natgrad.comparison import Comparison
from natgrad.descent import Method
from natgrad.report.runs import iterate_plots
from natgrad.result import AXES

GRID = ng.Grid((-3.0,), (3.0,), (40,))
X = GRID.points[..., 0]


def bump(theta):
    return jnp.exp(-((X - theta[0]) ** 2) / (0.5 + theta[1] ** 2))


PROBLEM = ng.Problem(bump, ng.LeastSquares(bump(jnp.array([1.0, 0.8])), GRID))
START = jnp.array([-0.5, 0.3])
L2 = ng.NaturalGradient(ng.L2(GRID))


def rivals() -> dict[str, Method]:
    return {"L2": L2, "GD": ng.GradientDescent(), "L-BFGS": ng.LBFGS(10)}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return ng.compare(PROBLEM, START, rivals(), stop=ng.Stop(iterations=12))


@pytest.fixture(autouse=True)
def figures_closed():
    yield
    plt.close("all")


def test_every_method_has_its_run_under_the_same_budget(found):
    assert list(found.results) == ["L2", "GD", "L-BFGS"]
    alone = ng.minimize(PROBLEM, START, L2, stop=ng.Stop(iterations=12))
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
    both = Comparison({"slow": slow, "quick": quick}, ng.Stop(iterations=2))
    assert both.winner("iterations") == "slow"
    assert both.extent("seconds") == 2.0
    assert both.winner("seconds") == "quick"
    assert both.winner("seconds", at=6.0) == "slow"
    assert both.lowest("slow", "propagations", 3) == 0.1


def test_of_equals_the_first_to_get_there_wins():
    first = _result([1.0, 1e-20, 1e-20], [0.0, 1.0, 2.0])
    later = _result([1.0, 0.5, 0.0], [0.0, 1.0, 2.0])
    assert Comparison({"later": later, "first": first}, ng.Stop()).winner() == "first"


def test_losses_within_a_percent_are_level_and_budgets_whole():
    first = _result([1.0, 0.5, 0.1003, 0.1003], [0.0, 1.0, 2.0, 8.0])
    lower = _result([1.0, 0.9, 0.5, 0.1], [0.0, 1.0, 2.0, 8.0])
    both = Comparison({"first": first, "lower": lower}, ng.Stop(iterations=3))
    assert "In the end first is ahead by iterations, propagations and seconds." in str(both)
    assert "first and lower end level (losses within 1%, or rounding); what counts" in str(both)
    assert both.leaders == {axis: ["first"] for axis in AXES}
    assert list(both.table().header[1:4]) == ["at 0", "at 1", "at 3"]
    assert both.winners().rows[1] == ("propagations", "first (2)", "first (4)", "first (9)")
    short = replace(lower, history=lower.history | {"seconds": np.array([0.0, 1.0, 2.0, 3.0])})
    both = Comparison({"first": first, "lower": short}, ng.Stop(seconds=2.5, loss=0.2))
    assert "first is ahead by iterations, propagations and seconds." in str(both)
    assert both.leaders == {axis: ["first"] for axis in AXES}


def test_with_a_target_the_first_to_reach_it_wins():
    first = _result([1.0, 0.09], [0.0, 1.0], ng.Status.LOSS_REACHED)
    lower = _result([1.0, 0.5, 0.01], [0.0, 1.0, 2.0], ng.Status.LOSS_REACHED)
    results = {"lower": lower, "first": first}
    assert Comparison(results, ng.Stop()).winner() == "lower"
    assert Comparison(results, ng.Stop(loss=0.1)).winner() == "first"
    same = Comparison({"one": first, "two": first}, ng.Stop(loss=0.1), compiling=True)
    told = "one and two are level by iterations, propagations and seconds with compiling."
    assert f"{told} one and two reach the target; what counts" in same.verdict()
    assert same.leaders == {axis: ["one", "two"] for axis in AXES}


def test_a_run_that_ended_by_itself_stays_where_it_is():
    done = _result([1.0, 0.1], [0.0, 1.0], ng.Status.CONVERGED)
    going = _result([1.0, 0.5, 0.3], [0.0, 4.0, 8.0])
    both = Comparison({"done": done, "going": going}, ng.Stop())
    assert both.extent("seconds") == 8.0
    assert both.winner("seconds") == "done"


def test_tables_name_every_method_and_the_winners(found):
    printed = str(found)
    for name in (*found.results, "iterations", "propagations", "seconds", "25%"):
        assert name in printed
    rows = {row[0]: row for row in found.table().rows}
    assert rows["L2"][3] == f"{found.results['L2'].history['loss'].min():.6g}"
    assert found.winners().rows[0][-1].startswith(found.winner("iterations"))


@pytest.mark.slow
def test_solvers_times_steps():
    steps = {"L2": ng.ModelStep(), "short": ng.FixedStep(0.125)}
    solvers = {"QR": ng.QR(), "CG": ng.CG(1e-12)}
    methods = {
        f"{name}, {solver}": ng.NaturalGradient(ng.L2(GRID), solver=solvers[solver], step=step)
        for name, step in steps.items()
        for solver in solvers
    }
    found = ng.compare(PROBLEM, START, methods, stop=ng.Stop(iterations=2))
    assert list(found.results) == ["L2, QR", "L2, CG", "short, QR", "short, CG"]
    np.testing.assert_allclose(found.results["short, QR"].history["step"][:2], 0.125)
    np.testing.assert_allclose(
        found.results["L2, QR"].theta, found.results["L2, CG"].theta, rtol=1e-6
    )


def test_a_metric_may_measure_another_state():
    """The residual as the state: in L² the same directions, by another problem."""
    target = PROBLEM.loss.target
    missing = ng.Problem(lambda t: bump(t) - target, ng.LeastSquares(jnp.zeros(40), GRID))
    methods = {"values": L2, "missing": (missing, L2)}
    found = ng.compare(PROBLEM, START, methods, stop=ng.Stop(iterations=2))
    thetas = [result.theta for result in found.results.values()]
    np.testing.assert_allclose(*thetas, rtol=1e-12)


def test_what_cannot_run_is_listed_and_the_rest_goes_on():
    signed = ng.Problem(lambda t: bump(t) - 0.5, ng.LeastSquares(jnp.zeros(40), GRID))
    metrics = {
        "FisherRao": ng.FisherRao(GRID),
        "L2": ng.L2(GRID),
        "Sobolev -1": ng.Sobolev(GRID, -1),
    }
    methods = {name: ng.NaturalGradient(metric) for name, metric in metrics.items()}
    found = ng.compare(signed, START, methods, stop=ng.Stop(iterations=2))
    assert list(found.results) == ["L2", "Sobolev -1"]
    assert "negative" in found.failures["FisherRao"]
    assert "FisherRao could not run" in str(found)
    with pytest.raises(ng.InputError, match="negative"):
        ng.compare(signed, START, {"FisherRao": methods["FisherRao"]})


def test_ctrl_c_hands_out_what_is_finished():
    def interrupt(progress):
        seen.append(progress.loss)
        if len(seen) == 5:
            raise KeyboardInterrupt

    seen = []
    slow = ng.GradientDescent(step=ng.FixedStep(0.1))
    methods = {"first": slow, "second": slow, "third": slow}
    stop = ng.Stop(iterations=3)
    with pytest.raises(KeyboardInterrupt) as stopped:
        ng.compare(PROBLEM, START, methods, stop=stop, callbacks=[interrupt])
    found = stopped.value.natgrad_comparison
    assert {name: result.status for name, result in found.results.items()} == {
        "first": "max_iterations",
        "second": "failed",
    }
    assert "first" in str(found)


def test_a_folder_keeps_the_runs(tmp_path):
    few, more = ng.Stop(iterations=3), ng.Stop(iterations=6)
    ng.compare(PROBLEM, START, rivals(), stop=few, folder=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 3
    resumed = ng.compare(PROBLEM, START, rivals(), stop=more, folder=tmp_path)
    whole = ng.compare(PROBLEM, START, rivals(), stop=more)
    for name in whole.results:
        np.testing.assert_array_equal(resumed.results[name].theta, whole.results[name].theta)


def test_what_a_folder_needs_is_on_no_clock(tmp_path, monkeypatch):
    home = sys.modules["natgrad.descent.minimize"]  # a name that the function hides
    now = [0.0]

    def slowly(*arguments, made=home.identify, **settings):
        now[0] += 100.0
        return made(*arguments, **settings)

    monkeypatch.setattr(home, "identify", slowly)
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(sys.modules["natgrad.descent.run"], "time", clock)
    found = ng.compare(PROBLEM, START, {"L2": L2}, stop=ng.Stop(iterations=2), folder=tmp_path)
    assert now[0] > 0.0
    assert not np.any(found.results["L2"].history["seconds"])


def test_outside_models_are_compiled_for_first_where_they_are_quick(monkeypatch):
    calls, A = [], np.eye(3)
    count = lambda theta: (calls.append(1), A @ theta)[1]
    model = ng.ExternalModel(count, lambda t, v: A @ v, lambda t, w: A.T @ w)
    problem = ng.Problem(model, ng.LeastSquares(jnp.ones(3)))
    methods, stop = {"GD": ng.GradientDescent(step=ng.FixedStep(0.5))}, ng.Stop(iterations=3)
    spent = []
    for quick, caption in ((np.inf, "without compiling"), (-1.0, "with compiling")):
        monkeypatch.setattr(natgrad.comparison, "QUICK", quick)
        calls.clear()
        found = ng.compare(problem, jnp.zeros(3), methods, stop=stop)
        spent.append(len(calls))
        assert caption in found.table().caption
    assert spent[0] > spent[1]


def test_losses_within_rounding_are_a_tie():
    """What single precision cannot tell apart: the first to get there wins."""
    first = _result([1.0, -4e-9, -4e-9], [0.0, 1.0, 2.0])
    later = _result([1.0, 0.5, -8e-9], [0.0, 1.0, 2.0])
    assert Comparison({"later": later, "first": first}, ng.Stop()).winner() == "later"
    single = {
        name: replace(result, theta=jnp.zeros(1, jnp.float32))
        for name, result in {"later": later, "first": first}.items()
    }
    assert Comparison(single, ng.Stop()).winner() == "first"


STOP = ng.Stop()


@pytest.mark.parametrize(
    ("methods", "stop", "message"),
    [
        ({}, STOP, "methods: are empty"),
        ("L2", STOP, "methods: are a str"),
        ({"L2": ng.L2(GRID)}, STOP, "methods: 'L2' is neither a method nor a pair"),
        ({"L2": (L2, PROBLEM)}, STOP, "methods: 'L2' is neither a method nor a pair"),
        ({1: L2, "1": L2}, STOP, "same name twice"),
        ({"L2": L2}, 10, "stop: is an int"),
    ],
)
def test_bad_input(methods, stop, message):
    with pytest.raises(ng.InputError, match=message):
        ng.compare(PROBLEM, START, methods, stop=stop)


def test_the_page_has_tables_curves_and_paths(found, tmp_path):
    page = found.report(tmp_path / "comparison.html").read_text()
    assert "http:" not in page
    assert "https:" not in page
    for text in ("Best method at 25%", "gradient norm", "over the level sets of f"):
        assert text in page


def test_the_page_of_one_run(found, tmp_path):
    page = found.results["L2"].report(tmp_path / "fit.html", PROBLEM).read_text()
    for text in ("<title>fit</title>", "over the level sets of f", "JAX devices"):
        assert text in page


def test_fields_of_several_runs_share_a_slider():
    square = ng.Problem(lambda t: t, ng.LeastSquares(jnp.ones((3, 4))))
    methods = {"L2": ng.NaturalGradient(ng.L2()), "L-BFGS": ng.LBFGS(10)}
    stop = ng.Stop(iterations=2)
    found = ng.compare(square, jnp.zeros((3, 4)), methods, stop=stop, snapshots=3)
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


def test_without_matplotlib_one_line_says_how_to_install_it(found, monkeypatch, tmp_path):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    result = found.results["L2"]
    advice = r'matplotlib is not installed. Try: pip install "natgrad\[studies\]"'
    for draw in (
        lambda: ng.plot.history(result),
        lambda: ng.plot.fields(result, of=bump),
    ):
        with pytest.raises(ng.InputError, match=advice):
            draw()
    page = result.report(tmp_path / "fit.html", PROBLEM).read_text()  # pages do not need it
    assert "over the level sets of f" in page
