"""Ctrl-C and SIGTERM: an exception that unwinds the run, so that it can keep what it has."""

import signal
import threading
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While this context is open the signals raise `KeyboardInterrupt` and are remembered.

    Compiled code that calls back into Python turns exceptions into its own, so what ends a run
    after a signal was caused by it, whatever its type.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):  # nohup, for one, has them ignored
                    self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _arrived(self, number: int, frame: Any) -> None:
        self._number = number
        raise KeyboardInterrupt

    def caused(self, error: BaseException) -> bool:
        """Whether the error comes from a signal; if so, further ones are ignored from now on."""
        if self._number is None and not isinstance(error, KeyboardInterrupt):
            return False
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        return True

    @property
    def code(self) -> int:
        """The exit code: 128 and the number of the signal."""
        return 128 + (self._number or signal.SIGINT)
