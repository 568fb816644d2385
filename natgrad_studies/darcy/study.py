"""The whole study: invert, draw, write."""

from functools import partial
from pathlib import Path
from time import perf_counter

import jax.numpy as jnp

from ..kept import Kept
from ..running import Say, run_study
from . import figures, text
from .inversion import START, Inversion
from .methods import methods
from .posterior import Posterior, posterior
from .results import NAME, StudyResult, VariantResult
from .runs import Run
from .runs import run as run_method
from .settings import Settings


def run(settings: Settings, say: Say = lambda line: None) -> tuple[Path, StudyResult]:
    """Run the study into `settings.output`; returns the report's path and all results."""
    kept = Kept(settings.output / "runs", Run, Posterior)
    return run_study(
        *(NAME, settings, say),
        compute=partial(compute, kept=kept),
        draw=figures.draw,
        page=text.page,
    )


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished runs."""
    start = perf_counter()
    variants = {}
    for name in settings.variants:
        rank = 0 if variants else settings.posterior_rank
        variants[name] = _variant(name, settings, rank, say, kept)
    return StudyResult(settings, variants, perf_counter() - start)


def _variant(name: str, settings: Settings, rank: int, say: Say, kept: Kept) -> VariantResult:
    inversion = Inversion.of(name, settings)
    known = methods()
    runs = []
    for key in settings.methods:
        make = partial(run_method, known[key], inversion)
        found = kept.part(f"{name}-{key}", make, method=known[key])
        runs.append(found)
        say(
            f"{name}, {found.method.full_name}: {found.status}, {found.total} propagations, "
            f"misfit {found.misfit[-1]:.3g} σ, error {found.error[-1]:.3f}, {found.seconds:.1f} s"
        )
    make = partial(_posterior, inversion, runs, rank)
    return VariantResult(inversion, runs, kept.part(f"{name}-posterior", make))


def _posterior(inversion: Inversion, runs: list[Run], rank: int) -> Posterior | None:
    """At the end of the L² run in the prior's coordinates, where there is one."""
    found = next((run for run in runs if run.method.key == "L2_prior"), None)
    if found is None or rank == 0:
        return None
    rank = min(rank, inversion.data.observed.size, inversion.data.truth.size)
    x = inversion.prior.coordinates(jnp.asarray(found.field - START))
    return posterior(inversion, x, rank)
