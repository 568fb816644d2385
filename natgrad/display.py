"""Where runs are shown: in place on a terminal, by lines in a log if asked, else nowhere."""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from .budget import Budget
from .progress import Busy, View

PATIENCE = 2.0  # seconds before a run is worth a display
SECONDS_BETWEEN_LINES = 15.0

_name: ContextVar[str] = ContextVar("natgrad_name", default="")
_watched: ContextVar[bool] = ContextVar("natgrad_watched", default=False)


@contextmanager
def named(name: str) -> Iterator[None]:
    """The runs inside the block are shown under this name."""
    with _set(_name, name):
        yield


@contextmanager
def watched(budget: Budget, asked: bool | None = None) -> Iterator["Watch"]:
    """Show one run. Of runs inside of runs only the outermost is shown.

    Unasked (None), it is shown in place on a terminal, from two seconds on, and not at all in logs
    and notebooks; asked, also there: in place in a notebook, a line now and then in a log.
    """
    view = View(_name.get(), budget)
    if asked is False or _watched.get():
        yield Watch(view, None)
        return
    asked = asked or BOARD.asked
    live = BOARD.console.is_terminal or (bool(asked) and BOARD.console.is_jupyter)
    with _set(_watched, True):
        if not live:
            yield Watch(view, BOARD if asked else None)
            return
        BOARD.add(view)
        try:
            yield Watch(view, None)
        finally:
            BOARD.remove(view)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """On a terminal, show what takes its time and for how long, beside the runs inside."""
    line = Busy(what)
    if not BOARD.console.is_terminal:
        yield
        return
    BOARD.add(line)
    try:
        yield
    finally:
        BOARD.remove(line)


class Watch:
    """What a run tells its view; where lines are wanted, it writes one when it is time."""

    def __init__(self, view: View, log: "Board | None"):
        self.view, self._log = view, log

    def update(self, iteration: int, loss: float, row: Mapping[str, Any]) -> None:
        """An iteration is done; `row` is that of the history."""
        self.view.update(iteration, loss, row)
        if self._log is not None and self.view.due(SECONDS_BETWEEN_LINES):
            self._log.console.print(self.view.line(), markup=False, highlight=False, soft_wrap=True)


class Board:
    """The views of a process in one display, which appears a moment after the first begins."""

    def __init__(self, console: Console):
        self.console, self.asked = console, False
        self._views: list[View | Busy] = []
        self._live: Live | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def add(self, view: View | Busy) -> None:
        """Show it as well."""
        with self._lock:
            self._views.append(view)
            if self._timer is None:
                self._timer = threading.Timer(PATIENCE, self._start)
                self._timer.daemon = True
                self._timer.start()

    def remove(self, view: View | Busy) -> None:
        """Its run has ended; after the last one the display vanishes."""
        with self._lock:
            self._views.remove(view)
            if self._views or self._timer is None:
                return
            self._timer.cancel()
            live, self._timer, self._live = self._live, None, None
        if live is not None:
            live.stop()

    def close(self) -> None:
        """Take the display away, whatever still runs."""
        with self._lock:
            live = self._live
        if live is not None:
            live.stop()

    def _start(self) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():  # all have ended while it waited
                return
            self._live = Live(
                get_renderable=lambda: Group(*self._views),
                console=self.console,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # else it would end up on stderr
            )
            self._live.start(refresh=True)


BOARD = Board(Console(stderr=True))


@contextmanager
def _set(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
