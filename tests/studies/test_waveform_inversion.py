"""The waveform inversion study: a tiny run, resumed, with every stage; its measures; bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from natgrad import InputError
from natgrad.descent import Progress
from natgrad.report import FolderError, load_page
from natgrad_studies import stopping
from natgrad_studies.cli import main
from natgrad_studies.keeping import Kept
from natgrad_studies.running import run_study
from natgrad_studies.settings import to_toml
from natgrad_studies.waveform_inversion import run as study
from natgrad_studies.waveform_inversion.methods import METHODS as KNOWN
from natgrad_studies.waveform_inversion.page import summary
from natgrad_studies.waveform_inversion.problem import structural_similarity
from natgrad_studies.waveform_inversion.settings import METHODS, PRESETS, Settings

pytestmark = pytest.mark.filterwarnings("ignore:.*dispersed")
TINY = Settings(
    coarsen=6,
    dt=0.012,
    steps=120,
    shots=2,
    frequency=2.0,
    smoothing=2.0,
    known_rows=2,
    methods=("L2", "LBFGS"),
    max_propagations=24,
    devices=1,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    settings = replace(TINY, output=tmp_path_factory.mktemp("waves") / "tiny")
    lines = []
    report, result = run_study(settings, lines.append)
    return settings, report, result, lines


@pytest.mark.slow
def test_a_tiny_study_descends_and_writes_its_report(tiny):
    settings, report, result, lines = tiny
    for run in result.runs:
        assert run.loss[-1] < 0.2
        assert run.similarity[-1] > result.start_similarity
        assert settings.max_propagations <= run.total <= settings.max_propagations + 8
        assert np.all(np.diff(run.propagations) > 0)
        assert 2 <= len(run.frames) <= study.FRAMES + 1
        assert [run.frames[0][0], run.frames[-1][0]] == run.propagations[[0, -1]].tolist()
        assert np.array_equal(run.frames[-1][1], run.velocity)
    text = report.read_text()
    assert "<img" not in text
    assert text.count('data-kind="curves">') == 2
    assert text.count('data-kind="frames">') == 2
    assert "W₂" not in text  # which did not run
    assert load_page(settings.output).html() == text
    assert "L²" in text
    numbers = json.loads((settings.output / "results.json").read_text())
    assert numbers["runs"]["LBFGS"]["ssim"][-1] == pytest.approx(result.runs[1].similarity[-1])
    assert len(summary(result)[0].rows) == 2
    assert any("iB" in line for line in lines)


@pytest.mark.slow
def test_methods_in_processes_find_the_same(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("NATGRAD_CACHE", "")
    settings, _, whole, _ = tiny
    both, lines = replace(settings, output=tmp_path / "both", workers=2), []
    report, together = run_study(both, lines.append)
    for one, other in zip(whole.runs, together.runs, strict=True):
        assert one.method is other.method
        assert np.array_equal(one.velocity, other.velocity)
        assert np.array_equal(one.loss, other.loss)
        assert np.array_equal(one.similarity, other.similarity)
        assert [spent for spent, _ in one.frames] == [spent for spent, _ in other.frames]
    assert sum("24 propagations" in line for line in lines) == 2
    assert "2 methods ran at the same time" in report.read_text()
    (tmp_path / "both" / "runs" / "L2.csv").write_text("1,\n")
    with pytest.raises(InputError, match=r"L2\.csv is damaged"):  # in its process
        run_study(both)


@pytest.mark.parametrize(
    ("stats", "workers", "expected"),
    [
        (None, 0, study.SIDE_BY_SIDE),
        ({"bytes_limit": 100 * study.HELD}, 0, study.SIDE_BY_SIDE),
        ({"bytes_limit": 25 * study.HELD}, 0, 2),
        ({"bytes_limit": 35 * study.HELD, "pool_bytes": 10 * study.HELD}, 0, 2),
        ({"bytes_limit": 5 * study.HELD}, 0, 1),
        ({"bytes_limit": 5 * study.HELD}, 4, 4),
    ],
)
def test_a_gpu_runs_as_many_methods_as_it_has_room_for(stats, workers, expected, monkeypatch):
    model = SimpleNamespace(storage=SimpleNamespace(bytes=10))
    chosen = replace(PRESETS["paper"], workers=workers)
    scene: Any = SimpleNamespace(settings=chosen, whole=SimpleNamespace(model=model))
    assert study.side_by_side(scene) == max(1, workers)  # on a CPU
    monkeypatch.setattr(study.jax, "default_backend", lambda: "gpu")
    gpu = SimpleNamespace(memory_stats=lambda: stats)
    monkeypatch.setattr(study.jax, "devices", lambda: [gpu])
    assert study.side_by_side(scene) == expected


def test_no_process_starts_in_vain():
    of = lambda **changes: replace(PRESETS["paper"], **changes).processes()
    assert of(workers=1) == of(methods=("L2",)) == of(methods=("L2",), workers=3) == 1
    assert of(workers=2) == of(methods=("L2", "GD"), workers=3) == 2


@pytest.mark.slow
def test_a_study_stopped_by_ctrl_c_ends_with_the_same_numbers(tiny, tmp_path, monkeypatch, capsys):
    settings, _, whole, _ = tiny
    settings = replace(settings, output=tmp_path / "cut")

    config = tmp_path / "run.toml"
    config.write_text(to_toml(settings, "tiny"))
    log = study.Log.__call__

    def stopped_at_the_second(self, progress):
        log(self, progress)
        if progress.iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)

    # ignored where the tests run in the background
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setenv("NATGRAD_CACHE", "")
        patch.setattr(stopping, "GRACE", 3600.0)
        patch.setattr(study.Log, "__call__", stopped_at_the_second)
        with pytest.raises(SystemExit) as ended:
            main(["study", "waveform-inversion", "--config", str(config)])
    signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert said.endswith(f"stopped; resume with: natgrad resume {settings.output}\n")
    assert "Traceback" not in said
    assert not (settings.output / "runs" / "LBFGS.npz").exists()
    assert (settings.output / "runs" / "L2.npz").exists()
    assert not (settings.output / "index.html").exists()
    _, resumed = run_study(settings)
    for one, other in zip(whole.runs, resumed.runs, strict=True):
        assert np.array_equal(one.velocity, other.velocity)
        assert np.array_equal(one.loss, other.loss)
        assert np.array_equal(one.similarity, other.similarity)
        assert [spent for spent, _ in one.frames] == [spent for spent, _ in other.frames]
    with pytest.raises(FolderError, match="holds a run with shots = 2, not 3"):
        run_study(replace(settings, shots=3))


@pytest.mark.slow
def test_a_study_in_processes_stopped_by_sigterm_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("NATGRAD_CACHE", str(tmp_path / "programs"))
    settings = replace(TINY, output=tmp_path / "out", max_propagations=300, workers=2)
    config = tmp_path / "run.toml"
    config.write_text(to_toml(settings, "tiny"))
    command = [sys.executable, "-m", "natgrad_studies.cli", "study", "waveform-inversion"]
    program = subprocess.Popen(
        [*command, "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    files = [settings.output / "runs" / f"{key}.csv" for key in settings.methods]
    while not all(file.exists() for file in files):
        assert program.poll() is None
        time.sleep(0.01)
    program.terminate()
    said = program.communicate()[1]
    assert program.returncode == 143
    assert said.endswith(f"stopped; resume with: natgrad resume {settings.output}\n")
    assert said.count("dispersed") == 1
    assert "Traceback" not in said
    end = time.monotonic() + 10
    while _processes_of(program.pid):  # multiprocessing's own helper ends a moment later
        assert time.monotonic() < end
        time.sleep(0.01)
    done = [file.read_text().count("\n") for file in files]
    assert all(file.with_suffix(".npz").exists() for file in files)
    _, result = run_study(settings)
    assert np.all([run.iterations for run in result.runs] >= np.array(done))
    assert sum(run.iterations for run in result.runs) > sum(done)
    for run in result.runs:
        assert np.all(np.isfinite(run.similarity))  # also of the iterates before the stop


def _processes_of(session: int) -> list[int]:
    """What runs in a session; those that have ended need not have been asked how."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of, *_ = path.read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_a_log_loses_a_line_that_was_cut_off_and_no_other(tmp_path):
    scene: Any = SimpleNamespace(velocity=float, similarity=lambda theta: theta / 3)
    path = tmp_path / "run.csv"
    at = lambda i: Progress(i, np.float64(i), 0.0, {})
    for i in (1, 2):
        study.Log(path, scene)(at(i))  # as after a resumption
    written = path.read_bytes()
    assert written == b"1,0.3333333333333333\n2,0.6666666666666666\n"
    for cut in (b"3", b"3,", b"3,1."):  # when the process was killed
        path.write_bytes(written + cut)
        study.Log(path, scene)(at(3))
        assert path.read_bytes() == written + b"3,1.0\n"
    path.write_bytes(b"1,0.3")
    assert study.Log(path, scene)._known == {}
    assert path.read_bytes() == b""
    path.write_bytes(b"1,\n" + written)
    with pytest.raises(InputError, match=r"run\.csv is damaged"):
        study.Log(path, scene)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [TINY.max_propagations, 6])  # 6: enough for no step
