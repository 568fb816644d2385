"""A study for the tests of signals to stop: `python stopped_study.py COUNT FOLDER`.

SIGTERM goes to COUNT processes, one after the other, at random moments of a small study in the
folder, each of which goes on where the last one was. Prints their exit codes as JSON, and what the
last one wrote to stderr. The processes are forks of this one, so that nothing is imported twice.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from natgrad_studies import cli, running
from natgrad_studies.cli import commands, parsing
from natgrad_studies.poisson_pinn import page, run
from natgrad_studies.registry import STUDIES
from natgrad_studies.settings import to_toml

IMPORTED = (running, commands, parsing, page, run)  # before the forks


def start(arguments: list[str], log: Path) -> int:
    """The command in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["natgrad", *arguments]
    try:
        cli.main()
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    os._exit(0)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def finished(child: int, log: Path) -> bool:
    """Whether the process has said its last line; if not, it stands still for the signal to come.

    A signal after that line has nothing left to stop.
    """
    os.kill(child, signal.SIGSTOP)
    stands = os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    done = not stands or "report:" in log.read_text()
    if stands and done:
        os.kill(child, signal.SIGCONT)
        wait(child)
    return done


def main(count: int, folder: Path) -> None:
    os.environ["NATGRAD_CACHE"] = str(folder / "programs")
    preset = STUDIES["poisson-pinn"].presets["demo"]
    small = {"points": 8, "layers": (3,), "batched": (), "seconds": 0.5}
    methods = {"methods": ("Adam", "L2", "LBFGS"), "output": folder / "run"}
    config, log = folder / "run.toml", folder / "log.txt"
    config.write_text(to_toml(replace(preset, **small, **methods), "small"))
    whole = ["study", "poisson-pinn", "--config", str(config)]
    began = time.monotonic()
    assert wait(start(whole, log)) == 0, log.read_text()
    seconds = time.monotonic() - began
    codes: list[int] = []
    draw = random.Random(0)
    while len(codes) < count:
        if (folder / "run" / "index.html").exists():
            shutil.rmtree(folder / "run")
        log.unlink(missing_ok=True)
        child = start(whole, log)
        while not (log.exists() and "into" in log.read_text()):  # the signals are caught by then
            assert os.waitpid(child, os.WNOHANG)[0] == 0, log.read_text()
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 1.2 * seconds) ** 2 / (1.2 * seconds))
        if finished(child, log):
            continue
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGCONT)
        codes.append(wait(child))
        if codes[-1] != 143:
            break
    said = log.read_text()
    print(json.dumps({"codes": codes, "said": said, "finished": wait(start(whole, log))}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
