"""Velocity models: files of every kind come back as they were written; sections look like rock."""

import doctest
import struct
import sys
from functools import partial

import numpy as np
import pytest

from natgrad.waves import (
    coarsened,
    faulted_layers,
    folded_layers,
    load_velocity,
    salt_body,
    smoothed,
    synthetic,
)
from problems_for_tests import assert_input_error

SECTIONS = [folded_layers, faulted_layers, salt_body]
MODEL = 1500.0 + 10.0 * np.arange(35.0).reshape(7, 5)
VOLUME = 1500.0 + 10.0 * np.arange(60.0).reshape(3, 4, 5)


def saved(path, values=MODEL):
    np.save(path / "model.npy", values)
    return path / "model.npy"


def written(path, values, dtype):
    values.astype(dtype).tofile(path / "model.bin")
    return path / "model.bin"


@pytest.mark.parametrize("model", [MODEL, VOLUME], ids=["2D", "3D"])
def test_numpy_files(tmp_path, model):
    found = load_velocity(saved(tmp_path, model.astype("f4")))
    assert found.dtype == float
    np.testing.assert_array_equal(found, model)
    np.testing.assert_array_equal(
        load_velocity(saved(tmp_path, model.ravel()), shape=model.shape), model
    )
    np.savez_compressed(tmp_path / "one.npz", model)
    np.testing.assert_array_equal(load_velocity(tmp_path / "one.npz"), model)
    np.savez(tmp_path / "two.npz", vp=model, rho=np.ones(3))
    np.testing.assert_array_equal(load_velocity(str(tmp_path / "two.npz"), key="vp"), model)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f8", "<i2"])
def test_raw_files(tmp_path, dtype):
    path = written(tmp_path, MODEL, dtype)
    np.testing.assert_array_equal(load_velocity(path, shape=(7, 5), dtype=dtype), MODEL)


def test_axes_and_units(tmp_path):
    np.testing.assert_array_equal(load_velocity(saved(tmp_path, MODEL.T), axes="zx"), MODEL)
    turned = VOLUME.transpose(2, 0, 1)
    found = load_velocity(saved(tmp_path, turned), axes="zxy")
    np.testing.assert_array_equal(found, VOLUME)
    assert found.flags.c_contiguous
    np.testing.assert_allclose(load_velocity(saved(tmp_path, MODEL / 1000), unit="km/s"), MODEL)


def test_segy_files(tmp_path):
    segyio = pytest.importorskip("segyio")
    path = str(tmp_path / "model.sgy")
    segyio.tools.from_array2D(path, MODEL.astype("f4"))
    np.testing.assert_allclose(load_velocity(path), MODEL, rtol=1e-6)
    assert_input_error("shape", "not", lambda: load_velocity(path, shape=(5, 7)))


@pytest.mark.parametrize("inline_first", [True, False])
def test_segy_volumes(tmp_path, inline_first):
    """(inline, crossline, depth), whichever of the two runs faster in the file."""
    segyio = pytest.importorskip("segyio")
    spec = segyio.spec()
    spec.ilines, spec.xlines, spec.samples = [10, 11, 12], [1, 2, 3, 4], range(5)
    spec.format, spec.sorting = 1, 2 if inline_first else 1
    path = str(tmp_path / "volume.SEGY")
    lines = [(i, j) for i in range(3) for j in range(4)]
    lines = lines if inline_first else sorted(lines, key=lambda line: line[::-1])
    with segyio.create(path, spec) as file:
        for trace, (i, j) in enumerate(lines):
            file.header[trace] = {189: spec.ilines[i], 193: spec.xlines[j]}
            file.trace[trace] = VOLUME[i, j].astype("f4")
    np.testing.assert_allclose(load_velocity(path), VOLUME, rtol=1e-6)
    in_order = np.array([VOLUME[line] for line in lines]).reshape(4, 3, 5)
    np.testing.assert_allclose(load_velocity(path, shape=(4, 3, 5)), in_order, rtol=1e-6)


@pytest.mark.parametrize("fields", [{}, {21: 1}, {189: 0, 193: 0}], ids=["numbered", "cdp", "zero"])
def test_segy_files_without_a_geometry(tmp_path, fields):
    """Traces in the file's order, whatever the headers lack."""
    segyio = pytest.importorskip("segyio")
    spec = segyio.spec()
    spec.samples, spec.tracecount, spec.format = range(5), 12, 5
    path = str(tmp_path / "traces.segy")
    with segyio.create(path, spec) as file:
        file.trace = VOLUME.reshape(12, 5).astype("f4")
        for trace in range(12):
            file.header[trace] = fields or {193: trace + 1, 189: 1}
    np.testing.assert_allclose(load_velocity(path), VOLUME.reshape(12, 5), rtol=1e-6)
    np.testing.assert_allclose(load_velocity(path, shape=(3, 4, 5)), VOLUME, rtol=1e-6)


