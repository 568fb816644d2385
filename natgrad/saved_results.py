"""Results on disk."""

import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .archive import HEADER, named_leaves, read_archive, with_leaves, write_archive
from .result import Info, Result, Status

PyTree = Any
KIND = "result"


def save_result(result: Result, path: str | Path) -> None:
    """θ, history, status and diagnosis of a run in one file, written all or not at all.

    The versions and the machine are those of this process.
    """
    from .report.folder import machine, versions

    values = {
        "loss": result.loss,
        "status": str(result.status),
        "iterations": result.iterations,
        "info": None if result.info is None else asdict(result.info),
        "versions": versions(),
        "machine": machine(),
    }
    iterates = {str(number): theta for number, theta in result.iterates.items()}
    tree = {"theta": result.theta, "history": dict(result.history), "iterates": iterates}
    arrays = named_leaves(tree)
    write_archive(Path(path), KIND, values, arrays)


def load_result(path: str | Path, like: PyTree = None) -> Result:
    """The result in a file that `result.save` has made; nothing in it is executed.

    θ comes back as an array if it was one. Else `like` gives the structure, for instance θ₀;
    without it θ is a dict from the path of each leaf to its array.

    ```python
    ng.load_result("run.npz", like=theta0).history["loss"]
    ```
    """
    values, arrays = read_archive(Path(path), KIND)
    iterates: dict[int, dict[str, Any]] = {}
    for name, leaf in _part(arrays, "iterates").items():
        number, _, path = name[2:].partition("']")
        iterates.setdefault(int(number), {})[path] = leaf
    history = {name[2:-2]: column for name, column in _part(arrays, "history").items()}
    return Result(
        _theta(_part(arrays, "theta"), like),
        values["loss"],
        Status(values["status"]),
        values["iterations"],
        history,
        Info.restored(values["info"]),
        {number: _theta(iterates[number], like) for number in sorted(iterates)},
    )


def is_result(path: Path) -> bool:
    """Whether a file is one that `result.save` has made."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(HEADER))["natgrad"] == KIND
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return False


def saved_where(path: str | Path) -> dict[str, dict[str, str]]:
    """The versions and the machine in a file of a result; empty in files before 0.2."""
    values, _ = read_archive(Path(path), KIND)
    return {name: values.get(name, {}) for name in ("versions", "machine")}


def _theta(leaves: dict[str, Any], like: PyTree) -> PyTree:
    if like is not None:
        return with_leaves(like, leaves, KIND)
    return leaves[""] if set(leaves) == {""} else leaves


def _part(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    prefix = f"['{name}']"
    return {key[len(prefix) :]: x for key, x in arrays.items() if key.startswith(prefix)}
