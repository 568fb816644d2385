"""What is shown of a run in progress: live with rich, or by an occasional line without it."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Protocol

import numpy as np

PATIENCE = 2.0  # seconds before a run is worth a display
SECONDS_BETWEEN_LINES = 15.0
UNLIMITED = 10**6  # iterations that no run is meant to take
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24  # of a sparkline

_name: ContextVar[str] = ContextVar("natgrad_name", default="")
_shown: ContextVar[bool] = ContextVar("natgrad_shown", default=False)


class Limits(Protocol):
    """What a run may use up, None for as much as it likes."""

    @property
    def iterations(self) -> int | None: ...
    @property
    def propagations(self) -> int | None: ...
    @property
    def seconds(self) -> float | None: ...


def label_runs(name: str) -> AbstractContextManager[None]:
    """The runs inside the block are shown under this name."""
    return _set(_name, name)


@contextmanager
def show_run(limits: Limits, asked: bool | None = None) -> Iterator["Watch"]:
    """Show one run. Of runs inside of runs only the outermost is shown.

    Unasked (None), it is shown on a terminal only, from two seconds on; asked, also in a notebook,
    and in a log by a line when it begins, now and then, and when it ends. Without rich there are
    lines now and then on a terminal too, and so there are in the logs of a board that is `asked`.
    """
    view = View(_name.get(), limits)
    if asked is False or _shown.get():
        yield Watch(view)
        return
    with _set(_shown, True):
        if BOARD.relay is not None:
            with BOARD.relay(view, asked) as watch:
                yield watch
        elif BOARD.is_live(asked or BOARD.asked):
            with BOARD.showing(view):
                yield Watch(view)
        elif asked:
            BOARD.write(view.line())
            try:
                yield Watch(view, BOARD)
            finally:
                BOARD.write(view.last_line())
        else:
            yield Watch(view, BOARD if BOARD.wants_lines() else None)


@contextmanager
def show_busy(what: str, asked: bool | None = None) -> Iterator[None]:
    """On a terminal, show what takes its time and for how long, beside the runs inside.

    Asked for, a log has a line of it; with False it is not shown.
    """
    busy = Busy(what)
    if asked is not False and BOARD.is_live(asked=False):
        with BOARD.showing(busy):
            yield
        return
    if asked:
        BOARD.write(busy.line())
    yield


class Watch:
    """What a run reports its iterations to; it writes to the `log`, if there is one, when due."""

    def __init__(self, view: "View", log: "Board | None" = None):
        self.view, self._log = view, log
        self._last_line = time.monotonic()

    def resume(self, iteration: int) -> None:
        """The run goes on from a checkpoint."""
        self.view.resumed = iteration
        if self._log is not None:
            self._log.write(self.view.line())

    def end(self, result: str) -> None:
        """The run has a result, which a log tells in a line."""
        self.view.result = result.partition("\n")[0]

    def update(self, iteration: int, loss: float, row: Mapping[str, Any]) -> None:
        """An iteration is done; `row` is that of the history. A safe point to end the run."""
        if BOARD.ending.is_set():
            raise KeyboardInterrupt
        self.view.update(iteration, loss, row)
        now = time.monotonic()
        if self._log is not None and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._log.write(self.view.line())


class View:
    """One run as it is shown: where it stands, how it got there, and how long it may still take."""

    def __init__(self, name: str, limits: Limits):
        self.name, self.limits = name, limits
        self.resumed, self.result = 0, ""
        self.losses: list[float] = []
        self._began = time.monotonic()
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
        """By the limit that will be reached first, at the rate until now; None if not known."""
        share, now = self._share(), time.monotonic()
        then, before = self._first or (now, share)
        return (1 - min(share, 1)) * (now - then) / (share - before) if share > before else None

    def _share(self) -> float:
        spent = (self._iteration, self.propagations, time.monotonic() - self._began)
        limits = (self.limits.iterations, self.limits.propagations, self.limits.seconds)
        pairs = zip(spent, limits, strict=True)
        return max((a / b for a, b in pairs if b and b < UNLIMITED), default=0.0)

    def parts(self) -> list[str]:
        """The run in phrases, the most important first."""
        elapsed = clock(time.monotonic() - self._began)
        if not self.losses:
            resumed = [f"resumed after iteration {self.resumed}"] if self.resumed else []
            return [*resumed, "compiling", elapsed]
        known = {name: value for name, value in self._row.items() if np.isfinite(value)}
        found = [f"iteration {_of(self._iteration, self.limits.iterations)}"]
        found.append(f"loss {self.losses[-1]:.3e}")
        if "gradient_norm" in known:
            found.append(f"‖∂f‖ {known['gradient_norm']:.1e}")
        if "step" in known:
            found.append(f"step {known['step']:.2g}")
        if self.propagations:
            found.append(f"{_of(self.propagations, self.limits.propagations)} propagations")
        left = self.seconds_left()
        return [*found, elapsed, *([] if left is None else [f"about {clock(left)} left"])]

    def line(self) -> str:
        """The run in one line, for a log."""
        return ": ".join(filter(None, (self.name, ", ".join(self.parts()))))

    def last_line(self) -> str:
        """How the run has ended, and after how long."""
        how = ": ".join(filter(None, (self.name, self.result or "ended without a result")))
        return f"{how}, {clock(time.monotonic() - self._began)}"

    def __rich__(self) -> Any:
        from rich.text import Text

        text = Text(f"{self.name}  " if self.name else "", style="bold")
        text.append("   ".join(self.parts()), style="not bold")
        return text.append(f"   {sparkline(self.losses)}", style="not bold cyan")


class Busy:
    """Something other than a run that takes its time."""

    def __init__(self, what: str):
        self.what, self._began = what, time.monotonic()

    def line(self) -> str:
        """In one line, for a log."""
        return f"{self.what}, {clock(time.monotonic() - self._began)}"

    def __rich__(self) -> Any:
        from rich.text import Text

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


class Board:
    """All that a process shows: one live display, a moment after the first run begins, or lines.

    With `asked` runs are shown as if each of them had asked for it. A program that catches signals
    sets the event `ending`: every run then raises `KeyboardInterrupt` between two iterations. Where
    another process is to show the runs, `relay(view, asked)` gives each its `Watch`, in a context.
    """

    def __init__(self, console: Any = None):
        self.asked, self.ending = False, threading.Event()
        self.relay: Callable[[View, bool | None], AbstractContextManager[Watch]] | None = None
        if console is not None:
            self.console = console
        self._shown: list[View | Busy] = []
        self._written = ""
        self._live: Any = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    @cached_property
    def console(self) -> Any:
        """rich's console on stderr; None where rich is not installed."""
        try:
            from rich.console import Console
        except ImportError:
            return None
        return Console(stderr=True)

    def is_live(self, asked: bool) -> bool:
        """Whether there is a live display: on a terminal, and in a notebook if asked."""
        if self.console is None:
            return False
        return self.console.is_terminal or (asked and self.console.is_jupyter)

    def wants_lines(self) -> bool:
        """Whether runs that did not ask have a line now and then without a live display."""
        return self.asked or (self.console is None and sys.stderr.isatty())

    def write(self, line: str) -> None:
        """Write a line of a log, unless it repeats the last: a run says again that it compiles."""
        if line == self._written:
            return
        self._written = line
        if self.console is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def showing(self, entry: View | Busy) -> Iterator[None]:
        """Show it during the block; after the last one the display vanishes."""
        self._add(entry)
        try:
            yield
        finally:
            self._remove(entry)

    def close(self) -> None:
        """Take the display away, whatever still runs."""
        with self._lock:
            live = self._live
        if live is not None:
            live.stop()

    def _add(self, entry: View | Busy) -> None:
        with self._lock:
            self._shown.append(entry)
            if self._timer is None:
                self._timer = threading.Timer(PATIENCE, self._start)
                self._timer.daemon = True
                self._timer.start()

    def _remove(self, entry: View | Busy) -> None:
        with self._lock:
            self._shown.remove(entry)
            if self._shown or self._timer is None:
                return
            self._timer.cancel()
            live, self._timer, self._live = self._live, None, None
        if live is not None:
            live.stop()

    def _start(self) -> None:
        from rich.console import Group
        from rich.live import Live

        with self._lock:
            if self._timer is not threading.current_thread():  # all have ended while it waited
                return
            self._live = Live(
                get_renderable=lambda: Group(*self._shown),
                console=self.console,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # else it would end up on stderr
            )
            self._live.start(refresh=True)


BOARD = Board()


@contextmanager
def _set(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
