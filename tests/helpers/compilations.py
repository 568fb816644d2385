"""How many programs JAX has compiled, as it tells its listeners."""

from collections import Counter

import jax

EVENT = "/jax/core/compile/backend_compile_duration"
HALVES = ("_linearise", "_try_step")
_compiled: Counter[str] = Counter()


def _note(event: str, seconds: float, **details) -> None:
    if event == EVENT:
        _compiled.update(half for half in HALVES if f"({half})" in details["fun_name"])


jax.monitoring.register_event_duration_secs_listener(_note)


def programs() -> tuple[int, ...]:
    """How many programs have been compiled for the two halves of an iteration."""
    return tuple(_compiled[half] for half in HALVES)
