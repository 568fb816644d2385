"""Settings of the demo; light to import, so that help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Between, StudySettings

Preset = Literal["demo"]


@dataclass(frozen=True)
class Settings(StudySettings):
    """The demo: a network, waves and a density, by natgrad and by its usual rivals."""

    preset: Preset = "demo"
    """There is one."""
    output: Path = Path("results/demo")
    """Folder for results.json and index.html."""
    seconds: Annotated[float, Between(0.01, 1e6)] = 15.0
    """CPU seconds of each method on the network, without compiling."""
    propagations: Annotated[int, Between(2, 10**6)] = 100
    """Propagations of each method on the waves: solutions of the wave equation for all shots."""
    iterations: Annotated[int, Between(1, 10**6)] = 20
    """Iterations of each method on the density."""


PRESETS: dict[Preset, Settings] = {"demo": Settings()}