def test_segy_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "segyio", None)
    (tmp_path / "model.sgy").write_bytes(b"")
    assert_input_error("path", r"natgrad\[segy\]", lambda: load_velocity(tmp_path / "model.sgy"))


@pytest.mark.filterwarnings("ignore:Unknown trace value format")
@pytest.mark.parametrize("content", [b"", b"C01", bytes(3600), bytes(5000)])
def test_segy_that_is_none(tmp_path, content):
    pytest.importorskip("segyio")
    (tmp_path / "model.sgy").write_bytes(content)
    assert_input_error("path", r"model\.sgy", lambda: load_velocity(tmp_path / "model.sgy"))


def holed(value):
    return np.where(MODEL[2, 2] == MODEL, value, MODEL)


# What is in the file, the settings, the argument that is named, and a part of the message.
BAD_ARRAYS = {
    "one axis": (MODEL.ravel(), {}, "path", r"\(35,\)"),
    "four axes": (MODEL[None, None], {}, "path", r"\(1, 1, 7, 5\)"),
    "empty": (MODEL[:0], {}, "path", r"\(0, 5\)"),
    "nan": (holed(np.nan), {}, "path", "1 of its 35 values"),
    "zero": (holed(0.0), {}, "path", "1 of its 35 values"),
    "complex": (MODEL + 0j, {}, "path", "complex128"),
    "pickled": (np.array([[None]]), {}, "path", "cannot be read"),
    "km/s": (MODEL / 1000, {}, "unit", "looks like km/s.*multiplies by 1000"),
    "m/s": (MODEL, {"unit": "km/s"}, "unit", "looks like m/s"),
    "mm/s": (1000 * MODEL, {}, "path", "no velocities"),
    "unknown unit": (MODEL, {"unit": "ft/s"}, "unit", "ft/s"),
    "axes": (MODEL, {"axes": "xy"}, "axes", "'xz' or 'zx'"),
    "axes of a volume": (MODEL, {"axes": "zyx"}, "axes", "2 axes"),
    "another shape": (MODEL, {"shape": (5, 7)}, "shape", r"\(7, 5\), not \(5, 7\)"),
    "key": (MODEL, {"key": "vp"}, "key", "no named arrays"),
}


@pytest.mark.parametrize(
    ("values", "settings", "argument", "part"), BAD_ARRAYS.values(), ids=BAD_ARRAYS
)
def test_bad_arrays(tmp_path, values, settings, argument, part):
    assert_input_error(argument, part, lambda: load_velocity(saved(tmp_path, values), **settings))


BAD_RAW = {
    "no shape": ({}, "shape", "35 numbers of float32"),
    "wrong size": ({"shape": (8, 5)}, "shape", "160 bytes.*has 140"),
    "other dtype": ({"shape": (7, 5), "dtype": "f8"}, "shape", "280 bytes.*numbers of 4 bytes"),
    "byte order": ({"shape": (7, 5), "dtype": ">f4"}, "path", "dtype='<f4'"),
    "no grid": ({"shape": (35,)}, "shape", "no grid"),
    "one number": ({"shape": 720}, "shape", "720 is no grid"),
    "no integers": ({"shape": (7.0, 5.0)}, "shape", r"\(7.0, 5.0\) is no grid"),
    "unknown dtype": ({"shape": (7, 5), "dtype": "float31"}, "dtype", "float31"),
    "complex dtype": ({"shape": (7, 5), "dtype": "c8"}, "dtype", "complex64"),
}


@pytest.mark.parametrize(("settings", "argument", "part"), BAD_RAW.values(), ids=BAD_RAW)
def test_bad_raw_files(tmp_path, settings, argument, part):
    assert_input_error(
        argument, part, lambda: load_velocity(written(tmp_path, MODEL, "<f4"), **settings)
    )


