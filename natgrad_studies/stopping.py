"""Ctrl-C and SIGTERM: asked for at any moment, acted on where nothing is lost."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 5.0  # seconds to get to a safe point
ENDING = threading.Event()  # set once the program is to end: runs and studies look at it


def check_ending() -> None:
    """A safe point: raise `KeyboardInterrupt` if the program is to end."""
    if ENDING.is_set():
        raise KeyboardInterrupt


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """A process that is started meanwhile is not interrupted by a terminal, but by this process."""
    resource_tracker.ensure_running()  # else it starts with the first process, and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Stop:
    """While this context is open the first signal sets `ENDING`, and the second one raises.

    An exception out of a handler may come to nothing: Python drops it inside of the callbacks of
    its garbage collector, and compiled code that calls back into Python makes another one of it. So
    the first signal is only noted, and the next safe point raises `KeyboardInterrupt`: between two
    iterations, or between two parts of a study. Where none comes in time, or a second signal does,
    `give_up` is called with the exit code, from another thread; it may end the process, because
    files are written all or not at all. Without it the handler raises.
    """

    def __init__(self, give_up: Callable[[int], Any] | None = None):
        self._give_up = give_up
        self._number: int | None = None
        self._calls = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        ENDING.clear()
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # nohup, for one, has them ignored
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if hasattr(self, "_watcher"):
            signal.set_wakeup_fd(self._wakeup)
            self._dismiss()
            self._watcher.join()
            os.close(self._read)
            os.close(self._write)
        ENDING.clear()

    def _handle(self, number: int, frame: Any) -> None:
        self._note(number)
        self._calls += 1
        if self._calls > 1:
            raise KeyboardInterrupt

    def _note(self, number: int) -> None:
        self._number = self._number or number
        ENDING.set()

    def _watch(self) -> None:
        """See signals as they come, whatever the main thread does."""
        if not (number := self._wait(None)):
            return
        self._note(number)
        second = self._wait(GRACE)
        if second != 0 and self._give_up is not None:
            self._give_up(self.code)
        elif second is None:
            os.kill(os.getpid(), number)

    def _wait(self, seconds: float | None) -> int | None:
        """The number of the next signal; 0 once all is over, None if there is nothing in time."""
        while select.select([self._read], [], [], seconds)[0]:
            number = os.read(self._read, 1)[0]
            if number in (0, *self._before):
                return number
        return None

    def _dismiss(self) -> None:
        os.write(self._write, bytes(1))

    def caused(self, error: BaseException | None = None) -> bool:
        """Whether a signal came, or the error is one; if so, further ones are ignored from now on.

        What ends a run after a signal was caused by it, whatever its type.
        """
        if self._number is None and not isinstance(error, KeyboardInterrupt):
            return False
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        if self._before:
            self._dismiss()
        return True

    @property
    def code(self) -> int:
        """The exit code: 128 and the number of the signal."""
        return 128 + (self._number or signal.SIGINT)
