"""Files of named arrays and plain values: written all or not at all, read without executing."""

import io
import json
import math
import os
import platform
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..errors import InputError


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write beside the path, wait for the disk, and move over it: all or nothing.

    A link is followed, and the file that it names is replaced; permissions are kept. What a writer
    that was killed on this machine has left beside the path is removed.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a folder, which is refused, or a device
        path.write_bytes(content)
        return
    own, ours = f".{path.name}.", f"-{platform.node()}.new"
    beside = path.with_name(f"{own}{os.getpid()}{ours}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o777)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    for name in os.listdir(path.parent):
        writer = name.removeprefix(own).removesuffix(ours)
        if name == f"{own}{writer}{ours}" and writer.isdecimal() and not _is_running(int(writer)):
            path.with_name(name).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True


HEADER = "header.json"
VERSION = 1
Leaves = dict[str, jax.Array | np.ndarray | np.generic]
PLAIN = "biufc"  # kinds of dtype that NumPy writes by itself
MOST_COMPRESSED = 100
SAVED = {"result": "saved result"}  # what a user calls a kind
WRITTEN = {"result": "a file written by result.save", "checkpoint": "another path"}
FREE = 2**26  # bytes that may be packed more closely


def write_archive(path: Path, kind: str, values: dict[str, Any], arrays: Leaves) -> None:
    """One .npz file with the arrays and a header in JSON, put in its place in one move.

    A process killed on the way, or a full disk, leaves the file that was there before.
    """
    packed = {name: _pack(array) for name, array in arrays.items()}
    header = {
        "natgrad": kind,
        "version": VERSION,
        "types": {name: type_name for name, (_, type_name) in packed.items()},
        "values": values,
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # its members carry a checksum each
        archive.writestr(HEADER, json.dumps(header, default=lambda x: np.asarray(x).tolist()))
        for number, (array, _) in enumerate(packed.values()):
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            archive.writestr(f"{number}.npy", member.getvalue())
    replace_file(path, content.getbuffer())


def read_archive(
    path: Path, kind: str, content: bytes | None = None
) -> tuple[dict[str, Any], Leaves]:
    """The values and the arrays of a file of this kind, or `InputError` that says what is wrong.

    `content` is what is in the file, where that is known already.
    """
    with (
        reading(path, kind),
        _open_zip(path if content is None else io.BytesIO(content)) as archive,
    ):
        header = json.loads(archive.read(HEADER))
        if header["natgrad"] != kind:
            what = f"{path} is a {header['natgrad']}, not a {SAVED.get(kind, kind)}"
            advice = f"repeat the minimize call with checkpoint='{path}'"
            if header["natgrad"] != "checkpoint":
                advice = WRITTEN.get(kind, f"the path of a {kind}")
            raise InputError("path", what, advice)
        if header["version"] > VERSION:
            what = f"{path} has version {header['version']}, and this natgrad reads {VERSION}"
            raise InputError("path", what, "a newer natgrad")
        member = lambda number: _as_array(archive.read(f"{number}.npy"))
        types = enumerate(header["types"].items())
        arrays: Leaves = {name: _unpack(member(number), kind) for number, (name, kind) in types}
        return dict(header["values"]), arrays


def read_kind(path: Path) -> str | None:
    """Which kind of archive a file is; None for an archive that is none of natgrad's."""
    with reading(path, "file of natgrad"), _open_zip(path) as archive:
        if HEADER not in archive.namelist():
            return None
        return str(json.loads(archive.read(HEADER))["natgrad"])


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays in an .npz file by name, no more of them than what is there can hold.

    That of an .npy file has the name "".
    """
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(len(np.lib.format.MAGIC_PREFIX))
    if start == np.lib.format.MAGIC_PREFIX:
        return {"": _as_array(path.read_bytes())}
    with _open_zip(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name[:-4]: _as_array(archive.read(name)) for name in names}


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever fails inside, because of what is in the file, as an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("path", f"there is no file {path}", f"the path of a {kind}") from None
    except Exception as error:  # zipfile, zlib, NumPy and JSON each have their own
        reason = f"{type(error).__name__}: {error}"
        what = f"{path} cannot be read as a {kind}: it is damaged, or not natgrad's ({reason})"
        advice = f"{WRITTEN.get(kind, f'the path of a {kind}')}, or an older copy"
        raise InputError("path", what, advice) from error


def _open_zip(source: Path | io.BytesIO) -> zipfile.ZipFile:
    """An archive whose members are together no larger than the file, as far as this can be asked.

    Ours are not compressed. Those that are, of older versions, may be so by a factor of 100.
    """
    archive = zipfile.ZipFile(source)
    members = archive.infolist()
    there = source.stat().st_size if isinstance(source, Path) else len(source.getbuffer())
    packed = sum(member.compress_size for member in members)
    if packed > there:
        raise ValueError("its members are larger than the file")
    if sum(member.file_size for member in members) > max(FREE, MOST_COMPRESSED * packed):
        raise ValueError("its members are packed more closely than numbers can be")
    return archive


def _as_array(content: bytes) -> np.ndarray:
    """The array in an .npy file; `np.load` would make room for all that its header declares."""
    stream, form = io.BytesIO(content), np.lib.format
    read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    shape, by_columns, dtype = read[form.read_magic(stream)](stream)
    there = len(content) - stream.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != there:
        raise ValueError(f"{there} bytes are no array of {dtype} {shape}")
    values = np.frombuffer(content, dtype, offset=stream.tell())
    return values.reshape(shape, order="F" if by_columns else "C").copy()


def named_leaves(tree: PyTree) -> Leaves:
    """The array leaves of a tree by their paths in it."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in found
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array))
    }


def replace_leaves(like: PyTree, leaves: Leaves, what: str) -> PyTree:
    """The tree with other array leaves, of the same paths, shapes and types, or `InputError`."""
    expected = named_leaves(like)
    if set(expected) != set(leaves):
        odd = sorted(set(expected) ^ set(leaves))[0] or "the array itself"
        raise InputError("path", f"the {what} has other leaves, {odd} for one", "that problem's")
    for name, leaf in expected.items():
        if leaf.shape != leaves[name].shape or leaf.dtype != leaves[name].dtype:
            found = f"{leaves[name].dtype}{list(leaves[name].shape)}"
            wanted = f"{leaf.dtype}{list(leaf.shape)}"
            what = f"the {what} has {found} at {name or 'its array'}, the problem {wanted}"
            raise InputError("path", what, "the file of the same problem")

    def put(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if name not in expected:
            return leaf
        return jnp.asarray(leaves[name]) if isinstance(leaf, jax.Array) else leaves[name]

    return jax.tree_util.tree_map_with_path(put, like)


def _pack(array: jax.Array | np.ndarray | np.generic) -> tuple[np.ndarray, str]:
    """The array in one of NumPy's own types, and the name of its type."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array)), f"key:{jax.random.key_impl(array)}"
    array = np.asarray(array)
    if array.dtype.kind in PLAIN:
        return array, array.dtype.name
    return array.view(np.dtype(f"u{array.dtype.itemsize}")), array.dtype.name


def _unpack(array: np.ndarray, type_name: str) -> jax.Array | np.ndarray:
    if type_name.startswith("key:"):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=type_name[4:])
    if array.dtype.name == type_name:
        return array
    dtype = np.dtype(type_name)  # known to NumPy once JAX is imported
    if dtype.hasobject:
        raise ValueError(f"{type_name} is no type of numbers")
    return array.view(dtype)
