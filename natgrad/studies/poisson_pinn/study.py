"""The whole study: train, draw, write."""

from pathlib import Path
from time import perf_counter

from ..running import Say, run_study
from . import figures, text
from .methods import Method, batched_methods, methods
from .pinn import Pinn
from .results import NAME, StudyResult
from .runs import Run
from .runs import run as run_method
from .settings import Settings


def run(settings: Settings, say: Say = lambda line: None) -> tuple[Path, StudyResult]:
    """Run the study into `settings.output`; returns the report's path and all results."""
    return run_study(NAME, settings, say, compute=compute, draw=figures.draw, page=text.page)


def compute(settings: Settings, say: Say) -> StudyResult:
    """All numbers, no files."""
    begin = perf_counter()
    pinn = Pinn(settings)
    runs = {method.key: _told(method, pinn, say) for method in methods(pinn)}
    batched = {method.key: _told(method, pinn, say) for method in batched_methods(pinn)}
    return StudyResult(
        settings=settings,
        pinn=pinn,
        start_loss=pinn.loss(pinn.start),
        start_error=pinn.error(pinn.start),
        runs=runs,
        batched=batched,
        seconds=perf_counter() - begin,
    )


def _told(method: Method, pinn: Pinn, say: Say) -> Run:
    found = run_method(method, pinn)
    say(
        f"{method.name}: loss {found.final:.3g}, error {found.error:.2g}, {found.iterations} "
        f"iterations in {found.seconds[-1]:.1f} CPU s ({found.status})"
    )
    return found
