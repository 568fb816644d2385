"""A run on disk: saved between iterations, resumed where it was, refused where it does not fit."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from ..core.archive import named_leaves, read_archive, reading, write_archive
from ..core.settings import Public, check_instance, check_number
from ..devices import Devices
from ..errors import InputError, name_kind, warn_user
from ..identity import Identity

KIND = "checkpoint"


@dataclass(frozen=True)
class Checkpoint(Public):
    """Keep a run in the file `path`, written between iterations, at most every `seconds`.

    If the file exists when the run starts, the run resumes from it, and ends with the same
    iterates as one that was never interrupted. A file of another problem, starting point or
    method is refused; so is a damaged one. A problem is known by what it does: f, ρ and products
    with Z, Zᵀ and A, at θ₀ and at a point away from it.

    ```python
    ng.minimize(problem, theta0, method, checkpoint="run.npz")      # again, after a crash
    ng.minimize(problem, theta0, method, checkpoint=ng.Checkpoint("run.npz", seconds=60))
    ```

    Cost: θ and what the solver remembers (with `Recycled`, 2 · pairs vectors like θ) on disk; the
    file is written beside the old one and moved over it. To know the problem takes two evaluations
    and two products with each of Z, Zᵀ and A, after the first iteration where there is no file yet;
    resuming, one evaluation at θ. None are counted.

    Args:
        path: The file.
        seconds: Shortest time between two writes.
    """

    path: Path
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, Path)):
            what = f"{name_kind(self.path)} is no path"
            raise InputError("path", what, "Checkpoint('run.npz')")
        object.__setattr__(self, "path", Path(self.path))
        check_number(self.seconds, "seconds")
        if self.path.is_dir():
            raise InputError("checkpoint", f"{self.path} is a folder", "the path of a file")


def as_checkpoint(given: Any) -> Checkpoint:
    """A checkpoint as it is, or of a path."""
    if isinstance(given, (str, Path)):
        return Checkpoint(Path(given))
    check_instance("checkpoint", given, Checkpoint, "checkpoint='run.npz'")
    return given


@dataclass
class RunFile:
    """The checkpoint of one run: what it must agree with, and what is to be written next.

    As a context it writes the last snapshot on the way out, also when an exception or Ctrl-C is.
    """

    checkpoint: Checkpoint
    identify: Callable[[], Identity]  # what the run was started with
    devices: Devices | None  # whose leader has the file
    _written: float = field(default_factory=time.monotonic)
    _waiting: Callable[[], tuple[dict[str, Any], PyTree]] | None = None
    _ours: bool = False  # whether the file is of this run, or there was none
    _identity: Identity | None = None

    def offer(self, snapshot: Callable[[], tuple[dict[str, Any], PyTree]]) -> None:
        """How to have the run between two iterations; it is written when it is time."""
        self._waiting = snapshot
        if time.monotonic() - self._written >= self.checkpoint.seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting. A full disk ends no run: there is a warning, and the old file."""
        if self._waiting is None or not (self.devices is None or self.devices.leads):
            return
        (values, tree), self._waiting = self._waiting(), None
        path = self.checkpoint.path
        try:
            run = self.know()._asdict()
            write_archive(path, KIND, {"run": run, **values}, named_leaves(tree))
        except OSError as error:
            what = f"{path} could not be written ({error.strerror or error}); the run continues"
            warn_user(f"{what}, and the last checkpoint is kept.")
        self._written = time.monotonic()

    def __enter__(self) -> "RunFile":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.flush()
        if error is not None and self._ours and self.checkpoint.path.exists():
            error.add_note(f"The run is kept in {self.checkpoint.path}: the same call resumes it.")

    def load(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The values and leaves last saved; None if there is no file; `InputError` if not ours."""
        path = self.checkpoint.path
        if self.devices is None:
            content = _read(path)
        else:
            content = self.devices.agree_on_bytes(_read(path) if self.devices.leads else None)
        if content is None:
            self._ours = True
            return None
        values, leaves = read_archive(path, KIND, content)
        with reading(path, KIND):
            saved = values.pop("run")
            name = self.know().find_difference(saved["parts"], saved["actions"])
        if name is not None:
            what = f"{path} belongs to a run that differs in its {name}"
            raise InputError("checkpoint", what, "another path, or deleting that file")
        self._ours = True
        return values, leaves

    def know(self) -> Identity:
        """What the run is known by, found once: best while all is well, before it is written."""
        self._identity = self._identity or self.identify()
        return self._identity


def _read(path: Path) -> bytes | None:
    """What is in the file, if there is one."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror or error})"
        raise InputError("checkpoint", what, "a file that this user may read") from error
