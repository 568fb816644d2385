"""Settings of the Gaussian mixture study; light to import, so that help is quick."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Among, Between, StudySettings

Preset = Literal["demo", "paper"]
MAX_ITERATIONS = 400  # room for iterates in the compiled descent
QUADRATIC_ITERATES = 3  # iterates at which local models are drawn
METRICS = ("L2", "FR", "H1", "Hm1", "dotH1", "dotHm1")
FIT_METHODS = ("GD", "L2", "FR", "H1", "Hm1", "dotH1", "dotHm1", "W2", "mobility", "L2_LM")


@dataclass(frozen=True)
class Settings(StudySettings):
    """The Gaussian mixture study: eight metrics on the paper's problem, and a full mixture fit."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, or the full one."""
    output: Path = Path("results/gaussian-mixture")
    """Folder for results.json and index.html."""
    metrics: Annotated[tuple[str, ...], Among(METRICS, optional=True)] = METRICS
    """Metrics beside gradient descent and both W₂, among L2, FR, H1, Hm1, dotH1, dotHm1."""
    points: Annotated[int, Between(10, 1000)] = 70
    """Interior nodes per side of the paper's grid; even, or its W₂ matrix is singular."""
    iterations: Annotated[int, Between(QUADRATIC_ITERATES, MAX_ITERATIONS)] = 120
    """Iterations of the runs from the paper's starting point (5, 3), at most 400."""
    map_points: Annotated[int, Between(20, 2000)] = 91
    """Values of μ per side at which the loss is drawn."""
    arrows: Annotated[int, Between(2, 200)] = 9
    """Arrows per side in the direction fields."""
    step_iterations: Annotated[int, Between(1, MAX_ITERATIONS)] = 40
    """Iterations over which a step must decrease the loss every time to count as monotone."""
    bisections: Annotated[int, Between(0, 60)] = 1
    """Bisections in the search for the largest monotone step."""
    basin_starts: Annotated[int, Between(1, 500)] = 6
    """Starts per side in the maps of basins."""
    basin_iterations: Annotated[int, Between(1, MAX_ITERATIONS)] = 300
    """Iterations after which a start counts as undecided."""
    basin_transport_iterations: Annotated[int, Between(1, MAX_ITERATIONS)] = 80
    """The same for W₂, whose iterations cost fifty times as much."""
    basin_transport_points: Annotated[int, Between(10, 1000)] = 36
    """Points per side of the grids on which W₂'s basins are computed; even."""
    refinement: tuple[int, ...] = (35, 70)
    """Cells per side at which the corrected W₂ metric is evaluated."""
    fit_points: Annotated[int, Between(8, 1000)] = 40
    """Cells per side in the fit of all parameters."""
    fit_iterations: Annotated[int, Between(1, 100_000)] = 60
    """Iterations of each method in that fit."""
    fit_methods: Annotated[tuple[str, ...], Among(FIT_METHODS)] = ("GD", "L2", "Hm1", "W2", "L2_LM")
    """Methods of that fit, among GD, L2, FR, H1, Hm1, dotH1, dotHm1, W2, mobility, L2_LM."""
    floor: float | None = None
    """Also run the paper's W₂ with its density kept above this fraction of its maximum."""
    workers: Annotated[int, Between(1, 256)] = 2
    """Threads that run methods side by side."""

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        for name in ("points", "basin_transport_points"):
            if getattr(self, name) % 2:
                yield name, f"{getattr(self, name)} is odd", "an even number"
        if self.floor is not None and not 0 < self.floor < 1:
            yield "floor", f"is {self.floor}", "a number between 0 and 1, such as 1e-3"
        if not self.refinement or not all(4 <= n <= 1000 for n in self.refinement):
            yield "refinement", f"is {self.refinement}", "numbers from 4 to 1000"


PRESETS: dict[Preset, Settings] = {
    "demo": Settings(),
    "paper": Settings(
        preset="paper",
        iterations=200,
        map_points=161,
        arrows=17,
        step_iterations=200,
        bisections=5,
        basin_starts=12,
        basin_iterations=400,
        basin_transport_iterations=150,
        basin_transport_points=70,
        refinement=(35, 70, 140, 280),
        fit_points=64,
        fit_iterations=200,
        fit_methods=FIT_METHODS,
        floor=1e-3,
    ),
}
