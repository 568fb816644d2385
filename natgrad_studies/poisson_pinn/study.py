"""The whole study: train, draw, write."""

from functools import partial
from pathlib import Path
from time import perf_counter

from ..kept import Kept
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
    kept = Kept(settings.output / "runs", Run)
    return run_study(
        *(NAME, settings, say),
        compute=partial(compute, kept=kept),
        draw=figures.draw,
        page=text.page,
    )


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished runs."""
    begin = perf_counter()
    pinn = Pinn(settings)

    def found(method: Method, name: str) -> Run:
        run = kept.part(name, lambda: run_method(method, pinn), method=method)
        say(
            f"{method.name}: loss {run.final:.3g}, error {run.error:.2g}, {run.iterations} "
            f"iterations in {run.seconds[-1]:.1f} CPU s ({run.status})"
        )
        return run

    runs = {method.key: found(method, method.key) for method in methods(pinn)}
    batched = {method.key: found(method, f"batch-{method.key}") for method in batched_methods(pinn)}
    return StudyResult(
        settings=settings,
        pinn=pinn,
        start_loss=pinn.loss(pinn.start),
        start_error=pinn.error(pinn.start),
        runs=runs,
        batched=batched,
        seconds=perf_counter() - begin,
    )
