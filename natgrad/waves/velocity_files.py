"""Velocity models from files: NumPy's formats, SEG-Y and raw binary."""

import math
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from ..core.archive import read_arrays
from ..core.settings import as_dtype
from ..errors import InputError, count_some, import_optional
from .survey import check_shape

UNITS = {"m/s": 1.0, "km/s": 1000.0}

# No rock or fluid carries waves faster than 20 km/s or slower than 0.1, and no model is slower than
# 20 m/s throughout: the largest value tells which unit a file is in.
SMALLEST, LARGEST = 0.1, 2e4
LARGEST_IN_KM = 20.0


def load_velocity(
    path: str | os.PathLike[str],
    *,
    axes: str | None = None,
    unit: str = "m/s",
    shape: tuple[int, ...] | None = None,
    dtype: Any = "float32",
    key: str | None = None,
) -> np.ndarray:
    """The model in a file, in m/s and float64, with axes (x, z) or (x, y, z) and z downwards.

    | suffix | read as |
    |---|---|
    | `.npy`, `.npz` | NumPy arrays; `key` names one of several in an `.npz` |
    | `.sgy`, `.segy` | SEG-Y, one trace of depth samples for each x (`pip install natgrad[segy]`) |
    | any other | raw numbers without a header, of `shape` and `dtype`, the last axis fastest |

    `axes` is the order in the file, by default "xz" or "xyz"; "zx" is for a file of depth rows.
    `unit` is "m/s" or "km/s"; a unit that does not fit the values is an error.
    `dtype` has the byte order of raw files: ">f4" is big-endian. A SEG-Y volume is (inline,
    crossline, depth) if its headers say so, or the traces in their order for a `shape` of three.

    ```python
    ng.waves.load_velocity("marmousi.npy")
    ng.waves.load_velocity("vp.bin", shape=(751, 2301), axes="zx", dtype=">f4")
    ng.waves.load_velocity("overthrust.sgy", shape=(801, 801, 187), unit="km/s")
    ```

    Cost: the file and its float64 copy in memory.

    Args:
        path: The file.
        axes: Order of the axes in the file.
        unit: "m/s" or "km/s".
        shape: Shape in the file, for raw numbers and SEG-Y volumes.
        dtype: Type of raw numbers.
        key: Name of the array in an `.npz`.
    """
    if unit not in UNITS:
        raise InputError("unit", f"{unit!r} is unknown", "'m/s' or 'km/s'")
    shape = None if shape is None else check_shape(shape, 1)
    path = Path(path)
    if not path.is_file():
        what = f"'{path}' is a folder" if path.is_dir() else f"there is no file '{path}'"
        raise InputError("path", what, f"a path from the current folder, {Path.cwd()}")
    suffix = path.suffix.lower()
    if key is not None and suffix != ".npz":
        raise InputError("key", f"'{path}' has no named arrays", "key=None")
    advice = "a file of P-wave velocities"
    if suffix in (".npy", ".npz"):
        values = _reshape(_read_numpy(path, key), shape)
    elif suffix in (".sgy", ".segy"):
        values = _read_segy(path, shape)
    else:
        values = _read_raw(path, shape, dtype)
        advice = f"the other byte order, dtype={values.dtype.newbyteorder().str!r}"
    if values.dtype.kind not in "fiu":
        raise InputError("path", f"'{path}' has values of {values.dtype}", "a file of real numbers")
    velocity = _order_axes(values.astype(float), axes)
    _check_values(velocity, unit, advice)
    return UNITS[unit] * velocity


def _read_numpy(path: Path, key: str | None) -> np.ndarray:
    try:
        arrays = read_arrays(path)
    except Exception as error:  # NumPy, zipfile and zlib each have their own
        what = f"'{path}' cannot be read as an array of numbers ({error})"
        raise InputError("path", what, "a file that np.save or np.savez wrote") from error
    names = list(arrays)
    if key in names or (key is None and len(names) == 1):
        return arrays[names[0] if key is None else key]
    what = f"'{path}' has {len(names)} arrays" if key is None else f"{key!r} is not in '{path}'"
    raise InputError("key", what, f"one of {names}" if names else "a file with an array")


