"""`natgrad compare`: the problems of the studies, and the command in process."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import natgrad as ng
from natgrad.descent.progress import BOARD
from natgrad_studies.cli import main
from natgrad_studies.registry import STUDIES
from problems_for_tests import with_slow

pytestmark = pytest.mark.filterwarnings("ignore:.*dispersed")
SMALL = {
    "gaussian-mixture": {"points": 20},
    "darcy": {"cells": 12},
    "poisson-pinn": {"points": 8, "layers": (3,)},
    "waveform-inversion": {"coarsen": 6, "dt": 0.012, "steps": 120, "shots": 1, "frequency": 2.0},
}


@pytest.fixture(autouse=True)
def settings_of_the_process(monkeypatch):
    monkeypatch.setenv("NATGRAD_CACHE", "")
    asked = BOARD.asked
    yield
    BOARD.asked = asked
    assert jax.config.jax_enable_x64


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A TOML file with settings for the mixture."""
    path = tmp_path_factory.mktemp("small") / "mixture.toml"
    path.write_text("points = 20\n")
    return path


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


COMPARABLE = [study.name for study in STUDIES.values() if study.metrics]


@pytest.mark.filterwarnings("ignore:the shortest wave")
@pytest.mark.parametrize("name", with_slow(COMPARABLE, ["poisson-pinn", "waveform-inversion"]))
def test_the_metrics_of_the_list_are_those_of_the_problem(name):
    """And the loss is the same for each, at the same start, whatever state it measures."""
    study = STUDIES[name]
    settings = dataclasses.replace(next(iter(study.presets.values())), **SMALL[name])
    found = study.load("methods").comparable(settings)
    assert set(found.recipes) == set(study.metrics)
    problems = [found.problem, *found.problems.values()]
    values = [_loss(problem, found.theta0) for problem in problems]
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


def _loss(problem: ng.Problem, theta) -> float:
    return float(problem.value(theta, problem.model(theta)))


def test_a_comparison_leaves_numbers_and_a_page_and_can_be_resumed(small, tmp_path, capsys):
    output = tmp_path / "compared"
    arguments = ("gaussian-mixture", "--metrics", "L2", "LBFGS", "--config", str(small))
    main(["compare", *arguments, "--iterations", "4", "--output", str(output)])
    assert "report:" in capsys.readouterr().out
    numbers = json.loads((output / "results.json").read_text())
    assert list(numbers["runs"]) == ["L2", "L-BFGS"]
    assert set(numbers["winners"]["iterations"]) <= set(numbers["runs"])
    assert "Best method at 25%" in (output / "index.html").read_text()
    main(["resume", str(output), "--json"])
    printed = json.loads(capsys.readouterr().out)
    again = json.loads((output / "results.json").read_text())
    assert printed["winners"] == again["winners"]
    assert again["runs"]["L2"]["history"]["loss"] == numbers["runs"]["L2"]["history"]["loss"]
    assert _exit_code("compare", *arguments, "--iterations", "5", "--output", str(output)) == 2
    refused = capsys.readouterr().err
    assert "iterations = 4, not 5" in refused
    assert "Try: --output results/NAME" in refused
    winners = printed["tables"][1]["rows"][0]
    assert set(winners[1::2]) <= {"L2", "L-BFGS"}
    assert winners[2::2] == [1, 2, 4]


def test_every_study_has_a_folder_of_its_own(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ("compare", "gaussian-mixture", "--metrics", "L2", "--iterations", "1")
    main([*command, "--config", str(small)])
    assert "In the end L2 is ahead" in capsys.readouterr().out
    assert (tmp_path / "results/compare-gaussian-mixture/index.html").exists()


def test_solvers_that_are_asked_for_replace_those_of_the_study(small, tmp_path, capsys):
    arguments = ("--metrics", "L2", "--solvers", "qr", "svd", "--config", str(small))
    output = ("--iterations", "2", "--output", str(tmp_path / "solvers"), "--json")
    main(["compare", "gaussian-mixture", *arguments, *output])
    printed, names = json.loads(capsys.readouterr().out), ["L2, qr", "L2, svd"]
    assert [row[0] for row in printed["tables"][0]["rows"]] == names
    assert printed["winners"]["iterations"] == names  # their losses are the same up to rounding


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("darci",), "did you mean 'darcy'? known: gaussian-mixture, darcy, poisson-pinn, wave"),
        (("metric-cost",), "no problem to compare"),
        (("darcy", "--metrics", "L2_H2"), "'L2_H1', or another of"),
        (("darcy", "--metrics", "LBFGS"), "L-BFGS is alone"),
        (("darcy", "--solvers", "qrr"), "'qr', or another of"),
        (("darcy", "--seconds", "-1"), "seconds: -1"),
        (("darcy", "--iterations", "0"), "iterations: 0"),
        (("darcy", "--preset", "papr"), "did you mean 'paper'?"),
        (("darcy", "--itrations", "3"), "did you mean '--iterations'?"),
    ],
)
def test_what_cannot_be_compared(arguments, message, tmp_path, capsys):
    assert _exit_code("compare", *arguments, "--output", str(tmp_path / "out")) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert "\n" not in printed
    assert not (tmp_path / "out").exists()


def test_a_folder_is_given_back_where_the_input_is_refused_late(
    small, tmp_path, monkeypatch, capsys
):
    command = ("compare", "gaussian-mixture", "--config", str(small), "--metrics", "L2")
    compare, folder = ng.compare, tmp_path / "out"

    def refuse(*arguments, **options):
        raise ng.InputError("methods", "cannot run", "another")

    monkeypatch.setattr(ng, "compare", refuse)
    assert _exit_code(*command, "--iterations", "2", "--output", str(folder)) == 2
    assert not folder.exists()
    folder.mkdir()
    assert _exit_code(*command, "--iterations", "2", "--output", str(folder)) == 2
    assert not any(folder.iterdir())
    monkeypatch.setattr(ng, "compare", compare)
    main([*command, "--iterations", "1", "--output", str(folder)])  # other settings than before
    monkeypatch.setattr(ng, "compare", refuse)
    assert _exit_code("resume", str(folder)) == 2
    assert (folder / "index.html").exists()
    capsys.readouterr()
