"""Settings in TOML files: read with their types checked, written to be read again."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from natgrad.errors import InputError

from .typed import NOTHING


def read_toml(path: Path) -> dict[str, Any]:
    """The keys and values of a file, or `InputError` with the line that is at fault."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("config", f"there is no file {path}", "the path of a TOML file") from None
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror})"
        raise InputError("config", what, "the path of a TOML file") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise InputError("config", f"{path} is not TOML: {error}", "lines key = value") from None


def toml_of(settings: Any, command: str) -> str:
    """All fields of a dataclass, one `key = value` a line, after a line with the command."""
    lines = [
        f"{field.name} = {_written(getattr(settings, field.name))}" for field in fields(settings)
    ]
    return "\n".join([f"# {command}", *lines, ""])


def _written(value: Any) -> str:
    if value is None:
        return f'"{NOTHING}"'
    if isinstance(value, (str, Path)):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value)  # Python and TOML write whole numbers, numbers, inf and nan alike