def _read_segy(path: Path, shape: tuple[int, ...] | None) -> np.ndarray:
    """(traces, samples), or three axes where the headers or the caller name them."""
    segyio = import_optional("segyio", "path")
    try:
        with segyio.open(str(path), strict=False) as file:
            regular = not file.unstructured and len(file.offsets) == 1
            if shape is None and regular and min(len(file.ilines), len(file.xlines)) > 1:
                cube = segyio.tools.cube(file)
                inline_first = file.sorting == segyio.TraceSortingFormat.INLINE_SORTING
                return cube if inline_first else cube.swapaxes(0, 1)
            traces = file.trace.raw[:]
    except (RuntimeError, OSError, ValueError, IndexError, KeyError) as error:
        what = f"'{path}' cannot be read as SEG-Y: {error}"
        raise InputError("path", what, "a big-endian file with traces of one length") from error
    if shape is not None and len(shape) == 3 and shape[-1] == traces.shape[-1]:
        return _reshape(traces.ravel(), shape)
    return _reshape(traces, shape)


def _read_raw(path: Path, shape: tuple[int, ...] | None, dtype: Any) -> np.ndarray:
    kind = as_dtype(dtype)
    if kind is None:
        raise InputError("dtype", f"{dtype!r} is unknown", "'float32', or '>f4'")
    if kind.kind not in "fiu":
        raise InputError("dtype", f"{kind} has no real numbers", "'float32', or '>f4'")
    size = path.stat().st_size
    if shape is None:
        what = f"'{path}', with {size // kind.itemsize} numbers of {kind}, has no header"
        raise InputError("shape", what, "the sides of the model, the last one fastest")
    cells = math.prod(shape)
    if size != cells * kind.itemsize:
        what = f"{shape} of {kind} takes {cells * kind.itemsize} bytes, and '{path}' has {size}"
        width = size // cells
        fits = size == width * cells and width in (2, 4, 8)
        raise InputError("shape", what, f"numbers of {width} bytes" if fits else "other sides")
    return np.fromfile(path, kind).reshape(shape)


def _reshape(values: np.ndarray, shape: tuple[int, ...] | None) -> np.ndarray:
    """A flat array in this shape; any other must already have it, or cells would be mixed up."""
    if shape is None or values.shape == shape:
        return values
    if values.ndim == 1 and values.size == math.prod(shape):
        return values.reshape(shape)
    raise InputError("shape", f"the file has {values.shape}, not {shape}", "no shape")


def _order_axes(values: np.ndarray, axes: str | None) -> np.ndarray:
    """The array with x first and z last."""
    if values.ndim not in (2, 3) or values.size == 0:
        what = f"the array has shape {values.shape}"
        raise InputError("path", what, "a model with two or three axes")
    order = "xyz" if values.ndim == 3 else "xz"
    axes = order if axes is None else axes
    choices = ["".join(p) for p in permutations(order)]
    if axes not in choices:
        what = f"{axes!r} does not name the {values.ndim} axes of the file"
        raise InputError("axes", what, " or ".join(map(repr, choices)))
    return np.ascontiguousarray(values.transpose([axes.index(name) for name in order]))


def _check_values(values: np.ndarray, unit: str, advice: str) -> None:
    wrong = int(np.sum(~(np.isfinite(values) & (values > 0))))
    if wrong:
        what = f"{count_some(int(wrong), values.size, 'values')} not finite and positive"
        raise InputError("path", what, advice)
    smallest, largest = float(values.min()), float(values.max())
    if smallest < SMALLEST or largest > LARGEST:
        what = f"values from {smallest:g} to {largest:g} are no velocities"
        raise InputError("path", what, advice)
    if unit == "m/s" and largest < LARGEST_IN_KM:
        what = f"a largest value of {largest:g} looks like km/s"
        raise InputError("unit", what, "unit='km/s', which multiplies by 1000")
    if unit == "km/s" and largest > LARGEST_IN_KM:
        raise InputError("unit", f"a largest value of {largest:g} looks like m/s", "unit='m/s'")
