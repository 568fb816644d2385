"""Settings of the Gaussian mixture study; light to import, so that help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from natgrad.errors import InputError

from ..suggestions import check_names

Preset = Literal["demo", "paper"]
MAX_ITERATIONS = 400  # room for iterates in the compiled descent
QUADRATIC_ITERATES = 3  # iterates at which local models are drawn
METRICS = ("L2", "FR", "H1", "Hm1", "dotH1", "dotHm1")
FIT_METHODS = ("GD", "L2", "FR", "H1", "Hm1", "dotH1", "dotHm1", "W2", "mobility", "L2_LM")


@dataclass(frozen=True)
class Settings:
    """The Gaussian mixture study: eight metrics on the paper's problem, and a full mixture fit."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, or the full one."""
    output: Path = Path("results/gaussian-mixture")
    """Folder for results.json, figures and index.html."""
    metrics: tuple[str, ...] = METRICS
    """Metrics beside gradient descent and both W₂, among L2, FR, H1, Hm1, dotH1, dotHm1."""
    points: int = 70
    """Interior nodes per side of the paper's grid; even, or its W₂ matrix is singular."""
    iterations: int = 120
    """Iterations of the runs from the paper's starting point (5, 3), at most 400."""
    map_points: int = 91
    """Values of μ per side at which the loss is drawn."""
    arrows: int = 9
    """Arrows per side in the direction fields."""
    step_iterations: int = 40
    """Iterations over which a step must decrease the loss every time to count as monotone."""
    bisections: int = 1
    """Bisections in the search for the largest monotone step."""
    basin_starts: int = 6
    """Starts per side in the maps of basins."""
    basin_iterations: int = 300
    """Iterations after which a start counts as undecided."""
    basin_transport_iterations: int = 80
    """The same for W₂, whose iterations cost fifty times as much."""
    basin_transport_points: int = 36
    """Points per side of the grids on which W₂'s basins are computed; even."""
    refinement: tuple[int, ...] = (35, 70)
    """Cells per side at which the corrected W₂ metric is evaluated."""
    fit_points: int = 40
    """Cells per side in the fit of all parameters."""
    fit_iterations: int = 60
    """Iterations of each method in that fit."""
    fit_methods: tuple[str, ...] = ("GD", "L2", "Hm1", "W2", "L2_LM")
    """Methods of that fit, among GD, L2, FR, H1, Hm1, dotH1, dotHm1, W2, mobility, L2_LM."""
    floor: float | None = None
    """Also run the paper's W₂ with its density kept above this fraction of its maximum."""
    workers: int = 2
    """Threads that run methods side by side."""

    def check(self) -> None:
        """Raise `InputError` for a value the study cannot run with."""
        for name, least, most in _LIMITS:
            value = getattr(self, name)
            if not least <= value <= most:
                raise InputError(name, f"is {value}", f"a number from {least} to {most}")
        for name in ("points", "basin_transport_points"):
            if getattr(self, name) % 2:
                raise InputError(name, f"{getattr(self, name)} is odd", "an even number")
        for name, known in (("metrics", METRICS), ("fit_methods", FIT_METHODS)):
            check_names(name, getattr(self, name), known)
        if not self.fit_methods:
            raise InputError("fit_methods", "are empty", "some of " + ", ".join(FIT_METHODS))
        if self.floor is not None and not 0 < self.floor < 1:
            raise InputError("floor", f"is {self.floor}", "a number between 0 and 1, such as 1e-3")
        if not self.refinement or not all(4 <= n <= 1000 for n in self.refinement):
            raise InputError("refinement", f"is {self.refinement}", "numbers from 4 to 1000")


_LIMITS = (
    ("points", 10, 1000),
    ("basin_transport_points", 10, 1000),
    ("iterations", QUADRATIC_ITERATES, MAX_ITERATIONS),
    ("map_points", 20, 2000),
    ("arrows", 2, 200),
    ("step_iterations", 1, MAX_ITERATIONS),
    ("bisections", 0, 60),
    ("basin_starts", 1, 500),
    ("basin_iterations", 1, MAX_ITERATIONS),
    ("basin_transport_iterations", 1, MAX_ITERATIONS),
    ("fit_points", 8, 1000),
    ("fit_iterations", 1, 100_000),
    ("workers", 1, 256),
)

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
