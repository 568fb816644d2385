"""The settings of a study: their limits, their files, and what is said of a wrong one.

Nothing here imports natgrad before something is wrong, so that the help and the list are quick.
"""

import json
import tomllib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

S = TypeVar("S")
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}
NOTHING = "None"  # how a file without null writes that an optional value is absent


def input_error(argument: str, problem: str, advice: str) -> Exception:
    """natgrad's `InputError`."""
    from natgrad import InputError

    return InputError(argument, problem, advice)


# --- names ---------------------------------------------------------------------------------------


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name most like this one, whatever its case; None where none is like it.

    >>> nearest("gausian-mixture", ["darcy", "gaussian-mixture"])
    'gaussian-mixture'
    """
    folded = {entry.casefold(): entry for entry in known}
    found = get_close_matches(name.casefold(), list(folded), n=1)
    return folded[found[0]] if found else None


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """The message for a name that is not known.

    >>> unknown("study", "dracy", ["darcy", "metric-cost"])
    "unknown study 'dracy'; did you mean 'darcy'? known: darcy, metric-cost"
    """
    meant = nearest(name, known)
    middle = "; " if meant is None else f"; did you mean {meant!r}? "
    return f"unknown {what} {name!r}{middle}known: {', '.join(known)}"


def advice(name: str, known: Collection[str]) -> str:
    """What to try in place of a name that is not known.

    >>> advice("our", ["ours", "authors"])
    "'ours', or another of ours, authors"
    """
    meant, names = nearest(name, known), ", ".join(known)
    return f"one of {names}" if meant is None else f"{meant!r}, or another of {names}"


def check_names(argument: str, chosen: Iterable[str], known: Collection[str]) -> None:
    """Raise `InputError` for the first chosen name that is not known, with the nearest one."""
    for name in chosen:
        if name not in known:
            raise input_error(argument, f"{name!r} is unknown", advice(name, known))


# --- limits --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """The limits of a number, as part of the type of a field: `Annotated[int, Between(1, 9)]`."""

    least: float
    most: float

    def check(self, name: str, value: Any) -> None:
        """Raise `InputError` for a value beyond them."""
        if not self.least <= value <= self.most:
            raise input_error(name, f"is {value}", f"a number from {self.least} to {self.most}")


@dataclass(frozen=True)
class Among:
    """The names that a field may hold, one (a text) or several (a tuple, empty if `optional`)."""

    known: tuple[str, ...]
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise `InputError` for a name that is unknown, or where one is wanted and none there."""
        check_names(name, [value] if isinstance(value, str) else value, self.known)
        if not value and not self.optional:
            raise input_error(name, "are empty", "some of " + ", ".join(self.known))


class StudySettings:
    """The base of every study's settings, frozen dataclasses with `preset` and `output`."""

    def check(self) -> None:
        """Raise `InputError` for a value the study cannot run with."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for limit in getattr(hint, "__metadata__", ()):
                limit.check(name, getattr(self, name))
        for conflict in self.conflicts():
            raise input_error(*conflict)

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        """What else is wrong: argument, problem and advice, as for `InputError`."""
        yield from ()

    def check_packages(self) -> None:
        """Raise `InputError` where a package that these settings need is not installed."""
        for argument, package in self.packages().items():
            if find_spec(package) is None:
                what = f"{package} is not installed"
                raise input_error(argument, what, f'pip install "natgrad[{package}]"')

    def processes(self) -> int:
        """How many will share the study, as far as can be told before JAX looks for devices."""
        return 1

    def packages(self) -> dict[str, str]:
        """Packages beside natgrad's own, each an extra of the same name, by the argument."""
        return {}


# --- values from a file --------------------------------------------------------------------------


class WrongType(ValueError):
    """The value does not have the type; the text says what would."""


def fill(base: S, values: Mapping[str, Any], where: str) -> S:
    """`base`, a dataclass, with these values in place of its own; `where` is their file.

    `InputError` names a key that is not a field, with the nearest one, or a value of another type,
    with what is expected.
    """
    hints = get_type_hints(type(base))
    known = [field.name for field in fields(base)]  # pyright: ignore[reportArgumentType]
    found = {}
    for key, value in values.items():
        if key not in known:
            meant = nearest(key, known)
            wanted = advice(key, known) if meant is None else repr(meant)
            raise input_error(where, f"unknown key {key!r}", wanted)
        try:
            found[key] = convert(value, hints[key])
        except WrongType as error:
            raise input_error(where, f"{key} is {value!r}", str(error)) from None
    return replace(base, **found)  # pyright: ignore[reportArgumentType]


def convert(value: Any, hint: Any) -> Any:
    """The value as the type has it, or `WrongType`.

    >>> convert([1, 2.5], tuple[float, ...])
    (1.0, 2.5)

    Known are int, float, bool, str, Path, Literal, X | None and tuple[X, ...]. A whole number is a
    number too; a truth value is neither.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None or value == NOTHING:
            return None
        try:
            return convert(value, inner[0])
        except WrongType as error:
            raise WrongType(f'{error} or "{NOTHING}"') from None
    if origin is Literal:
        if value not in inner:
            raise WrongType(advice(str(value), inner))
        return value
    if origin is tuple:
        wanted = f"a list, each entry {NAMES[inner[0]]}"
        if not isinstance(value, (list, tuple)):
            raise WrongType(wanted)
        try:
            return tuple(convert(entry, inner[0]) for entry in value)
        except WrongType:
            raise WrongType(wanted) from None
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise WrongType(NAMES[hint])
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The keys and values of a file, or `InputError` with the line that is at fault."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise input_error("config", f"there is no file {path}", "the path of a TOML file") from None
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror})"
        raise input_error("config", what, "the path of a TOML file") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise input_error("config", f"{path} is not TOML: {error}", "lines key = value") from None


def to_toml(settings: Any, command: str) -> str:
    """All fields of a dataclass, one `key = value` a line, after a line with the command."""
    lines = [
        f"{field.name} = {_toml_value(getattr(settings, field.name))}" for field in fields(settings)
    ]
    return "\n".join([f"# {command}", *lines, ""])


def _toml_value(value: Any) -> str:
    if value is None:
        return f'"{NOTHING}"'
    if isinstance(value, (str, Path)):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)  # Python and TOML write whole numbers, numbers, inf and nan alike
