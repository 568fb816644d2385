"""Finished parts of a study on disk, so that a stopped study resumes after them."""

import io
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from natgrad import InputError
from natgrad.report import read_arrays, replace_file

from .stopping import check_ending

Part = TypeVar("Part")
PLAIN = (bool, int, float, str, type(None))


class Kept:
    """One file for each finished part in a folder; None keeps nothing.

    A part is made of numbers, texts, arrays, lists, tuples, dicts and of the dataclasses named
    here. The study's folder answers for the settings (`ResultFolder.claim`).

    ```python
    kept = Kept(output / "runs", Descent, Basins)
    run = kept.part("L2", lambda: compute(method), method=method)
    ```
    """

    def __init__(self, folder: Path | None, *classes: type):
        self.folder = folder
        self._classes = {entry.__name__: entry for entry in classes}

    def path(self, name: str) -> Path | None:
        """Where a part is kept."""
        return None if self.folder is None else self.folder / f"{name}.npz"

    def part(self, name: str, make: Callable[[], Part], **given: Any) -> Part:
        """The part from its file, else made and then kept.

        `given` are fields of the part, a dataclass, that are known without a file, such as
        functions: they are left out of it.
        """
        check_ending()
        path = self.path(name)
        if path is None:
            return make()
        if path.exists():
            return self._read(path, name, given)
        part = make()
        arrays: dict[str, np.ndarray] = {}
        note = json.dumps({name: _describe(part, arrays, leave_out=given)})
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, note=np.array(note), **arrays)
        replace_file(path, content.getvalue())
        return part

    def _read(self, path: Path, name: str, given: dict[str, Any]) -> Any:
        try:
            arrays = read_arrays(path)
            return self._restore(json.loads(str(arrays["note"]))[name], arrays, given)
        except Exception as error:  # zipfile, zlib, NumPy and JSON each have their own
            what = f"{path} cannot be read as a kept part {name}: it is damaged or something else"
            advice = "deleting it: the part is computed again"
            raise InputError("path", f"{what} ({error})", advice) from error

    def _restore(self, node: Any, arrays: Any, given: dict[str, Any]) -> Any:
        if isinstance(node, PLAIN):
            return node
        inner = lambda entry: self._restore(entry, arrays, {})
        ((kind, content),) = node.items()
        if kind == "array":
            return arrays[content]
        if kind in ("list", "tuple"):
            entries = [inner(entry) for entry in content]
            return entries if kind == "list" else tuple(entries)
        if kind == "dict":
            return {inner(key): inner(value) for key, value in content}
        found = {name: inner(value) for name, value in content.items()}
        return self._classes[kind](**found, **given)


def _describe(value: Any, arrays: dict[str, np.ndarray], leave_out: dict[str, Any]) -> Any:
    """The value in JSON's types, its arrays put aside; every other node says what it is."""
    if isinstance(value, PLAIN):
        return value
    inner = lambda entry: _describe(entry, arrays, {})
    if isinstance(value, np.generic):
        return inner(value.item())
    if isinstance(value, (np.ndarray, jax.Array)):
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [inner(entry) for entry in value]}
    if isinstance(value, dict):
        return {"dict": [[inner(key), inner(entry)] for key, entry in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        stored = [field.name for field in fields(value) if field.name not in leave_out]
        return {type(value).__name__: {name: inner(getattr(value, name)) for name in stored}}
    raise TypeError(f"{type(value).__name__} cannot be kept")
