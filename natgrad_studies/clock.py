"""Seconds of a run, and what its callback writes down off the clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

from natgrad.descent import Progress, Watch

COMPILATION = "/jax/core/compile/"  # how JAX's events of tracing, lowering and compiling begin


class Clock:
    """Runs between `go` and `stop`; `now` is what it reads.

    ```python
    clock = Clock(time.process_time)
    clock.go()
    ...
    clock.stop()
    print(clock.spent)
    ```
    """

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self.spent, self._now = 0.0, now
        self._begin: float | None = None

    def go(self) -> None:
        self._begin = self._now()

    def stop(self) -> None:
        if self._begin is not None:
            self.spent += self._now() - self._begin
        self._begin = None


class CompilingClock(Clock):
    """A clock in whose context nothing is compiled before it runs.

    Programs of earlier runs are forgotten, and those on disk are not looked at: every run pays for
    its own. `compiling` tells how many of the seconds those are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spans: list[tuple[float, float]] = []

    def __enter__(self) -> "CompilingClock":
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

    @property
    def compiling(self) -> float:
        """Of `spent`: tracing, lowering and compiling. One may happen inside of another."""
        total, until = 0.0, 0.0
        for begin, end in sorted(self._spans):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total


@dataclass
class Trace:
    """The callback of a run: it writes down what is worth it, and ends the run with its seconds.

    Nothing that it does is on the clock. A study says in `note` what is written down, and in
    `limit` when a run ends, if that is not `budget`.
    """

    budget: float
    clock: Clock
    watch: Watch | None
    seconds: list[float] = field(default_factory=list, kw_only=True)
    losses: list[float] = field(default_factory=list, kw_only=True)
    iterations: int = field(default=0, kw_only=True)

    def __call__(self, progress: Progress) -> bool:
        self.clock.stop()
        self.iterations += 1
        over = self.clock.spent >= self.limit
        loss = self.note(progress, over)
        if self.watch is not None:
            self.watch.update(self.iterations, loss, progress.row)
        self.clock.go()
        return over

    @property
    def limit(self) -> float:
        """The seconds after which the run ends."""
        return self.budget

    def note(self, progress: Progress, over: bool) -> float:
        """Write down what is worth it at this iterate, the last one if `over`; returns its loss."""
        raise NotImplementedError
