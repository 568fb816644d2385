"""Compiled programs kept between runs of the command line, by JAX's persistent cache.

Importing natgrad changes no JAX setting; this is for programs that own their process.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

LEAST_COMPILE_SECONDS = 0.5  # quicker programs are compiled again rather than stored


def chosen_folder(environment: Mapping[str, str]) -> Path | None:
    """NATGRAD_CACHE, or `natgrad` in the user's cache folder; None where NATGRAD_CACHE is empty.

    >>> chosen_folder({"XDG_CACHE_HOME": "/var/tmp"}).as_posix()
    '/var/tmp/natgrad'
    """
    named = environment.get("NATGRAD_CACHE")
    if named is not None:
        return Path(named).expanduser() if named else None
    home = environment.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "natgrad"


def keep_programs() -> Path | None:
    """Switch the cache on and return its folder; None, and no change, where that cannot be.

    A folder that the user has given to JAX (JAX_COMPILATION_CACHE_DIR) is left as it is. One that
    cannot be written is not used.
    """
    import jax

    given: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if given:
        return Path(given)
    folder = chosen_folder(os.environ)
    if folder is None or not _writable(folder):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_COMPILE_SECONDS)
    return folder


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except (OSError, RuntimeError):  # RuntimeError: no home folder to expand
        return False