def test_bad_paths_and_keys(tmp_path):
    np.savez(tmp_path / "two.npz", vp=MODEL, vs=MODEL)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04" + struct.pack("<I", 7))
    cases = [
        ("none.npy", {}, "path", "no file"),
        (".", {}, "path", "folder"),
        ("broken.npz", {}, "path", "cannot be read"),
        ("two.npz", {}, "key", "2 arrays.*'vp', 'vs'"),
        ("two.npz", {"key": "rho"}, "key", "'rho' is not in"),
    ]
    for name, settings, argument, part in cases:
        assert_input_error(argument, part, partial(load_velocity, tmp_path / name, **settings))


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_are_plausible(section):
    velocity = section((102, 40), 75.0)
    assert velocity.shape == (102, 40)
    assert np.all(velocity[:, :2] == 1500.0)
    assert velocity[:, 2:].min() > 1500.0
    assert velocity.max() <= 5500.0
    assert np.all(section((102, 40), 75.0, water=450.0)[:, :6] == 1500.0)
    assert np.all(section((20, 40), 75.0, water=0.0) > 1500.0)
    halves = velocity[:, 2:21].mean(), velocity[:, 21:].mean()
    assert 1800.0 < halves[0] < halves[1] - 500.0
    # Layers, not a gradient: velocity turns back with depth in every column.
    assert np.all(np.diff(velocity, axis=1).min(axis=1) < -20.0)
    # Nor flat ones: the same depth holds different rock along x.
    assert np.all(np.std(velocity[:, 20:38], axis=0) > 100.0)


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_repeat(section):
    first = section((40, 24), (50.0, 40.0), seed=3)
    np.testing.assert_array_equal(first, section((40, 24), (50.0, 40.0), seed=3))
    assert np.abs(first - section((40, 24), (50.0, 40.0), seed=4)).max() > 100.0


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_do_not_depend_on_the_resolution(section):
    coarse, fine = section((102, 40), 75.0), section((204, 80), 37.5)
    difference = np.abs(coarsened(fine, 2) / coarse - 1)
    assert difference.mean() < 0.005
    assert difference.max() < 0.15


def test_a_wider_section_shows_more_of_the_same():
    narrow, wide = (folded_layers((n, 24), 50.0, seed=1) for n in (40, 60))
    assert np.median(np.abs(wide[:40, 12:] - narrow[:, 12:])) == 0.0


def test_salt_has_a_rough_top_and_sediments_below():
    velocity = salt_body((153, 60), 50.0)
    salt = np.isclose(velocity, 4500.0)
    assert 0.1 < salt[:, :56].mean() < 0.3
    columns = np.flatnonzero(salt[:, 15:35].any(axis=1))
    assert np.unique(salt[columns, :35].argmax(axis=1)).size > 4
    assert velocity[columns[3], 40:50].max() < 4400.0


def test_smoothed():
    velocity = faulted_layers((60, 30), 100.0)
    initial = smoothed(velocity, 4.0, keep=3)
    np.testing.assert_array_equal(initial[:, :3], velocity[:, :3])
    assert velocity.min() <= initial.min() < initial.max() < velocity.max()
    assert np.abs(np.diff(initial[:, 3:])).max() < 0.5 * np.abs(np.diff(velocity[:, 3:])).max()
    np.testing.assert_allclose(smoothed(np.full((9, 8, 7), 2000.0), 2.0), 2000.0)
    assert smoothed(velocity, 0.0) is not velocity


def test_mirrored_edges_flatten_the_trend():
    trend = np.broadcast_to(np.linspace(1500.0, 4500.0, 20), (6, 20))
    spread = [np.ptp(smoothed(trend, 8.0, edges=edges)) for edges in ("nearest", "reflect")]
    assert spread[1] < 0.7 * spread[0]


def test_coarsened():
    assert doctest.testmod(synthetic, extraglobs={"np": np}).failed == 0
    np.testing.assert_allclose(coarsened(MODEL, 1), MODEL)
    found = coarsened(MODEL, 2)
    assert found.shape == (3, 2)
    assert found[2, 1] == pytest.approx(np.mean(MODEL[4:6, 2:4] ** -2.0) ** -0.5)
    assert coarsened(VOLUME, 3).shape == (1, 1, 1)
    assert np.all(coarsened(np.full((9, 9), 1500.0), 3) == 1500.0)


BAD_SETTINGS = {
    "shape": (lambda: folded_layers((5, 6, 7), 10.0), "shape"),  # pyright: ignore
    "spacing": (lambda: salt_body((8, 8), 0.0), "spacing"),
    "spacings": (lambda: salt_body((8, 8), (1.0, 1.0, 1.0)), "spacing"),  # pyright: ignore
    "water": (lambda: salt_body((8, 8), 10.0, water=80.0), "water"),
    "cells": (lambda: smoothed(MODEL, -1.0), "cells"),
    "keep": (lambda: smoothed(MODEL, 1.0, keep=6), "keep"),
    "edges": (lambda: smoothed(MODEL, 1.0, edges="wrap"), "edges"),
    "factor": (lambda: coarsened(MODEL, 6), "factor"),
    "half a factor": (lambda: coarsened(MODEL, 1.5), "factor"),  # pyright: ignore
    "one axis": (lambda: smoothed(MODEL[0], 1.0), "velocity"),
    "zero": (lambda: coarsened(0 * MODEL, 2), "velocity"),
}


@pytest.mark.parametrize(("call", "argument"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings(call, argument):
    assert_input_error(argument, argument, call)
