"""What is shown of a run, and where."""

import io
import sys
from contextlib import contextmanager
from typing import NamedTuple

import jax.numpy as jnp
import pytest
from rich.console import Console

import natgrad as ng
from natgrad.descent import progress
from natgrad.descent.progress import View, clock, sparkline

PROBLEM = ng.Problem(
    lambda t: jnp.stack([10 * (t[1] - t[0] ** 2), 1 - t[0]]), ng.LeastSquares(jnp.zeros(2))
)
START = jnp.array([-1.2, 1.0])
ROW = {"gradient_norm": 0.5, "step": 1.0, "forward": 3, "linearised": 2, "adjoint": 2}


class Limits(NamedTuple):
    iterations: int | None = None
    propagations: int | None = None
    seconds: float | None = None


class Clock:
    """A clock that goes when it is told."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def shown(monkeypatch, terminal: bool) -> io.StringIO:
    """What is printed on a terminal, or into a log."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200)
    monkeypatch.setattr(progress, "BOARD", progress.Board(console))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    return file


def run(method=ng.GradientDescent(step=ng.Backtracking()), to=5, **settings) -> ng.Result:
    return ng.minimize(PROBLEM, START, method, stop=ng.Stop(iterations=to), **settings)


def test_bars_fall_on_a_logarithmic_scale_where_that_is_possible():
    assert sparkline([1000.0, 100.0, 10.0, 1.0]) == "█▆▃▁"
    assert sparkline([2.0, 1.0, 0.0]) == "█▅▁"
    assert sparkline([float("nan"), 1.0, 1.0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1, 1000)))) == progress.WIDTH


def test_clock():
    assert (clock(0.4), clock(75.2), clock(3675.0)) == ("0:00", "1:15", "1:01:15")


def test_a_view_tells_all_there_is(time):
    view = View("L²", Limits(iterations=100, propagations=70))
    assert "compiling" in view.line()
    time.now += 10  # compiling
    view.update(1, 2.0, ROW)
    time.now += 3
    view.update(2, 1.0, ROW | {"forward": 10})
    assert view.line() == (
        "L²: iteration 2/100, loss 1.000e+00, ‖∂f‖ 5.0e-01, step 1, 14/70 propagations, 0:13, "
        "about 0:24 left"
    )


def test_time_left_is_that_of_the_budget_that_ends_first_and_leaves_compiling_out(time):
    view = View("", Limits(iterations=10, seconds=1000.0))
    assert view.seconds_left() is None
    time.now += 50
    view.update(1, 1.0, {})
    assert view.seconds_left() is None
    time.now += 3
    view.update(4, 1.0, {})
    assert view.seconds_left() == pytest.approx(6.0)
    assert View("", Limits()).seconds_left() is None
    endless = View("", Limits(iterations=10**9))
    endless.update(1, 1.0, {})
    time.now += 3
    endless.update(2, 1.0, {})
    assert endless.seconds_left() is None


@pytest.mark.parametrize("descend", [run, lambda **settings: run(ng.LBFGS(10), **settings)])
def test_on_a_terminal_runs_are_shown_and_vanish(descend, monkeypatch):
    file = shown(monkeypatch, terminal=True)
    with progress.label_runs("steepest"):
        descend(callbacks=[lambda seen: progress.BOARD._timer.join()])
    printed = file.getvalue()
    assert "steepest" in printed
    assert printed.rstrip().endswith("\x1b[?25h")  # the cursor is back
    assert not progress.BOARD._shown


def test_another_process_can_show_a_run(monkeypatch):
    file, seen = shown(monkeypatch, terminal=True), []

    class Far(progress.Watch):
        def update(self, iteration, loss, row):
            super().update(iteration, loss, row)
            seen.append(iteration)

    @contextmanager
    def relay(view, asked):
        seen.append((view.name, view.limits.iterations, asked))
        yield Far(view)
        seen.append("end")

    monkeypatch.setattr(progress.BOARD, "relay", relay)
    with progress.label_runs("far"):
        run(to=2, progress=True)
        run(to=2, progress=False)
    assert seen == [("far", 2, True), 1, 2, "end"]
    assert not file.getvalue()


def test_the_live_display_shows_every_view(monkeypatch):
    file = shown(monkeypatch, terminal=True)
    with progress.label_runs("first"), progress.show_run(Limits(iterations=7)) as watch:
        watch.update(3, 0.5, ROW)
        progress.BOARD._timer.join()
        with progress.show_run(Limits(), True) as inner:
            inner.update(999, 0.25, ROW)
    printed = file.getvalue()
    assert "first" in printed
    assert "3/7" in printed
    assert "999" not in printed