def test_bands_and_a_transport_misfit_come_before_least_squares(tmp_path, budget):
    chosen = {"methods": ("L2",), "bands": (2.0,), "misfit": "transport"}
    settings = replace(TINY, output=tmp_path, max_propagations=budget, **chosen)
    result = study.compute(settings, lambda line: None, Kept(tmp_path / "runs"))
    (run,) = result.runs
    stages = {path.stem for path in (tmp_path / "runs").glob("*.npz")}
    assert stages == {"L2", "L2-transport", "L2-band1"}
    assert np.isnan(run.loss[0])
    assert run.total >= settings.max_propagations
    if budget > 6:
        assert run.loss[-1] < 1.0
        assert len(run.frames) >= 6  # two of every stage
    else:
        assert run.iterations == 0
        assert run.total == budget
        assert len(run.frames) == 3
    again = study.compute(settings, lambda line: None, Kept(tmp_path / "runs")).runs[0]
    np.testing.assert_array_equal(again.velocity, run.velocity)
    np.testing.assert_array_equal(again.propagations, run.propagations)
    np.testing.assert_array_equal(again.loss, run.loss)


def test_similarity_is_one_for_the_same_and_falls_with_noise():
    random = np.random.default_rng(0)
    image = np.add.outer(np.linspace(1, 3, 40), np.linspace(0, 2, 30))
    assert structural_similarity(image)(image) == pytest.approx(1.0)
    noise = random.standard_normal(image.shape)
    compare = structural_similarity(image)
    found = [compare(image + size * noise) for size in (0.05, 0.2, 1.0)]
    assert found[0] > found[1] > found[2]
    assert structural_similarity(image + 5)(image) < 0.9


def test_the_methods_are_those_of_the_settings():
    assert set(KNOWN) == set(METHODS) == set(study.STARTING_ORDER)
    for preset in PRESETS.values():
        preset.check()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"methods": ("SGD",)}, "methods"),
        ({"methods": ()}, "methods"),
        ({"section": "cake"}, "section"),
        ({"misfit": "huber"}, "misfit"),
        ({"velocity": "nowhere.npy"}, "velocity"),
        ({"dt": -1.0}, "dt"),
        ({"bands": (-2.0,)}, "bands"),
        ({"batch": 3}, "batch"),
        ({"batch": 1}, "batch"),
        ({"slowest": 7000.0}, "slowest"),
        ({"known_rows": 100}, "known_rows"),
        ({"dt": 0.1}, "dt"),
    ],
)
def test_bad_settings_are_named_before_anything_runs(changes, name, tmp_path):
    with pytest.raises(InputError, match=f"^{name}"):
        run_study(replace(TINY, output=tmp_path / "out", **changes))
