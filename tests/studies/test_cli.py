"""The command line, run in a process of its own where that matters."""

import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import natgrad as ng
import stopped_study
from natgrad.core.compiled import program_folder
from natgrad.descent import BOARD, show_run
from natgrad.report import ResultFolder
from natgrad_studies import stopping
from natgrad_studies.cli import main
from natgrad_studies.cli.commands import COMMANDS, STUDY_EXAMPLES, Listing
from natgrad_studies.cli.parsing import EXAMPLES, parse
from natgrad_studies.gaussian_mixture import fit as mixture_fit
from natgrad_studies.gaussian_mixture import run as mixture_run
from natgrad_studies.methods import label, one_by_one
from natgrad_studies.poisson_pinn import run as pinn_run
from natgrad_studies.registry import STUDIES
from natgrad_studies.settings import to_toml

TINY = (
    *("--points", "20", "--iterations", "5", "--map-points", "41", "--arrows", "3"),
    *("--step-iterations", "3", "--bisections", "1", "--basin-starts", "2"),
    *("--basin-iterations", "5", "--basin-transport-iterations", "2"),
    *("--basin-transport-points", "20", "--refinement", "20", "--metrics", "L2", "--floor", "1e-3"),
    *("--fit-points", "12", "--fit-iterations", "3", "--fit-methods", "L2"),
)


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch):
    """The process of the tests does not write into the user's cache."""
    monkeypatch.setenv("NATGRAD_CACHE", "")


@pytest.fixture(autouse=True)
def _interruptible(monkeypatch):
    """Ctrl-C arrives also where the tests run in the background, which ignores it.

    However slow the machine, a safe point is reached in time.
    """
    monkeypatch.setattr(stopping, "GRACE", 3600.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_help_names_the_commands_and_gives_examples(capsys):
    assert _exit_code("--help") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("study", *COMMANDS))
    for command in ((), ("study",), ("study", "darcy"), *((name,) for name in COMMANDS)):
        assert _exit_code(*command, "--help") == 0
        assert f"Examples:\n  natgrad {' '.join(command)}" in capsys.readouterr().out.replace(
            'eval "$(', ""
        )


def test_every_example_parses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("points = 20\n")
    examples = [line for command in COMMANDS.values() for line in command.EXAMPLES]
    examples += [*STUDY_EXAMPLES, *EXAMPLES]
    for example in examples:
        words = example.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0].split()
        assert words[0] == "natgrad"
        if words[1:] == ["--version"]:
            with pytest.raises(SystemExit, match="0"):
                parse(words[1:])
        else:
            parse(words[1:])


def test_help_and_list_do_not_wait_for_jax():
    script = "import sys, natgrad_studies.cli as c; c.main(['list']); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_a_missing_package_of_the_extra_is_one_line_with_its_installation(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert _exit_code("list") == 2
    printed = capsys.readouterr().err
    assert printed == 'natgrad: error: tyro: not installed. Try: pip install "natgrad[studies]".\n'


def test_help_of_a_study_shows_the_defaults_of_the_preset(capsys):
    assert _exit_code("study", "gaussian-mixture", "--preset", "paper", "--help") == 0
    assert "--basin-starts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "printed"),
    [((), "usage: natgrad"), (("--version",), "natgrad "), (("-V",), "natgrad ")],
)
def test_without_a_command_it_says_what_it_is(given, printed, capsys):
    assert _exit_code(*given) == 0
    assert capsys.readouterr().out.startswith(printed)


def test_a_setting_that_may_be_absent_is_shown_as_people_write_it(capsys):
    assert _exit_code("compare", "--help") == 0
    printed = capsys.readouterr().out
    assert "--iterations INT" in printed
    assert "{None}" not in printed
    assert "(default: )" not in printed
    assert "results/compare-STUDY" in printed
    assert "problem it is: gaussian-mixture, darcy," in printed
    assert parse(["compare", "darcy", "--iterations", "none"]).iterations is None
    assert parse(["compare", "darcy", "--iterations", "7"]).iterations == 7


def test_runs_of_a_study_say_which_of_how_many_they_are():
    shown = []
    for name in one_by_one(["L²", "H¹"]):
        with label(name), show_run(ng.Stop(), asked=False) as watch:
            shown.append(watch.view.line())
    with label("after"), show_run(ng.Stop(), asked=False) as watch:
        shown.append(watch.view.line())
    assert [line.rsplit(", ", 1)[0] for line in shown] == [
        "L², 1 of 2: compiling",
        "H¹, 2 of 2: compiling",
        "after: compiling",
    ]


