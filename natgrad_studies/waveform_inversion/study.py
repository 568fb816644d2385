"""The whole study: record, invert, draw, write."""

from pathlib import Path
from time import perf_counter

from ..running import Say, run_study
from . import figures, text
from .engines import Engine
from .experiment import Experiment
from .methods import METHODS
from .results import NAME, StudyResult
from .runs import run as run_method
from .settings import Settings


def run(settings: Settings, say: Say = lambda line: None) -> tuple[Path, StudyResult]:
    """Run the study into `settings.output`; returns the report's path and all results."""
    settings.check()
    Engine.of(settings)  # installed, or an `InputError` before anything is written
    return run_study(NAME, settings, say, compute=compute, draw=figures.draw, page=text.page)


def compute(settings: Settings, say: Say) -> StudyResult:
    """All numbers; every run keeps a checkpoint in the folder `runs` of the output."""
    start = perf_counter()
    experiment = Experiment.of(settings)
    device, stored = experiment.engine.place, experiment.whole.model.storage
    say(
        f"{' × '.join(map(str, experiment.true.shape))} cells, {settings.shots} shots on {device}, "
        f"source field stored every {stored.every} steps, "
        f"{stored.bytes / 2**30:.2g} GiB"
    )
    folder = Path(settings.output) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for key in settings.methods:
        found = run_method(METHODS[key], experiment, folder)
        runs.append(found)
        say(
            f"{found.method.name}: {found.total} propagations, f/f₀ {found.loss[-1]:.2e}, "
            f"SSIM {found.similarity[-1]:.3f}, {found.seconds:.1f} s"
        )
    return StudyResult(settings, experiment, runs, device, perf_counter() - start)
