"""The command `natgrad`.

| file | what it holds |
|---|---|
| `commands.py` | what each command takes and does |
| `parsing.py` | from arguments to a command, bad ones refused in one line |
| `output.py` | what is printed, for people or as one JSON object |
"""

import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec

from ..stopping import Stop
from .output import Output, UsageError

PACKAGES = ("tyro", "matplotlib", "rich")  # of the extra `studies`


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point.

    Exit codes: 0 done, 2 the input is at fault, 130 and 143 stopped by Ctrl-C or by SIGTERM.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    output = Output("--json" in given)
    if arguments is None:
        # SciPy's OpenBLAS, which JAX calls, reads this when it is loaded. Its threads spin while
        # they wait, which slows small problems many times over where another process has a core.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        for stream in (sys.stdout, sys.stderr):  # a terminal that has no ρ gets a question mark
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    own = arguments is None

    def end(code: int) -> None:  # threads that compute would keep a normal exit waiting
        output.stopped()
        os._exit(code)

    with Stop(end if own else None) as stop:
        error = None
        try:
            _run(given, output)
        except BaseException as caught:
            error = caught
        if stop.caused(error):
            if own:
                end(stop.code)
            output.stopped()
            raise SystemExit(stop.code) from None
        if error is not None:
            raise error


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
