"""The command `natgrad`.

| file | what it holds |
|---|---|
| `commands.py` | what each command takes and does |
| `parsing.py` | from arguments to a command, bad ones refused in one line |
| `output.py` | what is printed, for people or as one JSON object |
"""

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from .output import Output, UsageError

PACKAGES = ("tyro", "matplotlib", "rich")  # of the extra `studies`
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point.

    Exit codes: 0 done, 2 the input is at fault, 130 and 143 stopped by Ctrl-C or by SIGTERM.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    output = Output("--json" in given)
    if arguments is None:
        for stream in (sys.stdout, sys.stderr):  # a terminal that has no ρ gets a question mark
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    with Stop() as stop:
        try:
            _run(given, output)
        except BaseException as error:
            if not stop.caused(error):
                raise
            output.stopped()
            if arguments is None:  # threads that compute would keep a normal exit waiting
                os._exit(stop.code)
            raise SystemExit(stop.code) from None


def _run(given: list[str], output: Output) -> None:
    try:
        missing = [package for package in PACKAGES if find_spec(package) is None]
        if missing:
            advice = 'pip install "natgrad[studies]"'
            raise UsageError(f"{', '.join(missing)}: not installed. Try: {advice}.")
        from .parsing import parse

        with warnings.catch_warnings():
            warnings.showwarning = output.warning
            parse(given).run(output)
    except UsageError as error:
        output.error(str(error))
        raise SystemExit(2) from None
    except BrokenPipeError:  # whoever read stdout has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except ValueError as error:
        from natgrad import InputError  # not before: JAX comes with it
        from natgrad.report import FolderError

        if not isinstance(error, (InputError, FolderError)):
            raise
        output.error(str(error))
        raise SystemExit(2) from None


class Stop:
    """While this context is open the signals raise `KeyboardInterrupt` and are remembered.

    The exception unwinds the run, so that it can keep what it has. Compiled code that calls back
    into Python turns exceptions into its own, so what ends a run after a signal was caused by it,
    whatever its type.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):  # nohup, for one, has them ignored
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _interrupt(self, number: int, frame: Any) -> None:
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
