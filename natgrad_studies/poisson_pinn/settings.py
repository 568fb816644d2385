"""Settings of the PINN study; light to import, so that help is quick."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from ..settings import Among, Between, StudySettings

Preset = Literal["demo", "reduced", "paper"]
Fidelity = Literal["ours", "authors"]
METRICS = ("GD", "L2", "FR", "H1", "dotH1", "Hm1", "dotHm1", "W2")
RIVALS = ("LBFGS", "Adam")
RESIDUAL = ("GN", "LM", "LM3")
METHODS = (*METRICS, *RIVALS, *RESIDUAL)
BATCHED = ("L2", "FR", "LM3")


@dataclass(frozen=True)
class Settings(StudySettings):
    """The PINN study: Poisson's equation by a network, in eight metrics and by rivals."""

    preset: Preset = "demo"
    """The defaults of all other settings: a small run, all methods on a smaller grid and network,
    or the paper's problem."""
    output: Path = Path("results/poisson-pinn")
    """Folder for results.json and index.html."""
    fidelity: Fidelity = "ours"
    """ours: damped natural gradients with backtracking. authors: what the paper's authors ran,
    SciPy's Newton-CG with G as its Hessian, no damping and their operators."""
    points: int = 20
    """Grid points per side, an even number; the inner ones see the equation, the outer ones the
    boundary condition."""
    layers: tuple[int, ...] = (12, 12)
    """Widths of the hidden layers."""
    seed: Annotated[int, Between(0, 2**31)] = 0
    """Seed of the network's weights, and of the mini-batches."""
    gamma: Annotated[float, Between(1e-6, 1.999)] = 0.01
    """γ: the equation has this weight in the loss, the boundary condition 2 − γ."""
    methods: Annotated[tuple[str, ...], Among(METHODS)] = ("GD", "L2", "H1", "LBFGS", "LM", "LM3")
    """Among GD, L2, FR, H1, dotH1, Hm1, dotHm1, W2 (metrics on the network's values), LBFGS, Adam,
    and GN, LM, LM3 (Gauss–Newton on the residuals; Levenberg–Marquardt along straight lines and
    along curves of third order)."""
    batched: Annotated[tuple[str, ...], Among(BATCHED, optional=True)] = ("L2",)
    """Methods that are run on mini-batches of points too: L2, FR, LM3."""
    batch: Annotated[int, Between(1, 10**6)] = 200
    """Points in a mini-batch."""
    damping: Annotated[float, Between(1e-12, 1e3)] = 1e-4
    """λ of the metrics on values over the mean eigenvalue of G, trace(G)/p."""
    batch_damping: Annotated[float, Between(1e-12, 1e6)] = 0.01
    """The same on mini-batches, whose G knows less than the loss on all points asks for."""
    memory: Annotated[int, Between(1, 1000)] = 50
    """Pairs that L-BFGS keeps."""
    rate: Annotated[float, Between(1e-8, 1.0)] = 3e-3
    """The learning rate of Adam."""
    seconds: Annotated[float, Between(0.01, 1e6)] = 1.5
    """CPU seconds that every run may spend, without compiling."""
    max_iterations: Annotated[int, Between(1, 10**7)] = 1000
    """Iterations of a run at most; those of GD, LBFGS and Adam are cheap and not counted."""

    def conflicts(self) -> Iterator[tuple[str, str, str]]:
        for name in ("methods", "batched"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                yield name, "name a method twice", "each of them once"
        if self.points % 2 or not 6 <= self.points <= 200:
            yield "points", f"is {self.points}", "an even number from 6 to 200"
        if not self.layers or not all(1 <= width <= 500 for width in self.layers):
            yield "layers", f"are {self.layers}", "widths from 1 to 500, such as 20 30"
        if self.fidelity == "authors" and self.batched:
            what = "the authors' variant has no mini-batches"
            yield "batched", what, "none: --batched without values"
        if self.batched and self.batch > self.points**2:
            what = f"{self.batch} points of {self.points**2} cannot be drawn"
            yield "batch", what, f"at most {self.points**2}"


_REDUCED = Settings(
    preset="reduced",
    points=30,
    layers=(16, 16, 16),
    methods=METHODS,
    batched=BATCHED,
    batch=300,
    seconds=10.0,
    max_iterations=5000,
)
PRESETS: dict[Preset, Settings] = {
    "demo": Settings(),
    "reduced": _REDUCED,
    "paper": replace(
        _REDUCED, preset="paper", points=50, layers=(20, 30, 20), batch=500, seconds=40.0
    ),
}
