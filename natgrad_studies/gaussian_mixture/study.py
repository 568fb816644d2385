"""The whole study: compute, draw, write."""

from functools import partial
from pathlib import Path
from time import perf_counter

import jax.numpy as jnp
import numpy as np

from natgrad import information_matrix

from ..kept import Kept
from ..one_mean import BOWL_START, START
from ..running import Say, run_study
from ..threads import threads
from . import figures, fit, fit_figures, text
from .descent import (
    Basins,
    Descent,
    LargestStep,
    Rule,
    basins,
    descend,
    direction_field,
    largest_step,
    starts_in_domain,
)
from .landscape import Landscape, Verdict, explore
from .methods import Method, corrected_wasserstein, floored_wasserstein, paper_methods
from .results import NAME, FlooredRun, MethodResult, StudyResult
from .settings import MAX_ITERATIONS, QUADRATIC_ITERATES, Settings
from .transport import TransportComparison, compare

QUADRATIC = ("GD", "L2", "W2", "W2_staggered")  # the methods whose local models are drawn


def run(settings: Settings, say: Say = lambda line: None) -> tuple[Path, StudyResult]:
    """Run the study into `settings.output`; returns the report's path and all results."""
    parts = (MethodResult, Descent, LargestStep, Basins, FlooredRun, TransportComparison)
    kept = Kept(settings.output / "runs", *parts)
    return run_study(
        *(NAME, settings, say),
        compute=partial(compute, kept=kept),
        draw=_draw,
        page=text.page,
    )


def _draw(result: StudyResult, folder: Path) -> dict[str, Path]:
    return figures.draw(result, folder) | fit_figures.draw(result.fits, folder)


def compute(settings: Settings, say: Say, kept: Kept = Kept(None)) -> StudyResult:
    """All numbers, no files but those of finished methods."""
    clock = perf_counter()
    seconds: dict[str, float] = {}

    def lap(part: str) -> None:
        nonlocal clock
        seconds[part] = perf_counter() - clock
        clock = perf_counter()
        say(f"{part}: {seconds[part]:.1f} s")

    landscape = explore(settings.points, settings.map_points)
    lap("landscape")

    chosen = ("GD", "W2", *settings.metrics)
    methods = [method for method in paper_methods(settings.points) if method.key in chosen]
    methods.append(corrected_wasserstein(settings.points))
    costly_first = sorted(methods, key=lambda m: not m.key.startswith("W2"))

    def found(method: Method) -> MethodResult:
        make = partial(_study_method, method, settings, landscape)
        return kept.part(f"method-{method.key}", make, method=method)

    comparing = partial(compare, settings.points, settings.refinement)
    flooring = partial(_floored, settings, landscape)
    with threads(settings.workers) as pool:
        comparison = pool.submit(kept.part, "transport", comparing)
        floored = pool.submit(kept.part, "floored", flooring)
        results = {entry.method.key: entry for entry in pool.map(found, costly_first)}
        transport, floored_run = comparison.result(), floored.result()
    lap("the paper's problem")

    grid = fit.fit_grid(settings.fit_points)
    problem = fit.fit_problem(grid)
    entrants = [c for c in fit.contestants(grid) if c.key in settings.fit_methods]
    files = {entrant.key: kept.path(f"fit-{entrant.key}") for entrant in entrants}
    waiting = [entrant for entrant in entrants if not fit.finished(files[entrant.key])]
    with threads(settings.workers) as pool:
        list(pool.map(lambda c: fit.compile_only(problem, c), waiting))
    fits = [fit.run(problem, c, settings.fit_iterations, files[c.key]) for c in entrants]
    lap("all parameters free")

    ordered = [results[method.key] for method in methods]
    return StudyResult(settings, landscape, ordered, floored_run, transport, fits, seconds)


def _study_method(method: Method, settings: Settings, landscape: Landscape) -> MethodResult:
    verdict = landscape.verdict
    start, bowl = np.array(START), np.array(BOWL_START)
    path = descend(method, start, verdict, Rule.of(tolerance=1e-10), settings.iterations)
    _, points = starts_in_domain(settings.arrows)
    matrix = lambda mu: np.asarray(
        information_matrix(method.problem, jnp.asarray(mu), metric=method.metric)
    )
    search = lambda point: largest_step(
        method, point, verdict, settings.step_iterations, settings.bisections
    )
    curvature = np.linalg.solve(matrix(landscape.minimum), landscape.hessian)
    iterates = path.path[: QUADRATIC_ITERATES if method.key in QUADRATIC else 1]
    return MethodResult(
        method=method,
        path=path,
        field=direction_field(method, points, verdict),
        steps={"from_start": search(start), "from_bowl": search(bowl)},
        local_limit=2 / float(np.linalg.eigvals(curvature).real.max()),
        basins=_basins(method, settings, verdict),
        matrices=np.array([matrix(mu) for mu in iterates]),
    )


def _basins(method: Method, settings: Settings, verdict: Verdict) -> Basins:
    starts, iterations = settings.basin_starts, settings.basin_iterations
    if method.transports:
        method = method.on(settings.basin_transport_points)
        iterations = settings.basin_transport_iterations
    return basins(method, verdict, starts, iterations)


def _floored(settings: Settings, landscape: Landscape) -> FlooredRun | None:
    if settings.floor is None:
        return None
    method = floored_wasserstein(settings.points, settings.floor)
    rule = Rule.of(tolerance=1e-10)
    path = descend(method, np.array(START), landscape.verdict, rule, MAX_ITERATIONS)
    matrix = information_matrix(method.problem, jnp.array(START), metric=method.metric)
    return FlooredRun(path, np.asarray(matrix))
