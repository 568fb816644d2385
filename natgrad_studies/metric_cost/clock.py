"""CPU seconds of a call: the fastest of several, and apart from them what the first one adds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

LEAST_SECONDS = 0.02  # calls shorter than this are repeated more often: their times scatter
MOST_REPEATS = 50


@dataclass(frozen=True)
class Timing:
    """CPU seconds of this process, all its threads together.

    `seconds` is the fastest of the calls after the first; `compilation` is what the first took on
    top of it, that is tracing and compiling.
    """

    seconds: float
    compilation: float


def cpu_time(
    call: Callable[[Any], Any],
    argument: Callable[[int], Any],
    repeats: int,
    enough: float,
) -> tuple[Timing, Any]:
    """Time `call(argument(i))` for i = 0, 1, …; making the argument is not counted.

    What the first call returned comes back too. There are `repeats` calls after it, more if they
    are short, and fewer once they have taken `enough` seconds together.
    """
    first, value = _seconds(call, argument(0))
    taken: list[float] = []
    while len(taken) < MOST_REPEATS:
        taken.append(_seconds(call, argument(len(taken) + 1))[0])
        if sum(taken) >= enough or (len(taken) >= repeats and sum(taken) >= LEAST_SECONDS):
            break
    return Timing(min(taken), max(first - min(taken), 0.0)), value


def _seconds(call: Callable[[Any], Any], argument: Any) -> tuple[float, Any]:
    jax.block_until_ready(argument)
    start = process_time()
    value = jax.block_until_ready(call(argument))
    return process_time() - start, value


@contextmanager
def compiled_afresh() -> Iterator[None]:
    """Inside the block JAX's persistent cache is off: its hits would pass for compilations."""
    before = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX decides once whether the cache is on
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
