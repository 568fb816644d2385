"""Settings of the Darcy study; light to import, so that help is quick."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Among, Between, StudySettings

Preset = Literal["demo", "paper"]
EVERY = {"wells": 4, "everywhere": 1}  # the pressure is known in every so-many-th cell
ENTRANTS = (
    *("GD", "LBFGS", "LBFGS_long", "Newton", "L2", "L2_H1", "H1", "dotH1", "Hm1", "dotHm1"),
    *("W2", "W2_L2"),
)
PRIOR = "_prior"
METHODS = (*ENTRANTS, *(key + PRIOR for key in ENTRANTS), "L2_damped")


@dataclass(frozen=True)
class Settings(StudySettings):
    """The Darcy study: a permeability field from pressures, by natural gradients and L-BFGS."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, or the full one."""
    output: Path = Path("results/darcy")
    """Folder for results.json and index.html."""
    cells: int = 32
    """Cells per side of the inversion's grid, a multiple of 8; p is its square."""
    variants: Annotated[tuple[str, ...], Among(tuple(EVERY))] = ("wells",)
    """Where the pressure is known: wells (every fourth cell in each direction), everywhere."""
    methods: Annotated[tuple[str, ...], Among(METHODS)] = (
        *("LBFGS_long", "L2"),
        *("GD_prior", "LBFGS_prior", "LBFGS_long_prior", "L2_prior"),
    )
    """Among GD, LBFGS, LBFGS_long, Newton, L2, L2_H1, H1, dotH1, Hm1, dotHm1, W2, W2_L2 for the
    parameters m, the same with the suffix _prior for coordinates in which the smoothness prior is
    white, and L2_damped for m with that prior as damping and as preconditioner."""
    sources: Annotated[int, Between(1, 8)] = 3
    """Wells that inject, per side."""
    width: Annotated[float, Between(0.001, 0.5)] = 0.05
    """Standard deviation of a source, as a share of the side."""
    noise: Annotated[float, Between(1e-6, 1.0)] = 0.02
    """Standard deviation of the noise, relative to the rms of the observed pressures."""
    seed: Annotated[int, Between(0, 2**31)] = 2
    """Seed of the permeability; that of the noise is the next."""
    discrepancy: Annotated[float, Between(0.5, 10.0)] = 1.02
    """τ: a run ends when the rms misfit is τ times the noise."""
    correlation: Annotated[float, Between(0.001, 1.0)] = 0.03
    """Correlation length ℓ of the smoothness prior, as a share of the side."""
    pairs: Annotated[int, Between(1, 1000)] = 60
    """Pairs that the long L-BFGS keeps."""
    max_propagations: Annotated[int, Between(1, 10**6)] = 150
    """Propagations after which a run ends that has not reached the noise."""
    posterior_rank: Annotated[int, Between(0, 10_000)] = 100
    """Eigenpairs of the information matrix for the approximate posterior, of the first variant
    and after the method L2_prior; 0 leaves it out."""

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        if self.cells % 8 or not 8 <= self.cells <= 1024:
            yield "cells", f"is {self.cells}", "a multiple of 8 from 8 to 1024"


PRESETS: dict[Preset, Settings] = {
    "demo": Settings(),
    "paper": Settings(
        preset="paper",
        cells=128,
        noise=0.01,
        variants=tuple(EVERY),
        methods=(
            *("GD", "LBFGS", "LBFGS_long", "Newton", "L2"),
            *(key + PRIOR for key in ENTRANTS),
            "L2_damped",
        ),
        max_propagations=300,
        posterior_rank=500,
    ),
}
