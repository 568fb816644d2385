"""What there is to say about a run while it goes on."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .stop import Stop

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
UNLIMITED = 10**6  # iterations that no run is meant to take


class View:
    """One run as it is shown: where it stands, how it got there, and how long it may still take."""

    def __init__(self, name: str, budget: Stop):
        self.name, self.budget = name, budget
        self.losses: list[float] = []
        self._began = self._said = time.monotonic()
        self._iteration, self._row = 0, {}
        self._first: tuple[float, float] | None = None  # a time, and the share spent by then

    def update(self, iteration: int, loss: float, row: Mapping[str, Any]) -> None:
        """An iteration is done; `row` is that of the history."""
        self._iteration, self._row = iteration, dict(row)
        self.losses.append(float(loss))
        if self._first is None:
            self._first = (time.monotonic(), self._share())

    @property
    def propagations(self) -> int:
        """All of them until now."""
        return int(sum(self._row.get(name, 0) for name in ("forward", "linearised", "adjoint")))

    def seconds_left(self) -> float | None:
        """By the budget that will be used up first, at the rate until now; None if not known."""
        share, now = self._share(), time.monotonic()
        then, before = self._first or (now, share)
        return (1 - min(share, 1)) * (now - then) / (share - before) if share > before else None

    def _share(self) -> float:
        spent = (self._iteration, self.propagations, time.monotonic() - self._began)
        limits = (self.budget.iterations, self.budget.propagations, self.budget.seconds)
        return max((a / b for a, b in zip(spent, limits, strict=True) if b), default=0.0)

    def parts(self) -> list[str]:
        """The run in phrases, the most important first."""
        elapsed = clock(time.monotonic() - self._began)
        if not self.losses:
            return ["first iteration, with compiling", elapsed]
        known = {name: value for name, value in self._row.items() if np.isfinite(value)}
        found = [f"iteration {_of(self._iteration, self.budget.iterations)}"]
        found.append(f"loss {self.losses[-1]:.3e}")
        if "gradient_norm" in known:
            found.append(f"‖∂f‖ {known['gradient_norm']:.1e}")
        if "step" in known:
            found.append(f"step {known['step']:.2g}")
        if self.propagations:
            found.append(f"{_of(self.propagations, self.budget.propagations)} propagations")
        left = self.seconds_left()
        return [*found, elapsed, *([] if left is None else [f"about {clock(left)} left"])]

    def line(self) -> str:
        """For a log."""
        return ": ".join(filter(None, (self.name, ", ".join(self.parts()))))

    def due(self, seconds: float) -> bool:
        """Whether the last line is so long ago that it is time for another."""
        now = time.monotonic()
        late = now - self._said >= seconds
        self._said = now if late else self._said
        return late

    def __rich__(self) -> Text:
        text = Text(f"{self.name}  " if self.name else "", style="bold")
        text.append("   ".join(self.parts()), style="not bold")
        return text.append(f"   {sparkline(self.losses)}", style="not bold cyan")


class Busy:
    """Something that takes its time."""

    def __init__(self, what: str):
        self.what, self._began = what, time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self.what}  {clock(time.monotonic() - self._began)}", style="dim")


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The values as bars, on a logarithmic scale where all are positive.

    >>> sparkline([1000.0, 100.0, 10.0, 1.0], width=4)
    '█▆▃▁'
    """
    found = np.array([value for value in values if np.isfinite(value)])
    if not found.size:
        return ""
    places = np.linspace(0, found.size - 1, min(width, found.size)).round().astype(int)
    shown = np.log(found[places]) if np.all(found > 0) else found[places]
    low, high = shown.min(), shown.max()
    heights = (shown - low) / (high - low) if high > low else np.zeros(shown.size)
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any.

    >>> clock(75.2), clock(3675.0)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _of(count: int, limit: float | None) -> str:
    return f"{count}" if limit is None or limit >= UNLIMITED else f"{count}/{limit}"


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
def watched(budget: Stop, asked: bool | None = None) -> Iterator["Watch"]:
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
