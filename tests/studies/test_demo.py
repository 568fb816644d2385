"""The demo: who is said to have won, and a tiny run of all three problems."""

import json

import numpy as np
import pytest

from natgrad_studies.demo.page import summary
from natgrad_studies.demo.run import Bout, StudyResult
from natgrad_studies.demo.settings import Settings
from natgrad_studies.running import run_study


def bout(**ends: float) -> Bout:
    reached = {
        name.replace("_", ", "): (np.array([0.0, 7.0]), np.array([1.0, end]))
        for name, end in ends.items()
    }
    fields = {name: np.zeros((2, 2)) for name in reached}
    return Bout("A fit", "error", "iterations", reached, fields, np.zeros((2, 2)), 3.0)


def test_the_best_of_ours_stands_beside_the_best_of_the_others():
    found = bout(natgrad_L2=0.3, natgrad_W2=0.2, Adam=0.5, LBFGS=0.4)
    assert (found.ours, found.rival) == ("natgrad, W2", "LBFGS")
    assert found.verdict == "A fit, error: natgrad, W2 2.0e-01, best rival (LBFGS) 4.0e-01, in 3 s"


def test_a_rival_that_wins_is_shown_to():
    (table,) = summary(StudyResult(Settings(), [bout(natgrad=0.3, Adam=0.1)]))
    assert table.rows == [("A fit: error", "3.0e-01", "1.0e-01 (Adam)")]


@pytest.mark.slow
def test_a_tiny_demo_from_end_to_end(tmp_path):
    settings = Settings(output=tmp_path / "demo", seconds=0.1, propagations=6, iterations=2)
    lines: list[str] = []
    page, result = run_study(settings, lines.append)
    assert [b.verdict for b in result.bouts] == [line for line in lines if "best rival" in line]
    for found in result.bouts:
        assert all(np.isfinite(values).all() for _, values in found.reached.values())
    for found in result.bouts[1:]:  # the network's seconds are those of one iteration
        assert found.final(found.ours) < found.reached[found.ours][1][0]
    waves = result.bouts[1]
    assert all(spent[-1] <= 6 + 2 for spent, _ in waves.reached.values())
    numbers = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert {b.name for b in result.bouts} <= set(numbers)
    first = page.read_text()
    run_study(settings)  # everything is there: nothing is computed
    assert page.read_text() == first
