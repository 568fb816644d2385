"""Processes that share the tasks of a study: results, what is shown, failures, signals."""

import io
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import crew_tasks
import natgrad as ng
from natgrad.descent import BOARD, progress
from natgrad_studies import registry, stopping
from natgrad_studies.methods import one_by_one
from natgrad_studies.processes import Crew

slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch):
    """The processes do not write into the user's cache."""
    monkeypatch.setenv("NATGRAD_CACHE", "")


def is_gone(process: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def run_crew(tasks: list[str], *given: Any) -> tuple[list[int], list[Any]]:
    """The numbers of two processes, and what becomes of the tasks."""
    with Crew(crew_tasks.begin, *given) as crew:
        crew.resize(3)
        crew.resize(2)
        numbers = [worker.process.pid or 0 for worker in crew._workers]
        try:
            found = crew.wait([crew.submit(crew.do, task) for task in one_by_one(tasks)])
        except BaseException as error:
            error.add_note(" ".join(map(str, numbers)))
            raise
    return numbers, found


def test_tasks_are_shared_and_shown_as_if_they_ran_here(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(BOARD, "console", Console(file=said, width=200), raising=False)
    monkeypatch.setattr(BOARD, "asked", True)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        numbers, found = run_crew([f"run {number}" for number in range(4)])
    assert [str(one.message) for one in warned] == ["digits are few"]
    assert {process for process, _, _ in found} == set(numbers)
    assert [result[1:] for result in found] == [found[0][1:]] * 4
    assert found[0][1] == 3
    lines = said.getvalue().splitlines()
    for number in range(1, 5):
        assert sum(line.startswith(f"descent, {number} of 4: iteration ") for line in lines) == 3
    wait_until(lambda: all(map(is_gone, numbers)))


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        slow("refuse", ng.InputError, r"^shots: are none\. Try: 1\."),
        slow("raise", RuntimeError, "^Unsendable: 1 and 2"),
        ("die", ng.InputError, "^workers: the process that ran die was ended by SIGKILL"),
    ],
)
def test_what_ends_a_task_ends_all(task, kind, message, monkeypatch):
    monkeypatch.setattr(stopping, "GRACE", 3600.0)
    with pytest.raises(kind, match=message) as ended:
        run_crew(["endless", task, "run"])
    numbers = [int(number) for number in ended.value.__notes__[-1].split()]
    wait_until(lambda: all(map(is_gone, numbers)))


@pytest.mark.slow
def test_where_no_server_can_be_processes_begin_anew(monkeypatch):
    def refuse():
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(registry.forkserver, "ensure_running", refuse)
    monkeypatch.setenv("NATGRAD_TEST", "one")
    assert registry.import_beside("json").get_start_method() == "spawn"
    assert run_crew(["see NATGRAD_TEST"])[1] == ["one"]


@pytest.mark.slow
def test_a_process_has_the_environment_as_it_is(monkeypatch):
    monkeypatch.setenv("NATGRAD_TEST", "one")
    run_crew(["see NATGRAD_TEST"])  # a server is there now
    monkeypatch.setenv("NATGRAD_TEST", "two")
    assert run_crew(["see NATGRAD_TEST"])[1] == ["two"]
    monkeypatch.delenv("NATGRAD_TEST")
    assert run_crew(["see NATGRAD_TEST"])[1] == [None]


@pytest.mark.slow
def test_a_process_that_cannot_begin_says_why(tmp_path):
    with pytest.raises(ng.InputError, match=r"^folder: is not there\. Try: another\."):
        run_crew(["run"], tmp_path / "nowhere")


def test_runs_in_processes_end_at_a_safe_point_when_the_program_is_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "GRACE", 3600.0)

    def stop() -> None:
        wait_until((tmp_path / "three").exists)
        stopping.ENDING.set()

    threading.Thread(target=stop).start()
    try:
        with pytest.raises(KeyboardInterrupt) as ended:
            run_crew(["endless"], tmp_path)
    finally:
        stopping.ENDING.clear()
    numbers = [int(number) for number in ended.value.__notes__[-1].split()]
    wait_until(lambda: all(map(is_gone, numbers)))
    assert (tmp_path / "run.npz").exists()


def test_no_process_is_left_when_the_program_is_killed():
    command = [sys.executable, crew_tasks.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        numbers = [int(number) for number in program.stdout.readline().split()]
        assert not any(map(is_gone, numbers))
        program.kill()
    assert len(numbers) == 2
    wait_until(lambda: all(map(is_gone, numbers)))
