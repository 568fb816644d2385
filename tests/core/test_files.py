"""Files: written all or not at all, whatever becomes of the writer; read as far as they go."""

import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natgrad as ng
from natgrad import plot, report
from natgrad.core.archive import replace_file, write_archive
from natgrad.descent.run import COLUMNS
from natgrad_studies.keeping import Kept

PAGE = report.Page("A page", "about nothing", [])
HISTORY = {name: np.ones(1) for name in COLUMNS}
RESULT = ng.Result(jnp.ones(2), 1.0, ng.Status.CONVERGED, 0, HISTORY, None)


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
    for name in ("a", "a.npz"):
        assert np.array_equal(ng.waves.Shots.load(tmp_path / name).data, shots().data)


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


# --- files that are damaged, or made to harm ------------------------------------------------------


def npy(shape, content=b"", dtype="<f8"):
    """An .npy file that declares a shape, whatever comes then."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


def edit(path, change=lambda header: None, members=lambda found: None, **zipped):
    """Pack a saved result anew, with another header or other members."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(found["header.json"])
    change(header)
    found["header.json"] = json.dumps(header).encode()
    members(found)
    with zipfile.ZipFile(path, "w", **zipped) as archive:
        for name, content in found.items():
            archive.writestr(name, content)


def flip(path, offset, value):
    """Set a field of the first member, in its own header and in the directory of the archive."""
    content = bytearray(path.read_bytes())
    for signature, field in ((b"PK\x03\x04", offset), (b"PK\x01\x02", offset + 2)):
        at = content.index(signature) + field
        content[at : at + 2] = value.to_bytes(2, "little")
    path.write_bytes(content)


HOSTILE = {
    "a new status": lambda p: edit(p, lambda h: h["values"].update(status="diverged")),
    "a new field": lambda p: edit(p, lambda h: h["values"].update(info={"extra": 1})),
    "no loss": lambda p: edit(p, lambda h: h["values"].pop("loss")),
    "a text for a loss": lambda p: edit(p, lambda h: h["values"].update(loss="low")),
    "no history": lambda p: edit(p, lambda h: h["types"].pop("['history']['loss']")),
    "types a list": lambda p: edit(p, lambda h: h.update(types=[])),
    "values a list": lambda p: edit(p, lambda h: h.update(values=[1])),
    "a header that is a list": lambda p: edit(p, members=lambda m: m.update({"header.json": "[]"})),
    "a version that is a text": lambda p: edit(p, lambda h: h.update(version="one")),
    "objects": lambda p: edit(p, lambda h: h["types"].update({"['theta']": "O"})),
    "a huge shape": lambda p: edit(p, members=lambda m: m.update({"0.npy": npy((10**12,))})),
    "a negative shape": lambda p: edit(p, members=lambda m: m.update({"0.npy": npy((-2,))})),
    "nested brackets": lambda p: edit(p, members=lambda m: m.update({"header.json": "[" * 10**5})),
    "a bomb": lambda p: edit(
        *(p, lambda h: None, lambda m: m.update({"0.npy": npy((9 * 10**6,), bytes(72 * 10**6))})),
        compression=zipfile.ZIP_DEFLATED,
    ),
    "encryption": lambda p: flip(p, 6, 1),
    "an unknown method": lambda p: flip(p, 8, 99),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_a_line(case, tmp_path):
    path = tmp_path / "run.npz"
    RESULT.save(path)
    HOSTILE[case](path)
    with pytest.raises(ng.InputError, match=r"run\.npz cannot be read as a result"):
        ng.load_result(path)


def test_a_file_of_another_kind_is_named_and_left_to_its_owner(tmp_path):
    path, wrong = tmp_path / "run.npz", tmp_path / "misc.py"
    wrong.write_text("import natgrad")
    with pytest.raises(ng.InputError, match=r"not natgrad's.*Try: a file written by result.save"):
        ng.load_result(wrong)
    write_archive(path, "checkpoint", {}, {})
    with pytest.raises(ng.InputError, match=r"is a checkpoint, not a saved result. Try: repeat"):
        ng.load_result(path)


def test_one_bad_file_does_not_spoil_a_report(tmp_path):
    for name in ("a", "b", "c"):
        RESULT.save(tmp_path / f"{name}.npz")
    np.savez(tmp_path / "velocity.npz", np.ones(2))  # not natgrad's
    HOSTILE["a new status"](tmp_path / "b.npz")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "page.json").write_text("[" * 10**5)
    with pytest.warns(RuntimeWarning, match="left out") as warned:
        report.write_report([tmp_path], tmp_path / "report.html")
    assert [Path(str(w.message).split()[0]).name for w in warned] == ["b.npz", "d"]
    page = (tmp_path / "report.html").read_text()
    assert "<h2>a</h2>" in page
    assert "<h2>b</h2>" not in page
    with pytest.raises(ng.InputError, match="cannot be read"):  # it is meant
        report.write_report([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "report.html")


def bomb(path, parts=1):
    """72 MB of zeros in 72 kB, in so many members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(parts):
            content = npy((9 * 10**6 // parts,), bytes(72 * 10**6 // parts))
            archive.writestr(f"{number}.npy", content)


@pytest.mark.parametrize(
    ("name", "write", "part"),
    [
        ("model.npz", bomb, "packed more closely"),
        ("model.npz", lambda path: bomb(path, 9), "packed more closely"),
        ("model.npy", lambda path: path.write_bytes(npy((10**6, 10**6))), "0 bytes are no array"),
        ("model.npy", lambda path: path.write_bytes(npy((-2, 3))), "0 bytes are no array"),
    ],
)
def test_a_hostile_velocity_file_is_refused_in_a_line(name, write, part, tmp_path):
    write(tmp_path / name)
    with pytest.raises(ng.InputError, match=rf"{name}' cannot be read .*{part}"):
        ng.waves.load_velocity(tmp_path / name)


READERS = {  # a file, how it is made, and how it is read
    "result.npz": (RESULT.save, ng.load_result),
    "shots.npz": (lambda path: shots().save(path), ng.waves.Shots.load),
    "velocity.npz": (
        lambda path: np.savez(path, np.full((3, 4), 1500.0)),
        ng.waves.load_velocity,
    ),
    "part.npz": (
        lambda path: Kept(path.parent).part("part", lambda: {"a": np.ones(3), "b": [1, "x"]}),
        lambda path: Kept(path.parent).part("part", lambda: None),
    ),
    "page.json": (
        lambda path: report.save_page(PAGE, path.parent),
        lambda path: report.load_page(path.parent),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_or_does_no_harm(name, data):
    write, read = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content)))
            length = data.draw(st.sampled_from([0, 1, 2, 8, 10**6]))
            content[at : at + length] = data.draw(st.binary(max_size=8))
        path.write_bytes(content)
        with suppress(ng.InputError):
            read(path)
