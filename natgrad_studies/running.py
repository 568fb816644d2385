"""What every study does: compute, write the numbers, draw, write the page."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import jax

import natgrad as ng
from natgrad.descent import BOARD, show_busy
from natgrad.report import ResultFolder, machine, replace_file, save_page, versions

from .keeping import Kept
from .registry import study_of
from .settings import to_toml
from .stopping import ENDING

Say = Callable[[str], None]


def run_study(settings: Any, say: Say = lambda line: None) -> tuple[Path, Any]:
    """Run the study of these settings into `settings.output`; returns the page and the result.

    The numbers are on disk before anything is drawn. What is finished in the folder, made with the
    same settings, is taken up.
    """
    study = study_of(settings)
    settings.check()
    settings.check_packages()
    run, page = study.load("run"), study.load("page")
    folder = ResultFolder(settings.output)
    text = to_toml(settings, f"natgrad study {study.name} --config settings.toml")
    start = perf_counter()
    with folder.claimed(study.name, settings), show_busy(study.name):
        replace_file(folder.path / "settings.toml", text.encode())
        result = run.compute(settings, say, Kept(folder.path / "runs", *run.KEPT))
    made_by = {"study": study.name, "settings": settings, "versions": versions()}
    seconds = {"seconds": perf_counter() - start}
    folder.write("results.json", made_by | seconds | result.numbers())
    say("drawing")
    built = page.page(result, folder.figures)
    known = {field.name: getattr(settings, field.name) for field in fields(settings)}
    whole = replace(
        built, settings=known, versions=versions() | dict(built.versions), machine=machine()
    )
    return save_page(whole, folder.path), result


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The propagations of a run, by their kind."""

    forward: int
    linearised: int
    adjoint: int

    @property
    def total(self) -> int:
        """All propagations."""
        return self.forward + self.linearised + self.adjoint


def pick(value: Any, *names: str) -> dict[str, Any]:
    """Some attributes by their names, for the results file."""
    return {name: getattr(value, name) for name in names}


@contextmanager
def threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool for parts of a study; an exception on the way out cancels what still waits in it.

    Ctrl-C does not wait for what runs either: a compiled program cannot be interrupted.
    """
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()


# --- the process ---------------------------------------------------------------------------------


def prepare_process() -> None:
    """Switch on the double precision that studies need, the cache, and the display of runs.

    Importing natgrad changes no setting of JAX; this is for programs that own their process.
    """
    jax.config.update("jax_enable_x64", True)
    ng.cache()
    BOARD.asked, BOARD.ending = True, ENDING
