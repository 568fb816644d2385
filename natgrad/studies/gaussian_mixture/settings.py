"""Settings of the Gaussian mixture study; light to import, so that help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Preset = Literal["demo", "paper"]
FIT_METHODS = ("GD", "L2", "FR", "H1", "Hm1", "dotH1", "dotHm1", "W2", "mobility", "L2_LM")


@dataclass(frozen=True)
class Settings:
    """The Gaussian mixture study: eight metrics on the paper's problem, and a full mixture fit."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, or the full one."""
    output: Path = Path("results/gaussian-mixture")
    """Folder for results.json, figures and index.html."""
    points: int = 70
    """Interior nodes per side of the paper's grid; even, or its W₂ matrix is singular."""
    iterations: int = 200
    """Iterations of the runs from the paper's starting point (5, 3)."""
    map_points: int = 101
    """Values of μ per side at which the loss is drawn."""
    arrows: int = 13
    """Arrows per side in the direction fields."""
    step_iterations: int = 100
    """Iterations over which a step must decrease the loss every time to count as monotone."""
    bisections: int = 2
    """Bisections in the search for the largest monotone step."""
    basin_starts: int = 8
    """Starts per side in the maps of basins."""
    basin_iterations: int = 60
    """Iterations after which a start counts as undecided."""
    refinement: tuple[int, ...] = (35, 70)
    """Cells per side at which the corrected W₂ metric is evaluated."""
    fit_points: int = 40
    """Cells per side in the fit of all parameters."""
    fit_iterations: int = 60
    """Iterations of each method in that fit."""
    fit_methods: tuple[str, ...] = ("GD", "L2", "FR", "Hm1", "W2", "L2_LM")
    """Methods of that fit, among GD, L2, FR, H1, Hm1, dotH1, dotHm1, W2, mobility, L2_LM."""
    floor: float | None = None
    """Also run the paper's W₂ with its density kept above this fraction of its maximum."""
    workers: int = 2
    """Threads that run methods side by side."""

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} = {value}: a positive integer is needed")
        if self.points % 2:
            raise ValueError(f"points = {self.points}: an even number is needed")
        for name, least in (("points", 10), ("map_points", 20), ("arrows", 2), ("fit_points", 8)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: at least {least} are needed")
        unknown = set(self.fit_methods) - set(FIT_METHODS)
        if unknown or not self.fit_methods:
            raise ValueError(f"fit_methods = {self.fit_methods}: some of {FIT_METHODS} are needed")
        if self.floor is not None and not 0 < self.floor < 1:
            raise ValueError(f"floor = {self.floor}: a number between 0 and 1 is needed")
        if not self.refinement or min(self.refinement) < 4:
            raise ValueError(f"refinement = {self.refinement}: numbers of at least 4 are needed")


PRESETS: dict[Preset, Settings] = {
    "demo": Settings(),
    "paper": Settings(
        preset="paper",
        map_points=161,
        arrows=17,
        step_iterations=200,
        bisections=5,
        basin_starts=20,
        basin_iterations=300,
        refinement=(35, 70, 140, 280),
        fit_points=64,
        fit_iterations=200,
        fit_methods=FIT_METHODS,
        floor=1e-4,
    ),
}
