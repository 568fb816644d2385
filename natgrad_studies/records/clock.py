"""Seconds of a run, those that compile among them."""

from time import perf_counter
from typing import Any

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

COMPILATION = "/jax/core/compile/"  # how JAX's events of tracing, lowering and compiling begin


class Clock:
    """Runs between `go` and `stop`. Inside of its context nothing is compiled before it runs.

    Programs of earlier runs are forgotten, and those on disk are not looked at: every run pays for
    its own.

    ```python
    with Clock() as clock:
        clock.go()
        ...
        clock.stop()
    print(clock.spent, clock.compiling)
    ```
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._begin: float | None = None
        self._spans: list[tuple[float, float]] = []

    def __enter__(self) -> "Clock":
        jax.clear_caches()
        self._enabled: bool = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
        self._use_disk(False)
        jax.monitoring.register_event_time_span_listener(self._note)
        return self

    def __exit__(self, *exception: Any) -> None:
        jax.monitoring.unregister_event_time_span_listener(self._note)
        self._use_disk(self._enabled)

    def _use_disk(self, enabled: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # it asks for the setting only once

    def _note(self, event: str, start_time: float, end_time: float, **kwargs: Any) -> None:
        if event.startswith(COMPILATION) and self._begin is not None:
            self._spans.append((start_time, end_time))

    def go(self) -> None:
        self._begin = perf_counter()

    def stop(self) -> None:
        if self._begin is not None:
            self.spent += perf_counter() - self._begin
        self._begin = None

    @property
    def compiling(self) -> float:
        """Of `spent`: tracing, lowering and compiling. One may happen inside of another."""
        total, until = 0.0, 0.0
        for begin, end in sorted(self._spans):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total
