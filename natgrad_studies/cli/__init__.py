"""The command `natgrad`: one module for each of its commands.

| file | what it holds |
|---|---|
| `commands.py` | the commands by their names |
| `study.py`, `compare.py`, `resume.py`, `report.py` | one command each |
| `listing.py`, `completion.py` | the same |
| `parsing.py` | from arguments to a command, bad ones refused in one line |
| `output.py` | what is printed, for people or as one JSON object |
| `stopping.py` | Ctrl-C |
"""

import io
import os
import sys
import warnings
from collections.abc import Sequence

from .output import Output, UsageError
from .stopping import Stop


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
    from natgrad.errors import InputError, import_optional
    from natgrad.report import FolderError

    try:
        import_optional("tyro", "natgrad")
        from .parsing import parse

        with warnings.catch_warnings():
            warnings.showwarning = output.warning
            parse(given).run(output)
    except (UsageError, FolderError, InputError) as error:
        output.error(str(error))
        raise SystemExit(2) from None
    except BrokenPipeError:  # whoever read stdout has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
