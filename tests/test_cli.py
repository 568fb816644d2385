"""The command line, run in a process of its own where it sets global state."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from natgrad.cli import main
from natgrad.program_cache import chosen_folder, keep_programs

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


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_help_names_the_commands(capsys):
    assert _exit_code("--help") == 0
    printed = capsys.readouterr().out
    assert "study" in printed
    assert "list" in printed


def test_help_of_a_study_shows_the_defaults_of_the_preset(capsys):
    assert _exit_code("study", "gaussian-mixture", "--preset", "paper", "--help") == 0
    assert "--basin-starts" in capsys.readouterr().out


def test_list_names_the_study_and_its_presets(capsys):
    main(["list"])
    printed = capsys.readouterr().out
    assert "gaussian-mixture" in printed
    assert "demo, paper" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study", "no-such-study"), "unknown study 'no-such-study'"),
        (("study", "gaussian-mixture", "--points", "21"), "points: 21 is odd"),
        (("study", "gaussian-mixture", "--basin-starts", "0"), "basin_starts: is 0"),
        (("study", "gaussian-mixture", "--fit-methods", "L7"), "fit_methods: 'L7' is unknown"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert _exit_code(*arguments) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert "\n" not in printed


@pytest.mark.parametrize("arguments", [("fly",), ("study", "gaussian-mixture", "--preset", "no")])
def test_what_the_parser_refuses_is_exit_code_2_without_a_traceback(arguments, capsys):
    assert _exit_code(*arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def _without_cache() -> dict[str, str]:
    own = {"NATGRAD_CACHE": ""}
    return {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | own


def _natgrad(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "natgrad.cli", *arguments]
    environment = _without_cache()
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


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
    output = tmp_path_factory.mktemp("study") / "deep" / "result"
    done = _natgrad("study", "gaussian-mixture", *TINY, "--output", str(output))
    assert done.returncode == 0, done.stderr
    return output, done.stdout


@pytest.fixture(scope="module")
def numbers(tiny) -> dict:
    return json.loads((tiny[0] / "results.json").read_text())


def test_a_tiny_run_leaves_settings_figures_and_a_page(tiny):
    output, printed = tiny
    assert "report:" in printed
    settings = json.loads((output / "settings.json").read_text())
    assert settings["study"] == "gaussian-mixture"
    assert settings["settings"]["points"] == 20
    assert len(list((output / "figures").glob("*.png"))) == 7
    page = (output / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert page.count('data-kind="curves">') == 2
    assert page.count('data-kind="paths">') == 1
    assert "http" not in page


def test_programs_are_kept_in_the_folder_named(tmp_path):
    script = (
        "import jax, natgrad.program_cache as cache;"
        "cache.LEAST_COMPILE_SECONDS = 0.0;"
        "print(cache.keep_programs());"
        "jax.jit(lambda x: x + 1)(1.0)"
    )
    for name, folder in (("NATGRAD_CACHE", "ours"), ("JAX_COMPILATION_CACHE_DIR", "jax's")):
        environment = _without_cache() | {name: str(tmp_path / folder)}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.strip() == str(tmp_path / folder)
    assert list((tmp_path / "ours").iterdir())


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
    assert chosen_folder(environment) == folder


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("NATGRAD_CACHE", str(blocked / "below"))
    before = jax.config.jax_compilation_cache_dir
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir == before
    assert blocked.read_text() == "not a folder"


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
