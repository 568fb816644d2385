"""Settings of the record book; light to import, so that help is quick."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Among, Between, StudySettings

Preset = Literal["small", "full", "gpu"]
PROBLEMS = (
    *("helmholtz", "helmholtz-50", "burgers", "allen-cahn", "convection", "kdv", "reaction"),
    *("ks", "cavity-100", "cavity-3200", "poisson-5d", "poisson-10d", "heat-4d"),
    "burgers-inverse",
)
METHODS = (
    *("LM", "LBFGS", "Adam", "Muon", "SOAP", "SSBroyden", "optimistix"),
    *("JAX-NG", "rla-pinns"),
)
NEEDS = {"Adam": "optax", "Muon": "optax", "SSBroyden": "optax", "optimistix": "optimistix"}
HELMHOLTZ = ("helmholtz", "helmholtz-50")
MANY_DIMENSIONS = ("poisson-5d", "poisson-10d", "heat-4d")
CHECKOUTS = {"JAX-NG": ("jax_ng", HELMHOLTZ), "rla-pinns": ("rla_pinns", MANY_DIMENSIONS)}


@dataclass(frozen=True)
class Settings(StudySettings):
    """The record book: standard problems for physics-informed networks, with the same settings."""

    preset: Preset = "small"
    """The defaults of all other settings. small: two problems with small networks, three minutes on
    two cores. full: all problems at full size, a minute each on an accelerator. gpu: the same, in
    calls of nine minutes."""
    output: Path = Path("results/records")
    """Folder for results.json and index.html."""
    problems: Annotated[tuple[str, ...], Among(PROBLEMS)] = ("helmholtz", "reaction")
    """Which problems."""
    methods: Annotated[tuple[str, ...], Among(METHODS)] = ("LM", "LBFGS")
    """LM (the recipe `ng.levenberg_marquardt`) and its rivals: LBFGS, Adam, Muon, SOAP, SSBroyden,
    optimistix (its Levenberg–Marquardt), JAX-NG and rla-pinns (the last two from a checkout, on
    their own problems)."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the network's weights and of the points; one run for each."""
    seconds: Annotated[float, Between(0.01, 1e6)] = 35.0
    """Seconds of a run, compilation included; some problems have twice as many."""
    points: Annotated[float, Between(0.001, 100)] = 0.2
    """Factor on the number of points that each problem has at full size."""
    width: Annotated[float, Between(0.01, 100)] = 0.5
    """Factor on the width of the hidden layers."""
    period: Annotated[int, Between(-1, 10**6)] = -1
    """Iterations between new points; 0 for fixed points, −1 for the problem's own period."""
    adaptive: Annotated[int, Between(0, 1000)] = 0
    """Where points are redrawn, those inside are chosen by their residuals from this many times as
    many candidates; 0 draws them evenly."""
    order: Annotated[int, Between(1, 5)] = 3
    """The order of the curve that LM follows."""
    decrease: Annotated[float, Between(1e-6, 0.999)] = 1 / 3
    """The factor on LM's damping after a step that went well, taken twice after one foreseen."""
    rate: Annotated[float, Between(1e-8, 1.0)] = 1e-3
    """The learning rate of Adam, Muon and SOAP."""
    jax_ng: Path | None = None
    """The folder of a checkout of JAX-NG, for its method."""
    rla_pinns: Path | None = None
    """The folder of a checkout of rla-pinns, for its method."""
    within: Annotated[float, Between(1.0, 1e9)] = 1e9
    """Seconds of this call: no run starts that would end later. The same command continues."""
    workers: Annotated[int, Between(1, 1024)] = 1
    """Runs at a time, each in a process: with a core of its own, or a share of an accelerator."""
    parts: tuple[Path, ...] = ()
    """Folders of this study whose finished runs are included. Their settings may differ only in
    problems, methods and seeds."""

    def runs(self, problem: str, method: str) -> bool:
        """Whether the method takes this problem: those from checkouts take their own."""
        return method not in CHECKOUTS or problem in CHECKOUTS[method][1]

    def processes(self) -> int:
        return self.workers

    def packages(self) -> dict[str, str]:
        return {method: NEEDS[method] for method in self.methods if method in NEEDS}

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        longest = 2 * self.seconds
        if self.within < longest:
            yield "within", f"is {self.within:g} s, less than a run", f"{2 * longest:g} or more"
        for name in ("problems", "methods", "seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                yield name, "name one twice", "each of them once"
        if not self.seeds or min(self.seeds) < 0:
            yield "seeds", f"are {self.seeds}", "numbers from 0 on, such as 0 1 2"
        if self.adaptive and self.period <= 0:
            yield (
                "adaptive",
                f"is {self.adaptive} with points that stay",
                "period=50, or adaptive=0",
            )
        for method in self.methods:
            name, own = CHECKOUTS.get(method, ("", ()))
            folder = getattr(self, name, None)
            if own and (folder is None or not (folder / name).is_dir()):
                yield name, f"is {folder}, where {method} is not", "the folder of its checkout"
            if own and not set(own) & set(self.problems):
                yield "methods", f"{method} has none of the problems", "some of " + ", ".join(own)


PRESETS: dict[Preset, Settings] = {
    "small": Settings(),
    "full": Settings(
        preset="full",
        problems=PROBLEMS,
        methods=("LM",),
        seeds=(0, 1, 2),
        seconds=60.0,
        points=1.0,
        width=1.0,
    ),
}
PRESETS["gpu"] = replace(PRESETS["full"], preset="gpu", within=530.0)
