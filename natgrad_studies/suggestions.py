"""Names that nobody knows: what was meant instead."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from natgrad.errors import InputError


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
            raise InputError(argument, f"{name!r} is unknown", advice(name, known))