def test_a_comparison_says_what_it_compiles(monkeypatch):
    shown(monkeypatch, terminal=True)
    seen, add = [], progress.BOARD._add
    note = lambda entry: (seen.append(getattr(entry, "what", None) or entry.name), add(entry))
    monkeypatch.setattr(progress.BOARD, "_add", note)
    step = ng.Backtracking()
    methods = {"steepest": ng.GradientDescent(step=step), "L-BFGS": ng.LBFGS(10)}
    names = ["steepest, 1 of 2", "L-BFGS, 2 of 2"]
    ng.compare(PROBLEM, START, methods, stop=ng.Stop(iterations=5))
    assert seen == [entry for name in names for entry in (f"{name}: compiling", name)]
    ng.compare(PROBLEM, START, methods, stop=ng.Stop(iterations=5), progress=False)
    assert len(seen) == 4


def test_logs_are_quiet_unless_asked(monkeypatch):
    file = shown(monkeypatch, terminal=False)
    run()
    assert file.getvalue() == ""
    run(progress=True)
    lines = file.getvalue().splitlines()
    assert lines[0] == "compiling, 0:00"
    starts = [line.partition(",")[0] for line in lines[1:]]
    assert starts == [*(f"iteration {i}/5" for i in range(1, 6)), "stopped after 5 iterations"]
    run(progress=False)
    assert len(file.getvalue().splitlines()) == len(lines)


def test_the_log_of_a_short_run_has_its_start_and_its_end(monkeypatch):
    file = shown(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e6)
    seen = []
    run(progress=True, callbacks=[lambda _: seen.append(file.getvalue())])
    assert seen == ["compiling, 0:00\n"] * 5  # there before the first iteration
    start, end = file.getvalue().splitlines()
    assert end.startswith("stopped after 5 iterations, loss ")
    assert end.endswith(": iteration limit reached, 0:00")

    def fail(_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(progress=True, callbacks=[fail])
    again = file.getvalue().splitlines()[2:]
    assert again[0] == start
    assert again[1].startswith("ended without a result")


def test_the_log_of_a_resumed_run_says_so(monkeypatch, tmp_path):
    file = shown(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e6)
    run(checkpoint=tmp_path / "run.npz")
    for told in (["resumed after iteration 5, compiling, 0:00"], []):
        run(to=7, checkpoint=tmp_path / "run.npz", progress=True)
        _, *resumed, end = file.getvalue().splitlines()
        assert resumed == told
        assert end.startswith("stopped after 7 iterations")
        file.truncate(file.seek(0))


def test_the_log_of_a_comparison_has_every_method(monkeypatch):
    file = shown(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e6)
    methods = {"steepest": ng.GradientDescent(step=ng.Backtracking()), "L-BFGS": ng.LBFGS(10)}
    ng.compare(PROBLEM, START, methods, stop=ng.Stop(iterations=5), progress=True)
    starts = [
        line.partition(", 0:")[0].partition(", loss")[0] for line in file.getvalue().splitlines()
    ]
    names = ["steepest, 1 of 2", "L-BFGS, 2 of 2"]
    told = ["compiling", "stopped after 5 iterations"]
    assert starts == [f"{name}: {what}" for name in names for what in told]


def test_a_run_inside_a_run_is_not_shown(monkeypatch):
    file = shown(monkeypatch, terminal=False)
    progress.BOARD.asked = True
    with progress.show_run(Limits()):
        run(progress=True)
    assert file.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_without_rich_there_are_lines_on_a_terminal_or_where_asked(terminal, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    for name in ("rich", "rich.console", "rich.live", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(progress, "BOARD", progress.Board())
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(sys, "stderr", file := Stream())
    with progress.label_runs("steepest"), progress.show_busy("a study"):
        run()
    unasked = file.getvalue().splitlines()
    assert len(unasked) == (5 if terminal else 0)
    assert all(line.startswith("steepest: iteration ") for line in unasked)
    run(progress=True)
    asked = file.getvalue().splitlines()[len(unasked) :]
    assert len(asked) == 7
    assert asked[-1].startswith("stopped after 5 iterations, loss ")
    run(progress=False)
    assert len(file.getvalue().splitlines()) == len(unasked) + 7


@pytest.mark.parametrize("value", [-1, float("nan"), "ten"])
def test_a_budget_that_makes_no_sense(value):
    with pytest.raises(ng.InputError, match=f"^seconds: {value!r} is nothing"):
        ng.Stop(seconds=value)
    with pytest.raises(ng.InputError, match=f"^propagations: {value!r} is nothing"):
        ng.Stop(propagations=value)
