"""Functions written out for LLVM."""

import ctypes

import numpy as np
import pytest

from natgrad.core import llvm

pytestmark = pytest.mark.skipif(llvm.missing() is not None, reason="needs llvmlite")


def call(code, *arrays, **settings):
    names = [f"%p{i}" for i in range(len(arrays))]
    address = llvm.compile_code(code.function("test", names, **settings), "test")
    kinds = [ctypes.c_void_p] * len(arrays)
    ctypes.CFUNCTYPE(None, *kinds)(address)(*(x.ctypes.data for x in arrays))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_are_loaded_combined_shifted_and_stored(dtype):
    code = llvm.Code("float" if dtype == np.float32 else "double", 4)
    x, y, z = np.arange(24, dtype=dtype), np.zeros(24, dtype), np.zeros(24, dtype)
    with code.loop(20, step=4, start=4) as i:
        vectors = {k: code.load("%p0", i, 4 * k, aligned=False) for k in (-1, 0, 1)}
        moved = [code.pick(vectors, range(by, by + 4)) for by in (-4, -3, 2, 4)]
        total = moved[0] + moved[1] - moved[2] * moved[3]
        code.store(total * code.spread("%p0", 2), "%p1", i, aligned=False)
    code.store(code.load("%p0", 5, count=3), "%p2", 0, aligned=False)
    code.store(code.load("%p0", 9, aligned=False), "%p2", 8, count=2)
    with code.where("true"):
        code.store(code.constant(0.1), "%p2", 16, aligned=False)
    with code.where("false"):
        code.store(code.constant(1), "%p2", 20, aligned=False)
    call(code, x, y, z)
    at = np.arange(4, 20)
    np.testing.assert_array_equal(y[at], 2 * (x[at - 4] + x[at - 3] - x[at + 2] * x[at + 4]))
    assert not y[:4].any()
    assert not y[20:].any()
    np.testing.assert_array_equal(z[:20], [5, 6, 7, *[0] * 5, 9, 10, *[0] * 6, *[dtype(0.1)] * 4])
    assert not z[20:].any()


def test_elements_are_picked_from_several_vectors():
    code, x, y = llvm.Code("double", 4), np.arange(12.0), np.full(4, np.nan)
    vectors = {k: code.load("%p0", 4 * k, aligned=False) for k in range(3)}
    code.store(code.pick(vectors, [9, None, 0, 6]), "%p1", 0, aligned=False)
    call(code, x, y)
    np.testing.assert_array_equal(y, [9, 0, 0, 6])


def test_integers_are_clipped_and_loads_repeated():
    code, x, y = llvm.Code("double", 1), np.arange(6.0), np.zeros(6)
    with code.loop(6) as i:
        before = code.load("%p0", code.clip(i, 2, 4), aligned=False)
        code.forget("%p0")
        code.store(before + code.load("%p0", i, aligned=False), "%p1", i, aligned=False)
    call(code, x, y)
    np.testing.assert_array_equal(y, x + np.clip(x, 2, 4))


def test_tiny_numbers_are_flushed_inside_only():
    code, x = llvm.Code("float", 4), np.full(4, 1e-39, np.float32)
    code.store(code.load("%p0", 0, aligned=False) * code.constant(0.5), "%p1", 0, aligned=False)
    kept, flushed = np.ones(4, np.float32), np.ones(4, np.float32)
    call(code, x, kept)
    assert np.all(kept > 0)
    call(code, x, flushed, flush=True)
    if llvm.platform.machine().lower() in ("x86_64", "amd64"):
        assert not flushed.any()
    assert np.all(x * np.float32(0.5) > 0)
