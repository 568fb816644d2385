"""The iterates that runs have kept: paths of two parameters, or fields with a slider."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..plot import landscape
from ..problem import Problem
from ..result import Result
from .frames import Frames
from .page import Part
from .palette import RUN_COLOURS
from .paths import Landscape, Paths, Track

DASHES = ("-", "--", ":", "-.")
MOST_FRAMES = 40


def look(number: int) -> tuple[str, str]:
    """The colour and dash of a run: seven colours, then the same with another dash."""
    return RUN_COLOURS[number % len(RUN_COLOURS)], DASHES[number // len(RUN_COLOURS) % len(DASHES)]


def iterate_plots(results: Mapping[str, Result], problem: Problem | None = None) -> list[Part]:
    """Paths over the loss for two parameters, images for a field; nothing for other θ."""
    arrays = {name: _arrays(result) for name, result in results.items()}
    arrays = {name: kept for name, kept in arrays.items() if kept}
    shapes = {array.shape for kept in arrays.values() for array in kept.values()}
    if len(shapes) != 1:
        return []
    (shape,) = shapes
    if shape == (2,):
        return [_paths(results, arrays, problem)]
    if len(shape) == 2 and min(shape) > 1:
        return [Frames.of(_frames(arrays), "θ, its first index downward.")]
    return []


def _paths(
    results: Mapping[str, Result], arrays: dict[str, dict[int, np.ndarray]], problem: Problem | None
) -> Paths:
    tracks = [
        Track(
            name,
            np.stack(list(kept.values())),
            *look(number),
            losses=results[name].history["loss"][list(kept)],
            iterations=list(kept),
        )
        for number, (name, kept) in enumerate(arrays.items())
    ]
    if problem is None:
        return Paths(tracks, "The path of θ.")
    around = np.concatenate([np.stack(list(kept.values())) for kept in arrays.values()])
    seen = landscape(problem, results[tracks[0].name].theta, around)
    ground = Landscape.of(seen.x, seen.y, seen.values)
    return Paths(tracks, "The path of θ over the level sets of f.", ground)


def _frames(arrays: dict[str, dict[int, np.ndarray]]) -> dict[str, list[tuple[str, np.ndarray]]]:
    found = {}
    for name, kept in arrays.items():
        every = -(-len(kept) // MOST_FRAMES)
        steps = sorted({*list(kept)[::every], max(kept)})
        found[name] = [(f"iteration {step}", kept[step]) for step in steps]
    return found


def _arrays(result: Result) -> dict[int, np.ndarray]:
    """The iterates as arrays, if θ is one."""
    kept = sorted(result.iterates.items())
    return {step: np.asarray(theta, float) for step, theta in kept if _is_array(theta)}


def _is_array(theta: Any) -> bool:
    return getattr(getattr(theta, "dtype", None), "kind", "") == "f"
