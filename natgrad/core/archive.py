"""Files of named arrays and plain values: written all or not at all, read without executing."""

import io
import json
import os
import platform
import zipfile
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
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            header = json.loads(archive.read(HEADER))
            if header["natgrad"] != kind or header["version"] > VERSION:
                found = f"{header['natgrad']}, version {header['version']}"
                what = f"{path} is a {found}, not a {kind} up to version {VERSION}"
                raise InputError("path", what, "the file of this kind, or a newer natgrad")
            arrays = {}
            for number, (name, type_name) in enumerate(header["types"].items()):
                member = io.BytesIO(archive.read(f"{number}.npy"))
                arrays[name] = _unpack(np.load(member, allow_pickle=False), type_name)
            return header["values"], arrays
    except FileNotFoundError:
        raise InputError("path", f"there is no file {path}", f"the path of a {kind}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        what = f"{path} cannot be read as a {kind}: it is damaged or something else ({error})"
        raise InputError("path", what, "deleting it, or an older copy") from error


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
    return array.view(np.dtype(type_name))  # known to NumPy once JAX is imported
