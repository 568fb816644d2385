"""The folder a study writes: recognised by its settings file, so nothing else is overwritten."""

import dataclasses
import json
import math
import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..core.archive import replace_file

MARKER = "settings.json"


class FolderError(ValueError):
    """The folder cannot, or must not, be written to; the message says why in one line."""


class ResultFolder:
    """OUTPUT with `settings.json`, `results.json`, `figures/`, `page.json` and `index.html`.

    The settings are written first: a folder that has them is a natgrad result, finished or not.
    The same study with the same settings may write to it again; anything else is refused.
    """

    def __init__(self, path: Path):
        self.path = path
        self.figures = path / "figures"

    def claim(self, study: str, settings: Any) -> None:
        """Create the folder and write the settings, or raise `FolderError`.

        A folder of another study, or of other settings, is refused: its parts would be taken up.
        """
        if self._in_use():
            self._check_same(study, plain(settings))
        try:
            self.figures.mkdir(parents=True, exist_ok=True)
            self.write(
                MARKER,
                {
                    "natgrad": versions()["natgrad"],
                    "study": study,
                    "settings": dataclasses.asdict(settings),
                },
            )
        except OSError as error:
            raise FolderError(f"cannot write to {self.path}: {error.strerror}") from error

    def _in_use(self) -> bool:
        if not os.path.lexists(self.path):
            return False
        if not self.path.is_dir():
            raise FolderError(f"{self.path} is a file, not a folder")
        try:
            return any(self.path.iterdir())
        except OSError as error:
            raise FolderError(f"cannot read {self.path}: {error.strerror}") from error

    def _check_same(self, study: str, settings: dict[str, Any]) -> None:
        if not (self.path / MARKER).exists():
            raise FolderError(
                f"{self.path} holds files that are not a natgrad result; choose another folder"
            )
        found_study, found = self.origin()
        if found_study != study:
            raise FolderError(
                f"{self.path} holds a result of the study {found_study!r}, not {study!r}"
            )
        other = [
            name for name in settings if name != "output" and found.get(name) != settings[name]
        ]
        if other:
            name = other[0]
            raise FolderError(
                f"{self.path} holds a run with {name} = {found.get(name)}, not {settings[name]}; "
                "choose another folder, or delete that one"
            )

    def origin(self) -> tuple[str, dict[str, Any]]:
        """The study that claimed the folder, and its settings in JSON's types; `FolderError`."""
        marker = self.path / MARKER
        if not marker.exists():
            raise FolderError(f"{self.path} is not the folder of a run: it has no {MARKER}")
        try:
            content = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FolderError(f"{marker} is damaged: {error}") from error
        if not isinstance(content, dict) or "natgrad" not in content:
            raise FolderError(f"{marker} is not one of natgrad's")
        study, settings = content.get("study"), content.get("settings")
        if not isinstance(study, str) or not isinstance(settings, dict):
            raise FolderError(f"{marker} is damaged: it names no study with settings")
        return study, settings

    def holds(self, study: str, settings: Any) -> bool:
        """Whether it was claimed by this study with these settings."""
        try:
            self._check_same(study, plain(settings))
        except FolderError:
            return False
        return True

    def write(self, name: str, content: Any) -> Path:
        """Write `content` as JSON; arrays become lists and numbers that are not finite null."""
        target = self.path / name
        text = json.dumps(plain(content), indent=1, ensure_ascii=False, allow_nan=False)
        replace_file(target, f"{text}\n".encode())
        return target


def plain(value: Any) -> Any:
    """The value in JSON's types: arrays to lists, dataclasses to objects, NaN and ∞ to null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, bool)):
        return value
    array = np.asarray(value)
    if array.ndim:
        return plain(array.tolist())
    entry = array.item()
    return None if isinstance(entry, float) and not math.isfinite(entry) else entry


def versions() -> dict[str, str]:
    """Versions of natgrad, of what it computes with, and of Python and the platform."""
    packages = ("natgrad", "jax", "jaxlib", "equinox", "lineax", "numpy", "scipy", "matplotlib")
    found = {name: _version(name) for name in packages}
    return found | {"python": platform.python_version(), "platform": platform.platform()}


def machine() -> dict[str, str]:
    """The processor, its cores, the memory, and the devices that JAX computes on."""
    import jax

    kinds = [f"{device.device_kind} ({device.platform})" for device in jax.devices()]
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "JAX devices": ", ".join(f"{kinds.count(kind)} × {kind}" for kind in sorted(set(kinds))),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return "unknown"
    return f"{size / 2**30:.1f} GiB"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # natgrad itself, when run from its source tree
        from .. import __version__

        return __version__ if package == "natgrad" else "not installed"
