"""A run on disk: saved between iterations, resumed where it was, refused where it does not fit."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from ..core.archive import digest, named_leaves, read_archive, write_archive
from ..core.settings import check_number
from ..devices import Devices
from ..errors import InputError
from ..models.base import Evaluation, evaluate
from ..problem import Problem

KIND = "checkpoint"
SAME_LOSS = 1e-5  # f(θ₀) of the same problem, compiled by another version of JAX


@dataclass(frozen=True)
class Checkpoint:
    """Keep a run in the file `path`, written between iterations, at most every `seconds`.

    If the file is there when the run starts, the run goes on from it, and ends with the same
    iterates as one that was never interrupted. A file of another problem, starting point or
    method is refused; so is a damaged one.

    ```python
    ng.minimize(problem, theta0, method, checkpoint="run.npz")      # again, after a crash
    ng.minimize(problem, theta0, method, checkpoint=ng.Checkpoint("run.npz", seconds=60))
    ```

    Cost: θ and what the solver remembers (with `Recycled`, 2 · pairs vectors like θ) on disk; the
    file is written beside the old one and moved over it. Resuming costs one evaluation at θ₀, for
    the comparison, and one at θ, neither counted.
    """

    path: Path
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, Path)):
            what = f"a {type(self.path).__name__} is no path"
            raise InputError("path", what, "Checkpoint('run.npz')")
        object.__setattr__(self, "path", Path(self.path))
        check_number(self.seconds, "seconds")
        if self.path.is_dir():
            raise InputError("checkpoint", f"{self.path} is a folder", "the path of a file")


@dataclass
class RunFile:
    """The checkpoint of one run: what it must agree with, and what is to be written next.

    As a context it writes the last snapshot on the way out, also when an exception or Ctrl-C is.
    """

    checkpoint: Checkpoint
    parts: dict[str, str]  # what the run was started with, digested
    loss: float  # f(θ₀)
    devices: Devices | None  # whose leader has the file
    _written: float = field(default_factory=time.monotonic)
    _waiting: Callable[[], tuple[dict[str, Any], PyTree]] | None = None

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint | str | Path,
        problem: Problem,
        theta0: PyTree,
        known: Evaluation | None,
        devices: Devices | None,
        **settings: Any,
    ) -> "RunFile":
        """The checkpoint of a run with these settings on a problem, which f(θ₀) stands for."""
        if not isinstance(checkpoint, (Checkpoint, str, Path)):
            what = f"is a {type(checkpoint).__name__}"
            raise InputError("checkpoint", what, "checkpoint='run.npz'")
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(Path(checkpoint))
        known = evaluate(problem.model, theta0) if known is None else known
        parts = {name: digest(part) for name, part in ({"theta0": theta0} | settings).items()}
        return cls(checkpoint, parts, float(problem.value(theta0, known.rho)), devices)

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
        identity = {"parts": self.parts, "loss": self.loss}
        path = self.checkpoint.path
        try:
            write_archive(path, KIND, {"run": identity, **values}, named_leaves(tree))
        except OSError as error:
            what = f"{path} could not be written ({error.strerror or error}); the run goes on"
            warnings.warn(f"{what}, and the last checkpoint is kept.", RuntimeWarning, stacklevel=2)
        self._written = time.monotonic()

    def __enter__(self) -> "RunFile":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.flush()
        if error is not None and self.checkpoint.path.exists():
            error.add_note(f"The run is kept in {self.checkpoint.path}: the same call goes on.")

    def load(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The values and leaves last saved; None if there is no file; `InputError` if not ours."""
        path = self.checkpoint.path
        if self.devices is None:
            content = _read(path)
        else:
            content = self.devices.agree_on_bytes(_read(path) if self.devices.leads else None)
        if content is None:
            return None
        values, leaves = read_archive(path, KIND, content)
        saved = values.pop("run")
        for name, given in self.parts.items():
            if saved["parts"].get(name) != given:
                self._refuse(f"another {name}")
        if not abs(saved["loss"] - self.loss) <= SAME_LOSS * abs(self.loss):
            losses = f"f(theta0) = {saved['loss']:.6g}, not {self.loss:.6g}"
            self._refuse(f"another problem, with {losses}")
        return values, leaves

    def _refuse(self, what: str) -> None:
        problem = f"{self.checkpoint.path} belongs to a run with {what}"
        raise InputError("checkpoint", problem, "another path, or deleting that file")


def _read(path: Path) -> bytes | None:
    """What is in the file, if there is one."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror or error})"
        raise InputError("checkpoint", what, "a file that this user may read") from error