def test_list_names_the_study_and_its_presets(capsys):
    main(["list"])
    printed = capsys.readouterr().out
    assert "gaussian-mixture" in printed
    assert "demo, paper" in printed
    assert all(f"  {key:8}" in printed for study in STUDIES.values() for key in study.metrics)
    assert "  LBFGS   L-BFGS" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study", "no-such-study"), "unknown study 'no-such-study'; known: gaussian-mixture, "),
        (("study", "gausian-mixture"), "study 'gausian-mixture'; did you mean 'gaussian-mixture'?"),
        (("stduy", "darcy"), "unknown command 'stduy'; did you mean 'study'? known: study, "),
        (("study", "darcy", "--preset", "Papr"), "preset 'Papr'; did you mean 'paper'? known: "),
        (("study", "darcy", "--cels=3"), "unknown option '--cels'; did you mean '--cells'?"),
        (("study", "darcy", "--cells", "x"), "--cells needs a whole number, not 'x'"),
        (("compare", "darcy", "--study", "darcy"), "unknown option '--study'"),
        (("compare", "darcy", "--iterations", "abc"), "--iterations needs a whole number, not"),
        (("compare", "darcy", "--seconds", "soon"), "--seconds needs a number, not 'soon'"),
        (("study", "darcy", "--cells"), "Missing value for argument '--cells'"),
        (("study",), "no study; one of gaussian-mixture, "),
        (("compare",), "no study; one of gaussian-mixture, darcy, "),
        (("--flag",), "no command; one of study, "),
        (("study", "darcy", "--methods", "LBFG"), "'LBFG' is unknown. Try: 'LBFGS', or another of"),
        (("study", "metric-cost", "--metrics", "w2"), "'w2' is unknown. Try: 'W2', or another of"),
        (("study", "poisson-pinn", "--batched", "L3"), "batched: 'L3' is unknown. Try: 'LM3', or"),
        (("study", "waveform-inversion", "--section", "sal"), "section: 'sal' is unknown"),
        (("study", "darcy", "--config", "nowhere.toml"), "config: there is no file nowhere.toml"),
        (("resume", "nowhere"), "there is no folder 'nowhere'"),
        (("resume",), "Missing from natgrad resume: RUN"),
        (("resume", str(Path(__file__).parent)), "is not the folder of a run: it has no settings"),
        (("report",), "RUN: is missing"),
        (("report", "nowhere"), "there is no nowhere"),
        (("completion", "powershell"), "invalid choice 'powershell'"),
        (("study", "gaussian-mixture", "--points", "21"), "points: 21 is odd"),
        (("study", "gaussian-mixture", "--basin-starts", "0"), "basin_starts: is 0"),
        (("study", "gaussian-mixture", "--fit-methods", "L7"), "fit_methods: 'L7' is unknown"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert _exit_code(*arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("natgrad: error: ")
    assert printed.err.count("\n") == 1
    assert _exit_code(*arguments, "--json") == 2
    printed = capsys.readouterr()
    assert set(json.loads(printed.out)) == {"error"}
    assert message in json.loads(printed.out)["error"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_complaints_of_the_parser_lose_their_frame(encoding, monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stdout), "encoding", encoding)
    assert _exit_code("study", "darcy", "5") == 2
    assert capsys.readouterr().err == "natgrad: error: Unrecognized options: 5\n"


def test_list_and_completion_are_one_json_object(capsys):
    main(["list", "--json"])
    studies = json.loads(capsys.readouterr().out)["studies"]
    assert [study["name"] for study in studies] == list(STUDIES)
    main(["completion", "fish", "--json"])
    assert "waveform-inversion" in json.loads(capsys.readouterr().out)["script"]


def test_completion_is_a_script_for_the_shell(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    assert "--basin-starts" in script
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- settings from files -------------------------------------------------------------------------


def test_a_preset_is_changed_by_a_file_and_both_by_flags(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('preset = "reduced"\npoints = 26\nseed = 5\n')
    presets = STUDIES["poisson-pinn"].presets
    ask = lambda *flags: parse(["study", "poisson-pinn", f"--config={path}", *flags]).settings
    assert ask() == replace(presets["reduced"], points=26, seed=5)
    assert ask("--points", "30") == replace(presets["reduced"], points=30, seed=5)
    assert ask("--preset", "paper") == replace(presets["paper"], points=26, seed=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pionts = 20", "unknown key 'pionts'. Try: 'points'"),
        ("points = 'many'", "points is 'many'. Try: a whole number"),
        ("points 20", "is not TOML: Expected '=' after a key in a key/value pair (at line 1"),
        ("preset = 'dem'", "unknown preset 'dem'; did you mean 'demo'? known: demo, reduced, "),
        ("preset = 3", "unknown preset '3'; known: demo"),
        ("points = 21", "points: is 21"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(text, message, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(text + "\n")
    assert _exit_code("study", "poisson-pinn", "--config", str(path)) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


# --- runs ----------------------------------------------------------------------------------------


def test_a_file_in_the_way_is_refused(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for output in (blocked, blocked / "below"):
        assert _exit_code("study", "gaussian-mixture", *TINY, "--output", str(output)) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("natgrad: error:")
        assert "Traceback" not in printed


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a tiny run, and what it printed."""
    output, printed = tmp_path_factory.mktemp("study") / "deep" / "result", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("NATGRAD_CACHE", "")
        main(["study", "gaussian-mixture", *TINY, "--output", str(output)])
    return output, printed.getvalue()


@pytest.fixture(scope="module")
def numbers(tiny) -> dict:
    return json.loads((tiny[0] / "results.json").read_text())


def test_a_tiny_run_leaves_settings_figures_and_a_page(tiny):
    output, printed = tiny
    assert "report:" in printed
    settings = json.loads((output / "settings.json").read_text())
    assert settings["study"] == "gaussian-mixture"
    assert settings["settings"]["points"] == 20
    assert [path.name for path in (output / "figures").iterdir()] == ["paths.png"]
    page = (output / "index.html").read_text()
    assert "data:image/png;base64," not in page
    assert page.count('data-kind="curves">') == 2
    assert page.count('data-kind="paths">') == 2
    assert page.count('data-kind="frames">') == 2
    assert "http:" not in page
    assert "https:" not in page


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _must_not_run(*arguments):
    raise AssertionError("computed again")


def test_a_finished_run_is_resumed_from_what_is_kept(tiny, numbers, tmp_path, monkeypatch, capsys):
    """Also in another place, and with the settings that the run has written as TOML."""
    folder = tmp_path / "moved"
    shutil.copytree(tiny[0], folder)
    (folder / "index.html").unlink()
    for part in ("study_method", "run_floored", "compare_schemes"):
        monkeypatch.setattr(mixture_run, part, _must_not_run)
    monkeypatch.setattr(mixture_fit, "minimize", _must_not_run)
    main(["resume", str(folder), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["study"] == "gaussian-mixture"
    assert len(printed["tables"]) == 4
    assert all(isinstance(row[-1], (int, float)) for row in printed["tables"][0]["rows"])
    assert Path(printed["report"]).read_text().startswith("<!doctype html>")
    again = json.loads((folder / "results.json").read_text())
    for name in ("methods", "w2_floored", "transport", "fit"):
        assert again[name] == numbers[name]
    asked = parse(["study", "gaussian-mixture", "--config", str(folder / "settings.toml")]).settings
    assert asked.output == folder
    assert (
        replace(asked, output=tiny[0])
        == parse(["study", "gaussian-mixture", *TINY, "--output", str(tiny[0])]).settings
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gaussian-mixture", *TINY, "--arrows", "4"), "holds a run with arrows = 3, not 4"),
        (("gaussian-mixture",), "holds a run with metrics = ['L2'], not ['L2', 'FR'"),
        (("darcy",), "holds a result of the study 'gaussian-mixture', not 'darcy'"),
    ],
)
def test_a_folder_with_another_run_is_refused_and_left_alone(tiny, arguments, message, capsys):
    before = _files(tiny[0])
    assert _exit_code("study", *arguments, "--output", str(tiny[0])) == 2
    assert message in capsys.readouterr().err
    assert _files(tiny[0]) == before


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert _exit_code("study", "darcy", "--output", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err == (
        f"natgrad: error: cannot write to {tmp_path / 'out'}: Permission denied. "
        "Try: --output results/NAME\n"
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("settings.json", '{"natgrad": 1, "stu', "settings.json is damaged: Unterminated string"),
        ("settings.json", '{"a": 1}', "settings.json is not one of natgrad's"),
        ("settings.json", '{"natgrad": "1"}', "it names no study with settings"),
        ("settings.json", '{"natgrad": "1", "study": "darzy", "settings": {}}', "mean 'darcy'?"),
        (
            "settings.json",
            '{"natgrad": "1", "study": "darcy", "settings": {"cells": "x"}}',
            "cells is 'x'. Try: a whole number",
        ),
        ("runs/method-L2.npz", "not an archive", "method-L2.npz cannot be read as a kept part"),
        ("runs/fit-L2.npz", "not an archive", "fit-L2.npz cannot be read as a result"),
    ],
)
def test_a_damaged_run_is_not_resumed(tiny, tmp_path, monkeypatch, file, content, message, capsys):
    shutil.copytree(tiny[0], tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    monkeypatch.setattr(mixture_run, "explore", lambda *arguments: None)
    assert _exit_code("resume", str(tmp_path / "run")) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert (tmp_path / "run" / file).read_text() == content


def test_a_report_of_a_run(tiny, tmp_path, capsys):
    page = tmp_path / "all.html"
    main(["report", str(tiny[0]), "--output", str(page), "--json"])
    assert json.loads(capsys.readouterr().out) == {"report": str(page)}
    assert "Gaussian mixture" in page.read_text()
    page.write_text("my thesis")
    assert _exit_code("report", str(tiny[0].parent), "--output", str(page)) == 2
    assert "all.html" in capsys.readouterr().err
    assert page.read_text() == "my thesis"


# --- stopping ------------------------------------------------------------------------------------

PINN = replace(
    STUDIES["poisson-pinn"].presets["demo"],
    points=8,
    layers=(3,),
    methods=("Adam", "LBFGS"),
    batched=(),
    seconds=0.01,
)


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    config, folder = tmp_path / "run.toml", tmp_path / "out put"
    config.write_text(to_toml(replace(PINN, output=folder), "tiny"))
    train = pinn_run.run_method
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def stopped_at_the_second(method, pinn):
        if method.key == "LBFGS":
            os.kill(os.getpid(), signal.SIGINT)
        return train(method, pinn)

    monkeypatch.setattr(pinn_run, "run_method", stopped_at_the_second)
    assert _exit_code("study", "poisson-pinn", "--config", str(config)) == 130
    assert capsys.readouterr().err.endswith(f"stopped; resume with: natgrad resume '{folder}'\n")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [path.name for path in (folder / "runs").iterdir()] == ["Adam.npz"]

    def only_the_second(method, pinn):
        assert method.key == "LBFGS"
        return train(method, pinn)

    monkeypatch.setattr(pinn_run, "run_method", only_the_second)
    main(["resume", str(folder)])
    assert {path.name for path in (folder / "runs").iterdir()} == {"Adam.npz", "LBFGS.npz"}
    assert (folder / "index.html").exists()


def test_sigterm_leaves_threads_and_cancels_what_waits(tmp_path, monkeypatch, capsys):
    began = []

    def method_study(method, settings, landscape):
        began.append(method.key)
        os.kill(os.getpid(), signal.SIGTERM)
        stopping.ENDING.wait()  # another thread notes the signal
        raise RuntimeError("after the end")

    monkeypatch.setattr(mixture_run, "explore", lambda *arguments: None)
    monkeypatch.setattr(mixture_run, "compare_schemes", lambda *arguments: None)
    monkeypatch.setattr(mixture_run, "study_method", method_study)
    arguments = ("--workers", "1", "--output", str(tmp_path / "out"), "--json")
    assert _exit_code("study", "gaussian-mixture", *arguments) == 143
    printed = capsys.readouterr()
    line = f"stopped; resume with: natgrad resume {tmp_path / 'out'}"
    assert printed.err.endswith(line + "\n")
    assert json.loads(printed.out) == {"error": line}
    assert len(began) == 1


def test_a_signal_that_comes_to_no_safe_point_raises_in_the_end():
    due = threading.Event()

    def wait_for_it() -> None:
        due.set()
        for _ in range(60_000):  # one long sleep would outlast a signal that comes just before it
            time.sleep(0.01)

    class Stop(stopping.Stop):
        def _wait(self, seconds):
            if seconds is not None:
                assert seconds == stopping.GRACE
                due.wait()
                seconds = 0.0
            return super()._wait(seconds)

    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stopping.check_ending()
        with pytest.raises(KeyboardInterrupt):
            wait_for_it()
        assert stop.caused()
        assert stop.code == 143
    assert not stopping.ENDING.is_set()


def test_a_signal_inside_of_a_garbage_collection_is_not_lost(monkeypatch):
    def collect():  # an exception here would be dropped
        gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGINT) if not begun else None)
        gc.callbacks.append(lambda *_: begun.append(True))
        gc.collect()

    begun: list[bool] = []
    callbacks = list(gc.callbacks)
    with stopping.Stop():
        try:
            collect()
        finally:
            gc.callbacks[:] = callbacks
        with pytest.raises(KeyboardInterrupt):
            stopping.check_ending()


def test_a_second_signal_raises_at_once_and_runs_end_between_iterations(monkeypatch):
    with stopping.Stop():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(BOARD, "ending", stopping.ENDING)
    seen = []

    def watch(progress):
        seen.append(progress.iteration)
        os.kill(os.getpid(), signal.SIGTERM)

    problem = ng.Problem(lambda theta: theta, ng.LeastSquares(jnp.ones(2)))
    method = ng.GradientDescent(step=ng.FixedStep(0.1))
    with stopping.Stop(), pytest.raises(KeyboardInterrupt) as stopped:
        ng.minimize(problem, jnp.zeros(2), method, callbacks=[watch])
    assert seen == [1]
    assert stopped.value.natgrad_result.iterations == 1


@pytest.mark.slow
def test_every_signal_ends_its_program(tmp_path):
    signals = int(os.environ.get("NATGRAD_TEST_SIGNALS", "25"))
    command = [sys.executable, stopped_study.__file__, str(signals), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["codes"] == [143] * signals, found["said"]
    assert found["finished"] == 0


def test_a_stop_before_the_folder_is_claimed_names_no_folder(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(ResultFolder, "claim", interrupted)
    assert _exit_code("study", "gaussian-mixture", "--output", str(tmp_path / "out")) == 130
    assert capsys.readouterr().err == "stopped\n"


# --- compiled programs ---------------------------------------------------------------------------


def test_programs_are_kept_in_the_folder_named(tmp_path):
    script = (
        "import jax, natgrad as ng;"
        "from natgrad.core import compiled; compiled.LEAST_COMPILE_SECONDS = 0.0;"
        "print(ng.cache());"
        "jax.jit(lambda x: x + 1)(1.0)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["NATGRAD_CACHE"] = str(tmp_path / "ours")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(tmp_path / "ours")
    assert list((tmp_path / "ours").iterdir())


def test_a_folder_given_to_jax_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("NATGRAD_CACHE", str(tmp_path / "ours"))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax's"))
    try:
        assert ng.cache() == tmp_path / "jax's"
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "jax's")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"NATGRAD_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/natgrad")),
        ({"NATGRAD_CACHE": ""}, None),
        ({"XDG_CACHE_HOME": ""}, Path("~/.cache/natgrad").expanduser()),
    ],
)
def test_the_folder_of_the_programs(environment, folder):
    assert program_folder(environment) == folder


@pytest.mark.parametrize("folder", ["", 3, b"/tmp", "~no-such-user/a", "/dev/null", "a\0b"])
def test_what_is_no_folder_for_programs_is_refused(folder):
    before = jax.config.jax_compilation_cache_dir
    with pytest.raises(ng.InputError, match=r"folder: .* cannot be written"):
        ng.cache(folder)
    assert jax.config.jax_compilation_cache_dir == before


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("NATGRAD_CACHE", str(blocked / "below"))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)  # another test may have set it
    try:
        assert ng.cache() is None
        assert jax.config.jax_compilation_cache_dir is None
        assert blocked.read_text() == "not a folder"
        monkeypatch.setenv("NATGRAD_CACHE", "~no-such-user/a")
        assert ng.cache() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_the_results_of_a_tiny_run_are_complete_and_sane(numbers):
    assert {"settings", "versions", "landscape", "methods", "transport", "fit"} <= set(numbers)
    assert set(numbers["methods"]) == {"GD", "L2", "W2", "W2_staggered"}
    for entry in numbers["methods"].values():
        assert entry["path"][0] == [5.0, 3.0]
        assert len(entry["path"]) == len(entry["losses"]) == entry["iterations"] + 1
        counts = entry["basins"]
        assert counts["reach"] + counts["escape"] + counts["undecided"] == 4
        assert entry["local_step_limit_at_minimum"] > 0
    assert numbers["landscape"]["finite_minima"] == 1
    fits = numbers["fit"]["methods"]
    assert fits["L2"]["loss"] < fits["L2"]["history"]["loss"][0]


def test_a_tiny_run_already_shows_the_defect_of_the_collocated_scheme(numbers):
    transport = numbers["transport"]
    assert transport["G_collocated"][0][0] > 10 * transport["upper_bound_for_any_mu"]
    assert transport["G_staggered"][0][0] < transport["upper_bound_from_a_feasible_field"]
    assert transport["coupling_between_parities"] < 1e-12
    parity = sum(transport["G_xx_collocated_by_parity_of_ij_from_1"].values())
    assert parity == pytest.approx(transport["G_collocated"][0][0], rel=1e-12)


def test_a_warning_is_a_line_without_the_code_it_comes_from(monkeypatch, capsys):
    def warned(self, output):
        warnings.simplefilter("always")
        warnings.warn("the waves\nare short", ng.errors.PrecisionWarning, stacklevel=1)

    monkeypatch.setattr(Listing, "run", warned)
    main(["list"])
    assert capsys.readouterr().err == "natgrad: warning: the waves are short\n"
