"""The command line, run in a process of its own where it sets global state."""

import json
import subprocess
import sys

import pytest

from natgrad.cli import main

TINY = (
    *("--points", "20", "--iterations", "5", "--map-points", "41", "--arrows", "3"),
    *("--step-iterations", "3", "--bisections", "1", "--basin-starts", "2"),
    *("--basin-iterations", "5", "--basin-transport-iterations", "2", "--refinement", "12", "16"),
    *("--fit-points", "12", "--fit-iterations", "3", "--fit-methods", "GD", "L2"),
)


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
        (("study", "gaussian-mixture", "--fit-methods", "L7"), "fit_methods"),
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


def _natgrad(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "natgrad.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_file_in_the_way_is_refused(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for output in (blocked, blocked / "below"):
        done = _natgrad("study", "gaussian-mixture", *TINY, "--output", str(output))
        assert done.returncode == 2
        assert done.stderr.startswith("natgrad: error:")
        assert "Traceback" not in done.stderr


def test_a_tiny_run_end_to_end(tmp_path):
    output = tmp_path / "deep" / "result"
    done = _natgrad("study", "gaussian-mixture", *TINY, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "report:" in done.stdout
    results = json.loads((output / "results.json").read_text())
    assert results["settings"]["points"] == 20
    settings = json.loads((output / "settings.json").read_text())
    assert settings["study"] == "gaussian-mixture"
    page = (output / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 7
    assert "http" not in page
