"""The page of a comparison: who wins under which budget, and how."""

import numpy as np

from ..comparison import Comparison
from ..landscape import landscape
from ..plot import two_parameter_path
from ..result import AXES
from .folder import machine, versions
from .page import Page, Part, Section
from .paths import Landscape, Paths, Track
from .result_page import convergence, look


def comparison_page(comparison: Comparison) -> Page:
    """Tables, curves, and paths where there are two parameters."""
    ahead: list[Part] = [comparison.winners(), comparison.table()]
    ahead += [f"{name} could not run: {why}" for name, why in comparison.failures.items()]
    sections = [
        Section("Who wins", ahead),
        Section("Curves of all runs", convergence(comparison.results)),
        *_paths(comparison),
    ]
    lead = (
        "Ahead in the end: "
        + ", ".join(f"{n} by {axis}" for axis, n in comparison.leaders.items())
        + "."
    )
    limits = {name: value for name in AXES if (value := getattr(comparison.budget, name))}
    return Page("Comparison", lead, sections, {"budget": limits}, versions(), machine())


def _paths(comparison: Comparison) -> list[Section]:
    results = {name: result for name, result in comparison.results.items() if result.iterates}
    sizes = {np.size(result.theta) for result in results.values() if hasattr(result.theta, "size")}
    if not results or sizes != {2}:
        return []
    ways = {name: two_parameter_path(result) for name, result in results.items()}
    tracks = [
        Track(
            name,
            ways[name],
            *look(number),
            losses=result.history["loss"][list(result.iterates)],
            iterations=list(result.iterates),
        )
        for number, (name, result) in enumerate(results.items())
    ]
    ground, problem = None, comparison.problem
    if problem is not None:
        like = next(iter(results.values())).theta
        seen = landscape(problem, like, np.concatenate(list(ways.values())))
        ground = Landscape.of(seen.x, seen.y, seen.values)
    over = "" if ground is None else " over the level sets of f"
    return [Section("Paths", [Paths(tracks, f"The iterates{over}.", ground)])]
