"""Values from a file, held against the types of a dataclass's fields."""

import types
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from natgrad.errors import InputError

from .suggestions import advice, nearest

Settings = TypeVar("Settings")
NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
NOTHING = "None"  # how a file without null writes that an optional value is absent


class WrongType(ValueError):
    """The value does not have the type; the text says what would."""


def filled(base: Settings, values: Mapping[str, Any], where: str) -> Settings:
    """`base`, a dataclass, with these values in place of its own; `where` is their file.

    Cost: none to speak of. `InputError` names a key that is not a field, with the nearest one, or a
    value of another type, with what is expected.
    """
    hints = get_type_hints(type(base))
    known = [field.name for field in fields(base)]  # pyright: ignore[reportArgumentType]
    found = {}
    for key, value in values.items():
        if key not in known:
            meant = nearest(key, known)
            wanted = advice(key, known) if meant is None else repr(meant)
            raise InputError(where, f"unknown key {key!r}", wanted)
        try:
            found[key] = converted(value, hints[key])
        except WrongType as error:
            raise InputError(where, f"{key} is {value!r}", str(error)) from None
    return replace(base, **found)  # pyright: ignore[reportArgumentType]


def converted(value: Any, hint: Any) -> Any:
    """The value as the type has it, or `WrongType`.

    >>> converted([1, 2.5], tuple[float, ...])
    (1.0, 2.5)

    Known are int, float, bool, str, Path, Literal, X | None and tuple[X, ...]. A whole number is a
    number too; a truth value is neither.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(value, [entry for entry in inner if entry is not type(None)])
    if origin is Literal:
        if value not in inner:
            raise WrongType(advice(str(value), inner))
        return value
    if origin is tuple:
        return _several(value, inner[0])
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise WrongType(expected(hint))
    return value


def expected(hint: Any) -> str:
    """The type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        wanted = [expected(entry) for entry in inner if entry is not type(None)]
        return " or ".join([*wanted, f'"{NOTHING}"'])
    if origin is tuple:
        return f"a list, each entry {expected(inner[0])}"
    return "a path" if hint is Path else NAMES[hint]


def _optional(value: Any, inner: list[Any]) -> Any:
    if value is None or value == NOTHING:
        return None
    try:
        return converted(value, inner[0])
    except WrongType as error:
        raise WrongType(f'{error} or "{NOTHING}"') from None


def _several(value: Any, inner: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise WrongType(expected(tuple[inner, ...]))
    try:
        return tuple(converted(entry, inner) for entry in value)
    except WrongType:
        raise WrongType(expected(tuple[inner, ...])) from None
