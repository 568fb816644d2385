"""The study: every method on the paper's problem, both schemes of W₂, and the fit."""

from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..keeping import Kept
from ..methods import one_by_one
from ..mixtures import BOWL_START, START
from ..running import Say, threads
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
from .fit import Fit, fit_grid, fit_problem, keep_fit, run_fit
from .landscape import ESCAPES, OUTCOMES, REACHES, UNDECIDED, Landscape, Verdict, explore
from .methods import (
    DAMPING,
    Method,
    contestants,
    corrected_wasserstein,
    floored_wasserstein,
    paper_methods,
)
from .settings import MAX_ITERATIONS, QUADRATIC_ITERATES, Settings
from .transport import TransportComparison, compare_schemes

QUADRATIC = ("GD", "L2", "W2", "W2_staggered")  # the methods whose local models are drawn


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodResult:
    """Everything computed for one method on the paper's problem."""

    method: Method
    path: Descent
    field: np.ndarray
    steps: dict[str, LargestStep]
    local_limit: float
    basins: Basins
    matrices: np.ndarray  # G at the first iterates

    def numbers(self, weight: float) -> dict[str, object]:
        """What the results file holds; losses in the paper's convention f/w."""
        unit = self.method.paper_step / self.method.step
        path, area = self.path, self.basins
        return {
            "name": self.method.name,
            "paper_step": self.method.paper_step,
            "our_step": self.method.step,
            "outcome": OUTCOMES[path.outcome],
            "iterations": path.iterations,
            "first_iterate_outside": path.first_outside,
            "loss_rises": path.rises,
            "end": path.path[-1],
            "end_loss": path.losses[-1] / weight,
            "path": path.path,
            "losses": path.losses / weight,
            "eta_start": (path.path[1] - path.path[0]) / self.method.step,
            "G_start": self.matrices[0],
            "largest_monotone_step": {
                name: {
                    "step_in_the_papers_units": found.step * unit,
                    "bounded": found.bounded,
                    "outcome": OUTCOMES[found.run.outcome],
                    "iterations": found.run.iterations,
                }
                for name, found in self.steps.items()
            },
            "local_step_limit_at_minimum": self.local_limit * unit,
            "basins": {
                "reach": area.count(REACHES),
                "escape": area.count(ESCAPES),
                "undecided": area.count(UNDECIDED),
                "loss_rose": int(area.rose.sum()),
                "side": area.side,
                "outcome": area.outcome,
                "iterations": area.iterations,
            },
        }


@dataclass(frozen=True)
class FlooredRun:
    """The paper's W₂ scheme with a floor under the density: its path, and G at the start."""

    path: Descent
    matrix: np.ndarray

    def numbers(self, weight: float) -> dict[str, object]:
        """What the results file holds."""
        return {
            "outcome": OUTCOMES[self.path.outcome],
            "G_start": self.matrix,
            "path": self.path.path,
            "losses": self.path.losses / weight,
        }


@dataclass(frozen=True)
class StudyResult:
    """Everything the figures and the report draw on."""

    settings: Settings
    landscape: Landscape
    methods: list[MethodResult]
    floored: FlooredRun | None
    transport: TransportComparison
    fits: list[Fit]
    seconds: dict[str, float]

    def __getitem__(self, key: str) -> MethodResult:
        return next(entry for entry in self.methods if entry.method.key == key)

    def numbers(self) -> dict[str, Any]:
        """The results file."""
        weight = self.landscape.weight
        return {
            "seconds": self.seconds,
            "landscape": self.landscape.numbers(),
            "methods": {entry.method.key: entry.numbers(weight) for entry in self.methods},
            "w2_floored": None if self.floored is None else self.floored.numbers(weight),
            "transport": self.transport.numbers(),
            "fit": {
                "damping": DAMPING,
                "methods": {entry.contestant.key: entry.numbers() for entry in self.fits},
            },
        }


# --- the whole study ------------------------------------------------------------------------------


KEPT = (MethodResult, Descent, LargestStep, Basins, FlooredRun, TransportComparison)


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
    costly_first = sorted(methods, key=lambda method: not method.transports)

    def found(method: Method) -> MethodResult:
        make = partial(study_method, method, settings, landscape)
        return kept.part(f"method-{method.key}", make, method=method)

    comparing = partial(compare_schemes, settings.points, settings.refinement)
    flooring = partial(run_floored, settings, landscape)
    with threads(settings.workers) as pool:
        comparison = pool.submit(kept.part, "transport", comparing)
        floored = pool.submit(kept.part, "floored", flooring)
        results = {entry.method.key: entry for entry in pool.map(found, costly_first)}
        transport, floored_run = comparison.result(), floored.result()
    lap("the paper's problem")

    grid = fit_grid(settings.fit_points)
    problem = fit_problem(grid)
    entrants = [c for c in contestants(grid) if c.key in settings.fit_methods]
    files = {entrant.key: kept.path(f"fit-{entrant.key}") for entrant in entrants}
    waiting = [c for c in entrants if (path := files[c.key]) is None or not path.exists()]
    with threads(settings.workers) as pool:
        list(pool.map(lambda c: run_fit(problem, c, 1), waiting))
    most = settings.fit_iterations
    fits = [keep_fit(problem, c, most, files[c.key]) for c in one_by_one(entrants)]
    lap("all parameters free")

    ordered = [results[method.key] for method in methods]
    return StudyResult(settings, landscape, ordered, floored_run, transport, fits, seconds)


def study_method(method: Method, settings: Settings, landscape: Landscape) -> MethodResult:
    """Its path, directions, largest steps, basins and local models."""
    verdict = landscape.verdict
    start, bowl = np.array(START), np.array(BOWL_START)
    path = descend(method, start, verdict, Rule.of(tolerance=1e-10), settings.iterations)
    _, points = starts_in_domain(settings.arrows)
    matrix = lambda mu: np.asarray(method.information(mu))
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


def run_floored(settings: Settings, landscape: Landscape) -> FlooredRun | None:
    """The paper's W₂ with a floor under the density, where one is asked for."""
    if settings.floor is None:
        return None
    method = floored_wasserstein(settings.points, settings.floor)
    rule = Rule.of(tolerance=1e-10)
    path = descend(method, np.array(START), landscape.verdict, rule, MAX_ITERATIONS)
    return FlooredRun(path, np.asarray(method.information(START)))
