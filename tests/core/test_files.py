"""Files: written all or not at all, whatever becomes of the writer; read as far as they are there."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad import plot, report
from natgrad.core.archive import replace_file

PAGE = report.Page("A page", "about nothing", [])
RESULT = ng.Result(jnp.ones(2), 1.0, ng.Status.CONVERGED, 0, {"loss": np.ones(1)}, None)


def shots():
    line = {"dt": 0.01, "steps": 4, "shots": 1, "frequency": 4.0}
    survey = ng.waves.Survey.line((4, 4), 40.0, **line)
    return ng.waves.Shots(survey, np.ones((1, len(survey.receivers), 4)))


def draw(path):
    with plot.figure_style():
        import matplotlib.pyplot as plt

        plot.save(plt.figure(), path)


WRITERS = {
    "result.npz": RESULT.save,
    "shots.npz": lambda path: shots().save(path),
    "page.html": PAGE.write,
    "page.json": lambda path: report.save_page(PAGE, path.parent),
    "results.json": lambda path: report.ResultFolder(path.parent).write(path.name, {"a": 1}),
    "figure.png": draw,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_file_that_was_there(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_bytes(b"older")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        WRITERS[name](path)
    assert path.read_bytes() == b"older"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_is_followed_and_the_file_that_it_names_is_written(name, tmp_path):
    place, link = tmp_path / "scratch" / "file", tmp_path / name
    link.symlink_to(place)
    WRITERS[name](link)
    WRITERS[name](link)
    assert link.is_symlink()
    assert place.stat().st_size > 0
    assert list(place.parent.iterdir()) == [place]


def test_shots_come_back_and_get_their_ending(tmp_path):
    shots().save(tmp_path / "a")
    assert np.array_equal(ng.waves.Shots.load(tmp_path / "a.npz").data, shots().data)


def test_what_a_killed_writer_left_is_removed_and_the_rest_stays(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = lambda process, name="run.npz": f".{name}.{process}-{platform.node()}.new"
    theirs = [left(os.getppid()), left(dead.pid, "other.npz"), f".run.npz.{dead.pid}-x.new", "a"]
    for name in (left(dead.pid), *theirs):
        (tmp_path / name).write_bytes(b"half")
    RESULT.save(tmp_path / "run.npz")
    assert {entry.name for entry in tmp_path.iterdir()} == {"run.npz", *theirs}


def test_permissions_are_kept_and_devices_written_to(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    path.chmod(0o640)
    replace_file(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o640)
    replace_file(Path(os.devnull), b"three")
    assert not Path(os.devnull).is_file()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path, b"four")
