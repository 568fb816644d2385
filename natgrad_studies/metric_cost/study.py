"""The whole study: measure, draw, write."""

from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from natgrad.core.compiled import can_call_back

from ..kept import Kept
from ..running import Say, run_study
from . import figures, sparse_qr, text
from .clock import Timing, compiled_afresh
from .measure import Measurement, measure
from .methods import Method, methods
from .results import NAME, MethodCosts, StudyResult
from .settings import Settings


def run(settings: Settings, say: Say = lambda line: None) -> tuple[Path, StudyResult]:
    """Run the study into `settings.output`; returns the report's path and all results."""
    kept = Kept(settings.output / "runs", MethodCosts, Measurement, Timing)
    return run_study(
        *(NAME, settings, say),
        compute=partial(_afresh, kept=kept),
        draw=figures.draw,
        page=text.page,
    )


def _afresh(settings: Settings, say: Say, kept: Kept) -> StudyResult:
    """`compute`, with programs that no earlier run has left."""
    with compiled_afresh():
        return compute(settings, say, kept)


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished methods."""
    start = perf_counter()
    available = sparse_qr.installed()
    chosen = [method for key, method in methods().items() if key in settings.metrics]
    costs = []
    for method in chosen:
        if method.metric is None and not available:
            say(f"{method.name}: left out; {sparse_qr.ADVICE}")
            continue
        if method.remembers and not can_call_back():
            say(f"{method.name}: left out; it needs a second CPU")
            continue
        make = partial(_costs, method, settings, say)
        costs.append(kept.part(method.key, make, method=method))
    blas = sparse_qr.blas() if available else None
    return StudyResult(settings, costs, blas, perf_counter() - start)


def _costs(method: Method, settings: Settings, say: Say) -> MethodCosts:
    """One method at all sizes, the small ones first, as far as time and memory allow."""
    clock, costs = perf_counter(), MethodCosts(method)
    sizes = settings.transport_points if method.family == "W₂" else settings.points
    for n in sorted(set(sizes)):
        reason = _too_much(costs, n, settings)
        found = measure(method, n, settings) if reason is None else None
        if found is not None and not np.all(np.isfinite(found.eta)):
            found, reason = None, "did not converge"
        if found is not None:
            costs.measured[n] = found
        else:
            costs.left_out[n] = str(reason)
    until = f"to {costs.largest}²" if costs.measured else "nothing"
    say(f"{method.name}: {until}, {perf_counter() - clock:.1f} s")
    return costs


def _too_much(costs: MethodCosts, n: int, settings: Settings) -> str | None:
    """Why a size is left out, judged by the one before it; None if it is measured."""
    gigabytes = costs.method.gigabytes(n)
    if gigabytes > settings.max_gigabytes:
        return f"would need about {gigabytes:.2g} GB"
    if not costs.measured:
        return None
    last = costs.largest
    expected = costs.seconds("direction")[last] * (n / last) ** (2 * costs.method.growth)
    return f"would take about {expected:.2g} s" if expected > settings.max_seconds else None
